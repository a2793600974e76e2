import datetime
import decimal

import pyarrow as pa
import pytest

from headgate.errors import BadDataError, OptionError
from headgate.formats import csv_arrow
from headgate.formats.base import LineBlock
from headgate.formats.csv import OPTIONS, CsvFormat
from headgate.source.options import Options

AB = pa.schema([("a", pa.int32()), ("b", pa.string())])
CORRUPT = AB.append(pa.field("_corrupt_record", pa.string()))


def csv_format(schema: pa.Schema = AB, time_zone: str = "UTC", **options: str) -> CsvFormat:
    return CsvFormat(schema, Options.parse("csv", OPTIONS, options), time_zone)


def decode(data: bytes, schema: pa.Schema = AB, **options: str) -> list[tuple]:
    batch = csv_format(schema, **options).decode(LineBlock(data, "x.csv", 0))
    batch.validate(full=True)
    assert batch.schema == schema
    return list(zip(*(column.to_pylist() for column in batch.columns)))


class TestFastAndSlowWay:
    """Whichever way a block takes, its rows are the same."""

    def spy(self, monkeypatch) -> list[int]:
        slow_lines: list[int] = []
        line = csv_arrow.ArrowReader.separate

        def separate(self, plain, columns):
            easy, hard, order = line(self, plain, columns)
            slow_lines.append(len(hard))
            return easy, hard, order

        monkeypatch.setattr(csv_arrow.ArrowReader, "separate", separate)
        return slow_lines

    def test_tidy_quotes_take_the_fast_way(self, monkeypatch):
        slow_lines = self.spy(monkeypatch)
        assert decode(b'1,"x,y"\n2,z\n3,"w"\n') == [(1, "x,y"), (2, "z"), (3, "w")]
        assert slow_lines == []

    def test_only_the_hard_lines_of_a_block_take_the_slow_way_and_rows_keep_their_order(self, monkeypatch):
        slow_lines = self.spy(monkeypatch)
        data = b'1,a\n2,5" pipe\n3,"c"\n4,d"\n5,e\n6,"x""y"\n7,g\n'
        assert [row[0] for row in decode(data)] == [1, 2, 3, 4, 5, 6, 7]
        assert slow_lines == [3]

    def test_a_line_with_too_few_columns_does_not_slow_down_the_others(self, monkeypatch):
        slow_lines = self.spy(monkeypatch)
        assert decode(b"1,a\n2\n3,c\n4,d\n") == [(1, "a"), (2, None), (3, "c"), (4, "d")]
        assert slow_lines == [1]

    def test_a_quoted_line_end_does_not_join_lines(self):
        assert decode(b'1,"a\n2,b"\n') == [(1, "a"), (2, 'b"')]

    def test_quotes_that_balance_but_stand_inside_values_are_noticed(self):
        # As many opening as closing quotes, at the wrong places: a count would not see it.
        assert decode(b'1,"a,"b",c"\n', CORRUPT) == [(1, '"a,"b"', '1,"a,"b",c"')]

    def test_hexadecimal_numbers_and_blanks_are_no_numbers(self):
        assert decode(b"0x1F,a\n 2,b\n3 ,c\n4,0x5\n") == [(None, "a"), (None, "b"), (None, "c"), (4, "0x5")]

    def test_spellings_of_specials_that_only_arrow_knows_are_no_numbers(self):
        rows = decode(b"nan,\ninf,\n-inf,\nInf,\n-Inf,\nInfinity,\n1.5,\n", pa.schema([("x", pa.float64()), AB[1]]))
        assert [row[0] for row in rows] == [None, None, None, float("inf"), float("-inf"), float("inf"), 1.5]

    def test_decimals_that_do_not_fit_are_malformed_although_arrow_takes_them(self):
        schema = pa.schema([("x", pa.decimal128(10, 2)), AB[1]])
        rows = decode(b"1e20,\n123456789,\n1.005,\n2.5,\n", schema)
        assert [row[0] for row in rows] == [None, None, decimal.Decimal("1.01"), decimal.Decimal("2.50")]

    def test_after_a_bad_cell_the_column_is_read_as_a_number_again(self):
        fmt = csv_format()
        fmt.decode(LineBlock(b"x,a\n", "x.csv", 0))
        for _ in range(20):
            batch = fmt.decode(LineBlock(b"1,a\n", "x.csv", 0))
        assert batch.column(0).to_pylist() == [1]
        assert fmt._arrow._as_text == {}

    def test_a_view_of_a_larger_buffer_is_decoded(self):
        batch = csv_format().decode(LineBlock(memoryview(b"1,a\n2,b\n#####")[:8], "x.csv", 0))
        assert batch.num_rows == 2


