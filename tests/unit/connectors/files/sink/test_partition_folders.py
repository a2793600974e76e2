"""The folders of partitions, as Spark's writers spell them: what Spark 4.3 wrote for these values is the table."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.files.sink.partition_folders import PartitionFolders

NULL = "__HIVE_DEFAULT_PARTITION__"
AT = datetime.datetime(2020, 1, 2, 2, 4, 5, tzinfo=datetime.UTC)
LOCAL = datetime.datetime(2020, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.string(), {
            "a": "a", "": NULL, None: NULL, "\u00e9 x": "\u00e9 x", "a/b:c=d%e": "a%2Fb%3Ac%3Dd%25e", 'q"#': "q%22%23",
            "a\\b": "a%5Cb", "{[]}^*?": "%7B%5B%5D}%5E%2A%3F", "\x7f": "%7F", "\n": "%0A", " ": " ", "..x": "..x",
        }),
        (pa.float64(), {
            1.0: "1.0", 1e10: "1.0E10", 1e-5: "1.0E-5", 0.001: "0.001", 123456789.125: "1.23456789125E8", -0.0: "-0.0",
            float("nan"): "NaN", float("-inf"): "-Infinity", 9999999.0: "9999999.0",
        }),
        (pa.float32(), {1e10: "1.0E10", 0.1: "0.1", 3.4e38: "3.4E38"}),
        (pa.decimal128(12, 8), {Decimal(0): "0.00000000", Decimal("1.5"): "1.50000000"}),
        (pa.date32(), {datetime.date(1, 1, 1): "0001-01-01", datetime.date(9999, 12, 31): "9999-12-31"}),
        (pa.timestamp("us", "UTC"), {
            AT: "2020-01-02 03%3A04%3A05", AT.replace(microsecond=120_000): "2020-01-02 03%3A04%3A05.12", None: NULL,
        }),
        (pa.timestamp("us"), {LOCAL: "2020-01-02 03%3A04%3A05", LOCAL.replace(microsecond=500_000):
                              "2020-01-02 03%3A04%3A05.5"}),
        (pa.bool_(), {True: "true", False: "false"}),
        (pa.int64(), {-5: "-5"}),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_spelled_as_spark_does(data_type: pa.DataType, values: dict[Any, str]) -> None:
    table = pa.table({"n": range(len(values)), "we ird=%": pa.array(list(values), data_type)})
    found = PartitionFolders(["we ird=%"], "Europe/Paris").split(table)
    expected: dict[str, list[int]] = {}
    for number, text in enumerate(values.values()):
        expected.setdefault(f"we ird%3D%25={text}", []).append(number)
    assert {folder: rows.to_pydict()["n"] for folder, rows in found} == expected
    assert all(rows.schema.names == ["n"] for _, rows in found)


def test_several_columns_are_nested_and_rows_keep_their_order() -> None:
    table = pa.table({"a": [1, 2, 1, 1], "n": [0, 1, 2, 3], "b": ["x", "x", "y", "x"]})
    found = PartitionFolders(["b", "a"], "UTC").split(table)
    assert {folder: rows.to_pydict() for folder, rows in found} == {
        "b=x/a=1": {"n": [0, 3]}, "b=x/a=2": {"n": [1]}, "b=y/a=1": {"n": [2]},
    }  # fmt: skip


def test_rows_do_not_hold_those_of_other_partitions() -> None:
    table = pa.table({"n": range(100_000), "p": [each == 7 for each in range(100_000)]})
    rows = dict(PartitionFolders(["p"], "UTC").split(table))["p=true"]
    assert rows.get_total_buffer_size() < 1000
