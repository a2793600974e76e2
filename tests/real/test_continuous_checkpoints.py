"""Checkpoints and savepoints of a continuous query on real Spark: complete, self-contained, restored at any size."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.named_files import named_files
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import CorruptStateError, HeadgateError, OptionError, StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.spark.continuous import query as query_module
from headgate.spark.continuous.writer import ContinuousStreamWriter
from local.kinesis import MotoServer
from tests.real.running_queries import (
    held_numbers,
    is_running,
    newest,
    numbers,
    read_values,
    stop_all,
    wait_until,
    written,
)
from tests.real.test_checkpoint_storage import Bucket

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

LONG = 9000
"""So many rows have queries that a test lets end: not before `Place.let_end`."""


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


class Place:
    """A checkpoint location and a folder of output of a test's own."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints, self.out, self.may_end = folder / "checkpoints", folder / "out", folder / "may-end"

    def writer(
        self, frame: DataFrame, interval: str = "300 milliseconds", parallelism: int = 2, slots: str = "threads"
    ) -> ContinuousStreamWriter:
        """Write a program's rows here, as soon as they are committed."""
        options = {"publishInterval": "0 seconds", "checkpointLocation": self.checkpoints, "slots": slots}
        return written(frame, "parquet", parallelism, interval=interval, path=self.out, **options)

    def held(self, spark: SparkSession) -> DataFrame:
        """Return `LONG` numbers, the last of which come when the query may end."""
        return held_numbers(spark, self.may_end, rows=LONG)

    def let_end(self) -> None:
        self.may_end.touch()

    def delete_checkpoints(self) -> None:
        """Delete them when nobody of ours does so any longer: a query that has ended may still delete what is old."""
        wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("headgate-storage")])
        shutil.rmtree(self.checkpoints)

    def ids(self) -> tuple[int, ...]:
        """Return the checkpoints that are complete."""
        return CheckpointStorage(str(self.checkpoints)).stored().complete

    def manifest(self, checkpoint_id: int) -> Path:
        return self.checkpoints / f"chk-{checkpoint_id}" / "_metadata"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def has_read(query: headgate.ContinuousQuery, rows: int) -> None:
    wait_until(lambda: query.status["rowsIn"] >= rows, query)


def positions(manifest: Manifest) -> int:
    """Return how many rows precede a checkpoint."""
    splits = [
        split for subtask in manifest.subtasks[0] for reader in subtask.readers.values() for split in reader.splits
    ]
    return sum(json.loads(split.data)["position"] for split in splits)


def test_a_checkpoint_that_was_asked_for_is_complete_on_disk(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark), "1 hour").start()
    has_read(query, 1)
    first = query.checkpoint()
    assert place.ids()[-1] == first == newest(place.checkpoints).checkpoint_id
    second = query.checkpoint()
    assert second > first
    wait_until(lambda: place.ids() == (second,), query)  # one is retained
    assert newest(place.checkpoints).query_id == query.id
    rows = positions(newest(place.checkpoints))
    wait_until(lambda: len(read_values(spark, place.out)) == rows, query)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 2)])
def test_a_savepoint_needs_nothing_but_itself(
    spark: SparkSession, place: Place, tmp_path: Path, before: int, after: int
) -> None:
    """It is copied to another place, and all the query wrote beside its output is deleted."""
    query = place.writer(place.held(spark), parallelism=before).queryName("moves").start()
    has_read(query, 500)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert not query.isActive and query.exception() is None
    emitted = read_values(spark, place.out)
    assert len(emitted) < LONG and newest_savepoint(tmp_path / "savepoint").kind is CheckpointKind.SUSPEND

    shutil.move(tmp_path / "savepoint", tmp_path / "elsewhere")
    place.delete_checkpoints()
    place.let_end()
    again = place.writer(place.held(spark), parallelism=after).start(fromSavepoint=str(tmp_path / "elsewhere"))
    assert again.awaitTermination(90)
    assert read_values(spark, place.out) == list(range(LONG))


def newest_savepoint(folder: Path) -> Manifest:
    return CheckpointStorage(str(folder)).load_savepoint()


def test_nothing_is_emitted_after_a_suspension(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    query = place.writer(numbers(spark)).start()
    has_read(query, 500)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert len(read_values(spark, place.out)) == positions(newest_savepoint(tmp_path / "savepoint"))


def test_draining_commits_all_that_was_read(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark), "1 hour").start()
    has_read(query, 500)
    query.stop(drain=True)
    assert not query.isActive and query.exception() is None and query.status["message"] == "Stopped"
    assert query.status["slots"], "it ran on these"
    assert len(read_values(spark, place.out)) == query.status["rowsIn"]


