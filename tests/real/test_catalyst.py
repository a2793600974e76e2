"""Expressions that Spark's own code evaluates in continuous queries: results, errors, the death of its process."""

from __future__ import annotations

import datetime
import os
import re
import signal
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import running_queries
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from running_queries import PATIENCE_S, wait_until

import headgate
from headgate.catalyst import helper_jvm
from headgate.errors import DeploymentError, ExpressionError, UnsupportedOperationError
from headgate.graph.plan import stage_graph
from headgate.java_texts import with_java_texts
from headgate.operators.catalyst_project import CatalystProject
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Operator
from headgate.operators.windows.windowed import WindowedAggregate
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.analyzed.plan import plan_of
from tests.helper_javas import helper_of, javas, parent_of, quick

EXPRESSIONS = (
    "from_json(js, 'a long, b struct<c: string, d: array<int>>, e timestamp') AS parsed",
    "to_json(named_struct('n', n, 'at', at)) AS json",
    "get_json_object(js, '$.b.c') AS found",
    "date_format(at, 'EEE yyyy-MM-dd HH:mm:ss XXX') AS local",
    "to_timestamp(date_format(at, 'dd.MM.yyyy HH'), 'dd.MM.yyyy HH') AS hour",
    "date_trunc('WEEK', at) AS week",
    "make_date(2000 + n % 20, 2, 1 + n % 28) AS day",
    "regexp_extract_all(text, '([a-z])([a-z])', 2) AS pairs",
    "split(text, '[aeiou]') AS parts",
    "transform(sequence(1, n % 5 + 1), x -> x * n) AS multiples",
    "aggregate(sequence(1, n % 5 + 1), 0L, (all, x) -> all + x) AS added",
    "map_from_arrays(array('a', 'b'), array(n, n + 1)) AS both",
    "filter(array(n, NULL, 7), x -> x > 3) AS large",
    "CAST(n AS DECIMAL(20, 4)) / 7 AS divided",
    "format_number(n / 3.0, 2) AS formatted",
    "sha2(text, 256) AS hashed",
    "hash(n, text) AS spark_hash",
    "levenshtein(text, 'abcdef') AS far",
    "array_sort(array(n % 7, 3, NULL)) AS sorted",
    "nullif(n % 2, 0) AS odd",
    "try_divide(n, n % 3) AS third",
    "n % 10 BETWEEN 2 AND 4 AS within",
    "CASE WHEN n % 3 = 0 THEN NULL ELSE parse_url('http://a/b?n=' || n, 'QUERY') END AS query",
    "date_add(DATE'2024-02-28', CAST(n % 3 AS INT)) AS leap",
    "months_between(at, TIMESTAMP'2020-01-31 10:00:00') AS months",
    "encode(text, 'UTF-16BE') AS bytes",
    "array(if(n % 3 = 0, struct(), NULL)) AS without_fields",
    "transform(sequence(0, n % 3), x -> CAST(unhex(sha2(text || x, 256)) AS STRING)) AS no_text",
)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    running_queries.stop_all()


def rows(spark: SparkSession, count: int = 500, *, streaming: bool = False, **options: Any) -> DataFrame:
    """Return rows with numbers from 0 in ``n``, moments, texts, and JSON of which each seventh is broken."""
    reader = (spark.readStream if streaming else spark.read).format("headgate.datagen")
    given = {
        **({} if streaming else {"numRows": count}),
        "numPartitions": 2,
        "fields.n.kind": "sequence",
        "fields.text.length": 6,
        **options,
    }
    made = reader.options(**given).schema("n long, at timestamp, text string").load()
    document = """concat('{"a":', n, ',"b":{"c":"', text, '","d":[1,', n % 5, ']},"e":"2024-03-31T01:30:00Z"}')"""
    return made.selectExpr("n", "at", "text", f"""if(n % 7 = 0, '{{"a":', {document}) AS js""")


def run(frame: DataFrame, folder: Path, **options: str) -> headgate.ContinuousQuery:
    """Start a query into memory whose slots are threads, so that their helper is this process's."""
    writer = (
        headgate.continuous(frame, parallelism=2).writeStream.format("memory").trigger(continuous="200 milliseconds")
    )
    return writer.option("slots", "threads").option("checkpointLocation", str(folder)).options(**options).start()


