"""What stands between the component's export and the author's function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Optional, TypeVar, Union, cast

from ._contract import Failure
from ._event import Event
from ._failure import failure_of

HandlerFunction = Callable[[Event], object]
BatchResults = Union[Sequence[Optional[BaseException]], None]
BatchFunction = Callable[[list[Event]], BatchResults]

_One = TypeVar("_One", bound=HandlerFunction)
_Batch = TypeVar("_Batch", bound=BatchFunction)

_SYNCHRONOUS = (
    "handlers are synchronous: the host takes a call as done when the function returns, "
    "and nothing would run what it awaits"
)


def handler(function: _One) -> _One:
    """Makes a function the handler of the component that its module is built to.

    The function stays what it was. Beside it, its module gets the class `Handler`, which
    componentize-py looks for. Build for the world `event-handler`.
    """
    _check("handler", function)
    _publish("Handler", function, lambda: _export(function))
    return function


def batch_handler(function: _Batch) -> _Batch:
    """Makes a function the handler of batches of the component that its module is built to.

    It gets at least one event, in the order of the log, and returns a result for each in
    the same order, None for one that is done and an exception for one that failed, or
    nothing at all when all are done. What is emitted and written belongs to all events
    together: it is kept when all are done. Else nothing of the call counts, and the same
    events come again one by one.

    The function's module gets the class `BatchHandler`. Build for the world
    `batch-event-handler`.
    """
    _check("batch_handler", function)
    _publish("BatchHandler", function, lambda: _export_batch(function))
    return function


def run(function: HandlerFunction, event: Event) -> Failure | None:
    """One call with one event. Whatever is raised becomes a failure, so that the instance lives on."""
    try:
        _refuse_awaitable(function(event))
    except BaseException as raised:
        return failure_of(raised)
    return None


def run_batch(function: BatchFunction, events: list[Event]) -> list[Failure | None]:
    """One call with several events."""
    try:
        results = function(list(events))
        _refuse_awaitable(results)
        if results is None:
            return [None] * len(events)
        if not isinstance(results, Sequence) or isinstance(results, (str, bytes)):
            raise TypeError(_wrong_number(f"a {type(results).__name__}", len(events)))
        if len(results) != len(events):
            raise TypeError(_wrong_number(f"{len(results)} results", len(events)))
    except BaseException as raised:
        failure = failure_of(raised)
        return [failure] * len(events)
    return [_failure_in(result) for result in results]


def _failure_in(result: object) -> Failure | None:
    try:
        _refuse_awaitable(result)
        if result is None:
            return None
        if isinstance(result, BaseException):
            return failure_of(result)
        raise TypeError(f"a result of a batch is None or an exception, not a {type(result).__name__}")
    except BaseException as raised:
        return failure_of(raised)


def _wrong_number(what: str, events: int) -> str:
    return (
        f"the handler returned {what} for {events} events: "
        "return a list of one result for each event, or nothing when all are done"
    )


def _refuse_awaitable(returned: object) -> None:
    if inspect.iscoroutine(returned):
        # Else Python warns on stderr that nobody awaited it.
        returned.close()
    if inspect.isawaitable(returned):
        raise TypeError(f"the handler returned a {type(returned).__name__}; {_SYNCHRONOUS}")


def _check(name: str, function: object) -> None:
    if not inspect.isfunction(function):
        raise TypeError(f"`@{name}` stands before a function, and was given a {type(function).__name__}")
    for is_kind, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if is_kind(function):
            raise TypeError(f"`@{name}` was given {kind}; {_SYNCHRONOUS}")


def _publish(name: str, function: Callable[..., object], make: Callable[[], type]) -> None:
    module = sys.modules[function.__module__].__dict__
    before = module.get(name)
    own = function.__qualname__
    # The same function comes twice when its module is loaded anew.
    if before is not None and getattr(before, "__wrapped__", own) != own:
        raise TypeError(f"a module has one handler, and `{before.__wrapped__}` is it: `{own}` cannot be another")
    made = make()
    setattr(made, "__wrapped__", own)
    module[name] = made


def _export(function: HandlerFunction) -> type:
    if sys.platform == "wasi":
        from ._component import export

        return cast(type, export(lambda event: run(function, event)))
    return type("Handler", (), {})


def _export_batch(function: BatchFunction) -> type:
    if sys.platform == "wasi":
        from ._component import export_batch

        return cast(type, export_batch(lambda events: run_batch(function, events)))
    return type("BatchHandler", (), {})
