"""What a handler may know of the call it is in."""

from __future__ import annotations

from . import _host


def group() -> str:
    """The consumer group's name."""
    return _host.group()


def tenant() -> str | None:
    """The tenant that owns the handler and the event, if there is one."""
    return _host.tenant() or None


def remaining_ms() -> int:
    """Milliseconds until the host ends this attempt."""
    return _host.remaining_ms()


def is_replay() -> bool:
    """Whether this event is a dead letter that an operator replayed."""
    return _host.is_replay()


def is_late() -> bool:
    """Whether this event comes after later events of the log were already handed to this group."""
    return _host.is_late()