def test_results_are_spark_s(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of functions of all kinds, in a time zone that changes its clocks; in columns and in a filter."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = rows(spark).where("length(regexp_replace(text, '[a-k]', '')) > 1").selectExpr("n", *EXPRESSIONS)
        headgate.continuous(frame).explain()
        query = run(frame, tmp_path)
        assert query.awaitTermination(PATIENCE_S) and query.exception() is None, query.exception()
        expected = frame.toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert re.search(r"sha2\(.*\[Catalyst\]", capsys.readouterr().out)
    found = query.table()
    assert found.num_rows > 200
    for name in expected.column_names:
        spark_s = with_java_texts(expected[name].combine_chunks())  # it keeps the bytes of a text that is no UTF-8
        theirs = dict(zip(expected["n"].to_pylist(), spark_s.to_pylist()))
        ours = dict(zip(found["n"].to_pylist(), found[name].to_pylist()))
        assert ours == theirs, name


def test_an_error_of_spark_s_code_ends_the_query_with_spark_s_name_of_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, 20).selectExpr("make_date(2000, CAST(n AS INT) + 1, 1) AS day")
    query = run(frame, tmp_path, **{"restart-strategy": "none"})
    with pytest.raises(ExpressionError, match="MonthOfYear") as raised:
        query.awaitTermination(PATIENCE_S)
    assert raised.value.condition.startswith("DATETIME_FIELD_OUT_OF_BOUNDS")


def test_a_helper_that_is_killed_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, streaming=True, rowsPerSecond=2000).selectExpr("n", "sha2(text, 256) AS hashed")
    query = run(frame, tmp_path)
    wait_until(lambda: query.table().num_rows, query)
    (pid,) = javas(helper_of(spark))
    os.kill(pid, signal.SIGKILL)
    before = query.table().num_rows
    wait_until(lambda: query.table().num_rows > before + 1000, query)
    (again,) = javas(helper_of(spark))
    assert again != pid
    used = wait_until(lambda: query.snapshot()["helperJvm"], query)
    assert used["rows"] >= used["requests"] > 0 and used["busyMs"] > 0
    query.stop()
    found = query.table()["n"].to_pylist()
    for split in range(2):
        of_split = sorted(each for each in found if each % 2 == split)
        assert of_split == list(range(split, split + 2 * len(of_split), 2))


def test_slots_share_one_that_outlives_the_worker_which_started_it(spark: SparkSession, tmp_path: Path) -> None:
    """It ends when they have ended, although Spark keeps their processes for other tasks."""
    options = quick("-Dheadgate.grace.ms=5000")
    frame = rows(spark, streaming=True, rowsPerSecond=2000).selectExpr("n", "sha2(text, 256) AS hashed")
    query = run(frame, tmp_path, slots="spark", **{"catalyst.extraJavaOptions": options})
    helper = helper_of(spark, java_options=options)

    def process_of(slot: int) -> int:
        return int(query.status["slots"][slot]["pid"])

    wait_until(lambda: {n % 2 for n in query.table()["n"].to_pylist()} == {0, 1}, query)
    (java,) = javas(helper)
    first = parent_of(java)
    slot = [process_of(0), process_of(1)].index(first)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: process_of(slot) not in (0, first), query)
    before = query.table().num_rows
    wait_until(lambda: query.table().num_rows > before + 1000, query)
    assert javas(helper) == [java]
    second = process_of(slot)
    query.stop()
    wait_until(lambda: not javas(helper) and not helper.folder.exists())
    assert Path(f"/proc/{second}/exe").exists(), "the worker has ended, too: the test shows nothing"


