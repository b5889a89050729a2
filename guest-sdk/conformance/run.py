#!/usr/bin/env python3
"""Runs handlers that do what README.md says through a host, and compares."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit

SETTINGS = """
database = {database}
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


JAVASCRIPT = Language(
    error=("Error: an ordinary error", "\n    at "),
    crash=("TypeError", "null", "\n    at "),
    goes_on_later=True,
    largest=2**53 - 1,
)

LANGUAGES = {
    # `wasm32-unknown-unknown` has no stdout.
    "rust": Language(prints=False),
    # Nor has a module that imports no WASI.
    "wat": Language(prints=False),
    "js": JAVASCRIPT,
    "ts": JAVASCRIPT,
    # Its stacks have no indentation.
    "js-starlingmonkey": replace(JAVASCRIPT, error=("Error: an ordinary error", "@"), crash=("TypeError", "null", "@")),
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


class Sqlite:
    """A database in a file."""

    name = "SQLite"

    def __init__(self, folder):
        self.file = folder / "test.db"
        self.setting = "sqlite:test.db"

    def rows(self, query):
        database = sqlite3.connect(self.file)
        try:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(query)]
        finally:
            database.close()

    def close(self):
        """The file goes with its folder."""


class Postgres:
    """A database of its own on a server, asked by psql."""

    name = "PostgreSQL"

    def __init__(self, server, psql):
        self.server = server
        self.psql = psql
        self.database = f"conformance_{uuid.uuid4().hex}"
        self.ask(server, f"CREATE DATABASE {self.database}")
        parts = urlsplit(server)
        self.setting = urlunsplit(parts._replace(path=f"/{self.database}"))

    def ask(self, url, sql):
        environment = dict(os.environ, PGOPTIONS="-c search_path=event_host -c client_min_messages=warning")
        done = subprocess.run(
            [self.psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url],
            input=sql, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.psql}: {sql}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def rows(self, query):
        def value(found):
            # Bytes are two hexadecimal digits each, behind a mark.
            return bytes.fromhex(found[2:]) if isinstance(found, str) and found.startswith("\\x") else found

        text = self.ask(self.setting, f"SELECT coalesce(json_agg(found), '[]') FROM ({query}) AS found")
        return [{key: value(found) for key, found in row.items()} for row in json.loads(text)]

    def close(self):
        self.ask(self.server, f"DROP DATABASE {self.database} WITH (FORCE)")


def shortened(value):
    shown = value if isinstance(value, str) else repr(value)
    shown = shown.replace("\n", "\\n")
    return shown if len(shown) <= 300 else f"{shown[:200]} ... {shown[-80:]}"


