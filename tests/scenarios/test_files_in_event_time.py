"""A hundred files of a day each, written in any order, read by two readers: no row is late.

The real enumerator, split readers and watermark machines; who does what next is drawn from a seed, and messages from
the enumerator to its readers take any time, in order. A row is *late* if the watermark over both readers had passed it
when it was emitted.
"""

from __future__ import annotations

import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.connectors.files.source import FilesSource
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.readers import SequentialReader
from headgate.source import Boundedness, PlanLimits, SourceReaderContext
from headgate.source.watermark import MAX_WATERMARK_MS, WatermarkStrategy
from headgate.task import watermarks as wm
from headgate.testing import EnumeratorHarness, SplitReaderHarness

DAYS, ROWS_A_DAY, READERS = 100, 48, 2
DAY_MS = 86_400_000
DISORDER_MS = 3 * 3_600_000
START_MS = 1_767_225_600_000
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the days in an order of their own; rows of a day are up to three hours out of order."""
    folder = tmp_path_factory.mktemp("days")
    rng = random.Random(6)
    for written, day in enumerate(rng.sample(range(DAYS), DAYS)):
        times = [START_MS + day * DAY_MS + row * DAY_MS // ROWS_A_DAY for row in range(ROWS_A_DAY)]
        times.sort(key=lambda each: each + rng.uniform(0, DISORDER_MS))
        columns = {
            "at": pa.array([each * 1000 for each in times], SCHEMA.field("at").type),
            "id": pa.array(range(day * ROWS_A_DAY, (day + 1) * ROWS_A_DAY), pa.int64()),
        }
        path = folder / f"{rng.getrandbits(32):08x}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=12)
        os.utime(path, (written + 1, written + 1))
    return folder


class Reader:
    """A split reader and its watermarks, as a subtask has them; it asks for a split when it has none."""

    def __init__(self, source: FilesSource, subtask: int) -> None:
        context = SourceReaderContext(
            subtask=subtask, schema=SCHEMA, host=None, request_split=lambda: None, send_event=lambda event: None
        )
        reader = source.create_reader(context)
        assert isinstance(reader, SequentialReader)
        self.splits = SplitReaderHarness(reader.split_reader_factory(), timeout_ms=0)
        strategy = WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=DISORDER_MS)
        self.machine = wm.SplitWatermarks(strategy, held=True)
        self.messages: deque[Any] = deque()
        self.watermark_ms: int | None = None
        self.idle = False
        self.has_asked = self.has_ended = False

    def notify(self, event: wm.Event) -> None:
        for action in self.machine.handle(event, 0):
            match action:
                case wm.EmitWatermark(timestamp_ms=timestamp_ms):
                    self.watermark_ms = timestamp_ms
                case wm.EmitIdle():
                    self.idle = True
                case wm.EmitActive():
                    self.idle = False

    def receive(self) -> None:
        match self.messages.popleft():
            case "no more splits":
                self.has_ended = True
                self.notify(wm.InputEnded())
            case ("unassigned", event_time_ms):
                self.notify(wm.UnassignedChanged(event_time_ms))
            case split:
                self.has_asked = False
                self.notify(wm.SplitAdded(split.split_id))
                self.splits.add_splits(split)

    def fetch(self) -> list[pa.RecordBatch]:
        batches = []
        for fetched in self.splits.fetch():
            if fetched.batch is not None:
                batches.append(fetched.batch)
                highest = max(millis(fetched.batch))
                self.notify(wm.RowsEmitted(fetched.split.split_id, highest))
            if fetched.finished:
                self.notify(wm.SplitFinished(fetched.split.split_id))
        return batches


class Query:
    """An enumerator, two readers, the messages between them, and the watermark over both readers."""

    def __init__(
        self, folder: Path, seed: int, boundedness: Boundedness, *, holds: bool = True, **options: str
    ) -> None:
        self.rng = random.Random(seed)
        self.source = FilesSource({"path": str(folder), "fileFormat": "parquet", **options})
        self.enumerator = EnumeratorHarness(self.source, schema=SCHEMA, boundedness=boundedness, parallelism=READERS)
        self.readers = [Reader(self.source, subtask) for subtask in range(READERS)]
        self.holds = holds  # else nobody is notified of unassigned work
        self.reported: Any = "nothing"
        self.watermark_ms: int | None = None
        self.watermarks_seen: list[int] = []
        self.ids: list[int] = []
        self.late = 0
        self.called(self.enumerator.start)
        for subtask in range(READERS):
            self.called(lambda subtask=subtask: self.enumerator.register_reader(subtask))

    def called(self, call: Any) -> None:
        """Call the enumerator and send out what it says: assignments first, then what is unassigned."""
        call()
        outbox, self.enumerator.outbox = self.enumerator.outbox, []
        for subtask, message in outbox:
            self.readers[subtask].messages += message if isinstance(message, list) else ["no more splits"]
        unassigned = self.enumerator.enumerator.unassigned_event_time_ms() if self.holds else None
        if unassigned != self.reported:
            self.reported = unassigned
            for reader in self.readers:
                if not reader.has_ended and "no more splits" not in reader.messages:
                    reader.messages.append(("unassigned", unassigned))

    def step(self) -> None:
        """Let somebody do one thing that can be done."""
        choices: list[Any] = []
        for subtask, reader in enumerate(self.readers):
            if reader.messages:
                choices.append(reader.receive)
            if reader.splits.splits:
                choices += [lambda reader=reader: self.emit(reader)] * self.rng.choice([1, 1, 8])
            elif not (reader.has_asked or reader.has_ended):
                choices.append(lambda subtask=subtask: self.ask(subtask))
        if self.enumerator.calls and self.rng.random() < 0.1:
            choices.append(lambda: self.called(self.enumerator.run_next_call))
        if choices:
            self.rng.choice(choices)()
        self.combine()

    def ask(self, subtask: int) -> None:
        self.readers[subtask].has_asked = True
        self.called(lambda: self.enumerator.request_split(subtask))

    def emit(self, reader: Reader) -> None:
        held = set(reader.splits.splits)
        for batch in reader.fetch():
            if self.watermark_ms is not None:
                self.late += sum(each < self.watermark_ms for each in millis(batch))
            self.ids += batch.column("id").to_pylist()
        for split_id in held - set(reader.splits.splits):
            self.enumerator.finish_split(self.readers.index(reader), split_id)

    def combine(self) -> None:
        waited_for = [reader.watermark_ms for reader in self.readers if not reader.idle]
        if waited_for and None not in waited_for:
            lowest = min(each for each in waited_for if each is not None)
            if self.watermark_ms is None or lowest > self.watermark_ms:
                self.watermark_ms = lowest
                self.watermarks_seen.append(lowest)


def millis(batch: pa.RecordBatch) -> list[int]:
    return [each // 1000 for each in batch.column("at").cast(pa.int64()).to_pylist()]


def run(query: Query) -> Query:
    for _ in range(100_000):
        query.step()
        if all(reader.has_ended for reader in query.readers) or len(query.ids) == DAYS * ROWS_A_DAY:
            break
    assert sorted(query.ids) == list(range(DAYS * ROWS_A_DAY))
    return query


@pytest.mark.parametrize("boundedness", Boundedness)
@pytest.mark.parametrize("seed", range(8))
def test_no_row_of_a_hundred_days_is_late(days: Path, seed: int, boundedness: Boundedness) -> None:
    query = run(Query(days, seed, boundedness, eventTimeColumn="at"))
    assert query.late == 0
    # And nobody waits until the end for a watermark.
    assert len([each for each in query.watermarks_seen if each != MAX_WATERMARK_MS]) >= DAYS


@pytest.mark.parametrize("seed", range(8))
def test_the_order_alone_is_not_enough(days: Path, seed: int) -> None:
    """A reader between two files has no vote: the other one runs past the file that it is about to get."""
    query = Query(days, seed, Boundedness.BOUNDED, eventTimeColumn="at", holds=False)
    assert run(query).late > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_modification_loses_most_days(days: Path, seed: int) -> None:
    """What is tested above is not true by itself; a bounded read holds all watermarks then, until the last file."""
    assert run(Query(days, seed, Boundedness.CONTINUOUS_UNBOUNDED)).late > DAYS * ROWS_A_DAY // 2
    assert run(Query(days, seed, Boundedness.BOUNDED)).late == 0


@pytest.mark.parametrize("seed", range(4))
def test_no_row_is_late_where_large_files_are_cut(tmp_path: Path, days: Path, seed: int) -> None:
    """Ten days a file, cut in pieces, and each pair of files covers the same twenty days."""
    paths = sorted(days.iterdir(), key=lambda path: pq.read_table(path)["at"][0].as_py())
    for decade in range(0, DAYS, 20):
        for half in (0, 1):
            tables = [pq.read_table(path) for path in paths[decade + half : decade + 20 : 2]]
            pq.write_table(pa.concat_tables(tables), tmp_path / f"{decade}-{half}.parquet", row_group_size=ROWS_A_DAY)
    query = run(Query(tmp_path, seed, Boundedness.BOUNDED, eventTimeColumn="at", splitSize="3000"))
    assert query.late == 0
    assert sum(len(reader.splits.finished) for reader in query.readers) > 20, "the files were cut"


@pytest.mark.parametrize("is_available_now", [False, True])
def test_micro_batches_take_the_days_one_after_the_other(days: Path, is_available_now: bool) -> None:
    source = FilesSource({"path": str(days), "fileFormat": "parquet", "eventTimeColumn": "at"})
    planner = StreamPlanner(source, SCHEMA)
    if is_available_now:
        planner.freeze()
    read, start = [], dict(INITIAL)
    for _ in range(DAYS):
        end = planner.plan(start, PlanLimits(max_files=3), 0)
        assert end != start
        splits: list[Any] = [split for task in planner.tasks(start, end, 0) for split in task]
        read += [pq.read_table(split.path)["id"][0].as_py() // ROWS_A_DAY for split in splits]
        start = end
        if len(read) >= DAYS:
            break
    assert read == list(range(DAYS))
    planner.close()
