"""What a value becomes as an event's payload or as a value of the state."""

from __future__ import annotations

import json
from typing import Any


class _Nothing:
    """No payload at all; None is JSON's null."""

    def __repr__(self) -> str:
        return "no data"


NOTHING = _Nothing()


def is_json(datacontenttype: str | None) -> bool:
    """Whether data of this media type is JSON. It is by default."""
    if datacontenttype is None:
        return True
    essence = datacontenttype.split(";", 1)[0].strip().lower()
    return essence.endswith(("/json", "+json"))


def json_bytes(value: Any) -> bytes:
    """Compact JSON in UTF-8. Raises TypeError or ValueError when the value has no such form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def payload_of(data: Any, datacontenttype: str | None) -> tuple[bytes, str | None]:
    """The bytes and the media type of a payload.

    Nothing is an empty payload, bytes stay as they are, and all else is JSON, unless the
    media type says that it is text. Raises TypeError or ValueError when the value has no
    such form.
    """
    if data is NOTHING:
        return b"", datacontenttype
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), datacontenttype or "application/octet-stream"
    if is_json(datacontenttype):
        return json_bytes(data), datacontenttype or "application/json"
    if isinstance(data, str):
        return data.encode("utf-8"), datacontenttype
    raise TypeError(f"of the media type {datacontenttype} it must be a str or bytes")
