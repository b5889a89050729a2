"""Small durable values of the consumer group.

Reads see the writes of the same call. Writes are kept when, and only when, the call
succeeds, together with the fact that the event is done: a counter kept here is exact.
"""

from __future__ import annotations

import builtins
import json
from typing import Any

from . import _host
from ._contract import Refusal
from ._payload import json_bytes
from ._text import well_formed


class StateError(Exception):
    """Why a state operation failed. `kind` is `invalid-key`, `decode`, `encode` or `other`."""

    def __init__(self, kind: str, text: str) -> None:
        known = {
            "invalid-key": f"not a key of the state: {text}",
            "decode": f"the state's `{text}` is not JSON",
            "encode": f"the new value of the state's `{text}` has no JSON form",
        }
        super().__init__(known.get(kind, f"the state is not available: {text}"))
        self.kind = kind if kind in known else "other"


# As authors import it, in reasons and tracebacks.
StateError.__module__ = "event_host"


def get(key: str, default: Any = None) -> Any:
    """The value of a key, decoded from JSON, or the default if the key has none.

    Raises `StateError` when the key is not allowed, or its value is not JSON.
    """
    value = get_bytes(key)
    if value is None:
        return default
    try:
        return json.loads(value.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StateError("decode", key) from error


def set(key: str, value: Any) -> None:
    """Gives a key a value, as JSON.

    Raises `StateError` when the key is not allowed, or the value has no JSON form. A value
    over the limit raises nothing: it ends the attempt.
    """
    _check(key)
    try:
        encoded = json_bytes(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError("encode", key) from error
    set_bytes(key, encoded)


def get_bytes(key: str) -> bytes | None:
    """The value of a key as the bytes that were set, or None if it has none."""
    _check(key)
    try:
        return _host.state_get(well_formed(key))
    except Refusal as refusal:
        raise StateError(refusal.kind, refusal.text) from None


def set_bytes(key: str, value: bytes | bytearray | memoryview) -> None:
    """Gives a key a value of bytes."""
    _check(key)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("`set_bytes` takes bytes; `set` takes any value that has a JSON form")
    try:
        _host.state_set(well_formed(key), bytes(value))
    except Refusal as refusal:
        raise StateError(refusal.kind, refusal.text) from None


def delete(key: str) -> None:
    """Removes a key; one that is absent is no error."""
    _check(key)
    try:
        _host.state_delete(well_formed(key))
    except Refusal as refusal:
        raise StateError(refusal.kind, refusal.text) from None


def keys(prefix: str, limit: int) -> builtins.list[str]:
    """The first `limit` keys that start with `prefix`, sorted by their bytes."""
    _check(prefix)
    if not 0 <= limit < 2**32:
        raise ValueError(f"`limit` is {limit}: give how many keys at most, from 0 to {2**32 - 1}")
    try:
        return _host.state_keys(well_formed(prefix), limit)
    except Refusal as refusal:
        raise StateError(refusal.kind, refusal.text) from None


# A component traps at a key that is no str.
def _check(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a key of the state is a str, not a {type(key).__name__}")
