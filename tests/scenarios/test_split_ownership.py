"""Bugs that others shipped in split ownership, discovery and recovery: each number is a public issue."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.datagen.enumerator import DatagenEnumerator
from headgate.connectors.datagen.split import DatagenSplit, DatagenState
from headgate.connectors.files.source import FilesSource
from headgate.connectors.simple import adapt
from headgate.errors import InvalidTransitionError
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.source import (
    Boundedness,
    PlanLimits,
    Source,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
)
from headgate.source.simple import SimpleSource
from headgate.task.watermarks import (
    InputEnded,
    RowsEmitted,
    SplitAdded,
    SplitEvent,
    SplitFinished,
    SplitPaused,
    SplitWatermarks,
)
from headgate.testing import EnumeratorHarness, SourceHarness, VirtualClock, assert_same_rows

UNBOUNDED = Boundedness.CONTINUOUS_UNBOUNDED
COUNT = 7
ROWS = pa.schema([("n", pa.int64())])
NO_LIMITS = PlanLimits()


class Shelf(SimpleSource):
    """Named lists; ``contents`` says how long each is."""

    name = "shelf"
    schema = "n bigint"
    contents: ClassVar[dict[str, int]] = {}

    def splits(self) -> list[str]:
        return sorted(self.contents)

    def latest(self, split_id: str) -> int | None:
        return self.contents[split_id] or None

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        for start in range(position or 0, self.contents[split_id], 2):
            stop = min(start + 2, self.contents[split_id])
            yield pa.record_batch({"n": pa.array(range(start, stop), pa.int64())}), stop


def shelf(base: type[Shelf] = Shelf, **contents: int) -> type[Shelf]:
    return type(base.__name__, (base,), {"contents": contents})


def generated(tmp_path: Path) -> Source[Any, Any]:
    return DatagenSource({"numPartitions": str(COUNT), "numRows": "70"}, VirtualClock(5000))


def simple(tmp_path: Path) -> Source[Any, Any]:
    return adapt(shelf(**dict.fromkeys("abcdefg", 3)))({})


def files(tmp_path: Path) -> Source[Any, Any]:
    for name in "abcdefg":
        (tmp_path / f"{name}.csv").write_text("n\n1\n2\n")
    return FilesSource({"path": str(tmp_path), "fileFormat": "csv", "header": "true"})


every_source = pytest.mark.parametrize("make", [generated, simple, files])


def begin(
    source: Source[Any, Any], parallelism: int, boundedness: Boundedness = UNBOUNDED, state: bytes | None = None
) -> EnumeratorHarness[Any, Any]:
    harness: EnumeratorHarness[Any, Any] = EnumeratorHarness(
        source, schema=ROWS, boundedness=boundedness, parallelism=parallelism, state=state
    )
    harness.start()
    return harness


def ask(harness: EnumeratorHarness[Any, Any], *subtasks: int) -> None:
    """Let readers ask that have neither a request open nor the promise that there are no more."""
    for subtask in subtasks:
        if subtask not in harness.requests | harness.no_more_splits:
            harness.request_split(subtask)


def held(harness: EnumeratorHarness[Any, Any]) -> list[str]:
    return sorted(split_id for splits in harness.assigned.values() for split_id in splits)


def restart(planner: StreamPlanner, offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as a restarted query finds it in Spark's log."""
    planner.close()
    return json.loads(json.dumps(offset))


def test_a_reader_that_fails_before_the_first_checkpoint_loses_none_of_the_splits_reported() -> None:
    """FLINK-40710: readers restored, their splits reported and assigned again; then a reader comes back empty."""
    options = {"numRows": "120", "rowsPerSecond": "1000", "numPartitions": "6", "fields.n.kind": "sequence"}
    made = lambda: DatagenSource(options, VirtualClock(5000))  # noqa: E731
    with SourceHarness(made(), schema=ROWS) as harness:
        harness.run_to_end()
        expected = harness.rows()
    clock = VirtualClock(0)
    with SourceHarness(DatagenSource(options, clock), schema=ROWS, boundedness=UNBOUNDED, parallelism=3) as harness:
        clock.advance_to(60_000)
        harness.run_until_rows(40)
        snapshot, before = harness.snapshot(), harness.rows()
    assert len(before) < len(expected)
    for failing in ((0,), (1,), (0, 1), (0, 0)):
        with SourceHarness(
            DatagenSource(options, clock), schema=ROWS, boundedness=UNBOUNDED, parallelism=2, snapshot=snapshot
        ) as harness:
            for subtask in failing:
                harness.fail_reader(subtask)
            harness.run_to_end()
            assert_same_rows(before + harness.rows(), expected, f"rows after readers {failing} failed")


