"""Bugs in what sources wait for, and in what becomes of rows that readers emitted, planted one at a time.

Some seed finds each.

A bug is a subclass or a changed function of production, in this file only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pyarrow as pa

from headgate.checkpoint import restore
from headgate.connectors.kinesis.enumerator import KinesisEnumerator
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import LogRecord
from headgate.coordinator.sources.log_segments import LogSegments
from headgate.coordinator.sources.reader_machine import Shared
from headgate.coordinator.sources.unassigned_work import UnassignedWork
from headgate.futures import done_with
from headgate.protocol.state import ReaderState, SplitState
from headgate.runtime import snapshot_parts, source_input
from headgate.runtime.source_input import SourceInput
from headgate.simulation.scenario import Scenario
from headgate.source.watermark import saturated_ms
from headgate.task.split_alignment import SplitAlignment
from headgate.task.task_loop import ChainEmpty, TaskLoop
from tests.scenarios.planted import first_found


def is_slow(scenario: Scenario) -> bool:
    """Return whether a slow function comes right after sources."""
    return scenario.source_row_ms > 0


def is_aligned(scenario: Scenario) -> bool:
    """Return whether sources are in an alignment group."""
    return scenario.alignment_group is not None


def cannot_pause(scenario: Scenario) -> bool:
    """Return whether readers of an aligned source cannot pause splits."""
    return not all(source.pauses_splits for source in scenario.sources)


def reads_shards(scenario: Scenario) -> bool:
    """Return whether there are shards that were split or merged."""
    return any(split.parents for source in scenario.sources for split in source.splits)


class WaitsForTheBatch(TaskLoop):
    """A snapshot waits until all that a reader emitted is processed."""

    TRANSITIONS = TaskLoop.TRANSITIONS

    def _waits_for_entry(self, turn: ChainEmpty, takes: bool, now_ms: int) -> bool:
        return turn.entry_ms is not None and self._base != "idle"


def test_a_barrier_that_waits_for_the_batch_of_a_reader_is_found() -> None:
    first_found("slow: subtask ., which reads sources", 17, {TaskLoop: WaitsForTheBatch}, of=is_slow)


def test_rows_that_are_in_no_checkpoint_although_the_position_is_after_them_are_found() -> None:
    def nothing(*arguments: Any, **keywords: Any) -> Future[dict[str, Any]]:
        return done_with({})

    first_found("rows of .* are missing", 3, {snapshot_parts.store_splits: nothing}, of=is_slow)


class ForgetsRows(Shared):
    """Who is assigned a split that was reported with rows in flight gets it without."""

    def complete(self, assigned: Iterable[SplitState]) -> tuple[SplitState, ...]:
        return tuple(SplitState(split.split_id, split.data) for split in assigned)


def test_rows_that_do_not_go_with_their_split_through_the_enumerator_are_found() -> None:
    first_found("rows of .* are missing|lost: ", 3, {Shared: ForgetsRows}, of=is_slow)


class EmitsThemLast(SourceInput):
    """A split is read on before the rows of it that were in flight are there."""

    def _load(self, split: SplitState) -> None:
        if not split.ended:
            self._give([SplitState(split.split_id, split.data)])
        super()._load(split)

    def _on_loaded(self, split: SplitState, rows: Future[list[pa.RecordBatch]]) -> None:
        if split.ended or self._user.is_over or self.output.ended:
            super()._on_loaded(split, rows)
            return
        del self._loading[split.split_id]
        for batch in rows.result():
            self.output.create_output_for_split(split.split_id).emit_batch(batch)


def test_rows_in_flight_that_come_after_those_that_are_read_on_are_found() -> None:
    first_found("order: |lost: ", 49, {SourceInput: EmitsThemLast}, of=lambda each: is_slow(each) and each.is_keyed)


class LeavesOutEnds(SourceInput):
    """A split of which a reader has read the last row is in no snapshot until its end is reported."""

    def snapshot(self, *arguments: Any) -> Future[tuple[SplitState, ...]]:
        ending, self._ending = self._ending, {}
        try:
            return super().snapshot(*arguments)
        finally:
            self._ending = ending


def test_a_split_that_ends_while_its_rows_wait_and_is_nowhere_is_found() -> None:
    first_found("in 0 places", 82, {SourceInput: LeavesOutEnds}, of=is_slow)


class PassesRows(UnassignedWork):
    """Watermarks are held where unassigned splits are read on, and not at their rows in flight."""

    def to_put(self, *, is_early: bool, has_rows: bool = False) -> Any:
        return super().to_put(is_early=is_early)


def test_a_watermark_that_passes_rows_in_flight_of_unassigned_splits_is_found() -> None:
    first_found("late: ", 345, {UnassignedWork: PassesRows}, of=is_slow)


class FinishesAtOnce(KinesisEnumerator):
    """Children follow their parent's end, though a reader may fail and read that again."""

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        super().notify_splits_finished(split_ids)
        self._table.finish()
        self._context.call_async(lambda: None, lambda _, __: self._assign())


def test_a_parent_that_is_read_again_beside_its_child_is_found() -> None:
    first_found("was given .*, but .* is reading", 930, {KinesisEnumerator: FinishesAtOnce}, of=reads_shards)


class LeavesItsGroup(JobMaster):
    """A query that is rescaled has no vote until its next run has."""

    def _release(self, action: sch.ReleaseSlots) -> None:
        self._is_rescaled = False
        super()._release(action)


def test_a_group_that_does_not_wait_for_a_query_that_is_rescaled_is_found() -> None:
    first_found("do not wait for this one", 154, {JobMaster: LeavesItsGroup}, of=is_aligned)


class WaitsForIdleSplits(source_input._Output):
    """A source that cannot pause its splits waits only when those are ahead, too, that are idle."""

    def _all_are_ahead(self) -> bool:
        assert self._alignment is not None
        if len(self.split_ids()) > 1 and all(map(self._can_pause, self.split_ids())):
            return False
        return bool(self._alignment.paused) and self._alignment.paused.issuperset(self.split_ids())


def test_a_source_that_an_idle_split_frees_is_found() -> None:
    first_found("is read at .*, but the slowest", 257, {source_input._Output: WaitsForIdleSplits}, of=cannot_pause)


class AlignsWithItself(SplitAlignment):
    """A reader does not wait for those of others."""

    TRANSITIONS = SplitAlignment.TRANSITIONS

    def _find_bound(self) -> int | None:
        if self._minimum_ms is None:
            return super()._find_bound()
        return saturated_ms(self._minimum_ms + self._drift_ms)


def test_a_split_that_runs_ahead_of_its_group_is_found() -> None:
    first_found("is read at .*, but the slowest", 85, {SplitAlignment: AlignsWithItself}, of=is_aligned)


class WritesOneByOne(LogSegments):
    """Each record is a write of its own, after all before it."""

    def append(self, *records: LogRecord) -> list[src.AppendLog]:
        return [*super().append(*records), *self.write_all()]


def test_a_log_that_awaits_one_write_after_another_is_found() -> None:
    first_found("writes of the log of .* wait in turn", 0, {LogSegments: WritesOneByOne})


def forgets_a_split(old: Sequence[ReaderState], parallelism: int) -> list[ReaderState]:
    """Deal out to readers of another parallelism all splits but one."""
    first, *others = _dealt_readers(old, parallelism)
    return [msgspec.structs.replace(first, splits=first.splits[1:]), *others]


_dealt_readers = restore._dealt_readers


def test_a_split_that_nobody_has_after_a_recovery_is_found() -> None:
    first_found("was restored with splits that no reader has: '", 1, {restore._dealt_readers: forgets_a_split})
