#!/usr/bin/env python3
"""Runs components that an SDK built through the real host, and checks what comes out.

README.md beside this file says what the components do.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = """\
database = "sqlite:{database}"

[handlers.orders]
component = "orders.wasm"
subscribe = ["order.placed"]
ordering = "total"

[handlers.orders.retry]
max_attempts = 3
initial = "20ms"
max = "50ms"

[handlers.orders.allow]
emit = ["order.*", "batch.*", "state.*", "context.*"]
"""

MIB = 1 << 20


class Failed(Exception):
    """A check that did not hold."""


def check(holds, what, *seen):
    if not holds:
        raise Failed(what + "".join(f"\n  seen: {value!r}" for value in seen))


class Run:
    """A folder with settings, a database and one component at a time."""

    def __init__(self, host):
        self.host = str(Path(host).resolve())
        self.folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        (self.folder / "handlers.toml").write_text(SETTINGS.format(database="run.db"))
        self.logs = ""

    def remove(self):
        shutil.rmtree(self.folder)

    def use(self, component):
        shutil.copy(component, self.folder / "orders.wasm")

    def command(self, *arguments):
        done = subprocess.run([self.host, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"host {' '.join(arguments)} ends with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def drain(self, events):
        lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
        (self.folder / "events.jsonl").write_text(lines, encoding="utf-8")
        self.command("publish", "--file", "events.jsonl")
        started = time.monotonic()
        self.logs = self.command("run", "--drain", "--log", "info").stderr
        return time.monotonic() - started

    def rows(self, query, *values):
        database = sqlite3.connect(self.folder / "run.db")
        try:
            return database.execute(query, values).fetchall()
        finally:
            database.close()

    def emits(self, event_type):
        query = (
            "SELECT CAST(data AS BLOB), subject, extensions, partitionkey, source, datacontenttype"
            " FROM events WHERE type = ? ORDER BY position"
        )
        return self.rows(query, event_type)

    def state(self):
        return {key: bytes(value) for key, value in self.rows("SELECT key, value FROM state")}

    def dead(self):
        letters = json.loads(self.command("dlq", "list", "--json").stdout)
        return {letter["event"]["id"]: {"reason": letter["failure"]["text"], **letter} for letter in letters}


def event(number, cmd=None, name="Ada", data=None, **more):
    order = {"id": number, "name": name}
    if cmd is not None:
        order["cmd"] = cmd
    order.update(data or {})
    return {"specversion": "1.0", "id": f"order-{number}", "source": "/shop", "type": "order.placed", "data": order, **more}


def single(run):
    """One event a call."""
    big = "ü" * (MIB // 2)
    events = [
        event(1, name="Zoë 你好 🦀"),
        event(2, "retry", data={"until": 3}),
        event(3, "reject"),
        event(4, "boom"),
        event(5, partitionkey="k", flag=True, n=-3, s="text ü"),
        event(6, "print", name="Grace"),
        event(7, "state"),
        event(8, "context"),
        event(9, "denied"),
        event(10, data={"pad": big}),
        event(11, "promise"),
        event(12, "async"),
        event(13, "retry", data={"until": 99}),
    ]
    run.drain(events)
    dead = run.dead()
    never = {"order-11", "order-12"} & dead.keys()
    check(dead.keys() - never == {"order-3", "order-4", "order-9", "order-13"}, "dead letters: reject, boom, denied, retry", dead.keys())

    reject = dead["order-3"]
    check((reject["attempts"], reject["reason"]) == (1, "no to Ada"), "a rejection after one attempt, with its text", reject)
    boom = dead["order-4"]
    check(boom["attempts"] == 3, "a crash after three attempts", boom)
    check(len(boom["reason"]) > 20, "a crash with its words", boom["reason"])
    # A component that traps at the retry's delay would be called again as well.
    retried = (dead["order-13"]["failure"], dead["order-13"]["attempts"])
    check(retried == ({"kind": "retry", "text": "not before attempt 99"}, 3), "a retry that fails to the end", retried)
    denied = dead["order-9"]
    check("forbidden.type" in denied["reason"], "a type that is not allowed is named", denied["reason"])

    done = {}
    for data, subject, extensions, key, source, media in run.emits("order.done"):
        check(source == "/groups/orders" and media == "application/json", "source and media type", source, media)
        done[subject] = (data, extensions, key)
    finished = {"1", "2", "5", "6", "7", "8", "10"} | {str(n) for n in (11, 12) if f"order-{n}" not in never}
    check(done.keys() == finished, "an event for each that was handled", done.keys())

    def compact(**data):
        return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()

    def length(number):
        return len(json.dumps(events[number - 1]["data"], ensure_ascii=False).encode())

    check(done["1"][0] == compact(id=1, name="Zoë 你好 🦀", attempt=1, bytes=length(1)), "UTF-8, byte for byte", done["1"][0])
    check(done["2"][0] == compact(id=2, name="Ada", attempt=3, bytes=length(2)), "a retry that succeeds at attempt 3", done["2"][0])
    check(json.loads(done["5"][1]) == {"flag": True, "n": -3, "s": "text ü"}, "extensions of each type", done["5"][1])
    check(done["5"][2] == "k" and done["1"][2] is None, "the key of what was handled", done["5"][2])
    check(done["10"][0] == compact(id=10, name="Ada", attempt=1, bytes=length(10)) and length(10) > MIB, "1 MiB of data")

    state = run.state()
    count = b"%d" % len(finished)
    check(state.get("count") == count, "the counter counts what was handled", state.get("count"), count)
    check(state.get("bytes") == b"\0\xff\n", "bytes", state.get("bytes"))
    check(state.get("list") == '[1,"ü",null,{"a":true}]'.encode(), "a value is compact JSON", state.get("list"))
    check("gone" not in state, "a deleted key is gone")
    seen = json.loads(run.emits("state.seen")[0][0])
    expected = {"bytes": [0, 255, 10], "list": [1, "ü", None, {"a": True}], "gone": True, "keys": ["bytes", "count", "list"]}
    check(seen == expected, "the state as the handler reads it", seen)
    told = json.loads(run.emits("context.seen")[0][0])
    expected = {"group": "orders", "tenant": None, "left": True, "replay": False, "late": False}
    check(told == expected, "the context", told)
    check("order 1 of Zoë" in run.logs, "a line in the log")
    printed = "printed Grace" in run.logs
    reasons = {letter: dead[letter]["reason"] for letter in sorted(dead)}
    return {"printed": printed, "reasons": reasons}


def batch(run):
    """Several events a call."""
    run.drain([event(n, "reject" if n == 3 else None) for n in range(1, 7)])
    ids = [number for data, *_ in run.emits("batch.done") for number in json.loads(data)["ids"]]
    check(sorted(ids) == [1, 2, 4, 5, 6], "each event that was handled is emitted once", ids)
    check(run.state().get("count") == b"5", "the counter counts what was handled", run.state())
    dead = run.dead()
    check(list(dead) == ["order-3"] and dead["order-3"]["reason"] == "no to Ada", "one is rejected", dead)
    run.drain([event(n) for n in range(7, 107)])
    calls = [json.loads(data)["ids"] for data, *_ in run.emits("batch.done")]
    check(max(map(len, calls)) > 1, "a call has several events", [len(call) for call in calls])
    check(run.state().get("count") == b"105", "the counter counts what was handled", run.state())


def same_state(run, components):
    """A group that changes its handler goes on from the same counter."""
    expected = 0
    for turn in range(2):
        for place, component in enumerate(components):
            run.use(component)
            start = 1000 * (turn * len(components) + place)
            run.drain([event(start + n, name="Zoë") for n in range(5)])
            expected += 5
            count = run.state().get("count")
            check(count == b"%d" % expected, f"the counter after {component}", count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="target/release/host", help="the program `host`")
    parser.add_argument("--same-state", action="store_true", help="hand one state from component to component")
    parser.add_argument("components", nargs="+", metavar="COMPONENT", help="a handler of single events, then one of batches")
    options = parser.parse_args()
    suites = [(same_state.__doc__, None)] if options.same_state else list(
        zip((single.__doc__, batch.__doc__), options.components)
    )
    for title, component in suites:
        run = Run(options.host)
        try:
            if component is None:
                found = same_state(run, options.components)
            else:
                run.use(component)
                found = (batch if title == batch.__doc__ else single)(run)
        except Failed as failed:
            print(f"FAILED {title} {component or ''}\n{failed}\nIn {run.folder}; the last log:\n{run.logs[-6000:]}", file=sys.stderr)
            return 1
        run.remove()
        print(f"ok  {title} {component or ' '.join(options.components)}")
        if found:
            print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main())
