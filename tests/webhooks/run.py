#!/usr/bin/env python3
"""Sends webhooks to the real program as their providers do, and looks into its log.

GitHub's are signed by Python's own hmac; those of Standard Webhooks and of Stripe by PyPI's
`standardwebhooks` and `stripe`, which their makers publish, and which are used unmodified.

    python3 tests/webhooks/run.py --host target/debug/host
    python3 tests/webhooks/run.py --host target/debug/host --payloads FOLDER

A folder of payloads has files of GitHub's: EVENT.json or EVENT.anything.json for one
each, and CloudEvents of type com.github.EVENT, one a line, in files that end in .jsonl or
.jsonl.gz. Without one, the sample events of examples/webhooks are sent.
"""

import argparse
import datetime
import gzip
import hashlib
import hmac
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import standardwebhooks
import stripe

GITHUB = "a lighthouse has no secrets but this"
STRIPE = "whsec_" + "5tr1pe" * 6
STANDARD = "whsec_bGlnaHRob3VzZXMgYW5kIHRpZGUgdGFibGVzIQ=="
SETTINGS = f"""
database = "sqlite:host.db"

[listen.local]
address = "127.0.0.1:0"

[ingest]
min_free = "1MiB"

[sources.github]
verify = "github"
secrets = ["not this one any more", "${{file:github.secret}}"]

[sources.stripe]
verify = "stripe"
secrets = ["${{STRIPE_SECRET}}"]

[sources.standard]
verify = "standard"
secrets = ["{STANDARD}"]
"""


class Host:
    """A host that serves, in a folder of its own."""

    def __init__(self, program, folder):
        self.folder = Path(folder)
        (self.folder / "handlers.toml").write_text(SETTINGS)
        (self.folder / "github.secret").write_text(GITHUB + "\n")
        environment = os.environ | {"STRIPE_SECRET": STRIPE}
        run = dict(cwd=folder, env=environment, text=True)
        subprocess.run([program, "migrate"], check=True, stdout=subprocess.DEVNULL, **run)
        self.process = subprocess.Popen(
            [program, "serve", "--log-format", "json"], stderr=subprocess.PIPE, **run
        )
        self.log = []
        self.address = None
        while self.address is None:
            line = self.process.stderr.readline()
            if not line:
                sys.exit("the host ended:\n" + "".join(self.log))
            self.log.append(line)
            if '"listening"' in line:
                told = json.loads(line)
                self.address = told.get("address") or told["fields"]["address"]
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        self.connection = http.client.HTTPConnection(self.address, timeout=30)

    def post(self, path, headers, body):
        """Sends a request, and gives the status and the JSON of the answer."""
        self.connection.request("POST", path, body, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def events(self):
        """Each event of the log: source, id, type and data."""
        with sqlite3.connect(self.folder / "host.db") as database:
            return database.execute("SELECT source, id, type, data FROM events ORDER BY position").fetchall()

    def stop(self):
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.reader.join()
        assert code == 0, f"exit code {code}:\n{''.join(self.log)}"
        return "".join(self.log)


def payloads(folder):
    """The event and the body of each payload in a folder, or in one file."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        if file.suffix == ".json":
            yield file.name.split(".")[0], file.read_bytes()
        elif file.name.endswith((".jsonl", ".jsonl.gz")):
            opened = gzip.open(file, "rt") if file.suffix == ".gz" else open(file)
            with opened as lines:
                for line in lines:
                    event = json.loads(line)
                    name = event["type"].removeprefix("com.github.").split(".")[0]
                    # As GitHub writes JSON: without blanks, in UTF-8.
                    body = json.dumps(event["data"], ensure_ascii=False, separators=(",", ":"))
                    yield name, body.encode()


def github_headers(event, body, delivery, secret=GITHUB):
    """The headers that GitHub sends."""
    sign = lambda algorithm: hmac.new(secret.encode(), body, algorithm).hexdigest()
    return {
        "Accept": "*/*",
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature": "sha1=" + sign(hashlib.sha1),
        "X-Hub-Signature-256": "sha256=" + sign(hashlib.sha256),
    }


def github(host, folder):
    """Every payload is an event once, byte for byte, whatever is sent again."""
    sent = list(payloads(folder))
    assert sent, f"no payloads in {folder}"
    expected = {}
    pings = 0
    for event, body in sent:
        delivery = str(uuid.uuid4())
        status, answer = host.post("/hooks/github", github_headers(event, body, delivery), body)
        if event == "ping":
            pings += 1
            assert (status, answer) == (200, {"events": []}), (event, status, answer)
            continue
        # Of two payloads that are the same the second is a repetition: its id is not signed.
        assert status == (200 if body in expected else 202), (event, status, answer)
        action = json.loads(body).get("action")
        kind = f"{event}.{action}" if action else event
        expected.setdefault(body, (delivery, kind, answer["events"][0]["position"]))
    for event, body in sent:
        if event == "ping":
            continue
        # Somebody has captured it, and sends it under an id of his own.
        headers = github_headers(event, body, str(uuid.uuid4()))
        status, answer = host.post("/hooks/github", headers, body)
        told = answer["events"][0]
        assert (status, told["duplicate"]) == (200, True), (status, answer)
        assert told["position"] == expected[body][2], answer
        turned = bytes([body[0], body[1] ^ 1]) + body[2:]
        status, answer = host.post("/hooks/github", headers, turned)
        assert status == 401 and answer["type"].endswith("/signature"), (status, answer)
        wrong = github_headers(event, body, str(uuid.uuid4()), GITHUB + "!")
        status, answer = host.post("/hooks/github", wrong, body)
        assert status == 401, (status, answer)
    found = [event for event in host.events() if event[0].startswith("https://github.com/")]
    assert len(found) == len(expected), (len(found), len(expected))
    for source, id, kind, data in found:
        delivery, expected_kind, _ = expected[data]
        assert (id, kind) == (delivery, expected_kind), (source, id, kind)
    print(f"github: {len(sent)} payloads, of which {pings} pings: {len(found)} events, each once")


def standard(host):
    """What PyPI's standardwebhooks signs."""
    signer = standardwebhooks.Webhook(STANDARD)
    for number in range(100):
        id = f"msg_{number}"
        body = json.dumps({"type": "tide.turned", "timestamp": "2026-03-01T08:00:00Z", "data": {"n": number}})
        now = datetime.datetime.now(datetime.timezone.utc)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signer.sign(id, now, body),
        }
        status, answer = host.post("/hooks/standard", headers, body)
        assert status == 202, (status, answer)
        status, answer = host.post("/hooks/standard", headers, body)
        assert status == 200 and answer["events"][0]["duplicate"], (status, answer)
        status, answer = host.post("/hooks/standard", headers | {"webhook-id": id + "x"}, body)
        assert status == 401, (status, answer)
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=6)
    stale = headers | {
        "webhook-timestamp": str(int(then.timestamp())),
        "webhook-signature": signer.sign(id, then, body),
    }
    status, answer = host.post("/hooks/standard", stale, body)
    assert status == 401 and answer["type"].endswith("/stale-signature"), (status, answer)
    found = [event for event in host.events() if event[2] == "tide.turned"]
    assert [event[1] for event in found] == [f"msg_{number}" for number in range(100)], found
    print(f"standard: {len(found)} events, each once")


