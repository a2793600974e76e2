"""Generated columns of every type, aggregated, as keys, and in windows: a continuous query beside Spark's batch.

Each query reads a Parquet file of `conformance.column_values` to its end, with slots that are threads. Aggregates run
many in a query. If that fails, or is refused, its halves run, until there is one: that both sides fail is equal.

Left out is ``histogram_numeric``: Spark puts equal values together while it adds rows, and not where it merges parts,
which a continuous query does with each row.

Rows come in the order of the file in both. What does not follow from that is compared less exactly (`How`).

Never: decide what is right: Spark's batch does.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import headgate
from conformance import column_values
from conformance.spark import Outcome, changed_settings
from headgate.errors import OptionError, UnsupportedOperationError
from headgate.graph.plan import PlanNode
from headgate.operators.windows.catalyst_aggregate import CatalystAggregate
from headgate.operators.windows.windowed import WindowedAggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, ROWS_OF_KEYS = 300, 120
PATIENCE_S = 600
_TOGETHER = 100
"""So many aggregates are in a query."""
_ORDERLY = {
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",  # sorting would change the order of rows
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # To make and compile code for a query of so few rows takes longer than to run it without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class How(Enum):
    """How results are compared."""

    EXACT = "to the last bit"
    NEAR = "floating point numbers that are rounded in another order: to nine digits"
    BAG = "in any order"
    ABOUT = "an estimate, whose hash is another one: to a fifth"
    ZERO = "of the two zeros, which are equal, either"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate in SQL.

    Parameters
    ----------
    function, sql
        Its name, and all of it.
    how
        How results are compared.
    alone
        Whether it may fail or be refused, and is better no part of a query of many.
    """

    function: str
    sql: str
    how: How = How.EXACT
    alone: bool = False


@dataclass(frozen=True)
class Program:
    """A query of its own; how it is compared: its rows in any order.

    Parameters
    ----------
    function, text
        What it is.
    make
        Makes it of a function that reads the rows anew, and of others that a stream can be joined with.
    settings
        Of the session.
    """

    function: str
    text: str
    make: Callable[[Callable[[], DataFrame], DataFrame], DataFrame]
    settings: Mapping[str, str]


# What is tried.

