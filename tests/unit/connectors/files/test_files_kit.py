"""Every promise of the contract, over every format, by the kit that connector authors use."""

import datetime
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_cases import CASES, SCHEMA, csv_bytes, table, write

from headgate.connectors.files.source import FilesSource
from headgate.source import Boundedness
from headgate.testing import SourceHarness, assert_same_rows
from headgate.testing.conformance import conformance_test

TIMES = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])


class SmallBlocks(FilesSource):
    """Makes many batches of small files, so that there are many places to restore at."""

    block_bytes = 64


@pytest.fixture
def written(tmp_path, case):
    return write(tmp_path, case, files=2, rows=20)[0]


OF_FORMATS = (
    "reads-repeat",
    "parallel-readers-read-the-same",
    "restore-at-every-step",
    "failed-readers-give-back",
    "splits-and-states-survive-their-bytes",
    "paused-splits-are-silent",
    "fetches-pass-over-paused-splits",
    "rows-have-positions",
    "plans-can-be-replayed",
    "plans-keep-limits",
    "reader-does-not-block",
    "failed-fetch-loses-nothing",
)
"""What depends on how a file is read."""

test_every_format_keeps = pytest.mark.parametrize("case", CASES)(
    conformance_test(lambda written: SmallBlocks({**written, "splitSize": "100"}), schema=SCHEMA, only=OF_FORMATS)
)
test_texts_keep = pytest.mark.parametrize("case", ["csv"])(
    conformance_test(
        lambda written: SmallBlocks({**written, "splitSize": "100"}),
        schema=SCHEMA,
        add_rows=lambda written: (Path(written["path"]) / "new.csv").write_bytes(csv_bytes(table(5000, 3))),
    )
)


def times(number):
    sink = io.BytesIO()
    at = [datetime.datetime(2026, 1, 1 + number, hour, tzinfo=datetime.UTC) for hour in range(6)]
    pq.write_table(pa.table({"at": pa.array(at, TIMES.field("at").type), "id": range(6)}), sink, row_group_size=2)
    return sink.getvalue()


@pytest.fixture
def days(tmp_path):
    """Return a folder with a file of each of three days."""
    for number in range(3):
        (tmp_path / f"day-{number}.parquet").write_bytes(times(number))
    return tmp_path


test_files_in_event_time_keep = conformance_test(
    lambda days: SmallBlocks({"fileFormat": "parquet", "path": str(days), "eventTimeColumn": "at"}),
    schema=TIMES,
    add_rows=lambda days: (days / "day-3.parquet").write_bytes(times(3)),
)


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_read_in_full(case, tmp_path):
    options, expected = write(tmp_path, case)
    for split_size in ("64", "1000", "1g"):
        with SourceHarness(FilesSource({**options, "splitSize": split_size}), schema=SCHEMA) as harness:
            harness.run_to_end()
            assert_same_rows(harness.rows(), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_schema_is_inferred(case, tmp_path):
    options, _ = write(tmp_path, case)
    inferred = FilesSource({**options, "inferSchema": "true"} if "csv" in case else options).schema()
    assert inferred.names == ["id", "name"]
    assert str(inferred.field("id").type) in ("int32", "int64")


def test_a_stream_finds_new_files_after_a_restore(tmp_path):
    options, expected = write(tmp_path, "csv", files=2)
    unbounded = {"schema": SCHEMA, "boundedness": Boundedness.CONTINUOUS_UNBOUNDED}
    with SourceHarness(SmallBlocks(options), **unbounded) as harness:
        harness.run_until_rows(35)
        snapshot = harness.snapshot()
        first = harness.rows()
    assert len(first) < len(expected)
    (tmp_path / "new.csv").write_bytes(csv_bytes(table(5000, 3)))
    expected += table(5000, 3).to_pylist()
    with SourceHarness(SmallBlocks(options), snapshot=snapshot, **unbounded) as harness:
        harness.run_until_rows(len(expected) - len(first))
        assert_same_rows(first + harness.rows(), expected)
        for _ in range(20):
            harness.enumerator.run_next_call()
        assert harness.row_count == len(expected) - len(first)
