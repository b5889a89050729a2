"""The handler that guest-sdk/conformance/README.md describes."""

from collections.abc import Callable
from typing import Any

from event_host import Event, Reject, Retry, context, emit, handler, log, state


def retry(event: Event, order: dict[str, Any]) -> None:
    if event.attempt < order["until"]:
        raise Retry(f"not before attempt {order['until']}", after=0.05)


def reject(_: Event, order: dict[str, Any]) -> None:
    raise Reject(f"no to {order['name']}")


def boom(event: Event, _: dict[str, Any]) -> None:
    print(1 // (event.attempt - event.attempt))


def say(_: Event, order: dict[str, Any]) -> None:
    print(f"printed {order['name']}")


def denied(_: Event, __: dict[str, Any]) -> None:
    emit("forbidden.type", {})


def keep(_: Event, __: dict[str, Any]) -> None:
    state.set_bytes("bytes", bytes([0, 255, 10]))
    state.set("list", [1, "ü", None, {"a": True}])
    state.set("gone", 1)
    state.delete("gone")
    kept = state.get_bytes("bytes") or b""
    gone = state.get("gone") is None
    emit("state.seen", {"bytes": list(kept), "list": state.get("list"), "gone": gone, "keys": state.keys("", 10)})


def ask(_: Event, __: dict[str, Any]) -> None:
    emit(
        "context.seen",
        {
            "group": context.group(),
            "tenant": context.tenant(),
            "left": 0 < context.remaining_ms() <= 10_000,
            "replay": context.is_replay(),
            "late": context.is_late(),
        },
    )


async def later(_: Event, __: dict[str, Any]) -> None:
    emit("never", {})


COMMANDS: dict[str, Callable[[Event, dict[str, Any]], object]] = {
    "retry": retry,
    "reject": reject,
    "boom": boom,
    "print": say,
    "denied": denied,
    "state": keep,
    "context": ask,
    "async": later,
}


@handler
def work(event: Event) -> object:
    order = event.json()
    state.set("count", state.get("count", 0) + 1)
    log.info(f"order {order['id']} of {order['name']}")
    command = COMMANDS.get(order.get("cmd"))
    returned = command(event, order) if command else None
    emit(
        "order.done",
        {"id": order["id"], "name": order["name"], "attempt": event.attempt, "bytes": len(event.data)},
        subject=str(order["id"]),
        extensions=event.extensions,
    )
    return returned