_OF_ALL = (
    "count({})", "first({})", "last({})", "first({}, true)", "last({}, true) FILTER (WHERE q)", "any_value({})",
    "any_value({}, true)", "max_by({}, n)", "min_by({}, n) FILTER (WHERE p)", "count({}) FILTER (WHERE p)",
    "first({}) FILTER (WHERE p)", "count_if({} IS NULL)",
)  # fmt: skip
_EXTREMES = ("min({})", "max({})", "min({}) FILTER (WHERE p)", "max({}) FILTER (WHERE p)")
_BY_ORDER = ("max_by(n, {})", "min_by(n, {})", "mode({}, true)")
_OF_NUMBERS = ("percentile({}, 0.3)", "percentile({}, array(0.0, 0.5, 0.9))", "median({})")
_MOMENTS = (
    "stddev({})", "stddev_pop({})", "stddev_samp({})", "variance({})", "var_pop({})", "var_samp({})", "skewness({})",
    "kurtosis({})", "corr({}, small)", "covar_pop({}, small)", "covar_samp(small, {})", "regr_slope({}, small)",
    "regr_intercept({}, small)", "regr_r2({}, small)", "regr_avgx({}, small)", "regr_avgy({}, small)",
    "regr_sxx({}, small)", "regr_sxy({}, small)", "regr_syy({}, small)", "regr_count({}, small)",
    "stddev({}) FILTER (WHERE p)",
)  # fmt: skip
_SUMS = ("sum({})", "avg({})", "try_sum({})", "try_avg({})", "sum({}) FILTER (WHERE q)", "avg({}) FILTER (WHERE q)")
_OF_INTEGERS = ("bit_and({})", "bit_or({})", "bit_xor({})", "bit_and({}) FILTER (WHERE p)")
_OF_BOOLEANS = ("bool_and({})", "bool_or({})", "every({})", "some({})", "any({})", "count_if({})")
_SKETCHES = ("hll_sketch_estimate(hll_sketch_agg({}))", "hex(count_min_sketch({}, 0.1d, 0.9d, 7))")
_INTEGERS = ("n", "small", "i8", "i16", "i32", "i64")
_FLOATS = ("f32", "f64")
_DECIMALS = ("d5", "d9", "d18", "d38", "d38b")
_NUMBERS = (*_INTEGERS, *_FLOATS, *_DECIMALS)
_SIMPLE = (*_NUMBERS, "p", "k", "s", "b", "day", "at", "ntz")
_NESTED = ("ap", "ai", "af", "ad", "as", "ab", "aday", "aat", "aai", "arow", "row", "deep")
_MAPS = ("msi", "mis", "mfp", "mda", "mrow", "mmm", "am")
_MODERATE = {
    "f32": "abs(f32) NOT BETWEEN 1e9 AND 1e39", "f64": "abs(f64) NOT BETWEEN 1e9 AND 1.7976931348623157e308",
    "i64": "i64 BETWEEN -100000000000 AND 100000000000",
    "d38": "d38 BETWEEN -1000000000000 AND 1000000000000", "d38b": "d38b BETWEEN -0.01 AND 0.01",
}  # fmt: skip
"""Of columns with values that are as large as can be: which ones add up to something that fits."""
_WITHOUT_NULLS = ("array_compact(ai)", "array_compact(aat)", "array_compact(as)")
"""Spark's hash passes over nulls in arrays, so that its estimates are too low there."""
_LARGE = (
    "greatest(i64, 0)", "greatest(d38, CAST(0 AS DECIMAL(38, 10)))", "greatest(d38b, CAST(0 AS DECIMAL(38, 38)))",
)  # fmt: skip
"""Whose sum overflows, if it does, whatever the order of rows is."""
_STRUCTS = ("struct(f64, k)", "struct(p, b, day)", "struct(d18, at, i8)", "struct(ntz, f32)", "struct(row, small)")
_DERIVED = {
    "void": "NULL",
    "nocase": "collate(cased, 'UTF8_LCASE')",
    "trimmed": "collate(cased, 'UTF8_BINARY_RTRIM')",
    "seconds": "CAST(i32 AS INTERVAL SECOND)",
    "months": "CAST(small AS INTERVAL MONTH)",
    "variant": "try_parse_json(js)",
}
_OTHERS = (
    *(f"{function}({_DERIVED[column]})" for column in ("seconds", "months", "nocase", "variant")
      for function in ("first", "max", "count", "collect_list", "approx_count_distinct")),
    f"sum({_DERIVED['seconds']})", f"max_by(n, {_DERIVED['nocase']})", "count(DISTINCT small)", "count(DISTINCT k, p)",
    "sum(DISTINCT i32)", "mode() WITHIN GROUP (ORDER BY small)", "listagg(k) WITHIN GROUP (ORDER BY n)",
    "max(NULL)", "count(1, k)", "sum(1)", "max('x')", "percentile_disc(0.5) WITHIN GROUP (ORDER BY f64)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY f64)", "approx_top_k(small, 40)",
)  # fmt: skip
"""What no table below has; some of it is refused."""


def aggregates(*, ansi: bool) -> list[Aggregate]:
    """Return the aggregates that are tried."""
    found = [_of(each, "*") for each in ("count(*)", "count(*) FILTER (WHERE p)", "count(1)")]
    found += [_of(each, column) for column in (*_SIMPLE, *_NESTED, *_MAPS) for each in _OF_ALL]
    ordered = (*_SIMPLE, *_NESTED, *_STRUCTS)
    found += [_of(each, column, How.ZERO) for column in ordered for each in _EXTREMES]
    found += [_of(each, column) for column in ordered for each in _BY_ORDER]
    found += [_of("collect_list({})", column, How.BAG) for column in (*_SIMPLE, *_NESTED, *_MAPS)]
    found += [_of("collect_set({})", column, How.BAG) for column in (*_SIMPLE, *_NESTED)]
    found += [_of("approx_count_distinct({})", column, How.ABOUT) for column in (*_SIMPLE, *_STRUCTS, *_WITHOUT_NULLS)]
    for column in (*_NUMBERS, "day", "at"):  # with NaN Spark's depends on where it cut the rows
        number = f"nullif({column}, double('NaN'))" if column in _FLOATS else column
        found.append(_of("approx_percentile({}, 0.5, 10000)", number, How.ZERO))
    found += [_of(each, column) for column in _NUMBERS for each in _OF_NUMBERS]
    found += [_of(each, column) for column in _INTEGERS for each in _OF_INTEGERS]
    found += [_of(each, column) for column in ("p", "q", "i32 > j32") for each in _OF_BOOLEANS]
    found += [_of(each, column) for column in ("i32", "s", "b") for each in _SKETCHES]
    found += [_of("listagg({}, ',')", column) for column in ("k", "s")]
    for column in _NUMBERS:
        moderate = f"if({_MODERATE[column]}, {column}, NULL)" if column in _MODERATE else column
        if column in ("small", *_MODERATE):
            found += [_of(each, moderate, How.NEAR) for each in _MOMENTS]
        found += [_of(each, moderate, How.NEAR if column in _FLOATS else How.EXACT) for each in _SUMS]
    found += [_of("approx_count_distinct({})", column) for column in ("msi", "am", "struct(msi)")]
    for column in _LARGE:
        found += [_of(each, column, alone=ansi and not each.startswith("try")) for each in _SUMS[:4]]
    return [*found, *(_of(each, "", How.BAG, alone=True) for each in _OTHERS)]


