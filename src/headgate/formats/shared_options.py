"""The options that CSV and JSON lines have in common, each defined once under Spark's name.

Never: parse a file or decide what a value of an option does; the formats do that.

Follows Spark 4.3, "CSV Files", "JSON Files" and "Text Files", section "Data Source Option". What ``changeable`` says
here: a restarted query continues at a byte offset, so nothing may change that moves the end of a line.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

from headgate.source.options import OptionSpec, boolean, choice, number, text

PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"
FAILFAST = "FAILFAST"


def non_empty(value: str) -> str:
    """Any text but the empty one."""
    if not value:
        raise ValueError("a text of one character or more")
    return value


_CHARSETS = ("UTF-8", "US-ASCII", "ISO-8859-1", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32")


def charset(value: str) -> str:
    """Parse the name of a character set that Spark reads; the value is Python's name of it."""
    if value.strip().upper() not in _CHARSETS:
        raise ValueError("one of " + ", ".join(_CHARSETS))
    return codecs.lookup(value.strip()).name


def english_locale(value: str) -> str:
    """Accept the locales whose numbers, months and days are written as in ``en-US``."""
    if value.strip().lower().replace("_", "-") not in ("en", "en-us", "und", ""):
        raise ValueError("'en-US': Headgate reads months, days and numbers in English only")
    return "en-US"


MODE = OptionSpec(
    "mode", choice(PERMISSIVE, DROPMALFORMED, FAILFAST), PERMISSIVE, "what happens to a record that is malformed"
)
CORRUPT_RECORD_COLUMN = OptionSpec(
    "columnNameOfCorruptRecord", text, "_corrupt_record", "the string column that holds malformed records as they were"
)
LINE_SEP = OptionSpec("lineSep", non_empty, None, "what ends a line; unset: \\n, \\r\\n or \\r", False)
ENCODING = OptionSpec("encoding", charset, "utf-8", "the character set of the files", False)
CHARSET = OptionSpec("charset", charset, None, "another name of encoding", False)
MULTI_LINE = OptionSpec("multiLine", boolean, False, "a record may span lines; such files are not split", False)
LOCALE = OptionSpec("locale", english_locale, "en-US", "the language of months, days and numbers: English only")
TIME_ZONE = OptionSpec("timeZone", text, None, "the zone of timestamps without one; unset: the session's")
DATE_FORMAT = OptionSpec("dateFormat", text, None, "the pattern of dates; unset: yyyy-MM-dd and its short forms")
TIMESTAMP_FORMAT = OptionSpec("timestampFormat", text, None, "the pattern of timestamps; unset: ISO 8601's forms")
TIMESTAMP_NTZ_FORMAT = OptionSpec(
    "timestampNTZFormat", text, None, "the pattern of timestamps without zone; unset: ISO 8601's forms"
)
PARSING_FALLBACK = OptionSpec(
    "enableDateTimeParsingFallback",
    boolean,
    None,
    "whether what contradicts the pattern may be read by the rules of unset patterns; unset: only if none is set",
)
SAMPLING_RATIO = OptionSpec(
    "samplingRatio",
    number(0.0, 1.0),
    1.0,
    "share of the records that Spark infers types from",
    status="no-op",
    why="types are inferred from a sample of bounded size at the start of the files, whatever the ratio",
)
COMPRESSION = OptionSpec(
    "compression", text, None, "codec", status="no-op", why="as in Spark, a file's ending says how it is compressed"
)
CODEC = OptionSpec(
    "codec", text, None, "another name of compression", status="no-op", why="a file's ending says how it is compressed"
)

SHARED_OPTIONS: tuple[OptionSpec, ...] = (
    MODE,
    CORRUPT_RECORD_COLUMN,
    LINE_SEP,
    ENCODING,
    CHARSET,
    MULTI_LINE,
    LOCALE,
    TIME_ZONE,
    DATE_FORMAT,
    TIMESTAMP_FORMAT,
    TIMESTAMP_NTZ_FORMAT,
    PARSING_FALLBACK,
    SAMPLING_RATIO,
    COMPRESSION,
    CODEC,
)
"""The shared options of CSV and JSON, for their ``OPTIONS``."""


def encoding_of(options: Mapping[str, Any]) -> str:
    """Return Python's name of the character set that ``encoding`` or ``charset`` names; the first wins if both do."""
    name: str = options[ENCODING.name]
    if name == ENCODING.default and options.get(CHARSET.name):
        name = options[CHARSET.name]
    return name
