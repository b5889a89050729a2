"""Text that a component can hand over."""

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """The text with U+FFFD for each surrogate, of which UTF-8 has none."""
    return _SURROGATE.sub("\ufffd", text)
