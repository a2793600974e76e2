"""Windows give what Spark's batch ``groupBy(window)`` gives of the same rows, whatever happens to the state."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as spark_functions

from headgate.errors import OptionError
from headgate.operators.row_order import SortKey, order_of_rows
from headgate.operators.windows.assigner import SessionWindow
from tests.unit.operators.windows import words
from tests.unit.operators.windows.window_world import TIMESTAMP, Subtasks, TwoPhases, made

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        ("case", pa.int32()), ("at", TIMESTAMP), ("k", pa.string()), ("f", pa.float64()), ("i", pa.int32()),
        ("l", pa.int64()), ("x", pa.float64()), ("y", pa.float32()), ("d", pa.decimal128(12, 2)),
        ("w", pa.decimal128(38, 4)), ("s", pa.string()), ("b", pa.bool_()), ("t", TIMESTAMP), ("day", pa.date32()),
        ("z", pa.binary()),
    ]
)  # fmt: skip
KEYS = ("case", "k", "f")


def windows(f: Any) -> dict[str, Any]:
    """Return the windows that are tried, made by a module of functions."""
    return {
        "tumbling": f.window("at", "10 seconds"),
        "from a start": f.window("at", "10 seconds", "10 seconds", "3 seconds"),
        "sliding": f.window("at", "10 seconds", "5 seconds"),
        "sliding from a start": f.window("at", "9 seconds", "3 seconds", "1 second"),
        "sliding unevenly": f.window("at", "10 seconds", "4 seconds"),
        "session": f.session_window("at", "2 seconds"),
    }


def aggregates(f: Any) -> list[Any]:
    """Return the aggregates that are tried, by both modules' names."""
    many = [f.count("*"), f.count("i"), f.count("s")]
    many += [each(name) for each in (f.sum, f.avg) for name in ("i", "l", "x", "y", "d")]
    many += [f.sum("w").alias("sum w"), f.avg("w").alias("avg w")]
    many += [each(name) for each in (f.min, f.max) for name in ("i", "x", "y", "d", "s", "b", "t", "day", "z")]
    many += [f.first("l"), f.last("s"), f.first("d", True).alias("first d"), f.last("x", True).alias("last x")]
    many += [f.collect_list(name) for name in ("i", "s", "d")]
    many += [f.approx_count_distinct("l"), f.approx_count_distinct("s", 0.02).alias("few of s")]
    return many


def moments(draw: Any) -> dt.datetime:
    at = draw(st.integers(-8000, 30_000))
    # Often at a border, and sometimes a microsecond beside it.
    return dt.datetime.fromtimestamp(0, UTC) + dt.timedelta(
        milliseconds=at // 1000 * 1000 if at % 3 == 0 else at, microseconds=draw(st.sampled_from([0, 0, -1, 1, 500]))
    )


ANY_DOUBLE = st.sampled_from([None, 0.0, -0.0, 1.5, -2.25, math.nan, math.inf, 1e10]) | st.floats(-1e6, 1e6)


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    """Rows of a case, in the order in which they come."""
    count = draw(st.integers(1, 40))
    decimals = st.decimals(-10_000, 10_000, places=2)
    return [
        {
            "at": draw(st.none()) if draw(st.integers(0, 20)) == 0 else moments(draw),
            "k": draw(st.sampled_from([None, "", "a", "b", "ä"])),
            "f": draw(st.sampled_from([None, 0.0, -0.0, math.nan, -math.nan])),
            "i": draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
            "l": draw(st.none() | st.integers(-100, 100) | st.integers(-(2**50), 2**50)),
            "x": draw(ANY_DOUBLE),
            "y": draw(st.none() | st.floats(-1e6, 1e6, width=32)),
            "d": draw(st.none() | decimals),
            "w": draw(st.none() | decimals),
            "s": draw(st.none() | st.text("abcß\U0001f600", max_size=3)),
            "b": draw(st.none() | st.booleans()),
            "t": draw(
                st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(UTC))
            ),
            "day": draw(st.none() | st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
            "z": draw(st.none() | st.binary(max_size=2)),
        }
        for _ in range(count)
    ]


