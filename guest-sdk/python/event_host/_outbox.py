"""Emitting events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from . import _host
from ._contract import ExtensionValue, Message, Refusal
from ._payload import NOTHING, payload_of
from ._text import well_formed

_SENTENCES = {"invalid": "cannot emit an invalid event", "denied": "not allowed to emit"}


class EmitError(Exception):
    """Why an event was not taken. `kind` is `invalid`, `denied` or `other`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{_SENTENCES.get(kind, 'cannot emit')}: {text}")
        self.kind = kind if kind in _SENTENCES else "other"


# As authors import it, in reasons and tracebacks.
EmitError.__module__ = "event_host"


def emit(
    type: str,
    data: Any = NOTHING,
    *,
    id: str | None = None,
    source: str | None = None,
    subject: str | None = None,
    time: str | datetime | None = None,
    datacontenttype: str | None = None,
    dataschema: str | None = None,
    partitionkey: str | None = None,
    deliver_after: str | datetime | None = None,
    extensions: Mapping[str, ExtensionValue] | None = None,
) -> None:
    """Publishes an event when, and only when, this call of the handler succeeds.

    `data` becomes JSON. Bytes stay as they are, and with a `datacontenttype` that is not
    JSON, such as `text/plain`, a str stays text. Without data the payload is empty.

    What is left out is filled in by the host: an `id` that is the same on each attempt, the
    group as `source`, the time of the settlement as `time`, and the `partitionkey` of the
    handled event, or the one that all events of a batch have. Times are RFC 3339 text or a
    datetime with a time zone. `deliver_after` is when the event is delivered at the
    earliest, at most 366 days from now. Names of extension attributes are lower-case letters
    and digits; their integers have 32 bits.

    Raises `EmitError` when the event is no CloudEvent, or the settings do not let the handler
    emit this type. Going over the limit of emits raises nothing: it ends the attempt.
    """
    media_type = _text("datacontenttype", datacontenttype)
    checked_type = _text("type", type)
    if checked_type is None:
        raise EmitError("invalid", "`type` is None")
    try:
        payload, media_type = payload_of(data, media_type)
    except (TypeError, ValueError, RecursionError) as error:
        raise EmitError("invalid", f"the data of `{checked_type}`: {error}") from error
    attributes = dict(extensions or {})
    delay = _time("deliver_after", deliver_after)
    if delay is not None:
        attributes["deliverafter"] = delay
    message = Message(
        type=checked_type,
        data=payload,
        id=_text("id", id),
        source=_text("source", source),
        subject=_text("subject", subject),
        time=_time("time", time),
        datacontenttype=media_type,
        dataschema=_text("dataschema", dataschema),
        partitionkey=_text("partitionkey", partitionkey),
        extensions=[_extension(name, value) for name, value in sorted(attributes.items())],
    )
    try:
        _host.emit(message)
    except Refusal as refusal:
        raise EmitError(refusal.kind, refusal.text) from None


# A component traps at a value of another type than the contract's, so it is refused here.
def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise EmitError("invalid", f"`{name}` is a {_name(value)}, and must be a str")
    return well_formed(value)


def _time(name: str, value: object) -> str | None:
    if not isinstance(value, datetime):
        return _text(name, value)
    if value.tzinfo is None:
        raise EmitError("invalid", f"`{name}` is a datetime without a time zone")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _extension(name: str, value: object) -> tuple[str, ExtensionValue]:
    if isinstance(value, bool):
        return well_formed(name), value
    if isinstance(value, str):
        return well_formed(name), well_formed(value)
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return well_formed(name), int(value)
    what = str(value) if isinstance(value, (int, float)) else f"a {_name(value)}"
    raise EmitError(
        "invalid", f"the extension `{name}` is {what}, and must be a bool, an integer of 32 bits or a str"
    )


def _name(value: object) -> str:
    return value.__class__.__name__
