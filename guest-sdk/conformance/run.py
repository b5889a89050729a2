#!/usr/bin/env python3
"""Runs handlers that do what README.md says through a host, and compares."""

import argparse
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime

SETTINGS = """
database = "sqlite:test.db"
[handlers.orders]
component = {component}
subscribe = ["order.placed"]
[handlers.orders.retry]
max_attempts = 3
initial = "1ms"
max = "5ms"
[handlers.orders.allow]
emit = ["order.*"]
[handlers.orders.limits]
emit = "2MiB"
"""

MEBIBYTE = "\u00fc" * (1 << 19)
LIST = [1, "\u00fc", None, {"a": True}]


@dataclass
class Language:
    """What one language has beside what all have."""

    # In the reason of an ordinary error, beside its text.
    error: tuple = ()
    # In the dead letter of a crash: where it is a trap, what was written before it.
    crash: tuple = ("about to fall",)
    # Whether a handler can return what goes on later, which is a retry that says so.
    goes_on_later: bool = False
    # Whether stdout goes to the host's log.
    prints: bool = True
    # The largest whole number that it tells from its neighbours.
    largest: int = 2**63 - 1


LANGUAGES = {
    # `wasm32-unknown-unknown` has no stdout.
    "rust": Language(prints=False),
    "js": Language(
        error=("Error: an ordinary error", "\n    at "),
        crash=("TypeError", "null", "\n    at "),
        goes_on_later=True,
        largest=2**53 - 1,
    ),
    "python": Language(
        error=("RuntimeError: an ordinary error", "  File ", ", in "),
        crash=("ZeroDivisionError", "  File ", ", in "),
        goes_on_later=True,
    ),
    # Errors have no stack; a panic has.
    "go": Language(crash=("index out of range", "orders.Handle")),
}


def events(language):
    """The events of one round, without their ids."""
    yield dict(data={"id": 1, "name": "J\u00fcrgen \u6f22\u5b57 \U0001f600 \"quoted\" \\ \n\u0001 <a&b>"})
    yield dict(data={"id": 2, "name": "again", "cmd": "retry"})
    yield dict(data={"id": 3, "name": "K\u00e4se", "cmd": "reject"})
    yield dict(data={"id": 4, "name": "e", "cmd": "error"})
    yield dict(data={"id": 5, "name": "b", "cmd": "boom"})
    yield dict(data={"id": 6, "name": "p", "cmd": "print"})
    yield dict(data={"id": 7, "name": "x"}, flag=True, level=-3, note="h\u00e9", partitionkey="k1")
    yield dict(data={"id": 8, "name": MEBIBYTE})
    yield dict(data={"id": 9, "name": "i", "cmd": "invalid"})
    yield dict(data={"id": 10, "name": "d", "cmd": "denied"})
    yield dict(data={"id": 11, "name": "m", "cmd": "empty"})
    yield dict(data={"id": 12, "name": "y", "cmd": "bytes"})
    yield dict(data={"id": 13, "name": "l", "cmd": "late"})
    yield dict()
    yield dict(data="no object", datacontenttype="text/plain")
    yield dict(data={"id": language.largest, "name": ""})
    yield dict(data={"id": 17, "name": "n", "cmd": "never"})
    yield dict(data={"id": 18, "name": "s", "cmd": "list"})
    yield dict(data={"id": 19, "name": "a", "cmd": "async"})


def dead_letters(language):
    """By number of the event: kind, attempts, and what is in the reason."""
    dead = {
        3: ("reject", 1, ["no: K\u00e4se"]),
        4: ("retry", 3, ["an ordinary error", *language.error]),
        5: (None, 3, language.crash),
        9: ("retry", 3, ["cannot emit an invalid event"]),
        10: ("retry", 3, ["not allowed to emit", "secret.spilled"]),
        14: ("reject", 1, ["no data"]),
        15: ("reject", 1, ["JSON"]),
        17: ("retry", 3, ["never"]),
    }
    if language.goes_on_later:
        dead[19] = ("retry", 3, ["handlers are synchronous"])
    return dead


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def text(value):
    """As JSON in a file of events."""
    return json.dumps(value, ensure_ascii=False)