def spark_rows(spark: SparkSession, table: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return what Spark makes of rows, by the name of the windows: in one job."""
    frame = spark.createDataFrame(table).coalesce(1)
    united = None
    for name, window in windows(spark_functions).items():
        grouped = frame.groupBy(window.alias("window"), *KEYS).agg(*aggregates(spark_functions))
        grouped = grouped.withColumn("windows", spark_functions.lit(name))
        united = grouped if united is None else united.unionByName(grouped)
    assert united is not None
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in windows(spark_functions)}
    for row in united.toArrow().to_pylist():
        found[row.pop("windows")].append(row)
    return found


def in_two_phases() -> list[Any]:
    """Return those that have a phase before the exchange."""
    ordered = ("first", "last", "collect_list")
    return [each for each in aggregates(words) if each.function not in ordered]


def our_rows(
    table: pa.Table, window: Any, folder: Path, dice: random.Random, memory_bytes: int, *, two_phases: bool = False
) -> list[dict[str, Any]]:
    """Drive the operator over rows in small batches, with watermarks, restores and rescales in between."""
    session = isinstance(window, SessionWindow)
    computed = in_two_phases() if two_phases else aggregates(words)
    subtasks = (TwoPhases if two_phases else Subtasks)(
        lambda: made(SCHEMA, window.alias("window"), KEYS, computed),
        folder,
        parallelism=dice.randint(1, 3),
        memory_bytes=memory_bytes,
    )
    batch = table.combine_chunks().to_batches()[0]
    times = batch.column("at").cast(pa.int64()).to_pylist()
    begin = 0
    while begin < batch.num_rows:
        rows = dice.randint(1, 200)
        subtasks.process(batch.slice(begin, rows))
        begin += rows
        left = [time for time in times[begin:] if time is not None]
        if left and dice.random() < 0.5:
            # As far as it can go: the earliest row that follows is the first that the watermark could make late.
            subtasks.watermark(min(left) // 1000 - session)
        if dice.random() < 0.3:
            states = subtasks.checkpoint()
            if dice.random() < 0.7:
                subtasks.restore(states, dice.randint(1, 4))
    assert not subtasks.late
    return subtasks.finish()


def plain(value: Any) -> Any:
    """Make values comparable: NaN equals itself, -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple(plain(each) for each in value.values())
    return value


def order(row: dict[str, Any]) -> str:
    return repr([plain(row[name]) for name in ("window", *KEYS)])


def check_equal(name: str, ours: Any, theirs: Any, scale: float) -> None:
    if isinstance(theirs, list):
        assert sorted(map(repr, ours)) == sorted(map(repr, theirs)), name
    elif isinstance(theirs, float) and math.isfinite(theirs):
        assert math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9 * scale), name
    elif name.startswith(("approx", "few")):
        assert abs(ours - theirs) <= max(1, 0.2 * theirs), name
    else:
        assert plain(ours) == plain(theirs), name


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Return the rows of many generated cases, each with its number: Spark computes them all in one job."""
    cases: list[list[dict[str, Any]]] = []

    @settings(max_examples=50, phases=(Phase.generate,), database=None, suppress_health_check=list(HealthCheck))
    @given(case=rows())
    def take(case: list[dict[str, Any]]) -> None:
        cases.append(case)

    take()
    listed = [{"case": number, **row} for number, case in enumerate(cases) for row in case]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


@pytest.fixture(scope="module")
def expected(spark: SparkSession, table: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return what Spark makes of the rows, by the name of the windows."""
    setting = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"  # sorting would change the order of rows
    before = spark.conf.get(setting, "128")
    spark.conf.set(setting, "1000000")
    try:
        return spark_rows(spark, table)
    finally:
        spark.conf.set(setting, str(before))


