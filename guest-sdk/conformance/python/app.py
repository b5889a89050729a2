"""A handler of single events."""

from event_host import Event, handler
from orders import handle_order


@handler
def work(event: Event) -> object:
    return handle_order(event)
