"""Why a handler did not handle an event, and how whatever it raises becomes that."""

from __future__ import annotations

import math
import traceback
from datetime import timedelta

from ._contract import Failure
from ._text import well_formed

# The largest value of the contract's unsigned 64 bits.
_MOST_MS = 2**64 - 1

# A cause may lead back to where it began.
_MOST_CAUSES = 32


class Retry(Exception):
    """Raised to say: it may work later. The host calls again, up to the configured attempts.

    `after` is the least time to wait, in seconds or as a timedelta; None leaves it to the
    handler's settings.
    """

    def __init__(self, reason: str, after: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else _milliseconds(after)


class Reject(Exception):
    """Raised to say: it will never work. The event becomes a dead letter at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class InvalidEvent(Reject):
    """The event is not what the handler takes; a rejection, since it will not get better."""


# As authors import them, in reasons and tracebacks.
for _type in (Retry, Reject, InvalidEvent):
    _type.__module__ = "event_host"


def _milliseconds(after: float | timedelta) -> int:
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"`after` is a {type(after).__name__}: give seconds as a number, or a timedelta")
    if not seconds >= 0:
        raise ValueError(f"`after` is {after}: give the seconds to wait, from 0 on")
    return _MOST_MS if math.isinf(seconds) else min(math.ceil(seconds * 1000), _MOST_MS)


def failure_of(raised: BaseException) -> Failure:
    """The failure that an exception stands for.

    What a `Retry` or `Reject` says, also when another exception was raised from it; else a
    retry with the exception, its traceback and its causes.
    """
    given = next((error for error in _causes(raised) if isinstance(error, (Retry, Reject))), None)
    if given is None:
        return Failure(well_formed(with_traceback(raised)))
    reason = well_formed(_in_one_line(raised))
    if isinstance(given, Reject):
        return Failure(reason, reject=True)
    return Failure(reason, after_ms=given.after_ms)


def _causes(raised: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    error: BaseException | None = raised
    while error is not None and len(chain) < _MOST_CAUSES:
        chain.append(error)
        error = error.__cause__
    return chain


def _in_one_line(raised: BaseException) -> str:
    """The texts of an exception and its causes. One that shows its cause shows it once."""
    text = _text(raised)
    for cause in map(_text, _causes(raised)[1:]):
        if not text.endswith(cause):
            text += f": {cause}"
    return text


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} that cannot be shown"


def with_traceback(raised: BaseException) -> str:
    """The exception first, since texts are cut at their end, then where, then what caused it."""
    parts: list[str] = []
    error: BaseException | None = raised
    while error is not None and len(parts) < _MOST_CAUSES:
        parts.append(_one(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\ncaused by: ".join(parts)


def _one(error: BaseException) -> str:
    title = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = error.__traceback__
    # The first frame is this package's, unless the exception was caught on its way.
    if frames is not None and frames.tb_frame.f_globals.get("__name__") == f"{__package__}._handler":
        frames = frames.tb_next
    stack = "".join(traceback.format_tb(frames)).rstrip()
    return f"{title}\n{stack}" if stack else title