@pytest.mark.parametrize("memory_bytes", [0, 20_000])
@pytest.mark.parametrize("name", windows(words))
def test_windows_give_what_spark_gives(
    name: str, memory_bytes: int, table: pa.Table, expected: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Of rows in any order, with watermarks, restores, rescales and spilling in between: all aggregates."""
    window = windows(words)[name]
    dice = random.Random(f"{name} {memory_bytes}")
    ours = our_rows(table, window, tmp_path, dice, memory_bytes)
    assert list(ours[0]) == list(expected[name][0])
    check_all_equal(ours, expected[name])


@pytest.mark.parametrize("name", [each for each in windows(words) if each != "session"])
def test_windows_in_two_phases_give_what_spark_gives(
    name: str, table: pa.Table, expected: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """All aggregates that have two, of the same rows."""
    ours = our_rows(table, windows(words)[name], tmp_path, random.Random(name), 0, two_phases=True)
    wanted = ["window", *KEYS, *(each.name_in_output for each in in_two_phases())]
    check_all_equal(ours, [{column: row[column] for column in wanted} for row in expected[name]])


def check_all_equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    ours, theirs = sorted(ours, key=order), sorted(theirs, key=order)
    assert [order(row) for row in ours] == [order(row) for row in theirs]
    for our, their in zip(ours, theirs):
        for column in their:
            check_equal(column, our[column], their[column], 1e11 if column == "avg(l)" else 1e7)


def test_types_and_names_are_spark_s(spark: SparkSession) -> None:
    """The columns have the names and the types that Spark gives them."""
    table = pa.Table.from_pylist([], schema=SCHEMA)
    frame = spark.createDataFrame(table).groupBy(windows(spark_functions)["tumbling"], *KEYS)
    theirs = frame.agg(*aggregates(spark_functions)).toArrow().schema
    ours = made(SCHEMA, windows(words)["tumbling"], KEYS, aggregates(words)).schema
    assert ours.names == theirs.names
    for our, their in zip(ours, theirs):
        text = str(their.type).replace(" not null", "").replace("<element:", "<item:")
        assert str(our.type) == text or pa.types.is_timestamp(our.type), our.name


def test_rows_are_in_spark_s_order(spark: SparkSession, table: pa.Table) -> None:
    """By values of every type, nulls and NaN among them: ``sort_array`` has the order of ``ORDER BY``, in one job."""
    nested = ["struct(f, k)", "array(k, s)", "array(x, y)", "array(array(i), array())", "nullif(struct(d), struct(d))"]
    names = [name for name in SCHEMA.names if name != "case"]
    rows = table.select(names).slice(0, 500).append_column("row", pa.array(range(500)))
    frame = spark.createDataFrame(rows).selectExpr("*", *(f"{each} AS n{place}" for place, each in enumerate(nested)))
    names += [f"n{place}" for place in range(len(nested))]
    values = frame.orderBy("row").toArrow()
    in_order = (f"sort_array(collect_list(struct({name}, row))) AS {name}" for name in names)
    (found,) = frame.selectExpr(*in_order).collect()
    for name in names:
        ours = order_of_rows(values, [SortKey(name)]).tolist()
        assert ours == [each.row for each in found[name]], name


@pytest.mark.parametrize("column", ["l", "w"])
def test_a_sum_that_overflows_is_an_error_in_both(column: str, spark: SparkSession, tmp_path: Path) -> None:
    """Never a wrong number."""
    most = {"l": 2**63 - 1, "w": decimal.Decimal(10**34 - 1)}[column]
    row = {"case": 0, "at": dt.datetime(2024, 1, 1, tzinfo=UTC), column: most}
    table = pa.Table.from_pylist([row] * 2, schema=SCHEMA)
    grouped = spark.createDataFrame(table).groupBy(spark_functions.window("at", "10 seconds"))
    with pytest.raises(Exception, match=r"OVERFLOW|overflow|OUT_OF_RANGE"):
        grouped.agg(spark_functions.sum(column)).collect()
    window, total = words.window("at", "10 seconds"), words.sum(column)
    subtasks = Subtasks(lambda: made(SCHEMA, window, KEYS, [total]), tmp_path)
    with pytest.raises(OptionError, match=f"sum\\({column}\\): a result does not fit"):
        subtasks.process(table.to_batches()[0])
        subtasks.finish()
