# mypy: ignore-errors
"""The host's imports and the component's exports, which componentize-py generates.

Nothing but a component imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from componentize_py_types import Err, Ok
from wit_world.imports import context as _context
from wit_world.imports import log as _log
from wit_world.imports import outbox as _outbox
from wit_world.imports import state as _state
from wit_world.imports import types as _types

from . import _late  # noqa: F401
from ._contract import ExtensionValue, Failure, Message, Refusal
from ._event import Event

_LEVELS = {level.name.lower(): level for level in _log.Level}

_KINDS = {
    _outbox.EmitError_Invalid: "invalid",
    _outbox.EmitError_Denied: "denied",
    _state.StateError_InvalidKey: "invalid-key",
}


def emit(message: Message) -> None:
    raw = _outbox.Message(
        type=message.type,
        data=message.data,
        id=message.id,
        source=message.source,
        subject=message.subject,
        time=message.time,
        datacontenttype=message.datacontenttype,
        dataschema=message.dataschema,
        partitionkey=message.partitionkey,
        extensions=[(name, _raw_extension(value)) for name, value in message.extensions],
    )
    _ask(_outbox.emit, raw)


def state_get(key: str) -> bytes | None:
    return _ask(_state.get, key)


def state_set(key: str, value: bytes) -> None:
    _ask(_state.set, key, value)


def state_delete(key: str) -> None:
    _ask(_state.delete, key)


def state_keys(prefix: str, limit: int) -> list[str]:
    return _ask(_state.keys, prefix, limit)


def log(level: str, message: str) -> None:
    _log.log(_LEVELS[level], message)


group = _context.group
tenant = _context.tenant
remaining_ms = _context.remaining_ms
is_replay = _context.is_replay
is_late = _context.is_late


def export(run: Callable[[Event], Failure | None]) -> type:
    """The class that componentize-py takes as the interface `handler`."""

    class Handler:
        def handle(self, event: Any) -> None:
            failure = run(_event(event))
            if failure is not None:
                raise Err(_raw_failure(failure))

    return Handler


def export_batch(run: Callable[[list[Event]], list[Failure | None]]) -> type:
    """The class that componentize-py takes as the interface `batch-handler`."""

    class BatchHandler:
        def handle_batch(self, events: list[Any]) -> list[Any]:
            results = run([_event(event) for event in events])
            return [Ok(None) if failure is None else Err(_raw_failure(failure)) for failure in results]

    return BatchHandler


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except Err as error:
        refused = error.value
        raise Refusal(_KINDS.get(type(refused), "other"), refused.value) from None


def _event(raw: Any) -> Event:
    return Event(
        id=raw.id,
        source=raw.source,
        type=raw.type,
        subject=raw.subject,
        time=raw.time,
        datacontenttype=raw.datacontenttype,
        dataschema=raw.dataschema,
        partitionkey=raw.partitionkey,
        extensions={name: value.value for name, value in raw.extensions},
        data=raw.data,
        position=raw.position,
        attempt=raw.attempt,
    )


def _raw_extension(value: ExtensionValue) -> Any:
    if isinstance(value, bool):
        return _types.ExtensionValue_Boolean(value)
    if isinstance(value, int):
        return _types.ExtensionValue_Integer(value)
    return _types.ExtensionValue_Text(value)


def _raw_failure(failure: Failure) -> Any:
    if failure.reject:
        return _types.Failure_Reject(failure.reason)
    return _types.Failure_Retry(_types.Retry(failure.reason, failure.after_ms))
