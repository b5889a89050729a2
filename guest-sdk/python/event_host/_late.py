"""Modules that Python's own library imports only when they are used.

A component holds the modules that were loaded while it was built, and can load none later.
Without these, `datetime.strptime` and the decoding of common encodings would fail in it.
"""

import _strptime  # type: ignore[import-not-found] # noqa: F401
import encodings.ascii
import encodings.cp1252
import encodings.idna
import encodings.latin_1
import encodings.punycode
import encodings.utf_8_sig
import encodings.utf_16  # noqa: F401
