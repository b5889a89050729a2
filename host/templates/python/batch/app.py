"""Counts orders, with one write to the state and one event for all orders of a call."""

from event_host import Event, Reject, batch_handler, emit, log, state


@batch_handler
def work(events: list[Event]) -> list[Exception | None]:
    """Gives a result for each event: None, or an exception.

    If one is an exception, nothing of the call counts, and the host calls again with each
    event by itself.
    """
    results = [check(event) for event in events]
    if not any(results):
        total = state.get("orders", 0) + len(events)
        state.set("orders", total)
        log.info(f"{len(events)} orders, {total} in all")
        emit("orders.counted", {"orders": len(events), "total": total})
    return results


def check(event: Event) -> Exception | None:
    try:
        customer = event.json().get("customer")
    except Exception as error:  # what json() raises where the data is no JSON
        return error
    return None if isinstance(customer, str) else Reject("the order names no customer")
