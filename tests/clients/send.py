"""Sends events to a host with PyPI's `cloudevents`, as its users do.

Usage: send.py URL TOKEN COUNT, where `cloudevents` and `requests` can be imported. Each event
goes in one of the three modes in turn; the ids are `py 0`, `py 1`, and so on.
"""

import json
import sys

import requests

from cloudevents.v1.conversion import to_binary, to_structured
from cloudevents.v1.http import CloudEvent


def main() -> None:
    url, token, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {token}"

    def post(headers, body):
        answer = session.post(url, headers=headers, data=body, timeout=30)
        assert answer.status_code == 202, (answer.status_code, answer.text)
        return answer.json()["events"]

    def event(number):
        attributes = {
            "id": f"py {number}",
            "source": "https://example.com/clients/python",
            "type": "client.event",
            # The package sends headers as they are, so in binary mode it has no other text.
            "subject": "fuss" if number % 3 == 0 else "Füße € 😀",
            "client": "python",
        }
        return CloudEvent(attributes, {"number": number})

    number = 0
    while number < count:
        mode = number % 3
        if mode == 0:
            events = post(*to_binary(event(number)))
        elif mode == 1:
            events = post(*to_structured(event(number)))
        else:
            # The package has no batches: two of its events in one.
            last = min(number + 2, count)
            batch = [json.loads(to_structured(event(n))[1]) for n in range(number, last)]
            kind = {"Content-Type": "application/cloudevents-batch+json"}
            events = post(kind, json.dumps(batch))
        number += len(events)


main()
