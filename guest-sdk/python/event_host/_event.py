"""The event that a handler gets, and reading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ._contract import ExtensionValue
from ._failure import InvalidEvent

__all__ = ["Event", "ExtensionValue"]


@dataclass(frozen=True)
class Event:
    """A CloudEvents 1.0 event, with its place in the log."""

    id: str
    """Identifies the event together with `source`."""
    source: str
    """The context in which the event happened; a URI-reference."""
    type: str
    """The kind of event, such as `issues.opened`."""
    subject: str | None
    """What the event is about, within its source."""
    time: str
    """When the event happened: RFC 3339 text in UTC."""
    datacontenttype: str | None
    """The media type of the data; None means `application/json`."""
    dataschema: str | None
    """A URI that identifies the schema of the data."""
    partitionkey: str | None
    """CloudEvents' partitioning extension: events of one key are ordered."""
    extensions: Mapping[str, ExtensionValue]
    """The extension attributes by name, without `partitionkey`."""
    data: bytes
    """The payload, as the bytes that were published. Empty when the event has none."""
    position: int
    """The event's place in the log. Grows along the log, with gaps."""
    attempt: int
    """Which call this is for this event, counted from 1."""

    def text(self) -> str:
        """The payload as text. Raises `InvalidEvent` when it is not UTF-8."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidEvent("the data is not UTF-8 text") from error

    def json(self) -> Any:
        """The payload, decoded from JSON, whatever its media type says.

        Raises `InvalidEvent` when there is none, or it is not JSON.
        """
        if not self.data:
            raise InvalidEvent("the event has no data")
        text = self.text()
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidEvent("the data is not JSON") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