def _of(template: str, column: str, how: How = How.EXACT, *, alone: bool = False) -> Aggregate:
    return Aggregate(template.partition("(")[0], template.replace("{}", column), how, alone)


_KEYS = (
    *_SIMPLE, "q", "cased", *_DERIVED, "ai", "af", "as", "aai", "arow", "row", "deep", "struct(f64, k)",
    "struct(d9, at)", "struct(if(n >= 0, struct(p, b), NULL))", "msi",
)  # fmt: skip
"""A struct in another may be null, or else PySpark cannot collect what an outer join makes of it."""


def keys() -> Iterator[Program]:
    """Yield each type as a key of each operation."""
    for key in _KEYS:
        for what, make in _OPERATIONS.items():

            def program(read: Callable[[], DataFrame], table: DataFrame, key: str = key, make: Any = make) -> DataFrame:
                sql = _DERIVED.get(key, key)
                return make(lambda: read().selectExpr("n", f"{sql} AS x"), table.selectExpr("n AS m", f"{sql} AS y"))

            yield Program(what, key, program, {})


def _grouped(read: Callable[[], DataFrame], table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return read().groupBy("x").agg(F.count("*"), F.sum("n"), F.first("n"), F.max("n"))


def _joined(how: str, *, null_safe: bool) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def join(left: DataFrame, right: DataFrame) -> DataFrame:
        right = right.where("m % 3 = 0")
        return left.join(right, left.x.eqNullSafe(right.y) if null_safe else left.x == right.y, how)

    return join


def _streams(how: str, *, null_safe: bool) -> Callable[[Callable[[], DataFrame], DataFrame], DataFrame]:
    join = _joined(how, null_safe=null_safe)
    return lambda read, table: join(read(), read().withColumnsRenamed({"n": "m", "x": "y"}))


_OPERATIONS: dict[str, Callable[[Callable[[], DataFrame], DataFrame], DataFrame]] = {
    "groupBy": _grouped,
    "dropDuplicates": lambda read, table: read().dropDuplicates(["x"]),
    "stream-static join": lambda read, table: _joined("left", null_safe=False)(read(), table),
    "stream-static join <=>": lambda read, table: _joined("inner", null_safe=True)(read(), table),
    "stream-stream join": _streams("full", null_safe=False),
    "stream-stream join <=>": _streams("inner", null_safe=True),
}
ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia")
WINDOWS = (
    "window({}, '1 hour')", "window({}, '1 day')", "window({}, '1 day', '6 hours')",
    "window({}, '7 hours', '3 hours', '20 minutes')", "window({}, '90 minutes', '90 minutes', '-10 minutes')",
    "window({}, '1 week')", "session_window({}, '30 minutes')", "session_window({}, '1 day')",
    "session_window({}, '1 month')",
    "session_window({}, CASE WHEN p THEN '2 hours' WHEN q THEN '1 day' ELSE '1 second' END)",
)  # fmt: skip


def windows() -> Iterator[Program]:
    """Yield all windows of a type of event times in a session's time zone, as one query."""
    for zone in ZONES:
        for column in ("at", "ntz"):

            def program(read: Callable[[], DataFrame], table: DataFrame, column: str = column) -> DataFrame:
                read().createOrReplaceTempView("generated")
                parts = [
                    f"""SELECT {number} AS of, w.start, w.end, k, c, t, least FROM
                    (SELECT {each} AS w, k, count(*) AS c, sum(small) AS t, min(n) AS least FROM generated
                     GROUP BY {each}, k)"""
                    for number, each in enumerate(each.format(column) for each in WINDOWS)
                ]
                return table.sparkSession.sql(" UNION ALL ".join(parts))

            yield Program("windows", f"{column} in {zone}", program, {"spark.sql.session.timeZone": zone})


# How it is run.


class Inputs:
    """The files of rows, and how the two sides read them.

    Parameters
    ----------
    spark
        The session.
    folder
        An empty folder.
    seed
        Of the rows.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark = spark
        self._folder = folder
        for rows in (ROWS, ROWS_OF_KEYS):
            table = column_values.table(rows, seed)
            names = [each.name for each in table.schema if "duration" not in str(each.type)]  # Spark reads numbers
            pq.write_table(table.select(names), self._path(rows))

    def _path(self, rows: int) -> str:
        return str(self._folder / f"{rows}.parquet")

    def batch(self, rows: int) -> DataFrame:
        """Return the rows as Spark reads them."""
        return self.spark.read.parquet(self._path(rows))

    def stream(self, rows: int) -> DataFrame:
        """Return the rows as Headgate reads them."""
        reader = self.spark.read.format("headgate.files").option("fileFormat", "parquet")
        return reader.schema(self.batch(rows).schema).load(self._path(rows))


def compare(spark: SparkSession, seed: int, *, ansi: bool, part: int = 0, of: int = 1) -> Iterator[Outcome]:
    """Yield what became of the cases, or of one part of so many, in a setting of ``spark.sql.ansi.enabled``."""
    changed = {**_ORDERLY, "spark.sql.ansi.enabled": str(ansi).lower()}
    with tempfile.TemporaryDirectory(prefix="columns-") as folder, changed_settings(spark, changed):
        inputs = Inputs(spark, Path(folder), seed)
        chosen = aggregates(ansi=ansi)[part::of]
        wanted = [each for each in chosen if not each.alone]
        yield from aggregated(inputs, wanted[::10], "")
        for each in chosen:
            if each.alone:
                yield from aggregated(inputs, [each], "small")
        for begin in range(0, len(wanted), _TOGETHER):
            yield from aggregated(inputs, wanted[begin : begin + _TOGETHER], "small")
        for program in [*keys(), *windows()][part::of]:
            yield run(inputs, program)


def aggregated(inputs: Inputs, wanted: Sequence[Aggregate], group: str) -> list[Outcome]:
    """Return what became of aggregates of groups, or of all rows: together if that works, else of halves."""
    columns = ", ".join(f"{each.sql} AS a{number}" for number, each in enumerate(wanted))
    columns += ", collect_list(n) AS numbers"  # with which Spark does not sort the rows by their group
    sql = (
        f"SELECT {group} AS g, {columns} FROM generated GROUP BY {group}"
        if group
        else f"SELECT {columns} FROM generated"
    )

    def made(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("generated")
        return inputs.spark.sql(sql)

    if not wanted:
        return []
    alone = len(wanted) == 1
    try:
        ours, by_catalyst = continuously(lambda: made(inputs.stream(ROWS)), 1, catch=alone)
        if isinstance(ours, Failed) and ours.refused:
            return [refused(wanted[0].function, wanted[0].sql, ours.error)]
        # Uncompiled, Spark's aggregates keep texts with a collation where the next row is put.
        compiled = {"spark.sql.codegen.factoryMode": "FALLBACK"} if "collate" in sql else {}
        with changed_settings(inputs.spark, compiled):
            theirs = by_spark(lambda: made(inputs.batch(ROWS)), catch=alone)
    except Exception:
        if alone:
            raise
        half = len(wanted) // 2
        return aggregated(inputs, wanted[:half], group) + aggregated(inputs, wanted[half:], group)
    return [
        _outcome(each.function, each.sql, ours, theirs, _of_groups(f"a{number}"), each.how, f"a{number}" in by_catalyst)
        for number, each in enumerate(wanted)
    ]


def run(inputs: Inputs, program: Program) -> Outcome:
    """Return what became of a query."""
    with changed_settings(inputs.spark, program.settings):
        rows = ROWS if program.function == "windows" else ROWS_OF_KEYS
        table = inputs.batch(rows)
        ours, by_catalyst = continuously(lambda: program.make(lambda: inputs.stream(rows), table), 2, catch=True)
        if isinstance(ours, Failed) and ours.refused:
            return refused(program.function, program.text, ours.error)
        theirs = by_spark(lambda: program.make(lambda: inputs.batch(rows), table), catch=True)
    return _outcome(program.function, program.text, ours, theirs, _of_rows, How.EXACT, bool(by_catalyst))


@dataclass(frozen=True)
class Failed:
    """What a side gives instead of rows: an error; ``refused``: before it was started."""

    error: Exception
    refused: bool = False


def described(error: Exception) -> str:
    """Return the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


def refused(function: str, text: str, error: Exception) -> Outcome:
    """Return what became of what was not started: ``unknown`` if it is Spark that refuses it."""
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, AnalysisException | ParseException):
        return Outcome(function, text, "unknown", described(error))
    by_name = isinstance(error, UnsupportedOperationError | OptionError)
    return Outcome(function, text, "refused" if by_name else "different", described(error))