def of_stripe(host):
    """What PyPI's stripe signs."""
    sign = stripe.WebhookSignature.generate_signature_header
    for number in range(100):
        body = json.dumps({"id": f"evt_{number}", "object": "event", "type": "invoice.paid", "data": {}})
        headers = {"content-type": "application/json", "stripe-signature": sign(body, STRIPE)}
        status, answer = host.post("/hooks/stripe", headers, body)
        assert status == 202, (status, answer)
        # Stripe signs anew whenever it sends again.
        again = headers | {"stripe-signature": sign(body, STRIPE, timestamp=int(time.time()) + 1)}
        status, answer = host.post("/hooks/stripe", again, body)
        assert status == 200 and answer["events"][0]["duplicate"], (status, answer)
        wrong = headers | {"stripe-signature": sign(body, STRIPE[:-1] + "x")}
        status, answer = host.post("/hooks/stripe", wrong, body)
        assert status == 401, (status, answer)
    old = headers | {"stripe-signature": sign(body, STRIPE, timestamp=int(time.time()) - 360)}
    status, answer = host.post("/hooks/stripe", old, body)
    assert status == 401 and answer["type"].endswith("/stale-signature"), (status, answer)
    found = [event for event in host.events() if event[2] == "invoice.paid"]
    assert [event[1] for event in found] == [f"evt_{number}" for number in range(100)], found
    print(f"stripe: {len(found)} events, each once")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", required=True, type=Path, help="the program")
    parser.add_argument("--payloads", type=Path, help="a folder of GitHub's payloads, or a file")
    arguments = parser.parse_args()
    samples = Path(__file__).resolve().parents[2] / "examples/webhooks/events.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        host = Host(arguments.host.resolve(), folder)
        try:
            github(host, arguments.payloads or samples)
            standard(host)
            of_stripe(host)
        finally:
            log = host.stop()
    for secret in [GITHUB, STRIPE, STANDARD, STANDARD.removeprefix("whsec_")]:
        assert secret not in log, "a secret is in the log"
    # Thousands of requests are refused, and each reason is told of once a minute.
    told = sum("a webhook is refused" in line for line in log.splitlines())
    assert 0 < told < 50, told


if __name__ == "__main__":
    main()