class Run:
    """One group on one database, whose handler changes."""

    def __init__(self, host, folder, store, extra):
        self.host = host
        self.folder = folder
        self.store = store
        self.extra = extra
        self.count = 0
        self.seen = 0
        self.wrong = []
        self.name = ""

    def where(self):
        return f"{self.name} on {self.store.name}"

    def expect(self, what, found, wanted):
        if found != wanted:
            self.wrong.append(f"{self.where()}: {what}: {shortened(found)}, wanted {shortened(wanted)}")

    def expect_in(self, what, found, words):
        for word in words:
            if word not in found:
                self.wrong.append(f"{self.where()}: {what} has no `{shortened(word)}`: {shortened(found)}")

    def command(self, *arguments):
        done = subprocess.run(
            [self.host, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=500, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.where()}: host {arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
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

    def configure(self, component):
        settings = SETTINGS.format(component=json.dumps(str(component)), database=json.dumps(self.store.setting))
        # As a whole or not at all: a host may be following the file.
        new = self.folder / "handlers.toml.new"
        new.write_text(settings, encoding="utf-8")
        new.rename(self.folder / "handlers.toml")

    def check(self, name, component):
        """Runs one handler; says whether it did what is wanted."""
        self.name = name
        language = LANGUAGES.get(name.removesuffix("-batch"), Language())
        wrong_before = len(self.wrong)
        self.configure(component)
        numbers = self.publish(language)
        started = time.monotonic()
        log = self.command("--log", "info,guest=trace", "run", "--drain")
        seconds = time.monotonic() - started
        letters = self.store.rows("SELECT event_id, attempts, failure_kind AS kind, failure_text AS text FROM dead_letters")
        emits = self.store.rows(
            "SELECT position, type, subject, datacontenttype, partitionkey, extensions, data FROM events"
            f" WHERE source = '/groups/orders' AND position > {self.seen} ORDER BY position"
        )
        state = self.state()
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
                self.wrong.append(f"{self.where()}: no call has several events")
        self.expect_in("the log", log, words)
        self.check_time(log, 2)
        self.check_time(log, 17)
        size = component.stat().st_size / 1e6
        good = len(self.wrong) == wrong_before
        print(f"{self.where()}: {'as wanted' if good else 'WRONG'} ({size:.2f} MB, {seconds:.1f} s, compiling included unless it is cached)", flush=True)
        return good

    def state(self):
        return {row["key"]: bytes(row["value"]) for row in self.store.rows("SELECT key, value FROM state")}

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
            print(f"  {self.where()}: crash: {shortened(dead[5]['text'])}")

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
                self.wrong.append(f"{self.where()}: after attempt {attempt} of {number} only {waited * 1000:.0f} ms went by")

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
            extensions = found["7"]["extensions"] or {}
            if isinstance(extensions, str):
                extensions = json.loads(extensions)
            self.expect("extensions of 7", extensions, {"flag": True, "level": -3, "note": "h\u00e9"})
            self.expect("key of 7", found["7"]["partitionkey"], "k1")
        others = [(emit["type"], emit["data"] or b"", emit["subject"]) for emit in emits if emit["type"] != "order.done"]
        self.expect("other events", others, [("order.empty", b"", None)])


    def change_under_load(self, handlers):
        """One host follows the settings while events come, and each handler takes over from the one before."""
        self.name = "changes of the language"
        wrong_before = len(self.wrong)
        ended = threading.Event()
        published = []
        failed = []

        def load():
            try:
                publish()
            except SystemExit as error:
                failed.append(error)

        def publish():
            while not ended.is_set():
                first = 1000 + self.extra + sum(published)
                lines = [
                    text(dict(specversion="1.0", source="/load", type="order.placed", id=str(number), data={"id": number, "name": "load"}))
                    for number in range(first, first + 20)
                ]
                (self.folder / "load.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
                self.command("publish", "--file", "load.jsonl")
                published.append(len(lines))

        before = int(self.state().get("count", b"0"))
        self.configure(handlers[0][1])
        log = (self.folder / "load.log").open("w+", encoding="utf-8")
        host = subprocess.Popen([self.host, "--log", "info,guest=warn", "run", "--watch"], cwd=self.folder, stdout=log, stderr=log)
        publisher = threading.Thread(target=load)
        try:
            def said(words):
                return (self.folder / "load.log").read_text(encoding="utf-8").count(words)

            def handled():
                return int(self.state().get("count", b"0")) - before

            def wait(what, there):
                """Looks again and again while host and load go on, for five minutes at most: compiling takes its time."""
                deadline = time.monotonic() + 300
                while not there():
                    if failed:
                        raise failed[0]
                    if host.poll() is not None or time.monotonic() > deadline:
                        end = (self.folder / "load.log").read_text(encoding="utf-8")[-4000:]
                        raise SystemExit(f"{self.where()}: not so: {what}\n{end}")
                    time.sleep(0.02)

            wait("the first handler leads", lambda: said("leading") > 0)
            publisher.start()
            for number, (_, component) in enumerate(handlers):
                if number > 0:
                    self.configure(component)
                    wait("the next handler takes over", lambda: said("another version takes over") >= number)
                # At least one round of events is all its own.
                so_far = handled()
                wait("the handler handles events", lambda: handled() > so_far + 40)
            ended.set()
            publisher.join()
            wait("every event is handled", lambda: handled() >= sum(published))
        finally:
            ended.set()
            host.send_signal(signal.SIGTERM)
            code = host.wait(timeout=60)
            log.close()
            if publisher.is_alive():
                publisher.join()
        self.expect("exit code of the host", code, 0)
        self.expect("the count", handled(), sum(published))
        emits = self.store.rows(
            "SELECT subject, data FROM events WHERE source = '/groups/orders' AND type = 'order.done'"
            f" AND position > {self.seen} ORDER BY position"
        )
        counts = [json.loads(bytes(emit["data"]))["count"] for emit in emits]
        self.expect("the counts emitted", counts, [before + 1 + number for number in range(sum(published))])
        self.expect("subjects emitted", len({emit["subject"] for emit in emits}), sum(published))
        good = len(self.wrong) == wrong_before
        names = " -> ".join(name for name, _ in handlers)
        print(f"{self.where()}: {'as wanted' if good else 'WRONG'} ({sum(published)} events; {names})", flush=True)


def check_all(run, handlers):
    for name, component in handlers:
        run.check(name, component)
    if len(handlers) > 1:
        run.change_under_load(handlers)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--host", required=True, type=pathlib.Path, help="the program `host`")
    arguments.add_argument("--postgres", metavar="URL", help="runs all again in a database of its own on this server")
    arguments.add_argument("--psql", default="psql", help="PostgreSQL's program `psql`, where it is not on the path")
    arguments.add_argument("--extra", type=int, default=300, help="plain events beside those of each command")
    arguments.add_argument("handlers", nargs="+", metavar="NAME=FILE", help="LANGUAGE or LANGUAGE-batch, and its component")
    given = arguments.parse_args()
    handlers = []
    for handler in given.handlers:
        name, equals, file = handler.partition("=")
        component = pathlib.Path(file).resolve()
        if not equals or not component.is_file():
            arguments.error(f"`{handler}` is not NAME=FILE with a file that is there")
        handlers.append((name, component))
    os.environ.setdefault("NO_COLOR", "1")
    host = given.host.resolve()
    wrong = []
    kinds = [Sqlite]
    if given.postgres:
        kinds.append(lambda _: Postgres(given.postgres, given.psql))
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            store = kind(pathlib.Path(folder))
            run = Run(host, pathlib.Path(folder), store, given.extra)
            try:
                check_all(run, handlers)
            finally:
                store.close()
            wrong += run.wrong
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


main()
