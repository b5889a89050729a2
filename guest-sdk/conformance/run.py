#!/usr/bin/env python3
"""Runs handlers that were written to README.md through a host, and compares."""

import argparse
import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile

SETTINGS = """
database = "sqlite:test.db"
[handlers.orders]
component = {component}
subscribe = ["order.placed"]
[handlers.orders.retry]
max_attempts = 3
initial = "10ms"
[handlers.orders.allow]
emit = ["order.*"]
{clocks}
[handlers.orders.limits]
memory = "64MiB"
"""

MEBIBYTE = "x" * (900 * 1024)


def events():
    """The events of one round, without their ids."""
    yield dict(data={"id": 1, "name": "J\u00fcrgen \u6f22\u5b57 \U0001f600 \"quoted\" \\ \n\u0001"})
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
    yield dict(data={"id": 9007199254740993, "name": ""})


DEAD = {
    "3": ("reject", 1, ["no: K\u00e4se"]),
    "4": ("retry", 3, ["an ordinary error"]),
    "5": (None, 3, []),
    "9": ("retry", 3, ["cannot emit an invalid event"]),
    "10": ("retry", 3, ["not allowed to emit", "secret.spilled"]),
    "14": ("reject", 1, ["no data"]),
    "15": ("reject", 1, ["JSON"]),
}


def publish(host, folder, name, extra):
    lines = []
    for number, event in enumerate(events(), 1):
        lines.append(dict(specversion="1.0", id=f"{name}-{number}", source="/test", type="order.placed", **event))
    for number in range(extra):
        data = {"id": 1000 + number, "name": "many " * 50}
        lines.append(dict(specversion="1.0", id=f"{name}-m{number}", source="/test", type="order.placed", data=data))
    file = folder / "events.jsonl"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    run(host, folder, "publish", "--file", "events.jsonl")


def run(host, folder, *arguments):
    done = subprocess.run([host, *arguments], cwd=folder, capture_output=True, text=True, timeout=500)
    if done.returncode != 0:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def rows(database, query, *values):
    database.row_factory = sqlite3.Row
    return [dict(row) for row in database.execute(query, values)]


def check(host, folder, name, component, count, extra, clocks, wrong):
    """Runs one handler; gives the count after it."""
    settings = SETTINGS.format(component=json.dumps(str(component)), clocks=f'clocks = "{clocks}"' if clocks else "")
    (folder / "handlers.toml").write_text(settings)
    publish(host, folder, name, extra)
    log = run(host, folder, "--log", "info,guest=trace", "run", "--drain")
    database = sqlite3.connect(folder / "test.db")
    wrong_before = len(wrong)

    def expect(what, found, wanted):
        if found != wanted:
            wrong.append(f"{name}: {what}: {shortened(found)}, wanted {shortened(wanted)}")

    letters = rows(database, "SELECT event_id, attempts, failure_kind AS kind, failure_text AS text FROM dead_letters")
    own = {f"{name}-{number}" for number in range(1, len(list(events())) + 1)}
    own |= {f"{name}-m{number}" for number in range(extra)}
    dead = {letter["event_id"]: letter for letter in letters if letter["event_id"] in own}
    expect("dead letters", sorted(dead), sorted(f"{name}-{number}" for number in DEAD))
    for number, (kind, attempts, words) in DEAD.items():
        letter = dead.get(f"{name}-{number}")
        if letter is None:
            continue
        if kind is not None:
            expect(f"kind of {number}", letter["kind"], kind)
        expect(f"attempts of {number}", letter["attempts"], attempts)
        for word in words:
            if word not in letter["text"]:
                wrong.append(f"{name}: dead letter {number} has no `{word}`: {shortened(letter['text'])}")
    print(f"  {name}: error: {shortened(dead.get(f'{name}-4', {}).get('text'))}")
    print(f"  {name}: crash: {shortened(dead.get(f'{name}-5', {}).get('text'))}")

    done = {}
    emits = rows(database, "SELECT * FROM events WHERE source = '/groups/orders' ORDER BY position")
    emits = [emit for emit in emits if emit["position"] > check.seen]
    check.seen = max([check.seen] + [emit["position"] for emit in emits])
    empty = [emit for emit in emits if emit["type"] == "order.empty"]
    expect("order.empty", [(emit["data"] or b"", emit["subject"]) for emit in empty], [(b"", None)])
    for emit in emits:
        if emit["type"] == "order.done":
            data = json.loads(emit["data"])
            done[data["id"]] = (data, emit)
    wanted = {}
    for number, event in enumerate(events(), 1):
        if str(number) in DEAD:
            continue
        count += 1
        data = event["data"]
        attempt = {2: 3, 13: 2}.get(number, 1)
        wanted[data["id"]] = dict(id=data["id"], name=data["name"], count=count, attempt=attempt, tenant="", replay=False, late=False)
    for number in range(extra):
        count += 1
        wanted[1000 + number] = dict(id=1000 + number, name="many " * 50, count=count, attempt=1, tenant="", replay=False, late=False)
    expect("emitted ids", sorted(done), sorted(wanted))
    for number, data in wanted.items():
        if number in done:
            expect(f"data of {number}", done[number][0], data)
            expect(f"subject of {number}", done[number][1]["subject"], str(number))
            expect(f"media type of {number}", done[number][1]["datacontenttype"] or "application/json", "application/json")
    if 7 in done:
        extensions = json.loads(done[7][1]["extensions"] or "{}")
        expect("extensions of 7", extensions, {"flag": True, "level": -3, "note": "h\u00e9"})
        expect("key of 7", done[7][1]["partitionkey"], "k1")
    state = {row["key"]: row["value"] for row in rows(database, "SELECT key, value FROM state")}
    expect("state", state, {"count": str(count).encode()})
    for words in ["order 1 of orders", "printed", "about to fall"]:
        if words not in log:
            wrong.append(f"{name}: `{words}` is not in the log")
    database.close()
    print(f"{name}: {'as wanted' if len(wrong) == wrong_before else 'WRONG'}")
    return count


def shortened(value):
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--host", required=True, type=pathlib.Path)
    arguments.add_argument("--extra", type=int, default=300, help="plain events beside those of each command")
    arguments.add_argument("--clocks", help="`allow.clocks`")
    arguments.add_argument("handlers", nargs="+", metavar="NAME=FILE")
    given = arguments.parse_args()
    wrong = []
    check.seen = 0
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for handler in given.handlers:
            name, _, file = handler.partition("=")
            component = pathlib.Path(file).resolve()
            count = check(given.host.resolve(), pathlib.Path(folder), name, component, count, given.extra, given.clocks, wrong)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


main()
