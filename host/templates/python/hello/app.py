"""Counts the orders of each customer, and says hello at the first."""

from event_host import Event, Reject, emit, handler, log, state


@handler
def work(event: Event) -> None:
    customer = event.json().get("customer")
    if not isinstance(customer, str):
        raise Reject("the order names no customer")

    key = f"orders/{customer}"
    orders = state.get(key, 0) + 1
    state.set(key, orders)
    log.info(f"order {orders} of {customer}")

    if orders == 1:
        emit("customer.greeted", {"text": f"Hello, {customer}!"}, subject=customer)
