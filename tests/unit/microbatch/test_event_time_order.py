"""Rows of several splits leave in event-time order: against a plain sort, for any batches and whoever comes first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UnsupportedOperationError
from headgate.microbatch.event_time_order import EventTimeMerge, OrderedRead
from headgate.readers import (
    MultiplexedReader,
    MultithreadedReader,
    ReaderOptions,
    SequentialReader,
    SourceReaderBase,
)
from headgate.source import (
    FetchedBatch,
    InputStatus,
    ReaderOutput,
    SourceReader,
    SourceReaderContext,
    Split,
    SplitReader,
)

SCHEMA = pa.schema(
    [("split", pa.string()), ("place", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("weight", pa.binary())]
)
AT = 2
Row = tuple[str, int, int | None]
"""A row: its split, its place in that, its event time in microseconds."""
Times = list[int | None]


def mixed(times: Mapping[str, Sequence[int | None]]) -> dict[str, Times]:
    """Return the same, for a type checker that knows of none."""
    return {split_id: list(of) for split_id, of in times.items()}


def rows_of(times: Mapping[str, Times]) -> dict[str, list[Row]]:
    return {split_id: [(split_id, place, at) for place, at in enumerate(of)] for split_id, of in times.items()}


def batch_of(rows: Sequence[Row], row_bytes: int = 0) -> pa.RecordBatch:
    columns = [*(zip(*rows, strict=True) if rows else ([], [], [])), [bytes(row_bytes)] * len(rows)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def rows_in(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        assert batch.schema == SCHEMA
        assert batch.num_rows
        split, place, at = (batch.column(0), batch.column(1), batch.column(2).view(pa.int64()))
        rows += zip(split.to_pylist(), place.to_pylist(), at.to_pylist(), strict=True)
    return rows


def in_order(times: Mapping[str, Times]) -> list[Row]:
    """Return what is promised, the slow way: by highest event time so far, then by split, then by place."""
    keyed = []
    for number, rows in enumerate(rows_of(times).values()):
        highest = -(2**63)
        for row in rows:
            highest = max(highest, highest if row[2] is None else row[2])
            keyed.append((highest, number, row[1], row))
    return [row for *_, row in sorted(keyed)]


class Merge:
    """A merge of splits whose rows a test hands in, in any pieces."""

    def __init__(self, times: Mapping[str, Times], not_before_ms: Mapping[str, int] | None = None) -> None:
        self.left = rows_of(times)
        known = not_before_ms or {}
        self.merge = EventTimeMerge(AT, SCHEMA, {split_id: known.get(split_id) for split_id in times})
        self.begun: list[str] = []
        self.given: list[Row] = []
        self.began_after: dict[str, int] = {}

    def step(self, choose: Callable[[int], int], rows: int) -> None:
        """Give one split some rows, or its end, and take what may leave."""
        for split_id in self.merge.begin_splits():
            self.begun.append(split_id)
            self.began_after[split_id] = len(self.given)
        unfinished = [split_id for split_id in self.begun if split_id in self.left]
        if unfinished:
            split_id = unfinished[choose(len(unfinished))]
            self.merge.take_rows(split_id, batch_of(self.left[split_id][:rows]))
            self.left[split_id] = self.left[split_id][rows:]
            if not self.left[split_id]:
                del self.left[split_id]
                self.merge.finish(split_id)
        self.given += rows_in(self.merge.leaving())

    def run(self, choices: Iterator[int], sizes: Iterator[int]) -> list[Row]:
        while not self.merge.is_over:
            self.step(lambda count: next(choices) % count, next(sizes))
        return self.given


times_of_splits = st.lists(st.lists(st.none() | st.integers(-50, 50), max_size=30), min_size=1, max_size=5).map(
    lambda lists: {f"s{number}": times for number, times in enumerate(lists)}
)
endless = st.lists(st.integers(0, 11), min_size=1, max_size=20).map(itertools.cycle)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=10).map(itertools.cycle)


@given(times_of_splits, endless, sizes)
def test_any_splits_in_any_batches_leave_in_the_promised_order(
    times: dict[str, Times], choices: Iterator[int], sizes: Iterator[int]
) -> None:
    """Every row once, by the highest event time so far; so it is the same however the rows came."""
    assert Merge(times).run(choices, sizes) == in_order(times)


@given(times_of_splits, endless, sizes)
def test_splits_that_are_in_order_become_one_that_is(
    times: dict[str, Times], choices: Iterator[int], sizes: Iterator[int]
) -> None:
    ordered = {split_id: sorted(at for at in of if at is not None) for split_id, of in times.items()}
    given_back = [at for *_, at in Merge(mixed(ordered)).run(choices, sizes)]
    assert given_back == sorted(itertools.chain.from_iterable(ordered.values()))


@given(times_of_splits, endless, sizes)
def test_no_split_has_its_own_order_changed(
    times: dict[str, Times], choices: Iterator[int], sizes: Iterator[int]
) -> None:
    found = Merge(times).run(choices, sizes)
    for split_id, rows in rows_of(times).items():
        assert [row for row in found if row[0] == split_id] == rows


@given(times_of_splits, st.lists(st.integers(0, 60), min_size=5, max_size=5), endless, sizes)
def test_what_is_known_of_where_splits_begin_opens_them_later_and_changes_nothing(
    times: dict[str, Times], early: list[int], choices: Iterator[int], sizes: Iterator[int]
) -> None:
    """A lower bound may be as low as it likes."""
    times = {split_id: [None if at is None else 1000 * at for at in of] for split_id, of in times.items()}
    bounds = {
        split_id: of[0] // 1000 - early[number]
        for number, (split_id, of) in enumerate(times.items())
        if of and of[0] is not None
    }
    assert Merge(times, bounds).run(choices, sizes) == in_order(times)


def test_splits_that_follow_one_another_are_opened_one_by_one() -> None:
    """A year of day-files needs no more open files than one day."""
    times: dict[str, Times] = {f"day-{day}": [1000 * (100 * day + hour) for hour in range(24)] for day in range(20)}
    merge = Merge(times, {f"day-{day}": 100 * day for day in range(20)})
    open_at_once = 0
    while not merge.merge.is_over:
        merge.step(lambda count: 0, 6)
        open_at_once = max(open_at_once, sum(split_id in merge.left for split_id in merge.begun))
    assert merge.given == in_order(times)
    assert open_at_once == 1


def test_a_bound_that_was_wrong_costs_order_and_no_row() -> None:
    times: dict[str, Times] = {"a": [5000, 6000, 7000], "b": [1000, 9000]}
    found = Merge(times, {"a": 5, "b": 6}).run(itertools.cycle([0]), itertools.cycle([1]))
    assert sorted(found) == sorted(itertools.chain.from_iterable(rows_of(times).values()))
    assert [row for row in found if row[0] == "b"] == rows_of(times)["b"]


def test_rows_without_event_time_follow_their_predecessor() -> None:
    times: dict[str, Times] = {"a": [None, 1, None, 5], "b": [None, 3]}
    found = Merge(times).run(itertools.cycle([0, 1]), itertools.cycle([1]))
    assert found == [("a", 0, None), ("b", 0, None), ("a", 1, 1), ("a", 2, None), ("b", 1, 3), ("a", 3, 5)]


def test_disorder_of_one_split_does_not_spread() -> None:
    times: dict[str, Times] = {"a": [10, 2, 11], "b": [1, 4, 10, 12]}
    found = Merge(times).run(itertools.cycle([0, 1]), itertools.cycle([2]))
    assert [(split_id, at) for split_id, _, at in found] == [
        ("b", 1), ("b", 4), ("a", 10), ("a", 2), ("b", 10), ("a", 11), ("b", 12),
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_event_times_of_every_unit(unit: str) -> None:
    schema = pa.schema([("at", pa.timestamp(unit))])
    per_second = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    noon = 1_767_265_200 * per_second
    merge = EventTimeMerge(0, schema, {"a": None, "b": 1_767_265_200_000})
    merge.begin_splits()
    merge.take_rows("a", pa.record_batch([pa.array([noon - 1, noon + 1], pa.timestamp(unit))], schema=schema))
    merge.take_rows("b", pa.record_batch([pa.array([noon], pa.timestamp(unit))], schema=schema))
    merge.finish_all()
    found = [at for batch in merge.leaving() for at in batch.column(0).cast(pa.int64()).to_pylist()]
    assert found == [noon - 1, noon, noon + 1]


def test_what_leaves_is_cut_into_batches_of_a_megabyte() -> None:
    wide = pa.schema([("at", pa.timestamp("us")), ("text", pa.string())])
    merge = EventTimeMerge(0, wide, {"a": None, "b": None})
    for split_id, begin in (("a", 0), ("b", 1)):
        times = pa.array(range(begin, 8000, 2), pa.timestamp("us"))
        merge.take_rows(split_id, pa.record_batch([times, pa.array(["x" * 1000] * len(times))], schema=wide))
    merge.finish_all()
    batches = list(merge.leaving())
    assert [at for batch in batches for at in batch.column(0).cast(pa.int64()).to_pylist()] == list(range(8000))
    assert len(batches) == 8
    assert max(batch.nbytes for batch in batches) < 1.1 * 2**20


# With readers: threads, pausing, ends.


class Listed(Split, frozen=True, kw_only=True):
    """A split whose rows a test listed; the position counts them."""

    position: int = 0


class ListReader(SplitReader[Listed]):
    """Returns one batch of some split after the other."""

    def __init__(self, rows: Mapping[str, list[Row]], batch_rows: int, row_bytes: int, log: Log) -> None:
        self.rows = rows
        self.batch_rows = batch_rows
        self.row_bytes = row_bytes
        self.log = log
        self.splits: dict[str, Listed] = {}
        self.paused: set[str] = set()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Listed]]:
        split = next((each for key, each in self.splits.items() if key not in self.paused), None)
        if split is None:
            return []
        rows = self.rows[split.split_id][split.position : split.position + self.batch_rows]
        if not rows:
            return [FetchedBatch(split=self.splits.pop(split.split_id), finished=True)]
        after = msgspec.structs.replace(split, position=split.position + len(rows))
        del self.splits[split.split_id]
        self.splits[split.split_id] = after  # the others have their turn first
        self.log.fetched += len(rows)
        self.log.most_ahead = max(self.log.most_ahead, self.log.fetched - self.log.yielded)
        return [FetchedBatch(split=after, batch=batch_of(rows, self.row_bytes))]

    def handle_splits_changes(self, added: Sequence[Listed]) -> None:
        self.log.opened += [split.split_id for split in added]
        self.splits.update((split.split_id, split) for split in added)

    def pause_or_resume_splits(self, splits_to_pause: Sequence[Listed], splits_to_resume: Sequence[Listed]) -> None:
        self.paused.update(split.split_id for split in splits_to_pause)
        self.paused.difference_update(split.split_id for split in splits_to_resume)

    def wake_up(self) -> None: ...

    def close(self) -> None: ...


class ListReaderThatCannotPause(ListReader):
    pause_or_resume_splits = SplitReader.pause_or_resume_splits


class Log:
    """What the readers of a test did."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.fetched = self.yielded = self.most_ahead = 0


