"""A handler of batches."""

from __future__ import annotations

from typing import Any

from event_host import Event, batch_handler, log
from orders import handle_order


@batch_handler
def work(events: list[Event]) -> list[Exception | None]:
    log.info(f"batch of {len(events)}")
    return [result_of(event) for event in events]


def result_of(event: Event) -> Any:
    try:
        return handle_order(event)
    except Exception as error:
        return error
