#!/usr/bin/env python3
"""Measures the first load of handlers, cold and cached, and what a hundred of them take while they are idle."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import signal
import sqlite3
import subprocess
import tempfile
import time


def settings(component, handlers):
    text = 'database = "sqlite:test.db"\n'
    for number in range(handlers):
        text += f'[handlers.h{number}]\ncomponent = {json.dumps(str(component))}\nsubscribe = ["order.placed"]\n'
    return text


def used_by_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def load(host, folder):
    """Seconds by the clock and of processors, of all processes of the host."""
    began, before = time.monotonic(), used_by_children()
    run(folder, host, "check")
    return time.monotonic() - began, used_by_children() - before


def memory(process):
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/{process}/status has no VmRSS")


def idle(host, folder, component, handlers):
    """MiB of a host whose handlers have handled one event each, and have nothing to do any more."""
    (folder / "handlers.toml").write_text(settings(component, handlers))
    event = dict(specversion="1.0", id="1", source="/measure", type="order.placed", data={"id": 1, "name": "Ada", "customer": "Ada"})
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    run(folder, host, "publish", "--file", "events.jsonl")
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen([host, "run"], cwd=folder, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 600
            while handled(folder) < handlers:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{handlers} handlers do not run:\n{(folder / 'log').read_text()[-4000:]}")
                time.sleep(0.05)
            return memory(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def handled(folder):
    database = sqlite3.connect(folder / "test.db")
    try:
        # The cursor of a group that has handled the event stands behind it.
        return database.execute("SELECT count(*) FROM consumer_groups WHERE position >= 1").fetchone()[0]
    finally:
        database.close()


def measure(host, name, component, handlers):
    with tempfile.TemporaryDirectory(prefix="measure-") as path:
        folder = pathlib.Path(path)
        # A cache of its own, so that the first load is one.
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "handlers.toml").write_text(settings(component, 1))
        cold, cold_used = load(host, folder)
        cached, cached_used = load(host, folder)
        resident = []
        for count in (1, handlers):
            place = folder / str(count)
            place.mkdir()
            resident.append(idle(host, place, component, count))
    size = component.stat().st_size / 1e6
    print(
        f"| {name} | {size:.2f} MB | {cold:.1f} s ({cold_used:.1f} s) | {cached:.2f} s ({cached_used:.2f} s)"
        f" | {resident[0]:.0f} MiB | {resident[1]:.0f} MiB |",
        flush=True,
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--host", required=True, type=pathlib.Path, help="the program `host`, a release build")
    arguments.add_argument("--handlers", type=int, default=100, help="how many are idle at once")
    arguments.add_argument("components", nargs="+", metavar="NAME=FILE", help="a language, and a handler of single events")
    given = arguments.parse_args()
    print(f"| | size | first load (CPU) | cached (CPU) | 1 idle handler | {given.handlers} idle handlers |")
    print("| --- | --- | --- | --- | --- | --- |")
    for component in given.components:
        name, equals, file = component.partition("=")
        path = pathlib.Path(file).resolve()
        if not equals or not path.is_file():
            arguments.error(f"`{component}` is not NAME=FILE with a file that is there")
        measure(str(given.host.resolve()), name, path, given.handlers)


main()