class HesitantEnumerator(DatagenEnumerator):
    """Keeps one of the splits that its reader reported until it is ``willing``."""

    willing: ClassVar[bool] = True

    def _push(self) -> None:
        kept = {} if self.willing else {"partition-1": self._pending.pop("partition-1")}
        super()._push()
        self._pending |= kept


class Hesitant(DatagenSource):
    def restore_enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit], state: DatagenState
    ) -> HesitantEnumerator:
        return HesitantEnumerator(context, self._make_splits, self._next_event_ms, has_event_times=False, state=state)


@pytest.mark.parametrize("restarted", [False, True], ids=["in the same process", "after another restart"])
def test_a_split_reported_and_assigned_later_goes_on_after_its_stop(
    restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLINK-40469: between report and assignment a split is in the snapshot, with all that a restart needs of it.

    Here a run of ``AvailableNow`` was stopped half way, so that the splits have a stop, and go on after it.
    """

    def planner() -> StreamPlanner:
        return StreamPlanner(Hesitant({"numPartitions": "2"}, VirtualClock(0)), ROWS)

    plans = planner()
    plans.freeze()
    offset, now_ms = plans.plan(INITIAL, PlanLimits(max_rows=4), 10_000), 10_000
    read = list(chain.from_iterable(plans.tasks(INITIAL, offset, now_ms)))
    assert all(each["then"] for each in offset["splits"]), "the run was stopped half way"
    monkeypatch.setattr(HesitantEnumerator, "willing", False)
    offset = restart(plans, offset)
    plans = planner()
    for step in range(6):
        if step == 3:
            assert {split.partition for split in read[2:]} == {0}
            monkeypatch.setattr(HesitantEnumerator, "willing", True)
            if restarted:
                offset = restart(plans, offset)
                plans = planner()
        now_ms += 10_000
        end = plans.plan(offset, NO_LIMITS, now_ms)
        read += list(chain.from_iterable(plans.tasks(offset, end, now_ms)))
        offset = end
    for partition in range(2):
        stops = [(each.position, each.stop) for each in read if each.partition == partition]
        assert [start for start, _ in stops] == [0, *(stop for _, stop in stops[:-1])]
        assert stops[-1][1] == now_ms // 2000
    assert "behind_stops" not in offset, "nothing is left over when all are assigned"


def test_a_start_time_is_resolved_once_though_the_query_is_killed_before_its_first_batch_commits() -> None:
    """FLINK-38453: Spark stores no initial offset, so only the first end offset can hold "now"."""

    def planner(now_ms: int) -> StreamPlanner:
        return StreamPlanner(DatagenSource({"startTimestamp": "now"}, VirtualClock(now_ms)), ROWS)

    lives_on = planner(5000)
    first = lives_on.plan(INITIAL, NO_LIMITS, 5000)
    assert first != INITIAL
    killed_early, killed_late = planner(60_000), planner(3_600_000)
    for restarted in (killed_early, killed_late):
        assert list(chain.from_iterable(restarted.tasks(dict(INITIAL), first, 60_000))) == list(
            chain.from_iterable(lives_on.tasks(INITIAL, first, 60_000))
        )
        assert restarted.plan(first, NO_LIMITS, 90_000) == lives_on.plan(first, NO_LIMITS, 90_000)
    (split,) = list(chain.from_iterable(lives_on.tasks(first, lives_on.plan(first, NO_LIMITS, 90_000), 90_000)))
    assert (split.event_start_us, split.position, split.stop) == (5_000_000, 0, 85)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "vanished"])
def test_available_now_ends_after_a_restart_also_when_discovery_finds_nothing(listed: bool) -> None:
    """FLINK-31006: a bounded run that goes on from a checkpoint finds nothing new, and ends all the same."""

    class Finite(Shelf):
        finite_splits = True

    class Unlisted(Finite):
        def splits(self) -> list[str]:
            return []

    contents = {"a": 5, "b": 4, "c": 1}
    planner = StreamPlanner(adapt(shelf(Finite, **contents))({}), ROWS)
    planner.freeze()
    offset = planner.plan(INITIAL, PlanLimits(max_rows=4), 0)
    read = list(chain.from_iterable(planner.tasks(INITIAL, offset, 0)))
    for _ in range(2):
        offset = restart(planner, offset)
        planner = StreamPlanner(adapt(shelf(Finite if listed else Unlisted, **contents))({}), ROWS)
        planner.freeze()
        for now_ms in range(20_000, 220_000, 20_000):
            end = planner.plan(offset, PlanLimits(max_rows=4), now_ms)
            if end == offset:
                break
            read += list(chain.from_iterable(planner.tasks(offset, end, now_ms)))
            offset = end
        else:
            pytest.fail("ten plans did not reach the end")
    rows = sorted((each.split_id, n) for each in read for n in range(each.position or 0, each.stop or 0))
    assert rows == sorted((name, n) for name, length in contents.items() for n in range(length))


@every_source
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_pending_splits_survive_a_restore_at_another_parallelism(
    make: Callable[[Path], Source[Any, Any]], parallelism: int, tmp_path: Path
) -> None:
    """FLINK-21817: pending work is stored by split, never by the number of a reader that may be gone."""
    harness = begin(make(tmp_path), 3)
    harness.run_next_call()
    for subtask in range(3):
        harness.register_reader(subtask)
    for _ in range(2):
        ask(harness, 0, 1, 2)
    lost = set(harness.assigned[2])
    assert lost
    harness.fail_reader(2)
    state = harness.snapshot()
    kept = [split for splits in harness.assigned.values() for split in splits.values()]
    assert lost.isdisjoint(split.split_id for split in kept)

    restored = begin(make(tmp_path), parallelism, state=state)
    reports = isinstance(restored.source, SupportsSplitReassignmentOnRecovery)
    if not reports:
        restored.hold_restored(0, kept)
    for subtask in range(parallelism):
        restored.register_reader(subtask, reported_splits=kept if reports and subtask == 0 else ())
    restored.run_next_call()
    for _ in range(COUNT):
        ask(restored, *range(parallelism))
    assert len(held(restored)) == len(set(held(restored))) == COUNT
    assert lost <= set(held(restored))


def test_counts_of_splits_differ_by_at_most_one_though_they_are_found_in_portions() -> None:
    """FLINK-31762: two topics of four partitions each, eight readers, and some of them had nothing."""
    user_class = shelf(**{f"first-{n}": 1 for n in range(4)})
    harness = begin(adapt(user_class)({}), 8)
    for subtask in range(8):
        harness.register_reader(subtask)
    harness.run_next_call()
    user_class.contents.update({f"second-{n}": 1 for n in range(4)})
    harness.run_next_call()
    assert [len(harness.assigned[subtask]) for subtask in range(8)] == [1] * 8


@pytest.mark.parametrize(("parallelism", "counts"), [(8, [1] * 8), (3, [2, 3, 3]), (5, [1, 1, 2, 2, 2])])
def test_counts_of_generated_partitions_differ_by_at_most_one(parallelism: int, counts: list[int]) -> None:
    """FLINK-31762."""
    harness = begin(DatagenSource({"numPartitions": "8"}), parallelism)
    for subtask in range(parallelism):
        harness.register_reader(subtask)
    assert sorted(map(len, harness.assigned.values())) == counts


def test_files_of_the_same_name_in_different_folders_are_different_splits(tmp_path: Path) -> None:
    """Fluss 3548: kept by something coarser than the split, all but one of them were lost."""
    folders, expected = [tmp_path / "left", tmp_path / "right", tmp_path / "left-right"], []
    for number, folder in enumerate(folders):
        folder.mkdir()
        numbers = range(1000 * number, 1000 * number + 100)
        (folder / "part-0.csv").write_text("n\n" + "".join(f"{n:06}\n" for n in numbers))
        expected += [{"n": n} for n in numbers]
    options = {"paths": json.dumps([str(each) for each in folders]), "fileFormat": "csv", "header": "true"}
    source = FilesSource({**options, "splitSize": "200"})
    with SourceHarness(source, schema=ROWS, parallelism=2) as harness:
        harness.run_to_end()
        assert_same_rows(harness.rows(), expected)
        finished = [split_id for reader in harness.readers for split_id in reader.finished]
    assert len(finished) == len(set(finished)) == 12
    planner = StreamPlanner(source, ROWS)
    end = planner.plan(INITIAL, NO_LIMITS, 0)
    assert sorted(split.split_id for (split,) in planner.tasks(INITIAL, end, 0)) == sorted(finished)


def test_split_ids_that_look_alike_stay_apart() -> None:
    """Fluss 3548: nothing trims, folds or normalises the one key there is, on its way through the log either."""
    names = ["a", "A", " a", "a ", "\u00e4", "a\u0308", "a/b", "a:0", "\u2028"]
    source = adapt(shelf(**dict.fromkeys(names, 3)))({})
    planner = StreamPlanner(source, ROWS)
    end = restart(planner, planner.plan(INITIAL, NO_LIMITS, 0))
    again = StreamPlanner(source, ROWS)
    assert sorted(split.split_id for (split,) in again.tasks(INITIAL, end, 0)) == sorted(names)
    assert again.plan(end, NO_LIMITS, 20_000) == end


@every_source
def test_the_faster_reader_of_a_bounded_read_takes_the_next_split(
    make: Callable[[Path], Source[Any, Any]], tmp_path: Path
) -> None:
    """Hudi 19520: with splits dealt out beforehand, readers finished 78 minutes apart."""
    harness = begin(make(tmp_path), 2, Boundedness.BOUNDED)
    for subtask in range(2):
        harness.register_reader(subtask)
    harness.run_next_call()
    assert held(harness) == [], "nothing is dealt out unasked"
    ask(harness, 1)
    for _ in range(COUNT):
        ask(harness, 0)
    assert (len(harness.assigned[0]), len(harness.assigned[1])) == (COUNT - 1, 1)
    assert harness.no_more_splits == {0}


@pytest.mark.parametrize(
    ("late", "history"),
    [
        (
            RowsEmitted("a", 9),
            [
                "1 ms: idle SplitAdded a -> active",
                "3 ms: active SplitPaused a -> active",
                "4 ms: active SplitFinished a -> active",
            ],
        ),
        (RowsEmitted("c", 9), []),
    ],
    ids=["a finished split", "an unknown split"],
)
@pytest.mark.parametrize("ended", [False, True])
def test_an_impossible_transition_is_an_error_with_the_history_of_its_split(
    late: SplitEvent, history: list[str], ended: bool
) -> None:
    """FLINK-39073: invalid transitions of splits went unnoticed."""
    machine = SplitWatermarks(None)
    for now_ms, event in enumerate(
        (SplitAdded("a"), SplitAdded("b"), SplitPaused("a"), SplitFinished("a"), SplitFinished("b")), 1
    ):
        machine.handle(event, now_ms)
    for now_ms in range(10, 1000):  # what comes with every batch does not push the history out
        machine.handle(SplitAdded("d"), now_ms)
        machine.handle(RowsEmitted("d", now_ms), now_ms)
    if ended:
        machine.handle(InputEnded(), 1000)
        history = [*history, "1000 ms: active InputEnded -> ended"]
    with pytest.raises(InvalidTransitionError, match="cannot take RowsEmitted") as caught:
        machine.handle(late, 2000)
    found = pickle.loads(pickle.dumps(caught.value)).history
    others = [each for each in found if " b " in each or " d " in each]
    assert [each for each in found if each not in others and (" a " not in each or late.split_id == "a")] == history
    assert len(others) == 3  # added twice, finished once