def by_spark(make: Callable[[], DataFrame], *, catch: bool) -> pa.Table | Failed:
    """Return the rows of Spark's batch."""
    try:
        return make().toArrow()
    except Exception as error:
        if not catch:
            raise
        return Failed(error)


def continuously(make: Callable[[], DataFrame], parallelism: int, *, catch: bool) -> tuple[pa.Table | Failed, set[str]]:
    """Return the rows of the continuous query, and which columns of aggregations Spark's own code makes."""
    by_catalyst: set[str] = set()
    refused = True
    try:
        writer = headgate.continuous(make(), parallelism).writeStream.format("memory").option("slots", "threads")
        writer = writer.option("restart-strategy", "none").trigger(continuous="10 minutes")
        by_catalyst = _by_catalyst(writer._node)
        query = writer.start()
        refused = False
        if not query.awaitTermination(PATIENCE_S):
            query.stop()
            raise SystemExit(f"a query did not end within {PATIENCE_S} s: {query.status}")
        return query.table(), by_catalyst
    except Exception as error:
        if not catch:
            raise
        return Failed(error, refused), by_catalyst


def _by_catalyst(node: PlanNode) -> set[str]:
    found = set[str]().union(*map(_by_catalyst, node.inputs))
    if isinstance(node.of, WindowedAggregate):
        found |= {each.name for each in node.of._aggregates if isinstance(each.accumulator, CatalystAggregate)}
    return found


