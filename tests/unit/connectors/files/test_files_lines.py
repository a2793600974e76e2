import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.lines import LineCutter, Window, can_be_cut, plain_reader
from headgate.errors import BadDataError, DataLossError


def cutter_of(data, separator=None, block_bytes=16, max_line_bytes=1 << 20, stream=False):
    file = pa.PythonFile(io.BytesIO(data), mode="r")
    read_at = Window(file).read_at if stream else plain_reader(file, len(data))
    return LineCutter(read_at, "f", separator, block_bytes, max_line_bytes)


def lines_of(data, separator=None):
    """The truth, by other means: all lines with their ends."""
    if separator is not None:
        parts = data.split(separator)
        lines = [part + separator for part in parts[:-1]]
        return lines + ([parts[-1]] if parts[-1] else [])
    lines, begin, at = [], 0, 0
    while at < len(data):
        if data[at : at + 2] == b"\r\n":
            at += 2
        elif data[at : at + 1] in (b"\n", b"\r"):
            at += 1
        else:
            at += 1
            continue
        lines.append(data[begin:at])
        begin = at
    return lines + ([data[begin:]] if begin < len(data) else [])


text = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"|", b"||", b"\xff" * 9]), max_size=40).map(
    b"".join
)
separators = st.sampled_from([None, b"\n", b"|", b"\r\n", b"ab", b"||"])


@settings(max_examples=400, deadline=None)
@given(text, separators, st.integers(1, 30), st.integers(1, 12))
def test_ranges_of_any_size_hold_each_line_once(data, separator, range_bytes, block_bytes):
    if not can_be_cut(separator):
        range_bytes = max(1, len(data))
    cutter = cutter_of(data, separator, block_bytes)
    found = b""
    ends = {0}
    offset = 0
    for line in lines_of(data, separator):
        offset += len(line)
        ends.add(offset)
    for start in range(0, len(data), range_bytes):
        begin = cutter.line_start(start) if can_be_cut(separator) else start
        stop = len(data) if start + range_bytes >= len(data) else cutter.line_start(start + range_bytes)
        for block, after in cutter.blocks(begin, stop):
            found += block
            assert after in ends
            assert len(found) == after
    assert found == data


@settings(max_examples=200, deadline=None)
@given(text, separators)
def test_the_start_of_a_line_stays_where_it_is(data, separator):
    if not can_be_cut(separator):
        return
    cutter = cutter_of(data, separator)
    offset = 0
    for line in lines_of(data, separator):
        assert cutter.line_start(offset) == offset
        for inside in range(offset + 1, offset + len(line)):
            assert cutter.line_start(inside) == offset + len(line)
        offset += len(line)


@settings(max_examples=200, deadline=None)
@given(text, separators, st.integers(1, 12), st.data())
def test_a_stream_gives_the_same_blocks_from_any_line_on(data, separator, block_bytes, draw):
    starts = [0]
    for line in lines_of(data, separator):
        starts.append(starts[-1] + len(line))
    begin = draw.draw(st.sampled_from(starts))
    blocks = cutter_of(data, separator, block_bytes, stream=True).blocks(begin, None)
    assert b"".join(bytes(block) for block, _ in blocks) == data[begin:]


def test_a_line_above_the_limit_is_an_error_with_its_offset():
    cutter = cutter_of(b"short\n" + b"x" * 100 + b"\n", block_bytes=8, max_line_bytes=64)
    blocks = cutter.blocks(0, 107)
    assert bytes(next(blocks)[0]) == b"short\n"
    with pytest.raises(BadDataError, match="byte 6 of f is longer than 64 bytes") as error:
        next(blocks)
    assert error.value.byte_offset == 6


def test_a_line_above_the_block_but_below_the_limit_is_read():
    data = b"x" * 1000 + b"\ny\n"
    assert b"".join(bytes(block) for block, _ in cutter_of(data, block_bytes=8).blocks(0, len(data))) == data


def test_a_file_that_ends_before_its_size_is_data_loss():
    cutter = LineCutter(plain_reader(pa.PythonFile(io.BytesIO(b"a\nb\n"), mode="r"), 100), "f", None)
    with pytest.raises(DataLossError, match="has 4 bytes, but 100 were listed"):
        list(cutter.blocks(0, 100))


def test_what_was_appended_after_listing_is_not_read():
    cutter = LineCutter(plain_reader(pa.PythonFile(io.BytesIO(b"a\nb\nnew\n"), mode="r"), 4), "f", None)
    assert [bytes(block) for block, _ in cutter.blocks(0, 4)] == [b"a\nb\n"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_line_skips_byte_order_mark_and_blank_lines(stream):
    cutter = cutter_of(b"\xef\xbb\xbf\r\n\n a,b \r\n1,2\n", stream=stream)
    header, after = cutter.first_line(lambda line: bool(line.strip()))
    assert header == b" a,b "
    assert [bytes(block) for block, _ in cutter.blocks(after, None if stream else 17)] == [b"1,2\n"]


def test_a_file_without_a_header_has_an_empty_one():
    assert cutter_of(b"\n\n").first_line(lambda line: bool(line.strip())) == (b"", 2)


def test_separators_that_overlap_themselves_cannot_be_cut():
    assert [can_be_cut(each) for each in (None, b"\n", b"ab", b"||", b"aba")] == [True, True, True, False, False]
