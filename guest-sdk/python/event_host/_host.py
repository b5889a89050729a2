"""The one door to the host: its imports in a component, and elsewhere a host in memory."""

import sys

if sys.platform == "wasi":
    from ._component import (
        emit,
        group,
        is_late,
        is_replay,
        log,
        remaining_ms,
        state_delete,
        state_get,
        state_keys,
        state_set,
        tenant,
    )
else:
    from ._memory import (
        emit,
        group,
        is_late,
        is_replay,
        log,
        remaining_ms,
        state_delete,
        state_get,
        state_keys,
        state_set,
        tenant,
    )

__all__ = [
    "emit",
    "group",
    "is_late",
    "is_replay",
    "log",
    "remaining_ms",
    "state_delete",
    "state_get",
    "state_keys",
    "state_set",
    "tenant",
]