def test_it_has_the_options_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    hashed = headgate.continuous(
        rows(spark, streaming=True).selectExpr("n", "sha2(text, 256) AS hashed"), parallelism=1
    )
    java_options = "-Dsaid='by the query' -XX:TieredStopAtLevel=1 -Dheadgate.grace.ms=5000"
    options = {"catalyst.memory": "100m", "catalyst.extraJavaOptions": java_options}
    writer = hashed.writeStream.format("memory").option("slots", "threads").options(**options)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    helper = helper_of(spark, 100 << 20, java_options)
    wait_until(lambda: query.table().num_rows, query)
    (pid,) = javas(helper)
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert {"-Xmx100m", "-Dsaid=by the query", "-XX:TieredStopAtLevel=1"} <= set(command)
    query.stop()
    wait_until(lambda: not helper.folder.exists())


def test_a_query_is_stopped_while_it_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subtasks answer their mail meanwhile: those that did not were stuck, and took their process with them."""
    java, go = tmp_path / "bin" / "java", tmp_path / "go"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {helper_jvm._java()} "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    helper = helper_of(spark, java_options="-Dheadgate.grace.ms=1")
    frame = rows(spark, streaming=True).selectExpr("n", "sha2(text, 256) AS hashed")
    query = run(frame, tmp_path / "checkpoints", **{"catalyst.extraJavaOptions": "-Dheadgate.grace.ms=1"})
    wait_until(lambda: (helper.folder / "log").exists(), query)
    query.stop()
    assert not (helper.folder / "socket").exists() and query.exception() is None
    go.touch()
    helper.connect()[0].close()
    wait_until(lambda: not helper.folder.exists())


def test_what_it_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DeploymentError, match="Set JAVA_HOME to a Java 17"):
        helper_jvm.HelperJvm(64 << 20)


def test_rows_after_an_error_have_nothing_of_the_row_that_failed(spark: SparkSession) -> None:
    """Spark's own task ends with an error; here the other rows of the batch are evaluated again, and those after it."""
    kind = pa.map_(pa.string(), pa.int32())
    frame = spark.read.format("headgate.datagen").schema("m map<string, int>").load()
    operator, *_ = operators_of(frame.selectExpr("map_concat(m, map('x', 1)) AS v"))
    operator.open(OperatorContext(uid="x", subtask=0, parallelism=1), [])
    made: list[pa.RecordBatch] = []
    failing, fine = (pa.record_batch({"m": pa.array([each], kind)}) for each in ([("a", 1), ("x", 2)], [("b", 3)]))
    with pytest.raises(ExpressionError, match="DUPLICATED_MAP_KEY"):
        operator.process(failing, "split", lambda rows, _: made.append(rows))
    operator.process(fine, "split", lambda rows, _: made.append(rows))
    operator.close()
    assert made[0].column(1).to_pylist() == [[("b", 3), ("x", 1)]]


@pytest.mark.parametrize("expression", ["monotonically_increasing_id()", "input_file_name()"])
def test_what_a_stream_has_not_is_refused(spark: SparkSession, expression: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=expression.removesuffix("()")):
        headgate.continuous(rows(spark).selectExpr(expression)).explain()


def evaluated(operators: list[Operator], count: int, **context: int) -> list[dict[str, Any]]:
    """Return what operators make of some rows, in a subtask of some run and execution."""
    found: list[dict[str, Any]] = made_of(
        operators, pa.record_batch({"n": pa.array(range(count), pa.int64())}), **context
    ).to_pylist()
    return found


def made_of(operators: list[Operator], batch: pa.RecordBatch, **context: int) -> pa.RecordBatch:
    """Return what operators make of a batch."""
    for each in operators:
        made: list[pa.RecordBatch] = []
        each.open(OperatorContext(uid="x", subtask=0, parallelism=1, **context), [])
        each.process(batch, "split", lambda rows, _, made=made: made.append(rows))
        if isinstance(each, WindowedAggregate):
            each.output_mode = "complete"
            each.goes_on_elsewhere = True
            each.end_input(lambda rows, _, made=made: made.append(rows))
        each.close()
        (batch,) = made
    return batch


def operators_of(frame: DataFrame) -> list[Operator]:
    found = [each.operator for each in stage_graph(plan_of(frame)).operators]
    return [each for each in found if not isinstance(each, Exchange)]


