"""What the package and either host exchange: the contract's types, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

ExtensionValue = Union[bool, int, str]
"""The value of a CloudEvents extension attribute: a Boolean, an Integer, or text."""


@dataclass
class Message:
    """An event to publish. Whatever is None gets the host's default."""

    type: str
    data: bytes = b""
    id: str | None = None
    source: str | None = None
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    partitionkey: str | None = None
    extensions: list[tuple[str, ExtensionValue]] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    """Why an event was not handled: a rejection, or a retry after so many milliseconds at least."""

    reason: str
    reject: bool = False
    after_ms: int | None = None


class Refusal(Exception):
    """What a host answers that does not do what it was asked."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
