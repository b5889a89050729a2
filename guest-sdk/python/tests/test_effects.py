"""What a handler does: emits and the state."""

import unittest
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from event_host import EmitError, Event, StateError, emit, state
from event_host.testing import Host, call, call_batch


def sent(*given: Any, **options: Any) -> Event:
    return Host().run(lambda: emit(*given, **options)).emits[0]


class Emits(unittest.TestCase):
    def test_a_message_carries_what_it_was_given(self) -> None:
        event = sent(
            "t",
            [1, "ü"],
            id="i",
            source="/s",
            subject="about",
            time=datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            dataschema="https://example.com/s",
            partitionkey="k",
            deliver_after="2026-03-04T05:06:07Z",
            extensions={"z": 1, "a": True, "m": "text"},
        )
        self.assertEqual((event.id, event.source, event.type, event.subject), ("i", "/s", "t", "about"))
        self.assertEqual((event.time, event.datacontenttype), ("2026-01-01T00:00:00Z", "application/json"))
        self.assertEqual((event.dataschema, event.partitionkey), ("https://example.com/s", "k"))
        expected = [("a", True), ("deliverafter", "2026-03-04T05:06:07Z"), ("m", "text"), ("z", 1)]
        self.assertEqual(list(event.extensions.items()), expected)
        self.assertEqual(event.data, '[1,"ü"]'.encode())

    def test_a_payload_is_json_bytes_text_by_its_media_type_or_nothing(self) -> None:
        def form(*given: Any, **options: Any) -> "tuple[bytes, str | None]":
            event = sent("t", *given, **options)
            return event.data, event.datacontenttype

        self.assertEqual(form(), (b"", None))
        self.assertEqual(form(None), (b"null", "application/json"))
        self.assertEqual(form("text"), (b'"text"', "application/json"))
        self.assertEqual(form("text", datacontenttype="text/plain"), (b"text", "text/plain"))
        geo = "application/geo+json; v=1"
        self.assertEqual(form({}, datacontenttype=geo), (b"{}", geo))
        self.assertEqual(form(b"raw"), (b"raw", "application/octet-stream"))
        self.assertEqual(form(memoryview(b"raw"), datacontenttype="x/y"), (b"raw", "x/y"))

    def test_what_is_no_event_is_refused_and_the_error_says_what(self) -> None:
        def refused(pattern: str, *given: Any, **options: Any) -> None:
            with self.assertRaisesRegex(EmitError, pattern) as caught:
                sent(*given, **options)
            self.assertEqual(caught.exception.kind, "invalid")

        refused("`type` is empty", "")
        refused("`type` is a int, and must be a str", 7)
        refused("`type` is None", None)
        refused("`subject` is a int", "t", {}, subject=7)
        refused("`time` is a datetime without a time zone", "t", {}, time=datetime(2026, 1, 1))
        refused("the data of `t`: Object of type object is not JSON serializable", "t", object())
        refused("the data of `t`: ", "t", float("nan"))
        refused("the data of `t`: ", "t", "half \ud800")
        refused("the data of `t`: of the media type text/plain", "t", {}, datacontenttype="text/plain")
        refused("`My` is not the name of an extension", "t", {}, extensions={"My": 1})
        refused("`subject` is no extension", "t", {}, extensions={"subject": "x"})
        refused("the extension `n` is 1.5, and must be", "t", {}, extensions={"n": 1.5})
        refused("the extension `n` is 2147483648", "t", {}, extensions={"n": 2**31})
        refused("the extension `o` is a dict", "t", {}, extensions={"o": {}})
        self.assertRaises(TypeError, sent, "t", {}, subjcet="x")

    def test_a_type_that_the_settings_do_not_allow_is_denied(self) -> None:
        def work(event: Event) -> None:
            emit(event.type)

        allowed = ["order.*", "seen"]
        self.assertEqual(call(work, {"type": "order.done"}, allow_emit=allowed).outcome.tag, "done")
        outcome = call(work, {"type": "seen.not"}, allow_emit=allowed).outcome
        self.assertEqual(outcome.tag, "retry")
        self.assertRegex(outcome.reason or "", "^event_host.EmitError: not allowed to emit: `seen.not`")

    def test_an_emitted_event_has_the_key_of_what_was_handled_of_a_batch_the_one_of_all(self) -> None:
        self.assertEqual(call(lambda _: emit("t"), {"partitionkey": "k"}).emits[0].partitionkey, "k")
        keyed = {"partitionkey": "k"}
        self.assertEqual(call_batch(lambda _: emit("t"), [keyed, keyed]).emits[0].partitionkey, "k")
        self.assertIsNone(call_batch(lambda _: emit("t"), [keyed, {}]).emits[0].partitionkey)