class TestModes:
    DATA = b"1,a\nx,b\n3,c\n4\n5,e,f\n"

    def test_permissive_keeps_what_can_be_read_and_the_record(self):
        assert decode(self.DATA, CORRUPT) == [
            (1, "a", None),
            (None, "b", "x,b"),
            (3, "c", None),
            (4, None, "4"),
            (5, "e", "5,e,f"),
        ]

    def test_drop_malformed(self):
        assert decode(self.DATA, mode="DROPMALFORMED") == [(1, "a"), (3, "c")]

    @pytest.mark.parametrize(
        ("data", "offset"),
        [
            (b"1,a\nx,b\n", 4),
            (b"1,a\r\n\r\n2,b\r\n3\r\n", 12),
            (b'# comment\n1,"a\n2,b"\nx,c\n', 20),
            (b"1,\xc3\xa4\nx,b\n", 5),
            (b"1,a\r2,b\rx,c", 8),
        ],
    )
    def test_fail_fast_names_file_and_byte_of_the_record(self, data: bytes, offset: int):
        fmt = csv_format(mode="FAILFAST", comment="#")
        with pytest.raises(BadDataError, match=r"dir/x\.csv") as caught:
            fmt.decode(LineBlock(data, "dir/x.csv", 1000))
        assert caught.value.byte_offset == 1000 + offset
        assert caught.value.path == "dir/x.csv"

    def test_the_message_says_what_is_wrong(self):
        with pytest.raises(BadDataError, match=r"'x' in column 'a' is not a valid int32.*'x,b'"):
            decode(b"1,a\nx,b\n", mode="FAILFAST")
        with pytest.raises(BadDataError, match="3 columns where 2 are expected"):
            decode(b"1,a,b\n", mode="FAILFAST")

    def test_more_than_max_columns_fails_in_every_mode(self):
        for data, offset in ((b"1,a\n1,2,3,4\n", 4), (b'1,a\n2,b\n1,2,3,"4"\n', 8)):
            with pytest.raises(BadDataError, match="maxColumns is 3") as caught:
                decode(data, maxColumns="3")
            assert caught.value.byte_offset == offset

    def test_a_schema_wider_than_max_columns(self):
        with pytest.raises(BadDataError, match="maxColumns is 1"):
            decode(b"1,a\n", maxColumns="1")

    def test_corrupt_column_is_null_where_nothing_is_wrong(self):
        assert decode(b"1,a\n", CORRUPT) == [(1, "a", None)]