CONTEXT = SourceReaderContext(
    subtask=0, schema=SCHEMA, host=None, request_split=lambda: None, send_event=lambda event: None
)


def cast_to_schema(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch]


def read(
    times: Mapping[str, Times],
    reader_class: type[SourceReaderBase[Listed]],
    batch_rows: int,
    log: Log,
    split_reader_class: type[ListReader] = ListReader,
    not_before_ms: Mapping[str, int | None] | None = None,
    row_bytes: int = 0,
) -> list[Row]:
    """Read splits by a ready-made reader whose queue holds one batch, so that little is fetched ahead."""
    rows = rows_of(times)
    reader = reader_class(
        lambda: split_reader_class(rows, batch_rows, row_bytes, log),
        CONTEXT,
        ReaderOptions(queue_bytes=1, fetch_timeout_ms=20),
    )
    reader.start()
    splits = [Listed(split_id=split_id) for split_id in times]
    found: list[Row] = []
    try:
        for batch in OrderedRead[Listed]("demo", SCHEMA, AT, cast_to_schema).rows(reader, splits, not_before_ms):
            log.yielded += batch.num_rows
            found += rows_in(iter([batch]))
    finally:
        reader.close()
    return found


READERS = [SequentialReader, MultiplexedReader, MultithreadedReader]


