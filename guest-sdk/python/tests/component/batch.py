"""The handler of batches that guest-sdk/conformance/README.md describes."""

from __future__ import annotations

from event_host import Event, Reject, batch_handler, emit, state


@batch_handler
def work(events: list[Event]) -> list[Exception | None]:
    state.set("count", state.get("count", 0) + len(events))
    orders = [event.json() for event in events]
    emit("batch.done", {"ids": [order["id"] for order in orders]})
    return [Reject(f"no to {order['name']}") if order.get("cmd") == "reject" else None for order in orders]