def many(number):
    """A plain event beside those of the commands."""
    return {"id": 1000 + number, "name": "many " * 50}


def rows(database, query):
    database.row_factory = sqlite3.Row
    return [dict(row) for row in database.execute(query)]


def shortened(value):
    shown = value if isinstance(value, str) else repr(value)
    shown = shown.replace("\n", "\\n")
    return shown if len(shown) <= 300 else f"{shown[:200]} ... {shown[-80:]}"


class Run:
    """One group on one database, whose handler changes."""

    def __init__(self, host, folder, extra):
        self.host = host
        self.folder = folder
        self.extra = extra
        self.count = 0
        self.seen = 0
        self.wrong = []
        self.name = ""

    def expect(self, what, found, wanted):
        if found != wanted:
            self.wrong.append(f"{self.name}: {what}: {shortened(found)}, wanted {shortened(wanted)}")

    def expect_in(self, what, found, words):
        for word in words:
            if word not in found:
                self.wrong.append(f"{self.name}: {what} has no `{shortened(word)}`: {shortened(found)}")

    def command(self, *arguments):
        done = subprocess.run(
            [self.host, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=500, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.name}: host {arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def publish(self, language):
        """Publishes one round; gives the event's own number by its id in the log."""
        numbers = {}
        lines = []
        for number, event in enumerate(events(language), 1):
            numbers[f"{self.name}-{number}"] = number
            lines.append(dict(id=f"{self.name}-{number}", **event))
        for number in range(self.extra):
            numbers[f"{self.name}-m{number}"] = None
            lines.append(dict(id=f"{self.name}-m{number}", data=many(number)))
        common = dict(specversion="1.0", source="/test", type="order.placed")
        content = "".join(text({**common, **line}) + "\n" for line in lines)
        (self.folder / "events.jsonl").write_text(content, encoding="utf-8")
        self.command("publish", "--file", "events.jsonl")
        return numbers

    def check(self, name, component):
        """Runs one handler; says whether it did what is wanted."""
        self.name = name
        language = LANGUAGES.get(name.removesuffix("-batch"), Language())
        wrong_before = len(self.wrong)
        settings = SETTINGS.format(component=json.dumps(str(component)))
        (self.folder / "handlers.toml").write_text(settings, encoding="utf-8")
        numbers = self.publish(language)
        started = time.monotonic()
        log = self.command("--log", "info,guest=trace", "run", "--drain")
        seconds = time.monotonic() - started
        database = sqlite3.connect(self.folder / "test.db")
        letters = rows(database, "SELECT event_id, attempts, failure_kind AS kind, failure_text AS text FROM dead_letters")
        emits = rows(database, f"SELECT * FROM events WHERE source = '/groups/orders' AND position > {self.seen} ORDER BY position")
        state = {row["key"]: bytes(row["value"]) for row in rows(database, "SELECT key, value FROM state")}
        database.close()
        self.seen = max([self.seen] + [emit["position"] for emit in emits])

        dead = {numbers[letter["event_id"]] or 0: letter for letter in letters if letter["event_id"] in numbers}
        self.check_dead_letters(language, dead)
        self.check_emits(language, emits)
        self.expect("state", state, {"count": str(self.count).encode(), "list": compact(LIST)})
        words = ["order 1 of orders", "about to fall"]
        if language.prints:
            words.append("printed")
        if name.endswith("-batch"):
            words.append("batch of ")
            sizes = [line.split("batch of ", 1)[1].split()[0] for line in log.splitlines() if "batch of " in line]
            if all(size == "1" for size in sizes):
                self.wrong.append(f"{name}: no call has several events")
        self.expect_in("the log", log, words)
        self.check_time(log, 2)
        self.check_time(log, 17)
        size = component.stat().st_size / 1e6
        good = len(self.wrong) == wrong_before
        print(f"{name}: {'as wanted' if good else 'WRONG'} ({size:.2f} MB, {seconds:.1f} s, compiling included unless it is cached)", flush=True)
        return good

    def check_dead_letters(self, language, dead):
        wanted = dead_letters(language)
        self.expect("dead letters", sorted(dead), sorted(wanted))
        for number, (kind, attempts, words) in wanted.items():
            letter = dead.get(number)
            if letter is None:
                continue
            if kind is not None:
                self.expect(f"kind of {number}", letter["kind"], kind)
            self.expect(f"attempts of {number}", letter["attempts"], attempts)
            self.expect_in(f"dead letter {number}", letter["text"], words)
        # Only a retry that the handler asked for, not a trap beside it, has just these words.
        for number, reason in [(3, "no: K\u00e4se"), (17, "never")]:
            if number in dead:
                self.expect(f"reason of {number}", dead[number]["text"], reason)
        if 5 in dead:
            print(f"  {self.name}: crash: {shortened(dead[5]['text'])}")

    def check_time(self, log, number):
        """A retry that asks for 50 ms gets them, where the settings have 5 ms at most."""
        line = re.compile(rf"(\S+Z) .* attempt=(\d+)\b.*: order {number} of orders")
        found = {}
        for match in filter(None, map(line.search, log.splitlines())):
            found[int(match[2])] = datetime.fromisoformat(match[1].replace("Z", "+00:00"))
        self.expect(f"attempts of {number} in the log", sorted(found), [1, 2, 3])
        for attempt in found.keys() & {number - 1 for number in found}:
            waited = (found[attempt + 1] - found[attempt]).total_seconds()
            if waited < 0.05:
                self.wrong.append(f"{self.name}: after attempt {attempt} of {number} only {waited * 1000:.0f} ms went by")

    def check_emits(self, language, emits):
        dead = dead_letters(language)
        wanted = {}
        handled = [(number, event["data"]) for number, event in enumerate(events(language), 1) if number not in dead]
        handled += [(None, many(number)) for number in range(self.extra)]
        for number, data in handled:
            self.count += 1
            answer = dict(id=data["id"], name=data["name"], count=self.count, attempt={2: 3, 13: 2}.get(number, 1))
            answer |= dict(bytes=len(text(data).encode()), group="orders", tenant=None, left=True, replay=False, late=False)
            wanted[str(data["id"])] = compact(answer)
        found = {emit["subject"]: emit for emit in emits if emit["type"] == "order.done"}
        self.expect("subjects of order.done", sorted(found), sorted(wanted))
        for subject, data in wanted.items():
            if subject in found:
                self.expect(f"data of {subject}", bytes(found[subject]["data"]), data)
                media_type = found[subject]["datacontenttype"] or "application/json"
                self.expect(f"media type of {subject}", media_type, "application/json")
        if "7" in found:
            extensions = json.loads(found["7"]["extensions"] or "{}")
            self.expect("extensions of 7", extensions, {"flag": True, "level": -3, "note": "h\u00e9"})
            self.expect("key of 7", found["7"]["partitionkey"], "k1")
        others = [(emit["type"], emit["data"] or b"", emit["subject"]) for emit in emits if emit["type"] != "order.done"]
        self.expect("other events", others, [("order.empty", b"", None)])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--host", required=True, type=pathlib.Path, help="the program `host`")
    arguments.add_argument("--extra", type=int, default=300, help="plain events beside those of each command")
    arguments.add_argument("handlers", nargs="+", metavar="NAME=FILE", help="LANGUAGE or LANGUAGE-batch, and its component")
    given = arguments.parse_args()
    os.environ.setdefault("NO_COLOR", "1")
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        run = Run(given.host.resolve(), pathlib.Path(folder), given.extra)
        for handler in given.handlers:
            name, _, file = handler.partition("=")
            run.check(name, pathlib.Path(file).resolve())
    for line in run.wrong:
        print(line)
    sys.exit(1 if run.wrong else 0)


main()