WITH_NULLS = pa.record_batch(
    {
        "a": pa.array([[1, None, 3], None, [], [None]], pa.list_(pa.int32())),
        "b": pa.array([[[True, None], None, []], None, [], [[None]]], pa.list_(pa.list_(pa.bool_()))),
        "m": pa.array([[("x", 1), ("y", None)], None, [], [("z", None)]], pa.map_(pa.string(), pa.int64())),
        "s": pa.array(
            [{"t": [2.5, None]}, None, {"t": None}, {"t": [None]}], pa.struct([("t", pa.list_(pa.float64()))])
        ),
        "k": pa.array([1, 2, 3, None], pa.int32()),
    }
)
OF_ELEMENTS = (
    "transform(a, x -> x + 1)", "filter(a, x -> x > 0)", "exists(a, x -> x > 2)", "forall(a, x -> x > 0)",
    "aggregate(a, 0, (all, x) -> all + coalesce(x, 0))", "zip_with(a, a, (x, y) -> x + y + k)",
    "transform(a, (x, i) -> x * i)", "array_sort(a, (x, y) -> coalesce(x - y, -1))", "map_filter(m, (k, v) -> v > 0)",
    "transform_values(m, (k, v) -> v * 2)", "transform_keys(m, (k, v) -> concat(k, coalesce(v, 0)))",
    "map_zip_with(m, m, (k, x, y) -> x + y)", "transform(b, x -> filter(x, y -> y))", "flatten(transform(b, x -> x))",
    "transform(s.t, x -> x / 2)", "exists(map_values(m), x -> x IS NULL)", "to_json(s)",
)  # fmt: skip
AGGREGATES_OF_ELEMENTS = (
    "max_by(a, k)", "min_by(m, k)", "collect_list(b)", "collect_set(a)", "mode(a)", "any_value(s.t)", "max_by(s, k)",
    "max(a)",
)  # fmt: skip


def test_elements_that_are_null_are_as_spark_passes_them_on(spark: SparkSession) -> None:
    """Spark's view of Arrow's vectors takes a null element for an error wherever it is asked for before its mark."""
    frame = spark.read.format("headgate.datagen").schema(from_arrow_schema(WITH_NULLS.schema)).load()
    theirs = spark.createDataFrame(pa.Table.from_batches([WITH_NULLS])).coalesce(1)
    names = [f"v{place}" for place in range(len(OF_ELEMENTS))]
    selected = [f"{each} AS {name}" for each, name in zip(OF_ELEMENTS, names)]
    made, expected = made_of(operators_of(frame.selectExpr(*selected)), WITH_NULLS), theirs.selectExpr(*selected)
    for name, each, column in zip(names, OF_ELEMENTS, expected.toArrow().columns):
        assert made.column(name).to_pylist() == column.to_pylist(), each
    names = [f"v{place}" for place in range(len(AGGREGATES_OF_ELEMENTS))]
    selected = [f"{each} AS {name}" for each, name in zip(AGGREGATES_OF_ELEMENTS, names)]
    made = made_of(operators_of(frame.groupBy().agg(*map(F.expr, selected))), WITH_NULLS)
    for name, each, column in zip(
        names, AGGREGATES_OF_ELEMENTS, theirs.groupBy().agg(*map(F.expr, selected)).toArrow().columns
    ):
        assert made.column(name).to_pylist() == column.to_pylist(), each


def test_what_must_not_be_null_is_where_its_struct_is(spark: SparkSession) -> None:
    """Between two operators, and beside lists of nulls without a type: Arrow casts neither."""
    frame = spark.read.format("headgate.datagen").schema("k bigint").load()
    first = frame.selectExpr(
        "array(named_struct('one', 1, 'none', null), null) AS a", "named_struct('l', array(null, null), 'k', k) AS s"
    )
    made = made_of(operators_of(first.selectExpr("transform(a, x -> x.one)", "s")), pa.record_batch({"k": [7, None]}))
    made.validate(full=True)
    assert made.column(0).to_pylist() == [[1, None]] * 2
    assert made.column(1).to_pylist() == [{"l": [None, None], "k": 7}, {"l": [None, None], "k": None}]