# How it is compared.

Read = Callable[[pa.Table], dict[str, Any]]
"""Returns values by what they are compared by."""


def _of_groups(name: str) -> Read:
    def read(table: pa.Table) -> dict[str, Any]:
        groups = plain(table.column("g")) if "g" in table.column_names else [None] * table.num_rows
        return dict(zip(map(repr, groups), plain(table.column(name)), strict=True))

    return read


def _of_rows(table: pa.Table) -> dict[str, Any]:
    return {"": sorted(map(repr, zip(*map(plain, table.columns), strict=True)))}


def _outcome(function: str, text: str, ours: Any, theirs: Any, read: Read, how: How, is_catalyst: bool) -> Outcome:
    by = "catalyst" if is_catalyst else "arrow"
    if isinstance(ours, Failed) or isinstance(theirs, Failed):
        both = isinstance(ours, Failed) and isinstance(theirs, Failed)
        texts = [described(each.error) if isinstance(each, Failed) else "rows" for each in (ours, theirs)]
        return Outcome(function, text, by if both else "different", " / ".join(texts))
    mine, its = read(ours), read(theirs)
    if mine.keys() != its.keys():
        return Outcome(function, text, "different", f"groups: {sorted(mine)[:20]} / {sorted(its)[:20]}")
    for key, value in its.items():
        if not equal(mine[key], value, how):
            return Outcome(function, text, "different", f"{key}: {shortened(mine[key], value)}")
    return Outcome(function, text, by)


def shortened(ours: Any, theirs: Any) -> str:
    """Return two values, or of lists what only one has."""
    if isinstance(ours, list) and isinstance(theirs, list):
        mine, its = list(map(repr, ours)), list(map(repr, theirs))
        for each in list(mine):
            if each in its:
                its.remove(each)
                mine.remove(each)
        return f"{len(mine)} {mine[:3]} / {len(its)} {its[:3]}" if mine or its else f"{ours} / {theirs}"[:600]
    return f"{ours!r} / {theirs!r}"[:600]


def plain(column: Any) -> list[Any]:
    """Return values in a form in which they are compared; moments are numbers, since Python has no year 10000."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_struct(column.type):
        fields = [plain(each) for each in column.flatten()]
        rows = zip(*fields, strict=True) if fields else [()] * len(column)
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def equal(ours: Any, theirs: Any, how: How) -> bool:
    """Return whether two values are the same; NaN is NaN, and 0 another value than -0."""
    if how is How.BAG and isinstance(ours, list) and isinstance(theirs, list):
        return sorted(map(repr, ours)) == sorted(map(repr, theirs))
    if how is How.NEAR and isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(ours) and math.isnan(theirs))
    if how is How.ABOUT and ours is not None and theirs is not None:
        return abs(ours - theirs) <= max(1, 0.2 * theirs)
    if how is How.ZERO:
        ours, theirs = re.sub(r"-0\.0\b", "0.0", repr(ours)), re.sub(r"-0\.0\b", "0.0", repr(theirs))
    return repr(ours) == repr(theirs)
