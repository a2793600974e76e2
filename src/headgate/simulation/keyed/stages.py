"""What subtasks of simulated pipelines do with rows: read, hand on, hold, or gather them in windows of event time.

Never: put right what a machine got wrong: a row that comes twice, late, out of order or to the wrong subtask is told at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.protocol.channels import ChannelId, ProducerActive, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.protocol.key_groups import KeyGroupRange, key_group_range
from headgate.protocol.state import ChunkState, KeyedState, OperatorState, ReaderState, SplitState, SubtaskState
from headgate.simulation.keyed.durable import Firing
from headgate.simulation.keyed.rows import Routing, Row, key_group
from headgate.simulation.keyed.scenario import KeyedScenario, SplitScript
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task import input_gate as ig

if TYPE_CHECKING:
    from headgate.simulation.keyed.cluster import KeyedCluster
    from headgate.simulation.keyed.subtask import KeyedSubtask

PASS, HOLD, WINDOWS = "pass", "hold", "windows"
"""The uids of operators."""
WINDOWS_SALT, PASS_SALT = 0, 1
"""Of the exchanges before them."""

Order = dict[tuple[int, int, int], int]
"""By split, key and path: the number of the last row."""


def routing_of(scenario: KeyedScenario, uid: str, parallelism: int) -> Routing:
    """Return who gets which rows of an exchange."""
    plan = scenario.exchanges[uid]
    salt = WINDOWS_SALT if plan.consumer_stage == scenario.stages - 1 else PASS_SALT
    return Routing(plan.kind, salt, parallelism, scenario.max_parallelism, plan.targets)


def source_uid(stage: int) -> str:
    """Return the uid of a stage's source."""
    return f"source-{stage}"


def uids_of(scenario: KeyedScenario, stage: int) -> tuple[str, ...]:
    """Return the uids of what stands in a stage."""
    if stage in scenario.sources:
        return (source_uid(stage),)
    if stage == scenario.stages - 1:
        return (WINDOWS,)
    return (PASS, HOLD) if scenario.holds_at(stage) else (PASS,)


