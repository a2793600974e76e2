"""Text: lines and whole files as they are."""

import pyarrow as pa
import pytest

from headgate.errors import BadDataError, OptionError
from headgate.formats.base import LineBlock
from headgate.formats.text import OPTIONS, TextDocumentFormat, TextFormat
from headgate.source.options import Options

SCHEMA = pa.schema([("value", pa.string())])


def parsed(**raw: str) -> Options:
    return Options.parse("headgate.files", OPTIONS, raw)


def lines(data: bytes, **raw: str) -> list[str]:
    batch = TextFormat(SCHEMA, parsed(**raw), "UTC").decode(LineBlock(data, "part-0.txt", 0))
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    return batch.column(0).to_pylist()


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"a\nb\r\nc\rd", ["a", "b", "c", "d"]),
        (b"a\n\n", ["a", ""]),
        (b"\n", [""]),
        (b"\r\r\n\n", ["", "", ""]),
        ("é\n€".encode(), ["é", "€"]),
        (b"\xff\nx\n", ["\ufffd", "x"]),
        (b"\x00\n", ["\x00"]),
    ],
)
def test_lines_lose_their_ends_only(data: bytes, wanted: list[str]) -> None:
    assert lines(data) == wanted


def test_a_separator_of_ones_own_is_the_only_one() -> None:
    assert lines(b"a\r\n|b|", lineSep="|") == ["a\r\n", "b"]
    assert lines(b"a||b|c||", lineSep="||") == ["a", "b|c"]
    assert TextFormat(SCHEMA, parsed(lineSep="\n", encoding="UTF-16LE"), "UTC").line_separator == b"\n\x00"


def test_only_one_string_column_is_possible() -> None:
    for schema in (pa.schema([("x", pa.int32())]), pa.schema([("x", pa.string()), ("y", pa.string())])):
        with pytest.raises(OptionError, match="one column of type string"):
            TextFormat(schema, parsed(), "UTC")


def whole(data: bytes, limit: int = 100) -> list[str]:
    fmt = TextDocumentFormat(SCHEMA, parsed(wholetext="true"), "UTC", limit)
    return [value for batch in fmt.read(pa.BufferReader(data), "part-0.txt") for value in batch.column(0).to_pylist()]


def test_a_whole_file_is_one_row_and_an_empty_one_none() -> None:
    assert whole(b"a\nb\r\n") == ["a\nb\r\n"]
    assert whole(b"") == []


def test_a_file_beyond_the_limit_is_refused_with_the_fix() -> None:
    with pytest.raises(BadDataError, match="without wholetext") as caught:
        whole(b"x" * 101)
    assert caught.value.path == "part-0.txt"
