"""What a first user broke: odd names and times, options that changed, limits beside missing files."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.connectors.files.source import FilesSource
from headgate.errors import BadDataError, DataLossError, OptionError
from headgate.formats.row_filter import RowFilter, parse_row_filter
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.microbatch.task import read_splits
from headgate.source import PlanLimits

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def source(folder: Path, **options: Any) -> FilesSource:
    given = {"path": str(folder), "fileFormat": "csv"} | {name: str(value) for name, value in options.items()}
    return FilesSource(given)


def rows(made: FilesSource, splits: list[Any], schema: pa.Schema = SCHEMA) -> list[int]:
    return sorted(n for batch in read_splits(made, schema, splits, 0, "UTC") for n in batch.column(0).to_pylist())


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_missing_files_are_passed_over_also_where_rows_are_limited(tmp_path: Path, file_format: str) -> None:
    for n in range(4):
        if file_format == "csv":
            (tmp_path / f"{n}.csv").write_text(f"{n}\n")
        else:
            pq.write_table(pa.table({"n": [n]}), tmp_path / f"{n}.parquet")
    for ignore in ("true", "false"):
        made = source(tmp_path, fileFormat=file_format, ignoreMissingFiles=ignore, maxRowsPerTrigger=1)
        planner = StreamPlanner(made, SCHEMA)
        first = planner.plan(INITIAL, PlanLimits(max_rows=1), 0)
        gone = made.split_serializer.from_json(first["splits"][0]["split"]).path if first["splits"] else None
        if gone is None:
            gone = str(tmp_path / f"1.{file_format}")
        content = Path(gone).read_bytes()
        os.unlink(gone)
        found: list[int] = rows(made, list(chain.from_iterable(planner.tasks(INITIAL, first, 0))))
        start, now_ms = first, 0
        try:
            while (end := planner.plan(start, PlanLimits(max_rows=1), now_ms)) != start:
                found += rows(made, list(chain.from_iterable(planner.tasks(start, end, 0))))
                start, now_ms = end, now_ms + 5000
            assert ignore == "true"
            assert len(found) == 3
        except DataLossError as error:
            assert ignore == "false"
            assert gone in str(error)
        Path(gone).write_bytes(content)


def test_a_default_batch_over_many_large_files_fits_into_the_offset(tmp_path: Path) -> None:
    """A thousand files of eight pieces each: limits count files, the offset counts bytes."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    for n in range(400):
        (folder / f"{n:04}.csv").write_text("".join(f"{n * 10 + row}\n" for row in range(10)))
    made = source(folder, splitSize=7)
    start, found, batches = dict(INITIAL), [], 0
    planner = StreamPlanner(made, SCHEMA)
    while (end := planner.plan(start, PlanLimits(max_files=1000), 0)) != start:
        found += rows(made, list(chain.from_iterable(planner.tasks(start, end, 0))))
        start, batches = end, batches + 1
    assert found and sorted(found) == list(range(4000))
    assert batches > 1


def test_latest_first_may_not_change_on_restart(tmp_path: Path) -> None:
    """Files passed over so far would be taken for too old."""
    (tmp_path / "a.csv").write_text("1\n")
    end = StreamPlanner(source(tmp_path, latestFirst=True), SCHEMA).plan(INITIAL, PlanLimits(), 0)
    with pytest.raises(OptionError, match="'latestFirst' was True"):
        StreamPlanner(source(tmp_path), SCHEMA).plan(end, PlanLimits(), 0)


def test_a_name_that_is_not_utf8_is_named_with_the_fix(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("1\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only, so the case cannot happen")
    with pytest.raises(BadDataError, match=r"caf\\xe9\.csv.*Rename the file"):
        plan_batch(source(tmp_path), SCHEMA, 0)


@pytest.mark.parametrize("zone", ["+03:00", "GMT+2", "Asia/Tokyo"])
def test_zones_that_spark_takes_are_taken_for_folders_and_row_filters(tmp_path: Path, zone: str) -> None:
    folder = tmp_path / "at=2026-01-31 12%3A00%3A00"
    folder.mkdir()
    (folder / "a.csv").write_text("1\n")
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])
    made = source(tmp_path, timeZone=zone)
    batches = list(read_splits(made, schema, plan_batch(made, schema, 0), 0, "UTC"))
    hours = {"+03:00": 9, "GMT+2": 10, "Asia/Tokyo": 3}[zone]
    assert batches[0].column("at")[0].as_py().hour == hours
    kept = RowFilter(parse_row_filter("at >= '2026-01-31 12:00:00'"), schema, zone).keep(batches[0])
    assert kept.num_rows == 1
    assert RowFilter(parse_row_filter("at > '2026-01-31 12:00:00'"), schema, zone).keep(batches[0]).num_rows == 0
