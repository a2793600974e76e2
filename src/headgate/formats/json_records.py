"""Cuts JSON text into records: lines, or a whole document.

Never: parse a record.

Follows Spark 4.3, "JSON Files" (``lineSep``, ``encoding``, ``multiLine``); blank lines are not records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.formats.shared_options import encoding_of

Record = tuple[int, bytes]
"""Where a record starts, in bytes of the text it was cut from, and the record as UTF-8."""

_BLANK = bytes(range(0x21))
"""What Java's ``String.trim`` removes: a line of nothing else is not a record."""

_LINE_ENDS = re.compile(rb"\r\n|\n|\r")


def records_of(data: bytes, options: Mapping[str, Any]) -> list[Record]:
    """Return the records of whole lines, or of a whole document with ``multiLine``."""
    encoding = encoding_of(options)
    separator = separator_of(options)
    end = _LINE_ENDS if separator is None else re.compile(re.escape(separator))
    records = []
    start = 0
    while start < len(data):
        match = None if options["multiLine"] else end.search(data, start)
        stop, following = (match.start(), match.end()) if match else (len(data), len(data))
        text = data[start:stop]
        if encoding != "utf-8":
            text = text.decode(encoding, "replace").encode()
        if text.strip(_BLANK):
            records.append((start, text))
        start = following
    return records


def separator_of(options: Mapping[str, Any]) -> bytes | None:
    """Return what ends a line, in the encoding of the files; None: any of the three usual ends."""
    line_sep: str | None = options["lineSep"]
    return None if line_sep is None else line_sep.encode(encoding_of(options))
