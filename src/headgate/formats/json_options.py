"""The options of Spark's JSON source.

Never: parse a record.

Follows Spark 4.3, "JSON Files", section "Data Source Option", and ``JSONOptions``.
"""

from __future__ import annotations

from headgate.formats.shared_options import SHARED_OPTIONS
from headgate.source.options import OptionSpec, boolean, text

_INFERENCE = "what types are inferred when no schema is given"
_WRITING = "it is an option for writing, and Headgate's files are read only"


def _lenient(name: str, default: bool, meaning: str) -> OptionSpec:
    return OptionSpec(name, boolean, default, meaning)


def _writing(name: str) -> OptionSpec:
    return OptionSpec(name, text, None, "how files are written", status="no-op", why=_WRITING)


def _rejected(name: str, why: str) -> OptionSpec:
    return OptionSpec(name, text, None, status="rejected", why=why)


OPTIONS: tuple[OptionSpec, ...] = (
    *SHARED_OPTIONS,
    _lenient("allowComments", False, "/* these */ and // those comments are skipped"),
    _lenient("allowUnquotedFieldNames", False, "names of fields may stand without quotes"),
    _lenient("allowSingleQuotes", True, "names and strings may be in single quotes"),
    _lenient("allowNumericLeadingZeros", False, "numbers may begin with zeros: 007"),
    _lenient("allowNonNumericNumbers", True, "NaN, Infinity, -Infinity, +INF and -INF are numbers"),
    _lenient("allowBackslashEscapingAnyCharacter", False, "a backslash may precede any character"),
    _lenient("allowUnquotedControlChars", False, "strings may hold control characters such as tabs"),
    OptionSpec("primitivesAsString", boolean, False, f"{_INFERENCE}: all values that do not nest are strings"),
    OptionSpec("prefersDecimal", boolean, False, f"{_INFERENCE}: fractions are decimals where they fit"),
    OptionSpec("dropFieldIfAllNull", boolean, False, f"{_INFERENCE}: fields without any value are left out"),
    OptionSpec("inferTimestamp", boolean, False, f"{_INFERENCE}: strings that are timestamps are timestamps"),
    _writing("ignoreNullFields"),
    _writing("writeNullIfWithDefaultValue"),
    _writing("pretty"),
    _writing("sortKeys"),
    _writing("writeNonAsciiCharacterAsCodePoint"),
    OptionSpec(
        "useUnsafeRow",
        text,
        None,
        "how Spark keeps rows",
        status="no-op",
        why="it chooses a row format inside the JVM; Headgate's rows are Arrow batches",
    ),
    _rejected("timeFormat", "Arrow batches of Python data sources have no TIME column; read a string and cast it."),
    _rejected(
        "singleVariantColumn",
        "Python data sources cannot return VARIANT columns; read the files with format 'headgate.files' and "
        "fileFormat 'text' and apply parse_json(value).",
    ),
    _rejected("explodeEmbeddedArray", "it is Spark's own; read the array as a column and use explode."),
    _rejected("maxNestingDepth", "Headgate's bound is that of Arrow's JSON reader; leave the option out."),
    _rejected("maxNumLen", "the bound of a line's length bounds its numbers as well; leave the option out."),
    _rejected("maxStringLen", "the bound of a line's length bounds its strings as well; leave the option out."),
)
"""Every option of Spark 4.3's JSON source."""