@pytest.mark.parametrize("reader_class", READERS)
@pytest.mark.parametrize("count", [1, 2, 30])
def test_every_ready_made_reader(reader_class: type[SourceReaderBase[Listed]], count: int) -> None:
    times: dict[str, Times] = {
        f"s{number}": [(7 * place + 13 * number) % 50 + 10 * place for place in range(number % 4 * 20)]
        for number in range(count)
    }
    assert read(times, reader_class, 7, Log()) == in_order(times)


@pytest.mark.parametrize("reader_class", READERS)
def test_about_one_batch_of_each_split_is_held(reader_class: type[SourceReaderBase[Listed]]) -> None:
    """Though they are read far faster than they are taken; one is not before all others have ended."""
    count, batch_rows = 12, 10
    times: dict[str, Times] = {f"s{number}": list(range(200)) for number in range(count)}
    times["late"] = list(range(1_000_000, 1_000_200))
    log = Log()
    assert read(times, reader_class, batch_rows, log, row_bytes=150_000) == in_order(times)
    # One that waits, one that was under way when its split was paused, one in the queue, one put into it.
    assert log.most_ahead <= 4 * (count + 1) * batch_rows


def test_splits_of_which_is_known_where_they_begin_are_opened_when_it_is_their_turn() -> None:
    days = 40
    times: dict[str, Times] = {
        f"day-{day}": [1000 * (100 * day + hour) for hour in range(24)] for day in reversed(range(days))
    }
    bounds = {f"day-{day}": 100 * day for day in range(days)}
    log = Log()
    assert read(times, SequentialReader, 6, log, not_before_ms=bounds) == in_order(times)
    assert log.opened == [f"day-{day}" for day in range(days)]


