"""What a subtask works with in the simulator: readers that keep positions, and a sink writer in two phases.

Never: emit a row of a split before its position or behind its end, or forget rows that were staged and not confirmed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import msgspec
import pyarrow as pa

from headgate.protocol.state import OperatorState, SplitState
from headgate.simulation.durable import Committable, Row, encode_committable
from headgate.simulation.scripted_source import SCHEMA, SPLITS, ScriptedSplit, Topic
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.outputs import StreamingOutput


class ModelReader:
    """The reader of one source, with the production output where there is event time.

    Parameters
    ----------
    uid, topic
        What is read.
    now_ms
        Reads the cluster's clock.
    """

    def __init__(self, uid: str, topic: Topic, now_ms: Callable[[], int]) -> None:
        self.uid = uid
        self._topic = topic
        self._now_ms = now_ms
        self.splits: dict[str, ScriptedSplit] = {}
        self.no_more = False
        self.asking = False
        self.highest_ms: dict[str, int] = {}
        """By split: the highest event time emitted by this reader, less the disorder."""
        self.votes_since_ms: dict[str, int] = {}
        """By split: since when it is read and not idle."""
        self.watermarks: list[int] = []
        """What was emitted, without the final one."""
        self.reports: list[tuple[int | None, str]] = []
        """What is to be told to the alignment group."""
        self.is_final = False
        self.unassigned_ms: int | None = None
        """Where what is not assigned begins, as far as it was told."""
        self._paused: set[str] = set()
        self._source_paused = False
        self.idle: set[str] = set()
        """Splits that were idle when time was told last."""
        self._quiet_ms: dict[str, int] = {}  # by split: how long it could have been read, and had no rows
        self._told_ms = now_ms()
        self._timeout_ms: int | None = None
        self.output: StreamingOutput | None = None
        if topic.script.strategy is not None:
            self._timeout_ms = topic.script.strategy.idle_timeout_ms
            self.output = StreamingOutput(SCHEMA, topic.script.strategy, self, now_ms(), control=self, held=True)

    def add(self, splits: tuple[SplitState, ...]) -> None:
        """Take splits to read."""
        self.asking = False
        for state in splits:
            assert state.split_id not in self.splits, f"a reader was given {state.split_id} twice"
            self.splits[state.split_id] = SPLITS.deserialize(state.data)
            self._quiet_ms[state.split_id] = 0
            if self.output is not None:
                self.output.add_split(state.split_id)

    def read(self, choose: random.Random) -> tuple[list[Row], str | None]:
        """Return some rows of one split, and the split if it ended with them."""
        if self.output is not None:
            self._let_time_pass(choose)
        ready = [
            each
            for each in self.splits.values()
            if each.position < self._topic.rows(each.split_id) or each.stop == each.position
            if each.split_id not in self._paused and not self._source_paused
        ]
        if not ready:
            return [], None
        split = choose.choice(ready)
        end = min(self._topic.rows(split.split_id), split.position + choose.randint(1, 8))
        if self.output is not None:
            end = self._emit(self.output, split, end)
        rows = [(self.uid, split.split_id, offset) for offset in range(split.position, end)]
        if end == split.stop:
            del self.splits[split.split_id]
            if self.output is not None:
                self._paused.discard(split.split_id)
                self.votes_since_ms.pop(split.split_id, None)
                self.output.release_output_for_split(split.split_id)
            return rows, split.split_id
        self.splits[split.split_id] = msgspec.structs.replace(split, position=end)
        return rows, None

    def end(self) -> None:
        """Emit the final watermark."""
        if self.output is not None and not self.is_final:
            self.output.end_input()
            assert self.is_final, "a source that ended emitted no final watermark"

    def _emit(self, output: StreamingOutput, split: ScriptedSplit, end: int) -> int:
        """Emit rows up to ``end``, or as many as alignment allows; return behind which one."""
        times = [self._topic.event_time_ms(split.split_id, offset) for offset in range(split.position, end)]
        batch = pa.RecordBatch.from_arrays([pa.array(times, SCHEMA.field(0).type)], schema=SCHEMA)
        of_split = output.create_output_for_split(split.split_id)
        if self._topic.script.knows_rows:
            end = split.position + output.rows_allowed(split.split_id, batch)
            batch = batch.slice(0, end - split.position)
        if batch.num_rows:
            strategy = self._topic.script.strategy
            assert strategy is not None
            before_ms = self.highest_ms.get(split.split_id)
            highest_ms = max(times[: batch.num_rows]) - strategy.max_out_of_orderness_ms
            self.highest_ms[split.split_id] = highest_ms if before_ms is None else max(before_ms, highest_ms)
            self._quiet_ms[split.split_id] = 0
            of_split.emit_batch(batch)
        return end

    def set_unassigned(self, event_time_ms: int | None) -> None:
        """Hear of unassigned work."""
        if self.output is not None:
            self._tell_time()
            self.unassigned_ms = event_time_ms
            self.output.set_unassigned(event_time_ms)

    def announce(self, max_watermark_ms: int, others_ms: int) -> None:
        """Hear of the alignment group."""
        assert self.output is not None, f"{self.uid} has no alignment group"
        self._tell_time()
        self.output.announce(max_watermark_ms, others_ms)

    def _let_time_pass(self, choose: random.Random) -> None:
        """Tell the output the time, some of it spent under back pressure."""
        assert self.output is not None
        if choose.random() < 0.2:
            self.output.block(self._told_ms)
            self._told_ms = self._now_ms()
            self.output.unblock(self._told_ms)
        self._tell_time()

    def _tell_time(self) -> None:
        """Tell the output the time; check who becomes idle by it."""
        assert self.output is not None
        now_ms = self._now_ms()
        passed_ms, self._told_ms = now_ms - self._told_ms, now_ms
        if not self._source_paused and self._timeout_ms is not None:
            for split_id in self.splits:
                if split_id not in self._paused:
                    self._quiet_ms[split_id] += passed_ms
        self.output.advance_time(now_ms)
        if self._timeout_ms is not None:
            self._look_who_is_idle(self.output, self._timeout_ms)
        if len(self.votes_since_ms) < len(self.splits):
            for split_id in self.splits:
                if split_id not in self.idle:
                    self.votes_since_ms.setdefault(split_id, now_ms)

    def _look_who_is_idle(self, output: StreamingOutput, timeout_ms: int) -> None:
        idle = {split_id for split_id, time in output.event_times().items() if time.idle}
        for split_id in idle - self.idle:
            quiet_ms = self._quiet_ms[split_id]
            assert quiet_ms >= timeout_ms, f"{split_id} is idle after {quiet_ms} ms in which it could have been read"
            self.votes_since_ms.pop(split_id, None)
        self.idle = idle

    # What the output tells: `headgate.task.outputs.Downstream` and `ReaderControl`.

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Take rows; they go to the sink as what `read` returns."""

    def on_watermark(self, timestamp_ms: int) -> None:
        """Check that every split that is not idle has reached it, and that it grows."""
        assert self.output is not None and not self.is_final
        if timestamp_ms == MAX_WATERMARK_MS:
            assert not self.splits, f"the watermark is the final one, but {sorted(self.splits)} are being read"
            self.is_final = True
            return
        assert not self.watermarks or timestamp_ms > self.watermarks[-1], "a watermark went back"
        self.watermarks.append(timestamp_ms)
        times = self.output.event_times() if self._timeout_ms is not None else {}
        for split_id in self.splits:
            if split_id not in times or not times[split_id].idle:
                reached_ms = self.highest_ms.get(split_id)
                assert reached_ms is not None and reached_ms >= timestamp_ms, (
                    f"the watermark is {timestamp_ms}, but {split_id}, which is being read, is at {reached_ms}"
                )

    def on_idle(self) -> None:
        """Nobody waits for this reader."""

    def on_active(self) -> None:
        """Somebody does again."""

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Read some splits no more, and others again."""
        self._paused = (self._paused | set(splits_to_pause)) - set(splits_to_resume)

    def on_source_paused(self, paused: bool) -> None:
        """Read nothing, or again."""
        self._source_paused = paused

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        """Note what is to be told."""
        self.reports.append((watermark_ms, slowest))

    def paused(self) -> set[str]:
        """Return the splits that alignment lets wait."""
        return set(self.splits) if self._source_paused else self._paused & self.splits.keys()

    def wants_split(self) -> bool:
        """Return whether it is time to ask for a split."""
        return self._topic.script.pulled and not self.splits and not self.no_more and not self.asking

    def ended(self) -> bool:
        """Return whether nothing will ever come."""
        return self.no_more and not self.splits

    def snapshot(self) -> tuple[SplitState, ...]:
        """Return the splits at their positions."""
        return tuple(SplitState(split.split_id, SPLITS.serialize(split)) for split in self.splits.values())


class ModelWriter:
    """One subtask's end of the sink."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: list[Row] = []
        self._staged: list[tuple[int, bytes]] = []  # by the checkpoint they were staged for
        self._count = 0

    def write(self, rows: list[Row]) -> None:
        """Take rows."""
        self._rows += rows

    def prepare(self, checkpoint_id: int) -> OperatorState:
        """Stage what was written; what was staged before and is not confirmed stands there again."""
        if self._rows:
            self._count += 1
            committable = Committable(f"{self._name}-{self._count}", tuple(self._rows))
            self._staged.append((checkpoint_id, encode_committable(committable)))
            self._rows = []
        return OperatorState(committables=tuple(data for _, data in self._staged))

    def confirm(self, checkpoint_id: int) -> None:
        """Forget what is in a completed checkpoint."""
        self._staged = [(staged, data) for staged, data in self._staged if staged > checkpoint_id]