class TestColumns:
    def test_by_name_in_any_order_and_case_and_fewer(self):
        fmt = csv_format(header="true")
        batch = fmt.decode(LineBlock(b"x,1,q\n", "x.csv", 0, b"B,A,C"))
        assert batch.to_pylist() == [{"a": 1, "b": "x"}]

    def test_lines_are_compared_with_the_header(self):
        fmt = csv_format(CORRUPT, header="true")
        batch = fmt.decode(LineBlock(b"x,1,q\nx,1\n", "x.csv", 0, b"b,a,c"))
        assert batch.column(2).to_pylist() == [None, "x,1"]

    def test_by_position_if_names_differ_but_are_as_many(self):
        batch = csv_format(header="true").decode(LineBlock(b"1,x\n", "x.csv", 0, b"p,q"))
        assert batch.to_pylist() == [{"a": 1, "b": "x"}]

    def test_missing_columns_are_named(self):
        with pytest.raises(BadDataError, match=r"'b'.*It has: a, c, d"):
            csv_format(header="true").decode(LineBlock(b"1,2,3\n", "x.csv", 0, b"a,c,d"))

    def test_names_count_if_the_schema_is_not_enforced(self):
        with pytest.raises(BadDataError, match="'a', 'b'"):
            csv_format(header="true", enforceSchema="false").decode(LineBlock(b"1,x\n", "x.csv", 0, b"p,q"))

    def test_only_the_corrupt_column(self):
        schema = pa.schema([("_corrupt_record", pa.string())])
        batch = csv_format(schema, header="true").decode(LineBlock(b"1,x\n2\n", "x.csv", 0, b"a,b"))
        assert batch.column(0).to_pylist() == [None, "2"]

    def test_no_columns_at_all_still_count_rows(self):
        batch = csv_format(pa.schema([]), header="true").decode(LineBlock(b"1,x\n2,y\n", "x.csv", 0, b"a,b"))
        assert (batch.num_rows, batch.num_columns) == (2, 0)

    def test_blank_lines_and_comments_are_no_header(self):
        fmt = csv_format(header="true", comment="#")
        assert [fmt.is_header(line) for line in (b"", b"  \t", b"# a,b", b"a,b")] == [False, False, False, True]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dateFormat": "yyyy-'W'ww"}, "dateFormat"),
            ({"timeZone": "Mars/Base"}, "Mars/Base"),
            ({"encoding": "utf-16le"}, "lineSep"),
            ({"lineSep": "abc"}, "lineSep"),
            ({"encoding": "ebcdic"}, "UTF-8"),
            ({"quote": "ab"}, "single character"),
            ({"sep": "\\"}, "sep"),
            ({"locale": "de-DE"}, "en-US"),
            ({"singleVariantColumn": "v"}, "from_csv"),
            ({"mode": "LENIENT"}, "FAILFAST"),
        ],
    )
    def test_what_cannot_be_done_is_refused(self, options: dict[str, str], message: str):
        schema = pa.schema([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))])
        with pytest.raises(OptionError, match=message):
            csv_format(schema, **options)

    def test_a_type_that_csv_cannot_hold(self):
        with pytest.raises(OptionError, match="list"):
            csv_format(pa.schema([("a", pa.list_(pa.int32())), AB[1]]))

    def test_every_option_of_spark_is_known_and_explained(self):
        names = [spec.name for spec in OPTIONS]
        assert len(names) == len(set(names))
        assert all(spec.why for spec in OPTIONS if spec.status != "supported")
        assert all(spec.meaning for spec in OPTIONS if spec.status == "supported")

    def test_utf_16_offsets_are_bytes_of_the_file(self):
        fmt = csv_format(encoding="UTF-16LE", lineSep="\n", mode="FAILFAST")
        with pytest.raises(BadDataError) as caught:
            fmt.decode(LineBlock("1,ä\nx,b\n".encode("utf-16le"), "x.csv", 0))
        assert caught.value.byte_offset == 8


class TestTime:
    def test_local_time_is_of_the_zone_given(self):
        schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us"))])
        fmt = csv_format(schema, "Europe/Berlin")
        line = b"2023-07-01 12:00:00,2023-07-01 12:00:00\n"
        (row,) = fmt.decode(LineBlock(line, "x.csv", 0)).to_pylist()
        assert row["t"] == datetime.datetime(2023, 7, 1, 10, tzinfo=datetime.UTC)
        assert row["n"] == datetime.datetime(2023, 7, 1, 12)

    def test_the_option_goes_before_the_session(self):
        schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
        fmt = csv_format(schema, "Europe/Berlin", timeZone="+05:30")
        batch = fmt.decode(LineBlock(b"2023-07-01 12:00:00\n", "x.csv", 0))
        assert batch.column(0)[0].as_py() == datetime.datetime(2023, 7, 1, 6, 30, tzinfo=datetime.UTC)