@pytest.mark.parametrize("reader_class", READERS)
def test_a_reader_that_cannot_pause_says_so(reader_class: type[SourceReaderBase[Listed]]) -> None:
    times: dict[str, Times] = {f"s{number}": list(range(100)) for number in range(3)}
    with pytest.raises(UnsupportedOperationError, match="demo cannot be read with eventTimeOrder") as raised:
        read(times, reader_class, 10, Log(), ListReaderThatCannotPause, row_bytes=150_000)
    assert "Implement pause_or_resume_splits" in str(raised.value)


class ReaderWithoutSplitOutputs(SourceReader[Listed]):
    """Emits its rows as those of the reader."""

    def start(self) -> None: ...

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        output.emit_batch(batch_of([("a", 0, 0)]))
        return InputStatus.END_OF_INPUT

    def available(self) -> None:  # type: ignore[override]
        ...

    def add_splits(self, splits: Sequence[Listed]) -> None: ...

    def notify_no_more_splits(self) -> None: ...

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> list[Listed]:
        return []

    def close(self) -> None: ...


def test_a_reader_that_does_not_say_whose_rows_it_emits_cannot_be_merged() -> None:
    splits = [Listed(split_id="a"), Listed(split_id="b")]
    with pytest.raises(UnsupportedOperationError, match="without saying of which split"):
        list(OrderedRead[Listed]("demo", SCHEMA, AT, cast_to_schema).rows(ReaderWithoutSplitOutputs(), splits))
