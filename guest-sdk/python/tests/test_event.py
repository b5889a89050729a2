"""What a handler gets: the event, the context, the log."""

import unittest
from collections.abc import Callable, Mapping
from typing import Any

from event_host import Event, context, log
from event_host.testing import Host, Outcome, call


def seen(event: Mapping[str, Any], **facts: Any) -> Event:
    kept: list[Event] = []
    assert call(kept.append, event, **facts).outcome == Outcome("done")
    return kept[0]


def outcome(event: Mapping[str, Any], read: Callable[[Event], object]) -> Outcome:
    return call(read, event).outcome


class Events(unittest.TestCase):
    def test_an_event_has_every_attribute_and_none_for_what_is_absent(self) -> None:
        event = seen(
            {
                "specversion": "1.0",
                "id": "i",
                "source": "/s",
                "type": "t",
                "subject": "about",
                "time": "2026-02-03T04:05:06Z",
                "datacontenttype": "application/json",
                "dataschema": "https://example.com/s",
                "partitionkey": "k",
                "flag": True,
                "n": -3,
                "s": "text",
                "data": {"name": "Zoë 🦀"},
            },
            attempt=3,
            position=2**60,
        )
        self.assertEqual((event.id, event.source, event.type, event.subject), ("i", "/s", "t", "about"))
        self.assertEqual((event.time, event.datacontenttype), ("2026-02-03T04:05:06Z", "application/json"))
        self.assertEqual((event.dataschema, event.partitionkey), ("https://example.com/s", "k"))
        self.assertEqual(event.extensions, {"flag": True, "n": -3, "s": "text"})
        self.assertEqual((event.position, event.attempt), (2**60, 3))
        self.assertEqual(event.data, '{"name":"Zoë 🦀"}'.encode())
        self.assertEqual(event.json(), {"name": "Zoë 🦀"})
        bare = seen({})
        absent = (bare.subject, bare.datacontenttype, bare.dataschema, bare.partitionkey, bare.extensions)
        self.assertEqual(absent, (None, None, None, None, {}))

    def test_data_that_does_not_decode_is_a_rejection_that_says_why(self) -> None:
        text = {"datacontenttype": "text/plain"}
        broken = outcome({"data": '{"n": ', **text}, lambda event: event.json())
        self.assertEqual(broken.tag, "reject")
        self.assertRegex(broken.reason or "", "^the data is not JSON: Expecting value: line 1 column 7")
        self.assertEqual(outcome({}, lambda event: event.json()), Outcome("reject", "the event has no data"))
        constant = outcome({"data": "NaN", **text}, lambda event: event.json())
        self.assertEqual(constant, Outcome("reject", "the data is not JSON: JSON has no NaN"))
        deep = outcome({"data": "[" * 100_000, **text}, lambda event: event.json())
        self.assertEqual(deep.tag, "reject")
        binary = outcome({"data_base64": "/w=="}, lambda event: event.text())
        self.assertEqual(binary.tag, "reject")
        self.assertRegex(binary.reason or "", "^the data is not UTF-8 text: ")
        self.assertEqual(seen({}).text(), "")
        self.assertEqual(seen({"data": b"\xff"}).data, b"\xff")

    def test_the_context_tells_what_the_host_says(self) -> None:
        told: list[object] = []

        def ask(_: Event) -> None:
            told.append(
                (context.group(), context.tenant(), context.remaining_ms(), context.is_replay(), context.is_late())
            )

        call(ask)
        call(ask, group="g", tenant="acme", remaining_ms=5, is_replay=True, is_late=True)
        self.assertEqual(told, [("test", None, 10_000, False, False), ("g", "acme", 5, True, True)])
        self.assertRaisesRegex(RuntimeError, "no host outside of a call", context.group)
        self.assertRaises(TypeError, Host, grop="g")

    def test_a_line_has_its_level_and_its_values_of_a_failed_call_too(self) -> None:
        def talk(_: Event) -> None:
            log.trace("a", 1, {"b": None})
            log.debug()
            log.info("half \ud800")
            log.warn(None, True)
            log.warning("as logging has it")
            log.error(TypeError("x"))
            raise RuntimeError("end")

        self.assertEqual(
            call(talk).logs,
            [
                ("trace", "a 1 {'b': None}"),
                ("debug", ""),
                ("info", "half \ufffd"),
                ("warn", "None True"),
                ("warn", "as logging has it"),
                ("error", "TypeError: x"),
            ],
        )


if __name__ == "__main__":
    unittest.main()