def test_a_query_goes_on_beside_a_savepoint(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    query = place.writer(numbers(spark), "1 hour").start()
    has_read(query, 100)
    query.savepoint(str(tmp_path / "savepoint"))
    has_read(query, query.status["rowsIn"] + 100)
    assert newest_savepoint(tmp_path / "savepoint").kind is CheckpointKind.SAVEPOINT
    with pytest.raises(HeadgateError, match=r"There is a savepoint already in .*Give another folder"):
        query.savepoint(str(tmp_path / "savepoint"))
    (tmp_path / "link").symlink_to(place.checkpoints)
    for folder in (place.checkpoints, place.checkpoints / "chk-1/in", tmp_path, tmp_path / "link", "FILE"):
        address = f"file://{place.checkpoints}/" if folder == "FILE" else str(folder)
        for attempt in (query.savepoint, query.stop):
            with pytest.raises(OptionError, match="a query's checkpoint location, which the query owns"):
                attempt(address)
    assert is_running(query)


def test_who_gives_up_waiting_leaves_the_query_as_it_was_and_draining_what_ends_is_no_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    may_go, waits_there, may_end = tmp_path / "may-go", tmp_path / "waits", tmp_path / "may-end"
    saved = str(tmp_path / "saved")
    may_commit, batches = threading.Event(), list[int]()

    def waits(rows: Iterator[Any]) -> Iterator[Any]:
        for each in rows:
            waits_there.touch()
            while not may_go.exists():
                threading.Event().wait(0.01)
            yield each

    def commit(frame: DataFrame, epoch: int) -> None:
        assert not may_end.exists() or may_commit.wait(240)
        batches.append(frame.count())

    frame = held_numbers(spark, may_end, rows=LONG).select("value").mapInArrow(waits, "value long")
    writer = headgate.continuous(frame, parallelism=1).writeStream.foreachBatch(commit)
    options = {"checkpointLocation": str(tmp_path / "checkpoints"), "slots": "threads"}
    query = writer.options(**options).trigger(continuous="1 hour").start()
    wait_until(waits_there.exists, query)
    for attempt in (
        lambda: query.rescale(2, timeout=0.2),
        lambda: query.stop(saved, timeout=0.2),
        lambda: query.stop(drain=True, timeout=0.2),
        lambda: query.savepoint(saved, timeout=0.2),
        lambda: query.checkpoint(timeout=0.2),
    ):
        with pytest.raises(HeadgateError, match=r"not complete after 0 seconds: nobody waits .* continues as before"):
            attempt()
    may_go.touch()
    assert query.checkpoint() and is_running(query) and len(query.status["slots"]) == 1
    query.savepoint(saved)
    may_end.touch()
    wait_until(lambda: query.status["checkpoint"] == "ending", query)  # all is read, and being committed
    drained = ThreadPoolExecutor(1).submit(query.stop, drain=True)
    with pytest.raises(TimeoutError):
        drained.result(0.3)
    may_commit.set()
    assert drained.result(90) is None and query.exception() is None and sum(batches) == LONG
    query.stop(drain=True)


def test_files_that_somebody_deleted_are_written_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First the state by key, then everything: at once, with the next checkpoint; the next start goes on from there."""
    monkeypatch.setattr(query_module, "CheckpointOptions", partial(CheckpointOptions, look_interval_ms=0))
    location, may_end = tmp_path / "checkpoints", tmp_path / "may-end"
    storage = CheckpointStorage(str(location))

    def start() -> headgate.ContinuousQuery:
        counts = held_numbers(spark, may_end, rows=LONG).groupBy("value").count()
        writer = headgate.continuous(counts, parallelism=2).writeStream.format("memory").outputMode("update")
        writer = writer.option("checkpointLocation", str(location)).option("slots", "threads")
        return writer.trigger(continuous="1 hour").start()

    def is_whole() -> bool:
        newest_first = storage.newest_first()
        return bool(newest_first) and not storage.missing(storage.read_manifest(newest_first[0])[0])

    def named() -> list[str]:
        manifest, _ = storage.read_manifest(query.checkpoint())
        return [file.path for file in named_files(manifest) if file.path.startswith("shared/")]

    query = start()
    # Two of four splits are held, before their last five rows: from then on the state is what it is.
    wait_until(lambda: query.status["rowsIn"] == LONG // 2 - 10, query)
    wait_until(lambda: (shared := named()) and shared == named(), query)
    for gone in (location / "shared", location):
        query.checkpoint()
        # All at once: what is gone is written again as soon as that is noticed, and this might be deleted too.
        shutil.rmtree(gone.rename(tmp_path / "deleted"), ignore_errors=True)  # a log is being written
        query.checkpoint()
        wait_until(is_whole, query)  # this one, if it was noticed before, or else the next
    assert "are gone from the checkpoint location: shared/" in caplog.text
    query.stop()
    again = start()
    assert again.id == query.id
    may_end.touch()
    assert again.awaitTermination(90)
    numbers = again.table().to_pylist()
    assert {row["count"] for row in numbers} == {1} and again.status["rowsIn"] < LONG


def test_what_restarts_reads_the_copies_on_its_host(spark: SparkSession, tmp_path: Path, aws: MotoServer) -> None:
    """All that the location on S3 shares is deleted before; the copies are gone with the query."""
    bucket, may_end, fails = Bucket(aws), tmp_path / "may-end", tmp_path / "fails"

    def fail_once(rows: Iterator[Any]) -> Iterator[Any]:
        for each in rows:
            if fails.exists():
                fails.unlink()
                raise ValueError("once")
            yield each

    def copies() -> list[Path]:
        return list(Path(spark.sparkContext._temp_dir).glob("headgate-copies-*"))

    counts = held_numbers(spark, may_end, rows=LONG).mapInArrow(fail_once, "value long").groupBy("value").count()
    writer = headgate.continuous(counts, parallelism=2).writeStream.format("memory").outputMode("update")
    options = {"checkpointLocation": bucket.address("counts"), "slots": "threads"}
    query = writer.options(**options).trigger(continuous="1 hour").start()
    wait_until(lambda: query.status["rowsIn"] == LONG // 2 - 10, query)
    query.checkpoint()
    shared = [key for key in bucket.listed() if "/shared/" in key]
    assert shared and len(copies()) == 2
    for key in shared:
        bucket.s3.delete_object(Bucket=bucket.name, Key=key)
    fails.touch()
    may_end.touch()
    assert query.awaitTermination(90)
    rows = query.table().to_pylist()
    assert {row["value"]: row["count"] for row in rows} == dict.fromkeys(range(LONG), 1) and not fails.exists()
    wait_until(lambda: not copies())


def test_the_same_location_resumes(spark: SparkSession, place: Place) -> None:
    """After a plain stop, from the newest checkpoint: what was read after it is read again, and written once."""
    ids = set()
    for _ in range(2):
        query = place.writer(place.held(spark)).start()
        ids.add(query.id)
        has_read(query, 300)
        query.checkpoint()
        has_read(query, query.status["rowsIn"] + 100)  # after the checkpoint, at least some
        query.stop()
    place.let_end()
    query = place.writer(place.held(spark)).start()
    assert query.awaitTermination(90)
    assert read_values(spark, place.out) == list(range(LONG))
    assert ids == {query.id}


def test_a_live_query_is_rescaled(spark: SparkSession, place: Place) -> None:
    query = place.writer(place.held(spark), parallelism=1, slots="spark").start()
    has_read(query, 200)
    query.rescale(2)
    wait_until(lambda: is_running(query) and len(query.status["slots"]) == 2, query)
    query.rescale(1)
    with pytest.raises(OptionError, match=r"parallelism 3 needs 3 cores.* has 2"):
        query.rescale(3)
    place.let_end()
    assert query.awaitTermination(90)
    assert read_values(spark, place.out) == list(range(LONG))


def test_the_first_checkpoint_after_a_restore_does_not_wait_for_its_interval(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark), "1 hour").start()
    has_read(query, 1)
    taken = query.checkpoint()
    query.stop()
    query = place.writer(numbers(spark), "1 hour").start()
    wait_until(lambda: place.ids()[-1] > taken, query)


def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_changed_program_restores_what_has_the_same_name(spark: SparkSession, place: Place) -> None:
    """Operators are put before and after; the source is found by its name, so no number comes twice."""
    query = place.writer(place.held(spark).alias("in")).start()
    has_read(query, 300)
    query.checkpoint()
    query.stop()
    place.let_end()
    changed = place.held(spark).alias("in").mapInArrow(unchanged, "value long").filter("value >= 0")
    assert place.writer(changed).start().awaitTermination(90)
    assert read_values(spark, place.out) == list(range(LONG))


def test_state_that_is_left_over_is_refused_unless_it_may_be_dropped(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark, rows=100).alias("old")).start()
    assert query.awaitTermination(90)
    renamed = place.writer(numbers(spark, rows=100).alias("new"))
    with pytest.raises(StoredStateError, match=r"holds state of 'old', .* has 'new'.*allowNonRestoredState") as refused:
        renamed.start()
    assert refused.value.left_over == ("old",)
    assert renamed.option("allowNonRestoredState", True).start().awaitTermination(90)
    assert read_values(spark, place.out) == sorted(2 * list(range(100))), "the new source began afresh"


def test_options_that_may_not_change(spark: SparkSession, place: Place) -> None:
    assert place.writer(numbers(spark, rows=100)).start().awaitTermination(90)
    with pytest.raises(OptionError, match=r"'numPartitions' of source 'datagen' was 4 and is 3.*new 'checkpointLoc"):
        place.writer(numbers(spark, rows=100, partitions=3)).start()


def test_a_corrupt_checkpoint_is_named_and_the_one_before_will_do_if_the_user_says_so(
    spark: SparkSession, place: Place
) -> None:
    writer = place.writer(numbers(spark), "1 hour").option("execution.checkpointing.num-retained", 2)
    query = writer.start()
    has_read(query, 1)
    good, bad = query.checkpoint(), query.checkpoint()
    query.stop()
    path = place.manifest(bad)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptStateError, match=str(path)) as refused:
        writer.start()
    assert refused.value.path == str(path)
    query = writer.option("ignoreCorruptCheckpoints", True).start()
    assert query.lastProgress is None or query.lastProgress.batchId >= good
    wait_until(lambda: place.ids()[-1] > bad, query)


def test_as_many_are_kept_as_the_option_says(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark), "1 hour").option("execution.checkpointing.num-retained", 3).start()
    has_read(query, 1)
    taken = [query.checkpoint() for _ in range(5)]
    wait_until(lambda: place.ids() == tuple(taken[-3:]), query)
    query.stop()
    kept = {f"chk-{n}" for n in taken[-3:]}
    wait_until(lambda: {path.name for path in place.checkpoints.glob("chk-*")} == kept)  # folders go after manifests


def test_a_live_query_owns_its_location(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark)).queryName("first").start()
    with pytest.raises(OptionError, match="belongs to the query 'first', which is live"):
        place.writer(numbers(spark)).start()
    assert query.isActive


TAKES_OVER = """
import sys
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import CheckpointStorage

print(Ownership.claim(CheckpointStorage(sys.argv[1]).store).run)
"""


def test_a_start_in_another_process_takes_a_location_over(spark: SparkSession, place: Place) -> None:
    """The query that was first ends with its next checkpoint, and says who has it now."""
    query = place.writer(numbers(spark), "200 milliseconds", slots="spark").start()
    has_read(query, 100)
    command = [sys.executable, "-c", textwrap.dedent(TAKES_OVER), str(place.checkpoints)]
    run = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout)
    wait_until(lambda: not query.isActive)
    with pytest.raises(HeadgateError, match=rf"Run {run} has taken over the checkpoint location .*stop one of them"):
        query.awaitTermination()


def test_a_savepoint_that_is_not_there(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    with pytest.raises(StoredStateError, match=r"There is no savepoint in .*nowhere"):
        place.writer(numbers(spark)).start(fromSavepoint=str(tmp_path / "nowhere"))
    with pytest.raises(OptionError, match="The option 'fromSavepoint' is 'nope://x/1'"):
        place.writer(numbers(spark)).start(fromSavepoint="nope://x/1")
    query = place.writer(numbers(spark)).start()
    for call in (query.savepoint, query.stop):
        with pytest.raises(OptionError, match="The option 'savepoint' is 'nope://x/1'"):
            call("nope://x/1")
    assert query.isActive
    query.stop()


def test_a_query_that_has_ended_takes_no_checkpoint(spark: SparkSession, place: Place) -> None:
    query = place.writer(numbers(spark, rows=10)).start()
    assert query.awaitTermination(90)
    with pytest.raises(HeadgateError, match="The query has ended"):
        query.checkpoint()
    query.stop()
