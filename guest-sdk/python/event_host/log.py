"""Writing lines to the host's log.

The host adds the group, the handler, the event's id and the attempt. What a call may write
in all is limited; going over that limit ends the attempt. Values are joined with spaces, as
`print` does; an exception comes with its traceback.
"""

from . import _host
from ._failure import with_traceback
from ._text import well_formed


def trace(*values: object) -> None:
    """Steps, for whoever debugs the handler."""
    _write("trace", values)


def debug(*values: object) -> None:
    """Details."""
    _write("debug", values)


def info(*values: object) -> None:
    """What is worth knowing."""
    _write("info", values)


def warn(*values: object) -> None:
    """What may need a look."""
    _write("warn", values)


def error(*values: object) -> None:
    """What does."""
    _write("error", values)


warning = warn
"""`warn`, as Python's own `logging` calls it."""


def _write(level: str, values: tuple[object, ...]) -> None:
    text = " ".join(with_traceback(value) if isinstance(value, BaseException) else str(value) for value in values)
    _host.log(level, well_formed(text))
