"""What the conformance tests ask of a handler, of one event."""

import sys
from collections.abc import Callable
from typing import Any

from event_host import Event, Reject, Retry, context, emit, log, state

Order = dict[str, Any]


def retry(event: Event, _: Order) -> None:
    if event.attempt < 3:
        raise Retry(f"not yet: {event.attempt}", after=0.05)


def never(_: Event, __: Order) -> None:
    raise Retry("never", after=0.05)


def reject(_: Event, order: Order) -> None:
    raise Reject(f"no: {order['name']}")


def fail(_: Event, __: Order) -> None:
    raise RuntimeError("an ordinary error")


def boom(event: Event, _: Order) -> None:
    print("about to fall", file=sys.stderr)
    print(1 // (event.attempt - event.attempt))


def say(_: Event, __: Order) -> None:
    print("printed")


def invalid(_: Event, __: Order) -> None:
    emit("order.invalid", subject="")


def denied(_: Event, __: Order) -> None:
    emit("secret.spilled")


def empty(_: Event, __: Order) -> None:
    emit("order.empty")


def keep_bytes(_: Event, __: Order) -> None:
    state.set_bytes("raw", bytes([0, 255]))
    same(state.get_bytes("raw"), bytes([0, 255]))
    same(state.keys("ra", 10), ["raw"])
    state.delete("raw")
    same(state.get_bytes("raw"), None)


def keep_list(_: Event, __: Order) -> None:
    wanted = [1, "ü", None, {"a": True}]
    same(state.get("list", wanted), wanted)
    state.set("list", wanted)
    same(state.get("list"), wanted)


def late(event: Event, _: Order) -> None:
    if event.attempt < 2:
        state.set("count", -1)
        emit("order.never")
        raise Retry("too early")


async def later(_: Event, __: Order) -> None:
    emit("order.never")


COMMANDS: dict[str | None, Callable[[Event, Order], object]] = {
    "retry": retry,
    "never": never,
    "reject": reject,
    "error": fail,
    "boom": boom,
    "print": say,
    "invalid": invalid,
    "denied": denied,
    "empty": empty,
    "bytes": keep_bytes,
    "list": keep_list,
    "late": late,
    "async": later,
}


def same(value: object, wanted: object) -> None:
    if value != wanted:
        raise Reject(f"{value!r} is not {wanted!r}")


def handle_order(event: Event) -> Any:
    order: Order = event.json()
    log.info(f"order {order['id']} of {context.group()}")
    command = COMMANDS.get(order.get("cmd"))
    returned = command(event, order) if command else None

    count = state.get("count", 0) + 1
    state.set("count", count)
    answer = {
        "id": order["id"],
        "name": order["name"],
        "count": count,
        "attempt": event.attempt,
        "bytes": len(event.data),
        "group": context.group(),
        "tenant": context.tenant(),
        "left": 0 < context.remaining_ms() <= 10_000,
        "replay": context.is_replay(),
        "late": context.is_late(),
    }
    emit("order.done", answer, subject=str(order["id"]), extensions=event.extensions)
    return returned