class Stage:
    """What a subtask does with rows.

    Parameters
    ----------
    subtask
        Whose.
    restore
        Its state; None: it starts afresh.
    """

    def __init__(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> None:
        self.subtask: KeyedSubtask = subtask
        self.cluster: KeyedCluster = subtask.cluster
        scenario, deployment = self.cluster.scenario, subtask.deployment
        self.max_parallelism = scenario.max_parallelism
        self.key_groups: KeyGroupRange = key_group_range(
            subtask.id.subtask, deployment.parallelism, scenario.max_parallelism
        )
        self.uids = {uid: plan.kind for uid, plan in scenario.inputs_of(subtask.id.stage).items()}

    def open(self) -> None:
        """Begin."""

    def process(self, channel: ChannelId, rows: Sequence[Row]) -> None:
        """Process rows."""
        raise NotImplementedError

    def on_event_time(self, action: ig.Action) -> None:
        """Take what the gate says of event time."""

    def on_room(self) -> None:
        """Note that there may be room for rows in the output."""

    def snapshot(self, checkpoint_id: int) -> SubtaskState:
        """Return the state."""
        raise NotImplementedError

    def on_completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete."""

    def on_aborted(self, checkpoint_id: int) -> None:
        """Note that a checkpoint will not complete."""

    def check_order(self, last: Order, row: Row) -> None:
        """Check that a row comes behind those that came the same way before it."""
        way = row.split, row.key, row.path
        before = last.get(way, -1)
        assert before < row.number, (
            f"order: row {row.number} of split {row.split}, key {row.key} comes to {self.subtask.name} behind {before}"
        )
        last[way] = row.number

    def chunks(self, uid: str, restore: SubtaskState | None) -> list[Any]:
        """Return the contents of restored chunks."""
        if restore is None or uid not in restore.keyed:
            return []
        return [self.cluster.storage.get(chunk.handle) for chunk in restore.keyed[uid].chunks]

    def keyed(self, uid: str, checkpoint_id: int, content: Any) -> KeyedState:
        """Return keyed state as a chunk."""
        stage, number = self.subtask.id.stage, self.subtask.id.subtask
        chunk = ChunkState(
            chunk_id=f"{uid}-{checkpoint_id}-{self.subtask.deployment.number}-{stage}-{number}",
            handle=self.cluster.storage.put(content, 1),
            first_key_group=self.key_groups.first,
            last_key_group=self.key_groups.last,
        )
        return KeyedState(chunks=(chunk,))

    def owns(self, key: int, salt: int) -> bool:
        """Return whether a key belongs to the subtask."""
        return key_group(key, salt, self.max_parallelism) in self.key_groups


class SourceStage(Stage):
    """Reads splits in turn; is idle where nothing but pauses is left, and at the end."""

    def __init__(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> None:
        super().__init__(subtask, restore)
        scenario = self.cluster.scenario
        self.uid = source_uid(subtask.id.stage)
        self.scripts = {script.split_id: script for script in scenario.sources[subtask.id.stage]}
        if restore is None:
            own = list(self.scripts)[subtask.id.subtask :: subtask.deployment.parallelism]
            self.positions = dict.fromkeys(own, 0)
        else:
            reader = restore.readers.get(self.uid, ReaderState())
            self.positions = {split.split_id: int(split.data) for split in reader.splits}
        self._turn = list(self.positions)
        self._pauses: dict[str, int | None] = {}
        if scenario.idle_ms:
            self._pauses = {split_id: scenario.pause_of(self.scripts[split_id]) for split_id in self.positions}
        self._idle = False
        self._watermark_ms = MIN_WATERMARK_MS
        self._waits_for_room = False
        self._reads = 0

    def open(self) -> None:
        """Begin to read."""
        self._later(self.cluster.scenario.read_ms)

    def _later(self, delay_ms: int) -> None:
        self.cluster.clock.after(delay_ms, self.subtask, self.subtask.tell, self._read)

    def _left(self, split_id: str) -> SplitScript | None:
        """Return a split's script if it has rows left."""
        script = self.scripts[split_id]
        return script if self.positions[split_id] < script.rows else None

    def _read(self) -> None:
        if self.subtask.input_ended:
            return
        if self.subtask.is_blocked:
            self._waits_for_room = True
            return
        self._turn = [split_id for split_id in self._turn if self._left(split_id)]
        if self._idle:
            self._idle = False
            self._pauses.clear()
            self.subtask.emit_event(ProducerActive())
        elif self.cluster.scenario.idle_ms and all(map(self._pauses_at, self._turn)):
            self._idle = True
            self.subtask.emit_event(ProducerIdle())
            self._later(self.cluster.scenario.idle_ms)
            return
        if not self._turn:
            self._end()
            return
        split_id = next(split_id for split_id in self._turn if not self._pauses_at(split_id))
        self._turn.remove(split_id)
        self._turn.append(split_id)
        script, position = self.scripts[split_id], self.positions[split_id]
        stop = min(script.rows, position + self.cluster.scenario.read_rows)
        rows = [script.row(number) for number in range(position, stop)]
        self.positions[split_id] = stop
        self.subtask.emit(rows)
        if not self.subtask.alive:
            return
        scripts = ((each, self._left(each)) for each in self._turn)
        watermark_ms = min(
            (script.row(self.positions[each]).event_ms for each, script in scripts if script is not None), default=None
        )
        self._reads += 1
        is_time = self._reads % self.cluster.scenario.watermark_reads == 0
        if is_time and watermark_ms is not None and watermark_ms > self._watermark_ms:
            self._watermark_ms = watermark_ms
            self.subtask.emit_event(WatermarkPassed(watermark_ms))
        if self.subtask.alive:
            self._later(self.cluster.scenario.read_ms)

    def _pauses_at(self, split_id: str) -> bool:
        """Return whether a split waits until no other one of the reader has rows left, to be idle with them."""
        return self.positions[split_id] == self._pauses.get(split_id)

    def _end(self) -> None:
        """Say that nothing follows, as a reader does: its watermark is the final one."""
        self.subtask.input_ended = True
        self.subtask.emit_event(WatermarkPassed(MAX_WATERMARK_MS))
        self.subtask.emit_event(ProducerEnded())
        self.cluster.input_ended(self.subtask)

    def on_room(self) -> None:
        """Read on, if it waited for room."""
        if self._waits_for_room and not self.subtask.is_blocked:
            self._waits_for_room = False
            self._later(0)

    def snapshot(self, checkpoint_id: int) -> SubtaskState:
        """Return the positions."""
        splits = tuple(SplitState(split_id, b"%d" % position) for split_id, position in self.positions.items())
        return SubtaskState(readers={self.uid: ReaderState(splits=splits)}, input_ended=self.subtask.input_ended)


class PassStage(Stage):
    """Hands rows on; counts those that a ``hash`` exchange brings, per key, and remembers those of a ``broadcast``.

    Only subtask 0 hands a broadcast's rows on.
    """

    def __init__(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> None:
        super().__init__(subtask, restore)
        self.counts: dict[tuple[str, int], int] = {}
        self.last: Order = {}
        for counts, last in self.chunks(PASS, restore):
            self.counts |= {each: count for each, count in counts.items() if self.owns(each[1], PASS_SALT)}
            self.last |= {way: number for way, number in last.items() if self.owns(way[1], PASS_SALT)}
        self._unkeyed_last: Order = {}
        self.seen: set[tuple[int, int]] = subtask.deployment.seen_of(subtask.id)
        self.watermark_ms = MIN_WATERMARK_MS
        told_to_all = filter(self.cluster.scenario.is_told_to_all, self.uids)
        self._flow = self.cluster.parts.flow(self.uids, told_to_all=told_to_all)
        self._inputs_ms = dict.fromkeys(self.uids, MIN_WATERMARK_MS)
        self._left = set(self.uids)
        self._idle = False

    def process(self, channel: ChannelId, rows: Sequence[Row]) -> None:
        """Count rows, and hand them on."""
        uid = channel.exchange
        kind = self.uids[uid]
        keyed = kind == "hash"
        for row in rows:
            self.check_order(self.last if keyed else self._unkeyed_last, row)
            if keyed:
                assert self.owns(row.key, PASS_SALT), f"{row} is processed by {self.subtask.name}: another's key"
                self.counts[uid, row.key] = self.counts.get((uid, row.key), 0) + 1
            elif kind == "broadcast":
                assert (row.split, row.number) not in self.seen, f"{row} comes to {self.subtask.name} twice"
                self.seen.add((row.split, row.number))
        if kind == "custom":
            wrong = [row for row in rows if self.subtask.deployment.routings[uid].owner(row) != self.subtask.id.subtask]
            assert not wrong, f"{wrong} are processed by {self.subtask.name}: another's rows"
        if rows and (kind != "broadcast" or self.subtask.id.subtask == 0):
            self.hand_on(rows)

    def hand_on(self, rows: Sequence[Row]) -> None:
        """Let rows go on."""
        self.subtask.emit(rows)

    def fire(self) -> None:
        """Emit what belongs before the watermark, which goes on next."""

    def on_event_time(self, action: ig.Action) -> None:
        """Combine the inputs, and tell what follows."""
        match action:
            case ig.AdvanceWatermark(exchange=uid, timestamp_ms=timestamp_ms):
                assert timestamp_ms > self._inputs_ms[uid], f"{action} goes back"
                self._inputs_ms[uid] = timestamp_ms
                self._flow.on_watermark(uid, timestamp_ms)
            case ig.MarkIdle(exchange=uid):
                self._flow.on_idle(uid)
            case ig.MarkActive(exchange=uid):
                self._flow.on_active(uid)
            case ig.EndInput(exchange=uid):
                self._left.remove(uid)
            case _:
                raise AssertionError(action)
        self._follow()
        if not self._left:
            self.subtask.input_ended = True
            self.subtask.emit_event(ProducerEnded())
            self.cluster.input_ended(self.subtask)

    def _follow(self) -> None:
        """Let idleness and the watermark go on, if they moved, as `headgate.runtime.chain` does."""
        if self._flow.is_idle != self._idle:
            self._idle = self._flow.is_idle
            self.subtask.emit_event(ProducerIdle() if self._idle else ProducerActive())
        watermark_ms = self._flow.watermark_ms
        if watermark_ms is not None and watermark_ms > self.watermark_ms and self.subtask.alive:
            self.watermark_ms = watermark_ms
            self.fire()
            self.subtask.emit_event(WatermarkPassed(watermark_ms))

    def snapshot(self, checkpoint_id: int) -> SubtaskState:
        """Return what was counted."""
        operators, keyed = {}, {}
        if self.seen:
            operators[PASS] = OperatorState(items=(self.cluster.storage.put(frozenset(self.seen), 1),))
        if self.counts:
            keyed[PASS] = self.keyed(PASS, checkpoint_id, (dict(self.counts), dict(self.last)))
        return SubtaskState(operators=operators, keyed=keyed, input_ended=self.subtask.input_ended)


class HoldStage(PassStage):
    """Holds rows until the watermark is past them, then hands them on in the order of their event times."""

    def __init__(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> None:
        super().__init__(subtask, restore)
        self.held: list[Row] = []
        self.fired_ms: dict[int, int] = {}
        """By key group: up to where rows were handed on before."""
        for held, fired_ms in self.chunks(HOLD, restore):
            self.held += (row for row in held if self.owns(row.key, PASS_SALT))
            self.fired_ms |= {group: at_ms for group, at_ms in fired_ms.items() if group in self.key_groups}

    def hand_on(self, rows: Sequence[Row]) -> None:
        """Keep rows."""
        for row in rows:
            group = key_group(row.key, PASS_SALT, self.max_parallelism)
            fired_ms = max(self.watermark_ms, self.fired_ms.get(group, MIN_WATERMARK_MS))
            assert row.event_ms >= fired_ms, f"late: {row} at {self.subtask.name}, which is at {fired_ms}"
        self.held += rows

    def fire(self) -> None:
        """Emit the rows that the watermark is past."""
        due = [row for row in self.held if row.event_ms < self.watermark_ms]
        if due:
            self.held = [row for row in self.held if row.event_ms >= self.watermark_ms]
            self.subtask.emit(sorted(due, key=lambda row: row.event_ms))

    def snapshot(self, checkpoint_id: int) -> SubtaskState:
        """Return what was counted, and what is held."""
        state = super().snapshot(checkpoint_id)
        content = tuple(self.held), _fired_ms(self.key_groups, self.watermark_ms, self.fired_ms)
        return msgspec.structs.replace(state, keyed=state.keyed | {HOLD: self.keyed(HOLD, checkpoint_id, content)})


class WindowStage(Stage):
    """Gathers rows per key and window; a window is staged once the watermark is past its end."""

    def __init__(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> None:
        super().__init__(subtask, restore)
        self.window_ms = self.cluster.scenario.window_ms
        self.windows: dict[tuple[int, int], list[Row]] = {}
        self.fired_ms: dict[int, int] = {}
        """By key group: up to where windows fired before."""
        self.watermark_ms = MIN_WATERMARK_MS
        self.last: Order = {}
        for windows, fired_ms, last in self.chunks(WINDOWS, restore):
            self.windows |= {each: list(rows) for each, rows in windows.items() if self.owns(each[1], WINDOWS_SALT)}
            self.fired_ms |= {group: at_ms for group, at_ms in fired_ms.items() if group in self.key_groups}
            self.last |= {way: number for way, number in last.items() if self.owns(way[1], WINDOWS_SALT)}
        self._fired: list[Firing] = []
        self._staged: dict[int, bytes] = {}
        """By the checkpoint that took it: what no completed checkpoint is known to hold."""

    def process(self, channel: ChannelId, rows: Sequence[Row]) -> None:
        """Put rows into their windows."""
        for row in rows:
            self.check_order(self.last, row)
            group = key_group(row.key, WINDOWS_SALT, self.max_parallelism)
            assert group in self.key_groups, f"{row} is processed by {self.subtask.name}: another's key"
            begins_ms = row.event_ms // self.window_ms * self.window_ms
            fired_ms = max(self.watermark_ms, self.fired_ms.get(group, MIN_WATERMARK_MS))
            assert begins_ms + self.window_ms > fired_ms, f"late: {row} at {self.subtask.name}, which is at {fired_ms}"
            self.windows.setdefault((begins_ms, row.key), []).append(row)

    def on_event_time(self, action: ig.Action) -> None:
        """Let windows fire."""
        match action:
            case ig.AdvanceWatermark(timestamp_ms=timestamp_ms):
                assert timestamp_ms > self.watermark_ms, f"{action} goes back"
                self.watermark_ms = timestamp_ms
                for (begins_ms, key), rows in list(self.windows.items()):
                    if begins_ms + self.window_ms <= timestamp_ms:
                        del self.windows[begins_ms, key]
                        self._fired.append((begins_ms, key, tuple(rows)))
            case ig.EndInput():
                self.subtask.input_ended = True
                self.cluster.input_ended(self.subtask)
            case ig.MarkIdle() | ig.MarkActive():
                pass
            case _:
                raise AssertionError(action)

    def snapshot(self, checkpoint_id: int) -> SubtaskState:
        """Return the open windows, and what was staged for no completed checkpoint."""
        if self._fired:
            self._staged[checkpoint_id] = self.cluster.table.stage(tuple(self._fired))
            self._fired = []
        fired_ms = _fired_ms(self.key_groups, self.watermark_ms, self.fired_ms)
        windows = {each: tuple(rows) for each, rows in self.windows.items()}
        return SubtaskState(
            operators={WINDOWS: OperatorState(committables=tuple(self._staged.values()))},
            keyed={WINDOWS: self.keyed(WINDOWS, checkpoint_id, (windows, fired_ms, dict(self.last)))},
            input_ended=self.subtask.input_ended,
        )

    def on_completed(self, checkpoint_id: int) -> None:
        """Forget what is complete."""
        self._staged = {each: name for each, name in self._staged.items() if each > checkpoint_id}


def _fired_ms(key_groups: KeyGroupRange, watermark_ms: int, before_ms: dict[int, int]) -> dict[int, int]:
    """Return up to where each key group has fired, now or before it was restored."""
    return {
        group: max(watermark_ms, before_ms.get(group, MIN_WATERMARK_MS))
        for group in range(key_groups.first, key_groups.last + 1)
    }
