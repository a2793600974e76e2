import io
import random

import pyarrow as pa
import pytest

from headgate.errors import BadDataError, OptionError
from headgate.formats import csv_document
from headgate.formats.csv import OPTIONS, CsvDocumentFormat
from headgate.source.options import Options

AB = pa.schema([("a", pa.int32()), ("b", pa.string())])


def read(data: bytes, schema: pa.Schema = AB, **options: str) -> list[pa.RecordBatch]:
    fmt = CsvDocumentFormat(schema, Options.parse("csv", OPTIONS, {"multiLine": "true", **options}), "UTC")
    return list(fmt.read(pa.PythonFile(io.BytesIO(data), mode="r"), "x.csv"))


def rows(batches: list[pa.RecordBatch]) -> list[tuple]:
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns))]


def test_line_ends_inside_quotes():
    assert rows(read(b'1,"a\nb"\n2,c\n')) == [(1, "a\nb"), (2, "c")]
    assert rows(read(b'1,"a\r\nb"\r\n2,c\r\n')) == [(1, "a\nb"), (2, "c")]


def test_header_with_line_end():
    assert rows(read(b'b,"A","c\nd"\nx,1,\n', header="true")) == [(1, "x")]
    assert read(b"", header="true") == []
    assert read(b"\n\n", header="true") == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("hard", [False, True])
def test_batches_are_bounded_and_cut_records_are_put_together(monkeypatch, line_end: str, hard: bool):
    monkeypatch.setattr(csv_document, "_CHUNK_BYTES", 64)
    randomness = random.Random(7)
    expected = [
        (index, "".join(randomness.choice("xy\n,") for _ in range(randomness.randint(1, 30))) + "z")
        for index in range(300)
    ]
    if hard:
        expected = [(index, text + '"q') for index, text in expected]
    data = "".join(f'{index},"{text}"\n'.replace('"q', '\\"q') for index, text in expected)
    batches = read(data.replace("\n", line_end).encode())
    assert rows(batches) == expected
    assert len(batches) > 20
    assert max(batch.num_rows for batch in batches) < 60


def test_same_batches_every_time(monkeypatch):
    monkeypatch.setattr(csv_document, "_CHUNK_BYTES", 100)
    data = "".join(f'{index},"a{index}\nb"\n' for index in range(100)).encode()
    assert [batch.num_rows for batch in read(data)] == [batch.num_rows for batch in read(data)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_fail_fast_names_the_byte(monkeypatch, line_end: bytes):
    monkeypatch.setattr(csv_document, "_CHUNK_BYTES", 32)
    good = b'1,"\xc3\xa4\nb"\n'.replace(b"\n", line_end) * 20
    with pytest.raises(BadDataError, match=r"x\.csv") as caught:
        read(good + b'x,"y"' + line_end + good, mode="FAILFAST")
    assert caught.value.byte_offset == len(good)


def test_a_byte_order_mark_is_no_data_but_counts_as_bytes():
    assert rows(read(b"\xef\xbb\xbf1,a\n")) == [(1, "a")]
    with pytest.raises(BadDataError) as caught:
        read(b"\xef\xbb\xbf1,a\nx,b\n", mode="FAILFAST")
    assert caught.value.byte_offset == 7


def test_corrupt_records_keep_their_line_ends():
    schema = AB.append(pa.field("_corrupt_record", pa.string()))
    assert rows(read(b'x,"a\r\nb"\r\n1,c\r\n', schema)) == [(None, "a\nb", 'x,"a\r\nb"'), (1, "c", None)]


def test_a_record_without_end_is_an_error_not_a_full_memory(monkeypatch):
    monkeypatch.setattr(csv_document, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(csv_document, "_MAX_RECORD_CHARS", 1000)
    with pytest.raises(BadDataError, match="longer than 1000") as caught:
        read(b'1,a\n2,"' + b"x\n" * 5000)
    assert caught.value.byte_offset == 4


def test_line_separator_must_be_a_newline():
    with pytest.raises(OptionError, match="lineSep"):
        read(b"1,a;", lineSep=";")
