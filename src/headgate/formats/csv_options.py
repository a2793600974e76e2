"""The options of Spark 4.3's CSV source, every one, and what they mean for a decoder.

Never: read a file.

Follows Spark 4.3, "CSV Files", section "Data Source Option", and its ``CSVOptions`` for what that page leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.errors import OptionError
from headgate.formats import shared_options as shared
from headgate.formats.csv_tokenizer import (
    BACK_TO_DELIMITER,
    RAISE_ERROR,
    SKIP_VALUE,
    STOP_AT_CLOSING_QUOTE,
    STOP_AT_DELIMITER,
    Dialect,
)
from headgate.source.options import OptionSpec, boolean, choice, integer, text

_ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


def separator(value: str) -> str:
    r"""Parse a separator as Spark does: one or more characters; ``\t`` and the like stand for one."""
    if value == "\\":
        raise ValueError("a separator; a single backslash is written '\\\\'")
    parsed = ""
    rest = value
    while rest:
        if rest.startswith("\\u0000"):
            parsed, rest = parsed + "\0", rest[6:]
        elif rest[0] == "\\" and len(rest) > 1:
            if rest[1] not in _ESCAPES:
                raise ValueError(f"a separator; {rest[:2]!r} is not an escape of Spark's")
            parsed, rest = parsed + _ESCAPES[rest[1]], rest[2:]
        else:
            parsed, rest = parsed + rest[0], rest[1:]
    if not parsed:
        raise ValueError("one character or more")
    return parsed


def one_character(value: str) -> str:
    r"""Parse a character; the empty text stands for none, ``\0``."""
    if len(value) > 1:
        raise ValueError("a single character, or empty for none")
    return value or "\0"


_WRITING = "it is an option of writing"
OPTIONS: tuple[OptionSpec, ...] = (
    *shared.SHARED_OPTIONS,
    OptionSpec("sep", separator, ",", "what separates two values"),
    OptionSpec("delimiter", separator, None, "another name of sep"),
    OptionSpec("quote", one_character, '"', "what a value with separators in it starts and ends with; empty: nothing"),
    OptionSpec("escape", one_character, "\\", "what makes a quote inside a quoted value an ordinary character"),
    OptionSpec("charToEscapeQuoteEscaping", one_character, None, "what escapes the escape; unset: the escape itself"),
    OptionSpec("comment", one_character, None, "lines that start with it are skipped"),
    OptionSpec("header", boolean, False, "the first line of every file names the columns", False),
    OptionSpec("inferSchema", boolean, False, "infer types where no schema is given; otherwise all are strings"),
    OptionSpec("preferDate", boolean, True, "infer a date where all values of a column are dates"),
    OptionSpec("enforceSchema", boolean, True, "false: a header that contradicts the schema is an error"),
    OptionSpec("ignoreLeadingWhiteSpace", boolean, False, "cut white space before values"),
    OptionSpec("ignoreTrailingWhiteSpace", boolean, False, "cut white space after values"),
    OptionSpec("nullValue", text, "", "what stands for null; an empty value is null as well"),
    OptionSpec("emptyValue", text, "", "what an empty quoted value stands for"),
    OptionSpec("nanValue", text, "NaN", "what stands for not-a-number"),
    OptionSpec("positiveInf", text, "Inf", "what stands for infinity"),
    OptionSpec("negativeInf", text, "-Inf", "what stands for minus infinity"),
    OptionSpec("maxColumns", integer(1), 20480, "the most columns of a record; more are an error"),
    OptionSpec(
        "maxCharsPerColumn",
        integer(-1),
        -1,
        "the longest value",
        status="no-op",
        why="the memory limit on a line bounds its values; Spark fails at the first longer one",
    ),
    OptionSpec(
        "unescapedQuoteHandling",
        choice(STOP_AT_DELIMITER, STOP_AT_CLOSING_QUOTE, BACK_TO_DELIMITER, SKIP_VALUE, RAISE_ERROR),
        STOP_AT_DELIMITER,
        "what a quote inside a value means that is not escaped",
    ),
    OptionSpec(
        "inputBufferSize", integer(1), None, "buffer of Spark's parser", status="no-op", why="the parser is another one"
    ),
    OptionSpec("quoteAll", boolean, None, "", status="no-op", why=_WRITING),
    OptionSpec("escapeQuotes", boolean, None, "", status="no-op", why=_WRITING),
    OptionSpec(
        "singleVariantColumn",
        text,
        None,
        "the whole record as one variant",
        status="rejected",
        why="the variant type does not pass Arrow yet. Read the text format and use from_csv() instead.",
    ),
)
"""Every option of the CSV source of Spark 4.3."""


class CsvSettings(msgspec.Struct, frozen=True):
    """What a decoder needs to know."""

    dialect: Dialect
    encoding: str
    header: bool
    mode: str
    corrupt_column: str
    line_separator: str | None
    enforce_schema: bool
    values: Mapping[str, Any]

    @property
    def separator_bytes(self) -> bytes | None:
        """What ends a line, in the encoding of the file; None: any line end."""
        return None if self.line_separator is None else self.line_separator.encode(self.encoding)


def settings_of(options: Mapping[str, Any]) -> CsvSettings:
    """Return what parsed options mean.

    Raises
    ------
    OptionError
        Options contradict each other.
    """
    values = {spec.name: spec.default for spec in OPTIONS} | dict(options)
    sep = values["delimiter"] if values["sep"] == "," and values["delimiter"] else values["sep"]
    escape_of_escape = values["charToEscapeQuoteEscaping"]
    if escape_of_escape in (None, "\0"):
        escape_of_escape = "\0" if values["quote"] == values["escape"] else values["escape"]
    comment = None if values["comment"] in (None, "\0") else values["comment"]
    line_separator = values["lineSep"]
    encoding = shared.encoding_of(values)
    _check(line_separator, encoding, values)
    dialect = Dialect(
        sep,
        values["quote"],
        values["escape"],
        escape_of_escape,
        comment,
        values["ignoreLeadingWhiteSpace"],
        values["ignoreTrailingWhiteSpace"],
        values["nullValue"],
        values["emptyValue"],
        values["unescapedQuoteHandling"],
        values["maxColumns"],
    )
    return CsvSettings(
        dialect,
        encoding,
        values["header"],
        values["mode"],
        values["columnNameOfCorruptRecord"],
        line_separator,
        values["enforceSchema"],
        values,
    )


def _check(line_separator: str | None, encoding: str, values: Mapping[str, Any]) -> None:
    if line_separator is not None and len(line_separator) > 2:
        raise OptionError(
            f"The option 'lineSep' is {line_separator!r}; CSV allows one character, or two like '\\r\\n'.",
            option="lineSep", value=line_separator,
        )  # fmt: skip
    if values["multiLine"]:
        if line_separator not in (None, "\n"):
            raise OptionError(
                f"The option 'lineSep' is {line_separator!r}; with multiLine it must be '\\n' or unset (the first line "
                "end of a file decides).",
                option="lineSep", value=line_separator,
            )  # fmt: skip
        if values["unescapedQuoteHandling"] == BACK_TO_DELIMITER:
            raise OptionError(
                "The option 'unescapedQuoteHandling' is 'BACK_TO_DELIMITER', which Headgate cannot do with multiLine. "
                "Choose STOP_AT_DELIMITER.",
                option="unescapedQuoteHandling", value=BACK_TO_DELIMITER,
            )  # fmt: skip
    elif line_separator is None and len("\n".encode(encoding)) > 1:
        raise OptionError(
            f"The option 'encoding' is {encoding!r}, in which a line end has several bytes. Set lineSep too, for "
            "example to '\\n', and choose the encoding with its byte order ('UTF-16LE').",
            option="encoding", value=encoding,
        )  # fmt: skip
