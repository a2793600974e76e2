import datetime
import decimal

import pyarrow as pa
import pytest

from headgate.connectors.files.partitions import infer_partition_fields, partition_of_folder, partition_scalar
from headgate.errors import BadDataError
from headgate.formats.names import Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("year=2026", ("year", "2026")),
        ("a%3Db=c%2Fd%20e", ("a=b", "c/d e")),
        ("x=1=2", ("x", "1=2")),
        ("x=__HIVE_DEFAULT_PARTITION__", ("x", None)),
        ("x=", None),
        ("=x", None),
        ("plain", None),
    ],
)
def test_folder_names(name, expected):
    assert partition_of_folder(name) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "02", "-3"], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "99999999999999999999"], pa.decimal128(20, 0)),
        (["1", "1.5", "-2e3"], pa.string()),
        (["3000000000", "1.5"], pa.string()),
        (["2026-07"], pa.string()),
        (["1", "1.5"], pa.float64()),
        (["1e3"], pa.decimal128(4, 0)),
        (["1.5e3"], pa.decimal128(4, 0)),
        (["1.25e1"], pa.float64()),
        (["2026-01-31", None], pa.date32()),
        (["2026-01-31", "2026-01-31 10:00:00"], pa.timestamp("us", "UTC")),
        (["1", "x"], pa.string()),
        (["2026-01-31", "5"], pa.string()),
        (["2026-02-31"], pa.string()),
        (["true"], pa.string()),
        ([None], pa.null()),
        (["1d"], pa.string()),
    ],
)
def test_the_narrowest_type_that_holds_all_values(texts, expected):
    (field,) = infer_partition_fields([(("x", text),) for text in texts], "UTC", Names())
    assert (field.name, field.type) == ("x", expected)


def test_columns_are_spelt_as_the_first_folders():
    names = Names()
    rows = [(("x", "1"), ("Y", "a")), (("X", "2.5"), ("Y", None)), (("x", "1"), ("Y", "a"))]
    fields = infer_partition_fields(rows, "UTC", names)
    assert pa.schema(fields) == pa.schema([("x", pa.float64()), ("Y", pa.string())])
    assert names.folded


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("007", pa.int32(), 7),
        ("+7", pa.int64(), 7),
        ("1.5", pa.float64(), 1.5),
        ("12.50", pa.decimal128(5, 2), decimal.Decimal("12.50")),
        ("2026-1-5", pa.date32(), datetime.date(2026, 1, 5)),
        ("true", pa.bool_(), True),
        ("x", pa.string(), "x"),
        ("x", pa.binary(), b"x"),
        (None, pa.int32(), None),
        (
            "2026-07-01 10:00:00.5",
            pa.timestamp("us", "UTC"),
            datetime.datetime(2026, 7, 1, 8, 0, 0, 500_000, datetime.UTC),
        ),
        ("2026-07-01 10:00:00", pa.timestamp("us"), datetime.datetime(2026, 7, 1, 10)),
    ],
)
def test_values_in_the_type_of_the_schema(text, target, expected):
    scalar = partition_scalar("x", text, target, "p", "Europe/Berlin")
    assert (scalar.type, scalar.as_py()) == (target, expected)


@pytest.mark.parametrize(
    ("text", "target"),
    [("x", pa.int32()), ("300", pa.int8()), ("x", pa.date32()), ("x", pa.bool_()), ("x", pa.timestamp("us"))],
)
def test_a_value_of_another_type_is_an_error(text, target):
    with pytest.raises(BadDataError, match=f"x={text}"):
        partition_scalar("x", text, target, "p", "UTC")
