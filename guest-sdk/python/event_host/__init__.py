"""Write event-host handlers in Python.

A handler is a plain function. The host calls it with one event at a time. What it emits or
writes to its state is kept when, and only when, it returns, in the same transaction that
marks the event as done::

    from event_host import handler, emit, state

    @handler
    def work(event):
        order = event.json()
        state.set("orders", state.get("orders", 0) + 1)
        emit("order.seen", {"id": order["id"]})

=================  ===============================================================
the function       what the host does
=================  ===============================================================
returns            the event is done
raises `Retry`     calls again later, with backoff; after the last attempt the
                   event becomes a dead letter
raises `Reject`    makes the event a dead letter at once
raises anything    as for `Retry`, with the exception, its traceback and its
else               causes as the reason
=================  ===============================================================

An exception that was raised `from` a `Retry` or a `Reject` is one.
"""

from . import context, log, state
from ._event import Event, ExtensionValue
from ._failure import InvalidEvent, Reject, Retry
from ._handler import batch_handler, handler
from ._outbox import EmitError, emit
from .state import StateError

__version__ = "0.1.0"

__all__ = [
    "EmitError",
    "Event",
    "ExtensionValue",
    "InvalidEvent",
    "Reject",
    "Retry",
    "StateError",
    "batch_handler",
    "context",
    "emit",
    "handler",
    "log",
    "state",
]