def numbers(reader: Any) -> DataFrame:
    generated: DataFrame = reader.format("headgate.datagen").option("rowsPerSecond", 1).schema("n long").load()
    return generated


def test_what_is_drawn_by_chance_is_drawn_anew_in_a_stream_and_after_a_restart(spark: SparkSession) -> None:
    """A batch has Spark's own draws, until rows may have been given some already."""
    draws = ("uuid() AS id", "rand(7) AS r", "2 * rand(7) AS twice")
    batch = operators_of(numbers(spark.read.option("numRows", 5)).selectExpr("n", *draws))
    first = evaluated(batch, 5)
    assert first == evaluated(batch, 5)
    theirs = spark.range(0, 5, 1, 1).selectExpr("rand(7) AS r").collect()
    assert [row["r"] for row in first] == [row.r for row in theirs]
    assert all(row["twice"] == 2 * row["r"] for row in first)
    stream = operators_of(numbers(spark.readStream).selectExpr("n", *draws))
    again = [evaluated(batch, 5, run=2), evaluated(batch, 5, execution=2), evaluated(stream, 5), evaluated(stream, 5)]
    for column in ("id", "r"):
        assert len({row[column] for made in (first, *again) for row in made}) == 25


def test_the_current_time_is_when_rows_are_processed(spark: SparkSession, tmp_path: Path) -> None:
    began = datetime.datetime.now(datetime.UTC)
    frame = rows(spark, 200).where("current_timestamp() > TIMESTAMP'2020-01-01'").selectExpr(
        "n", "current_timestamp() AS at", "now() AS now", "current_date() AS day", "localtimestamp() AS local",
        "date_format(current_timestamp(), 'yyyy-MM-dd HH:mm:ss.SSSSSS') AS text",
    )  # fmt: skip
    query = run(frame, tmp_path)
    assert query.awaitTermination(PATIENCE_S) and query.exception() is None, query.exception()
    ended = datetime.datetime.now(datetime.UTC)
    found = query.table().to_pylist()
    assert len(found) == 200
    for row in found:
        assert began <= row["at"] <= ended and row["now"] == row["at"]
        zone = zoneinfo.ZoneInfo(spark.conf.get("spark.sql.session.timeZone") or "UTC")
        local = row["at"].astimezone(zone).replace(tzinfo=None)
        assert (row["local"], row["day"]) == (local, local.date())
        assert row["text"] == local.isoformat(" ", "microseconds")


def test_what_a_kernel_took_over_keeps_uids_and_the_columns_of_keyed_state(spark: SparkSession) -> None:
    """A checkpoint of a version in which Spark's own code evaluated it is restored."""
    events = spark.readStream.format("headgate.datagen").schema("url string, at timestamp").load()
    day, minute = "date_format(at, 'yyyy-MM-dd')", "date_format(at, 'HH:mm')"
    frame = (
        events.where("url rlike '[^&]x'")
        .groupBy(F.expr(day).alias("day"), F.expr("split_part(url, '/', 2)").alias("part"))
        .agg(F.max(F.expr(minute)).alias("last"))
    )
    graph = stage_graph(plan_of(frame))
    assert [each.uid for each in graph.operators] == [
        "datagen.1.select", "datagen.2.filter", "datagen.3.select", "datagen.4.select", "datagen.5.select",
        "datagen.6.key-by", "datagen.7.window",
    ]  # fmt: skip
    assert not any(isinstance(each.operator, CatalystProject) for each in graph.operators)
    assert graph.signatures["datagen.7.window"] == (
        f"max({minute}) of string in no window by {day} string, split_part(url, '/', 2) string"
    )


def test_a_kernel_leaves_to_spark_what_is_beside_an_expression_of_its_own(spark: SparkSession) -> None:
    events = spark.readStream.format("headgate.datagen").schema("at timestamp").load()
    (beside, last) = operators_of(events.selectExpr("date_format(at, 'yyyy') AS y", "date_format(at, 'EEE') AS d"))
    assert isinstance(beside, CatalystProject) and beside.schema.names == ["at", "date_format(at, 'EEE')"]
    assert last.schema.names == ["y", "d"]
