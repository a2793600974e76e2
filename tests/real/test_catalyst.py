"""Expressions that Spark's own code evaluates in continuous queries: results, errors, the death of its process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import running_queries
from pyspark.sql import DataFrame, SparkSession
from running_queries import PATIENCE_S, wait_until

import headgate
from headgate.catalyst import helper_jvm
from headgate.errors import DeploymentError, ExpressionError, UnsupportedOperationError
from tests.spark_java import SparkJava

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


def sorted_rows(found: list[Any]) -> list[str]:
    return sorted(map(str, found))


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
        theirs = dict(zip(expected["n"].to_pylist(), expected[name].to_pylist()))
        ours = dict(zip(found["n"].to_pylist(), found[name].to_pylist()))
        assert ours == theirs, name


def test_an_error_of_spark_s_code_ends_the_query_with_spark_s_name_of_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, 20).selectExpr("make_date(2000, CAST(n AS INT) + 1, 1) AS day")
    query = run(frame, tmp_path, **{"restart-strategy": "none"})
    with pytest.raises(ExpressionError, match="MonthOfYear") as raised:
        query.awaitTermination(PATIENCE_S)
    assert raised.value.condition == "DATETIME_FIELD_OUT_OF_BOUNDS.WITHOUT_SUGGESTION"


def test_a_helper_that_is_killed_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, streaming=True, rowsPerSecond=2000).selectExpr("n", "sha2(text, 256) AS hashed")
    query = run(frame, tmp_path)
    wait_until(lambda: query.table().num_rows, query)
    helper = helper_jvm._shared
    assert helper is not None
    os.kill(helper.pid, signal.SIGKILL)
    before = query.table().num_rows
    wait_until(lambda: query.table().num_rows > before + 1000 and helper_jvm._shared is not helper, query)
    query.stop()
    found = query.table()["n"].to_pylist()
    for split in range(2):
        of_split = sorted(each for each in found if each % 2 == split)
        assert of_split == list(range(split, split + 2 * len(of_split), 2))


def test_it_ends_with_its_process_however_that_ends(java: SparkJava, tmp_path: Path) -> None:
    program = (
        "import time; from headgate.catalyst.helper_jvm import shared_helper; helper = shared_helper(64 << 20)\n"
        "print(helper.pid, helper._folder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert Path(folder).exists() and Path(f"/proc/{pid}").exists()
        parent.kill()
    wait_until(lambda: not Path(folder).exists() and not Path(f"/proc/{pid}/exe").exists())


def test_many_threads_share_one(spark: SparkSession) -> None:
    """Each subtask has a connection and a thread of the helper's."""
    before = threading.active_count()
    helpers = set()

    def start() -> None:
        helpers.add(helper_jvm.shared_helper(64 << 20))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(helpers) == 1 and threading.active_count() == before


def test_what_it_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DeploymentError, match="Set JAVA_HOME to a Java 17"):
        helper_jvm.HelperJvm(64 << 20)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [("rand()", "another one each time"), ("current_timestamp()", "current_timestamp"), ("uuid()", "uuid")],
)
def test_what_has_no_one_result_is_refused(spark: SparkSession, expression: str, reason: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=reason):
        headgate.continuous(rows(spark).selectExpr(expression)).explain()
