"""Calls a handler in an ordinary test, with a host in memory::

    from event_host.testing import call
    from app import work

    result = call(work, {"type": "order.placed", "data": {"id": 7}}, state={"orders": 4})
    assert result.outcome.tag == "done"

It keeps the promises of one call: emits and writes count when, and only when, the call
succeeds. Limits are not among them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, cast

from . import _memory
from ._contract import ExtensionValue, Failure, Message
from ._event import Event
from ._handler import BatchFunction, HandlerFunction, run, run_batch
from ._memory import Call, Facts
from ._payload import NOTHING, json_bytes, payload_of

_TIME = "2026-01-01T00:00:00Z"
_ATTRIBUTES = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "partitionkey")
_NOT_EXTENSIONS = {*_ATTRIBUTES, "specversion", "data", "data_base64"}

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What became of an event."""

    tag: Literal["done", "retry", "reject"]
    reason: str | None = None
    """Why it failed."""
    after_ms: int | None = None
    """The least time to wait before the next attempt, if the handler said."""


@dataclass(frozen=True)
class _Effects:
    emits: list[Event]
    """The events that were emitted; none unless the call succeeded."""
    logs: list[tuple[str, str]]
    """Level and text of the lines that were logged, also by a call that failed."""
    state: dict[str, Any]
    """The state after the call: decoded from JSON, or bytes where it is no JSON."""


@dataclass(frozen=True)
class Result(_Effects):
    """What a call with one event did."""

    outcome: Outcome


@dataclass(frozen=True)
class BatchResult(_Effects):
    """What a call with several events did."""

    outcomes: list[Outcome]


@dataclass(frozen=True)
class RunResult(_Effects, Generic[T]):
    """What a function did that ran as a call."""

    value: T


class Host:
    """A host whose state lasts from call to call.

    `facts` are what calls tell the handler: `group`, `tenant`, `remaining_ms`, `is_replay`,
    `is_late`, `attempt`, `position`, and `allow_emit`, the types that it may emit. Those of
    a call go before those of the host.
    """

    def __init__(self, state: Mapping[str, Any] | None = None, **facts: Any) -> None:
        self._state = {key: _bytes(value) for key, value in (state or {}).items()}
        self._facts = Facts(**facts)

    @property
    def state(self) -> dict[str, Any]:
        """The state: decoded from JSON, or bytes where it is no JSON."""
        return {key: _value(data) for key, data in self._state.items()}

    def call(self, function: HandlerFunction, event: Mapping[str, Any] | None = None, **facts: Any) -> Result:
        """One call with one event: a CloudEvent in its JSON form.

        Each name that CloudEvents does not know is an extension attribute. What is absent
        gets a value for tests. `data` may also be bytes.
        """
        call = self._begin(facts)
        given = _event(event or {}, call.facts, 0)
        failure = _memory.during(call, lambda: run(function, given))
        self._settle(call, failure is None)
        return Result(**self._effects(call, [given]), outcome=_outcome(failure))

    def call_batch(self, function: BatchFunction, events: Sequence[Mapping[str, Any]], **facts: Any) -> BatchResult:
        """One call with several events."""
        if not events:
            raise ValueError("the host never calls with no event")
        call = self._begin(facts)
        given = [_event(event, call.facts, index) for index, event in enumerate(events)]
        failures = _memory.during(call, lambda: run_batch(function, given))
        self._settle(call, not any(failures))
        return BatchResult(**self._effects(call, given), outcomes=[_outcome(failure) for failure in failures])

    def run(self, work: Callable[[], T], **facts: Any) -> RunResult[T]:
        """Runs any function as a call that succeeds when it returns; what it raises goes on."""
        call = self._begin(facts)
        value = _memory.during(call, work)
        self._settle(call, True)
        return RunResult(**self._effects(call, []), value=value)

    def _begin(self, facts: Mapping[str, Any]) -> Call:
        return _memory.begin(self._state, replace(self._facts, **facts))

    def _settle(self, call: Call, succeeded: bool) -> None:
        if succeeded:
            self._state = call.state
        else:
            call.emitted = []

    def _effects(self, call: Call, events: list[Event]) -> dict[str, Any]:
        emits = [_emitted(message, index, call.facts, events) for index, message in enumerate(call.emitted)]
        return {"emits": emits, "logs": call.logs, "state": self.state}


def call(
    function: HandlerFunction,
    event: Mapping[str, Any] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Result:
    """One call with one event, on a host of its own; `facts` are those of `Host`."""
    return Host(state, **facts).call(function, event)


def call_batch(
    function: BatchFunction,
    events: Sequence[Mapping[str, Any]],
    *,
    state: Mapping[str, Any] | None = None,
    **facts: Any,
) -> BatchResult:
    """One call with several events, on a host of its own; `facts` are those of `Host`."""
    return Host(state, **facts).call_batch(function, events)


def _outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return Outcome("done")
    return Outcome("reject" if failure.reject else "retry", failure.reason, failure.after_ms)


def _event(event: Mapping[str, Any], facts: Facts, index: int) -> Event:
    given = {name: event.get(name) for name in _ATTRIBUTES}
    media_type = given["datacontenttype"]
    data = event.get("data", NOTHING)
    if event.get("data_base64") is not None:
        if data is not NOTHING:
            raise TypeError("an event has `data` or `data_base64`, not both")
        data = base64.b64decode(event["data_base64"], validate=True)
    elif isinstance(data, (bytes, bytearray, memoryview)):
        media_type = media_type or "application/octet-stream"
    return Event(
        id=given["id"] or ("test" if index == 0 else f"test-{index + 1}"),
        source=given["source"] or "/test",
        type=given["type"] or "test",
        subject=given["subject"],
        time=given["time"] or _TIME,
        datacontenttype=media_type,
        dataschema=given["dataschema"],
        partitionkey=given["partitionkey"],
        extensions=_extensions(event),
        data=payload_of(data, media_type)[0],
        position=facts.position + index,
        attempt=facts.attempt,
    )


def _extensions(event: Mapping[str, Any]) -> dict[str, ExtensionValue]:
    extensions: dict[str, ExtensionValue] = {}
    for name in sorted(event.keys() - _NOT_EXTENSIONS):
        value = event[name]
        if value is None:
            continue
        if not isinstance(value, (bool, str)) and not (isinstance(value, int) and -(2**31) <= value < 2**31):
            raise TypeError(f"the extension `{name}` of the event must be a bool, an integer of 32 bits or a str")
        extensions[name] = value
    return extensions


def _emitted(message: Message, index: int, facts: Facts, events: list[Event]) -> Event:
    """The event that other handlers would get."""
    keys = {event.partitionkey for event in events}
    key = message.partitionkey
    if key is None and len(keys) == 1:
        key = next(iter(keys))
    return Event(
        id=message.id or f"emit-{index + 1}",
        source=message.source or f"/groups/{facts.group}",
        type=message.type,
        subject=message.subject,
        time=message.time or _TIME,
        datacontenttype=message.datacontenttype,
        dataschema=message.dataschema,
        partitionkey=key,
        extensions=dict(message.extensions),
        data=message.data,
        position=1,
        attempt=1,
    )


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else json_bytes(value)


def _value(data: bytes) -> Any:
    try:
        return cast(Any, json.loads(data.decode("utf-8")))
    except ValueError:
        return data
