"""Bad input and trouble: one clear error that names the file and the place, soon, and nothing partial called whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, name string"
SOON_S = 30
"""An error comes at once: whoever tries again and again, or waits for a time limit, needs longer."""


@pytest.fixture(scope="module", autouse=True)
def warm(spark: SparkSession) -> None:
    """Let Spark find the formats and start its workers before any time is taken."""
    spark.read.format("headgate.datagen").option("numRows", 10).load().count()


@contextmanager
def fails_soon(pattern: str) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(Exception, match=pattern):
        yield
    # A machine that runs four jobs at once on two cores gets twice the time.
    slow_down = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert time.monotonic() - began < SOON_S * slow_down, "an error must come soon"


def files(spark: SparkSession, file_format: str, path: Path, schema: str | None = SCHEMA, **options: str) -> DataFrame:
    reader = spark.read.format("headgate.files").option("fileFormat", file_format).options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def lines(path: Path, count: int, bad: dict[int, str] | None = None) -> Path:
    path.write_text("".join((bad or {}).get(n, f"{n},name-{n}") + "\n" for n in range(count)))
    return path


def test_an_unknown_option_names_the_near_ones(spark: SparkSession, tmp_path: Path) -> None:
    with fails_soon(r"OptionError: headgate.files has no option 'maxfilepertrigger'.*'maxFilesPerTrigger'"):
        files(spark, "csv", tmp_path, None, maxFilePerTrigger="3")
    with fails_soon(r"OptionError: .*'maxfilepertrigger'"):
        # With a schema Spark does not make the source before it is read.
        files(spark, "csv", tmp_path, maxFilePerTrigger="3").count()


def test_an_option_of_another_format_says_whose_it_is(spark: SparkSession, tmp_path: Path) -> None:
    with fails_soon(r"OptionError: .*header.*parquet"):
        files(spark, "parquet", tmp_path, header="true").count()


def test_a_path_that_does_not_exist_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with fails_soon(r"OptionError: .*nowhere"):
        files(spark, "csv", tmp_path / "nowhere", None)
    with fails_soon(r"OptionError: .*nowhere"):
        files(spark, "csv", tmp_path / "nowhere").count()


def test_an_empty_folder_has_no_rows_but_needs_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    assert files(spark, "csv", tmp_path).count() == 0
    with fails_soon(r"OptionError: .*[Gg]ive a schema"):
        files(spark, "csv", tmp_path, None)


def test_a_schema_that_parquet_contradicts_names_file_and_column(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["one"], "name": ["x"]}), tmp_path / "wrong.parquet")
    with fails_soon(r"BadDataError: .*wrong\.parquet.*'id'|BadDataError: .*'id'.*wrong\.parquet"):
        files(spark, "parquet", tmp_path).collect()


def test_a_schema_that_csv_contradicts_names_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    lines(tmp_path / "x.csv", 1000, {700: "seven hundred,x"})
    offset = (tmp_path / "x.csv").read_text().index("seven hundred")
    with fails_soon(rf"BadDataError: .*x\.csv.*{offset}"):
        files(spark, "csv", tmp_path, mode="FAILFAST").collect()


def test_a_csv_line_with_too_many_columns_names_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    lines(tmp_path / "x.csv", 1000, {999: "999,x,what is this"})
    offset = (tmp_path / "x.csv").read_text().index("999,x")
    with fails_soon(rf"BadDataError: .*x\.csv.*{offset}"):
        files(spark, "csv", tmp_path, mode="FAILFAST").collect()


def test_a_json_line_that_is_none_names_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"id": 1, "name": "a"}\n{"id": 2, "na\n')
    with fails_soon(r"BadDataError: .*byte 23 of .*x\.json"):
        files(spark, "json", tmp_path, mode="FAILFAST").collect()


def test_a_truncated_parquet_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10_000), "name": ["x"] * 10_000}), tmp_path / "cut.parquet")
    os.truncate(tmp_path / "cut.parquet", 5000)
    with fails_soon(r"BadDataError: .*cut\.parquet"):
        files(spark, "parquet", tmp_path).collect()


def test_a_line_larger_than_the_limit_is_an_error_with_the_fix(spark: SparkSession, tmp_path: Path) -> None:
    with open(tmp_path / "long.csv", "w") as file:
        file.write("1,short\n2,")
        for _ in range(80):
            file.write("x" * (1 << 20))
        file.write("\n")
    with fails_soon(r"BadDataError: .*long\.csv"):
        files(spark, "csv", tmp_path).count()


@pytest.mark.parametrize(("ignore", "expected"), [("false", None), ("true", 5)])
def test_a_file_deleted_between_plan_and_read(
    spark: SparkSession, tmp_path: Path, ignore: str, expected: int | None
) -> None:
    """The first run plans a batch, writes its offset and fails in the sink; then a file vanishes."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines(folder / "stays.csv", 5)
    lines(folder / "goes.csv", 7)
    frame = (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "csv")
        .option("ignoreMissingFiles", ignore)
        .schema(SCHEMA)
        .load(str(folder))
    )
    counts: list[int] = []

    def fail(_: DataFrame, __: int) -> None:
        raise RuntimeError("the sink is down")

    def count(batch: DataFrame, _: int) -> None:
        counts.append(batch.count())

    for sink in (fail, count):
        query = (
            frame.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if sink is fail:
            with pytest.raises(Exception, match="the sink is down"):
                query.awaitTermination(100)
            (folder / "goes.csv").unlink()
        elif expected is None:
            with fails_soon(r"DataLossError: .*goes\.csv"):
                query.awaitTermination(100)
        else:
            assert query.awaitTermination(100)
    assert counts == ([] if expected is None else [expected])


def test_a_file_that_shrank_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines(folder / "shrinks.csv", 1000)
    frame = spark.readStream.format("headgate.files").option("fileFormat", "csv").schema(SCHEMA).load(str(folder))

    def fail(_: DataFrame, __: int) -> None:
        raise RuntimeError("the sink is down")

    def run(sink: object) -> None:
        (
            frame.writeStream.foreachBatch(sink)  # type: ignore[arg-type]
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(100)
        )

    with pytest.raises(Exception, match="the sink is down"):
        run(fail)
    lines(folder / "shrinks.csv", 10)
    with fails_soon(r"DataLossError: .*shrinks\.csv"):
        run(lambda batch, _: batch.count())


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is made with a small tmpfs, which only Linux has")
def test_a_full_disk_under_the_checkpoint_fails_the_query_and_a_larger_one_completes_it(tmp_path: Path) -> None:
    """On a file system of 200 kB that something else fills; then it is freed, and every row is there once."""
    folder, small = tmp_path / "in", tmp_path / "small"
    folder.mkdir()
    small.mkdir()
    lines(folder / "a.csv", 100)
    program = textwrap.dedent(
        f"""
        import os, sys, time
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        frame = spark.readStream.format("headgate.files").option("fileFormat", "csv").schema({SCHEMA!r}) \\
            .option("discovery.interval", "1 second").load({str(folder)!r})
        def start():
            return frame.writeStream.format("parquet").option("path", {str(tmp_path / "out")!r}) \\
                .option("checkpointLocation", {str(small / "checkpoint")!r}).trigger(availableNow=True).start()
        start().awaitTermination()
        fill = open({str(small / "fill")!r}, "wb", buffering=0)
        try:
            while True:
                fill.write(b"x" * 512)
        except OSError:
            pass
        with open({str(folder / "_b")!r}, "w") as file:
            file.writelines(f"{{n}},name-{{n}}\\n" for n in range(100, 200))
        os.rename({str(folder / "_b")!r}, {str(folder / "b.csv")!r})
        began = time.monotonic()
        try:
            start().awaitTermination()
            print("no error")
        except Exception as error:
            print("failed after", round(time.monotonic() - began) < {SOON_S}, "No space left" in str(error))
        fill.close()
        os.unlink({str(small / "fill")!r})
        start().awaitTermination()
        print(sorted(row.id for row in spark.read.parquet({str(tmp_path / "out")!r}).collect()) == list(range(200)))
        """
    )
    (tmp_path / "program.py").write_text(program)
    unshare = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-Urm"]
    script = f"mount -t tmpfs -o size=200k tmpfs {small} && exec {sys.executable} {tmp_path / 'program.py'}"
    assert shutil.which("unshare"), "this test needs unshare (package util-linux)"
    done = subprocess.run(
        [*unshare, "sh", "-c", script], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    assert done.stdout.splitlines() == ["failed after True True", "True"], done.stdout + done.stderr[-3000:]