class State(unittest.TestCase):
    def during(self, work: Callable[[], object]) -> None:
        Host({"bytes": b"\xff"}).run(work)

    def test_values_come_back_as_they_were_set_until_they_are_deleted(self) -> None:
        def work() -> None:
            state.set("a/1", [1, 2])
            state.set("a/2", "text")
            state.set_bytes("b", bytearray(b"\xff"))
            self.assertEqual((state.get("a/1"), state.get("a/2")), ([1, 2], "text"))
            self.assertEqual((state.get_bytes("b"), state.get_bytes("a/1")), (b"\xff", b"[1,2]"))
            self.assertEqual(state.keys("a/", 10), ["a/1", "a/2"])
            self.assertEqual(state.keys("", 2), ["a/1", "a/2"])
            state.delete("a/1")
            state.delete("a/1")
            self.assertIsNone(state.get("a/1"))
            self.assertEqual(state.get("a/1", 7), 7)
            self.assertIsNone(state.get_bytes("a/1"))

        Host().run(work)

    def test_keys_come_in_the_order_of_their_bytes(self) -> None:
        def work() -> None:
            for key in ("\U0001f980", "\uffee", "b", "a"):
                state.set(key, 1)
            self.assertEqual(state.keys("", 9), ["a", "b", "\uffee", "\U0001f980"])

        Host().run(work)

    def test_what_the_state_refuses_is_an_error_of_its_kind(self) -> None:
        def refused(kind: str, pattern: str, work: Callable[[], object]) -> None:
            with self.assertRaisesRegex(StateError, pattern) as caught:
                self.during(work)
            self.assertEqual(caught.exception.kind, kind)

        refused("invalid-key", "not a key of the state: the key is empty", lambda: state.get(""))
        refused("invalid-key", "1025 bytes", lambda: state.set("k" * 1025, 1))
        refused("decode", "the state's `bytes` is not JSON", lambda: state.get("bytes"))
        refused("encode", "the new value of the state's `k` has no JSON form", lambda: state.set("k", object()))
        refused("encode", "has no JSON form", lambda: state.set("k", float("nan")))
        wrong: Any = 7
        with self.assertRaisesRegex(TypeError, "a key of the state is a str, not a int"):
            self.during(lambda: state.get(wrong))
        with self.assertRaisesRegex(TypeError, "takes bytes"):
            self.during(lambda: state.set_bytes("k", wrong))
        with self.assertRaisesRegex(ValueError, "how many keys at most"):
            self.during(lambda: state.keys("k", -1))

    def test_a_host_begins_with_a_state_and_shows_it_decoded(self) -> None:
        host = Host({"n": 4, "bytes": b"\xff", "text": "x"})
        host.run(lambda: state.set("n", state.get("n") + 1))
        self.assertEqual(host.state, {"n": 5, "bytes": b"\xff", "text": "x"})

        def failing() -> None:
            state.set("n", 9)
            raise RuntimeError("end")

        self.assertRaises(RuntimeError, host.run, failing)
        self.assertEqual(host.state["n"], 5)


if __name__ == "__main__":
    unittest.main()
