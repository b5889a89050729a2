"""A host in memory, for tests: the functions of `_component`, for one call at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from ._contract import Message, Refusal

_EXTENSION_NAME = re.compile("[a-z0-9]+")
_RESERVED = {
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "partitionkey",
    "data",
}
_LONGEST_KEY = 1024

_T = TypeVar("_T")


@dataclass(frozen=True)
class Facts:
    """What a call tells the handler."""

    group: str = "test"
    tenant: str = ""
    remaining_ms: int = 10_000
    is_replay: bool = False
    is_late: bool = False
    attempt: int = 1
    position: int = 1
    allow_emit: Sequence[str] | None = None


@dataclass
class Call:
    """What one call of a handler reads and does."""

    state: dict[str, bytes]
    facts: Facts
    emitted: list[Message] = field(default_factory=list)
    logs: list[tuple[str, str]] = field(default_factory=list)


_current: list[Call] = []


def begin(committed: Mapping[str, bytes], facts: Facts) -> Call:
    """A call that sees this state."""
    return Call(dict(committed), facts)


def during(call: Call, work: Callable[[], _T]) -> _T:
    """Runs a function as a call, which is over when it returns or raises."""
    _current.append(call)
    try:
        return work()
    finally:
        _current.pop()


def _now() -> Call:
    if not _current:
        raise RuntimeError("there is no host outside of a call: in a test, use `call` or `Host` of `event_host.testing`")
    return _current[-1]


def emit(message: Message) -> None:
    """Takes a message."""
    call = _now()
    for name in ("type", "id", "source", "subject", "partitionkey"):
        if getattr(message, name) == "":
            _refuse("invalid", f"`{name}` is empty")
    for name, _ in message.extensions:
        if not _EXTENSION_NAME.fullmatch(name):
            _refuse(
                "invalid",
                f"`{name}` is not the name of an extension attribute: use only lower-case letters a to z and digits",
            )
        if name in _RESERVED:
            _refuse("invalid", f"`{name}` is no extension: it is an attribute of its own")
    allowed = call.facts.allow_emit
    if allowed is not None and not any(_fits(pattern, message.type) for pattern in allowed):
        _refuse("denied", f"`{message.type}` is not among the types of `allow.emit`")
    call.emitted.append(replace(message))


def _fits(pattern: str, event_type: str) -> bool:
    return event_type.startswith(pattern[:-1]) if pattern.endswith("*") else event_type == pattern


def state_get(key: str) -> bytes | None:
    """The value of a key."""
    _check(key)
    return _now().state.get(key)


def state_set(key: str, value: bytes) -> None:
    """Gives a key a value."""
    _check(key)
    _now().state[key] = value


def state_delete(key: str) -> None:
    """Removes a key."""
    _check(key)
    _now().state.pop(key, None)


def state_keys(prefix: str, limit: int) -> list[str]:
    """The first keys that start with the prefix."""
    keys = (key for key in _now().state if key.startswith(prefix))
    return sorted(keys, key=lambda key: key.encode("utf-8"))[:limit]


def _check(key: str) -> None:
    length = len(key.encode("utf-8"))
    if length == 0:
        _refuse("invalid-key", "the key is empty")
    if length > _LONGEST_KEY:
        _refuse("invalid-key", f"the key has {length} bytes, over 1,024")


def _refuse(kind: str, text: str) -> NoReturn:
    raise Refusal(kind, text)


def log(level: str, message: str) -> None:
    """Keeps a line."""
    _now().logs.append((level, message))


def group() -> str:
    """The group's name."""
    return _now().facts.group


def tenant() -> str:
    """The tenant, or nothing."""
    return _now().facts.tenant


def remaining_ms() -> int:
    """What the test says is left."""
    return _now().facts.remaining_ms


def is_replay() -> bool:
    """What the test says."""
    return _now().facts.is_replay


def is_late() -> bool:
    """What the test says."""
    return _now().facts.is_late
