"""What becomes of what a handler returns and raises."""

import math
import sys
import types
import unittest
from collections.abc import Callable
from datetime import timedelta

from event_host import Event, InvalidEvent, Reject, Retry, batch_handler, emit, handler, state
from event_host.testing import Host, Outcome, call, call_batch


def raising(error: BaseException) -> Callable[[Event], None]:
    def work(_: Event) -> None:
        raise error

    return work


def returning(value: object) -> Callable[[Event], object]:
    return lambda _: value


def outcome(error: BaseException) -> Outcome:
    return call(raising(error)).outcome


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class Outcomes(unittest.TestCase):
    def test_a_handler_that_returns_is_done_whatever_it_returns(self) -> None:
        for value in (None, 0, "text", [Reject("x")]):
            self.assertEqual(call(returning(value)).outcome, Outcome("done"))

    def test_retry_and_reject_are_taken_by_name(self) -> None:
        self.assertEqual(outcome(Reject("never")), Outcome("reject", "never"))
        self.assertEqual(outcome(Retry("later")), Outcome("retry", "later"))
        self.assertEqual(outcome(InvalidEvent("no title")), Outcome("reject", "no title"))

    def test_a_failure_that_caused_another_exception_survives_it_with_each_text_once(self) -> None:
        wrapped = caused(RuntimeError("calling"), Retry("wait", after=3))
        self.assertEqual(outcome(wrapped), Outcome("retry", "calling: wait", 3000))
        shown = caused(RuntimeError("reading: no title"), InvalidEvent("no title"))
        self.assertEqual(outcome(shown), Outcome("reject", "reading: no title"))
        own = caused(Reject("no such shop"), KeyError("shop"))
        self.assertEqual(outcome(own), Outcome("reject", "no such shop: 'shop'"))

    def test_any_other_exception_is_a_retry_with_its_traceback_and_its_causes(self) -> None:
        def inner(_: Event) -> None:
            try:
                raise KeyError("total")
            except KeyError as error:
                raise ValueError("no total") from error

        failed = call(inner).outcome
        self.assertEqual(failed.tag, "retry")
        self.assertRegex(failed.reason or "", r'^ValueError: no total\n  File ".*test_handler.py", line \d+, in inner')
        self.assertRegex(failed.reason or "", r"\ncaused by: KeyError: 'total'\n  File ")

    def test_whatever_is_raised_has_a_reason(self) -> None:
        self.assertRegex(outcome(SystemExit(3)).reason or "", "^SystemExit: 3")
        self.assertRegex(outcome(KeyboardInterrupt()).reason or "", "^KeyboardInterrupt")
        self.assertEqual(outcome(Reject("half \ud800")).reason, "half \ufffd")
        loop = RuntimeError("loop")
        self.assertRegex(outcome(caused(loop, loop)).reason or "", "^RuntimeError: loop")

        class Hostile(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        self.assertRegex(outcome(Hostile()).reason or "", "Hostile")
        self.assertRegex(outcome(caused(Hostile(), Reject("x"))).reason or "", "Hostile that cannot be shown: x")

        def deep(event: Event) -> None:
            deep(event)

        self.assertRegex(call(deep).outcome.reason or "", "^RecursionError")

    def test_a_delay_is_whole_milliseconds_rounded_up(self) -> None:
        def after(delay: "float | timedelta | None") -> "int | None":
            return outcome(Retry("", after=delay)).after_ms

        self.assertEqual(after(0.0001), 1)
        self.assertEqual(after(1.5), 1500)
        self.assertEqual(after(timedelta(milliseconds=20)), 20)
        self.assertEqual(after(math.inf), 2**64 - 1)
        self.assertIsNone(after(None))
        for wrong in (-1, math.nan):
            self.assertRaises(ValueError, Retry, "", after=wrong)
        self.assertRaises(TypeError, Retry, "", after="50")

    def test_a_coroutine_is_refused_in_words_and_so_is_an_async_function(self) -> None:
        async def later(_: Event) -> None:
            return None

        failed = call(lambda event: later(event)).outcome
        self.assertEqual(failed.tag, "retry")
        self.assertRegex(failed.reason or "", "^TypeError: the handler returned a coroutine; handlers are synchronous")

        def generator(_: Event) -> object:
            yield 1

        self.assertRaisesRegex(TypeError, "was given an async function", handler, later)
        self.assertRaisesRegex(TypeError, "was given an async function", batch_handler, later)
        self.assertRaisesRegex(TypeError, "was given a generator", handler, generator)
        self.assertRaisesRegex(TypeError, "stands before a function", handler, 7)

    def test_nothing_of_a_call_that_fails_counts(self) -> None:
        def work(event: Event) -> None:
            state.set("n", state.get("n") + 1)
            emit("seen", state.get("n"))
            if event.attempt < 2:
                raise Retry("not yet")

        host = Host({"n": 1})
        first = host.call(work)
        self.assertEqual((first.outcome.tag, first.emits, first.state), ("retry", [], {"n": 1}))
        second = host.call(work, attempt=2)
        self.assertEqual((second.outcome.tag, [event.json() for event in second.emits]), ("done", [2]))
        self.assertEqual(host.state, {"n": 2})


class Batches(unittest.TestCase):
    def test_a_batch_without_results_is_done_and_one_with_results_has_one_for_each_event(self) -> None:
        def count(events: "list[Event]") -> None:
            state.set("n", state.get("n", 0) + len(events))

        done = call_batch(count, [{}, {}])
        self.assertEqual((done.outcomes, done.state), ([Outcome("done")] * 2, {"n": 2}))

        def mixed(events: "list[Event]") -> "list[Exception | None]":
            emit("seen")
            return [Reject("too many") if event.json() > 1 else None for event in events]

        result = call_batch(mixed, [{"data": 1}, {"data": 2}])
        self.assertEqual(result.outcomes, [Outcome("done"), Outcome("reject", "too many")])
        self.assertEqual(result.emits, [])

    def test_a_batch_that_raises_or_answers_wrongly_fails_for_each_event(self) -> None:
        def reasons(answer: object) -> "list[str | None]":
            return [one.reason for one in call_batch(lambda _: answer, [{}, {}]).outcomes]  # type: ignore[arg-type,return-value]

        def raising_batch(_: "list[Event]") -> None:
            raise Reject("all")

        self.assertEqual([one.reason for one in call_batch(raising_batch, [{}, {}]).outcomes], ["all", "all"])
        self.assertRegex(reasons([None])[1] or "", "returned 1 results for 2 events")
        self.assertRegex(reasons("ok")[0] or "", "returned a str for 2 events")
        self.assertRegex(reasons([None, 7])[1] or "", "a result of a batch is None or an exception, not a int")

        async def later() -> None:
            return None

        self.assertRegex(reasons([later(), None])[0] or "", "returned a coroutine")


class Exports(unittest.TestCase):
    def module(self, name: str) -> types.ModuleType:
        made = types.ModuleType(name)
        sys.modules[name] = made
        self.addCleanup(sys.modules.pop, name)
        return made

    def test_a_module_gets_the_class_that_is_looked_for_and_keeps_its_function(self) -> None:
        module = self.module("one_handler")
        source = "def work(event):\n    return 7\n"
        exec(source, module.__dict__)  # noqa: S102
        work = module.__dict__["work"]
        self.assertIs(handler(work), work)
        self.assertEqual(module.__dict__["Handler"].__name__, "Handler")
        self.assertIs(batch_handler(work), work)
        self.assertEqual(module.__dict__["BatchHandler"].__name__, "BatchHandler")
        exec(source, module.__dict__)  # noqa: S102
        handler(module.__dict__["work"])
        exec("def other(event): pass", module.__dict__)  # noqa: S102
        self.assertRaisesRegex(TypeError, "one handler, and `work` is it", handler, module.__dict__["other"])


if __name__ == "__main__":
    unittest.main()
