"""A subtask in a slot's process: a production `Subtask` whose turns a `SimulatedThread` takes.

Never: decide anything: this is `headgate.runtime.subtask_thread.SubtaskRunner`, and what users and connectors write
around it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.protocol import messages as msg
from headgate.protocol.operator_context import OperatorContext
from headgate.runtime import execution as runtime
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail
from headgate.runtime.subtask import Subtask
from headgate.simulation.clockwork import Process
from headgate.simulation.durable import Row
from headgate.simulation.lent_reader import LentReader
from headgate.simulation.memory import check_memory
from headgate.simulation.scripted_reader import Restored, ScriptedReader
from headgate.simulation.scripted_sink import ScriptedWriter
from headgate.simulation.scripted_source import ScriptedSource
from headgate.simulation.simulated_thread import SimulatedThread
from headgate.simulation.slot_services import FAULT, SlotStorage
from headgate.simulation.world import World
from headgate.source import InputStatus, SourceReaderContext
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.exchange.input_gate import InputGate
from headgate.task.reader_output import Downstream, StreamingOutput

_EXPECTED = (FAULT, "The input was ended for checkpoint", "The channel of")
"""How errors begin with which a subtask may fail: a drain was not completed; a channel is broken."""


class SlotOfSubtasks(Process):
    """The process that subtasks are in, as they see it."""

    cluster: World
    run: int
    slot: int
    attempt: int
    storage: SlotStorage

    def post(self, message: msg.FromSlot) -> None:
        """Send a subtask's message."""
        raise NotImplementedError

    def subtask_ended(self, stage: int, execution: int) -> None:
        """Note that an execution of a subtask is closed."""
        raise NotImplementedError


class Execution:
    """What one deployment of a subtask opened."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.readers: dict[str, ScriptedReader] = {}
        self.is_tapped = False
        self.drains = False
        """Whether its input is ended before its splits are."""
        self.passable_ms: int | None = None
        """Since when barriers that pass rows can: it is connected, what it recovers is read, its sink had room."""
        self.worked_ms: float | None = None
        """When its functions got rows first: until then it is not known what a row costs."""
        self.at_head_ms: dict[int, int] = {}
        """By checkpoint: since when its barrier is at the head of all channels in which it keeps its place."""


class _Tap:
    """Looks at what a reader's output lets through, on its way to the chain."""

    def __init__(
        self, execution: Execution, reader: ScriptedReader, output: StreamingOutput, downstream: Downstream
    ) -> None:
        self._execution = execution
        self._reader = reader
        self._output = output
        self._downstream = downstream
        self.on_idle = downstream.on_idle
        self.on_active = downstream.on_active

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Note how far a split is, also with rows that another reader emitted."""
        self._reader.note_times(split_id, batch.column(0).cast(pa.int64()).to_pylist())
        self._downstream.on_batch(batch, split_id)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Check that every split that is not idle has reached it, and that it grows."""
        reader = self._reader
        assert not reader.is_final, f"a watermark comes after the final one of {reader.uid}"
        if timestamp_ms == MAX_WATERMARK_MS:
            assert self._execution.drains or not reader.splits, (
                f"the watermark is the final one, but {sorted(reader.splits)} are being read"
            )
            reader.is_final = True
        else:
            assert not reader.watermarks or timestamp_ms > reader.watermarks[-1], "a watermark went back"
            reader.watermarks.append(timestamp_ms)
            times = self._output.event_times()
            for split_id in reader.splits:
                if split_id not in times or not times[split_id].idle:
                    reached_ms = reader.highest_ms.get(split_id)
                    assert reached_ms is not None and reached_ms >= timestamp_ms, (
                        f"the watermark is {timestamp_ms}, but {split_id}, which is being read, is at {reached_ms}"
                    )
        self._downstream.on_watermark(timestamp_ms)


class SubtaskProcess:
    """One subtask of a slot.

    Parameters
    ----------
    slot
        The process that it is in.
    thread
        The thread that takes its turns.
    stage
        The stage's number.
    place, services
        As for `Subtask`.
    """

    def __init__(
        self, slot: SlotOfSubtasks, thread: SimulatedThread, stage: int, place: SlotPlace, services: dict[str, Any]
    ) -> None:
        self._slot = slot
        self._cluster = cluster = slot.cluster
        self._clock = cluster.clock
        self.choose = cluster.choose
        self.stage = stage
        self._thread = thread
        self.mailbox = thread.new_mailbox(self)
        self.subtask = Subtask(
            cluster.definition, stage, place,
            SlotServices(work_ms=self._work_ms, wall_clock_ms=self.now_ms, **services),
            self.mailbox, self.now_ms, self._post, self._on_ended, slot.storage.read_state,
        )  # fmt: skip
        self.execution: Execution | None = None
        self._delivery = random.Random(f"delivery {cluster.scenario.seed} {slot.name} {stage}")
        self._has_started = False
        self._overlooked: set[str] = set()
        self.decline_next = self.fail_at_snapshot = self.lose_next = False
        inputs = cluster.definition.graph.stages[stage].inputs
        self._always_aligned = {uid for uid, exchange in inputs.items() if not exchange.supports_unaligned}
        sources = cluster.definition.graph.stages[stage].sources
        self._counts_quiet = any(source.watermark_strategy is not None for source in sources)
        self._spent: tuple[int, msg.TimeSpent] | None = None  # what was reported last, and of which execution
        self._counted_ms: int | None = None  # up to when it is counted how long splits have been silent

    def fail(self) -> None:
        """Let the user's function raise, and something else a little later; or the client of a reader."""
        if self.execution is not None:
            for reader in self.execution.readers.values():
                if isinstance(reader, LentReader) and self.choose.random() < 0.5 and reader.fail():
                    return
            self.mailbox.post(Mail(_raise))
            self._clock.after(self.choose.randrange(60), self._slot, self.mailbox.post, Mail(_raise))

    def deliver(self, message: Any) -> None:
        """Take a message of the coordinator's."""
        execution = self.execution
        if execution is not None and message.execution == execution.number:
            match message:
                case msg.UnassignedWork(source=source, event_time_ms=event_time_ms) if source in execution.readers:
                    execution.readers[source].unassigned_ms = event_time_ms
                case msg.TriggerCheckpoint(kind=kind):
                    execution.drains = execution.drains or kind is msg.CheckpointKind.DRAIN
                    self._cluster.barrier_ordered(self, message)
        if not self._has_started:
            self._has_started = True
            self.subtask.start()
        self.subtask.deliver(message)

    def _post(self, message: msg.FromSlot) -> None:
        if isinstance(message, msg.SubtaskFailed) and not self._is_expected(message.error):
            self._cluster.violated(message.error)
        if isinstance(message, msg.SubtaskProgress) and message.time is not None:
            self._check_time(message.execution, message.time)
        self._slot.post(message)

    def _check_time(self, execution: int, spent: msg.TimeSpent) -> None:
        """Check that no time of an execution's is counted twice, or taken back."""
        waited_ms = spent.back_pressured_ms + spent.idle_ms
        assert 0 <= waited_ms <= spent.elapsed_ms + 1 and 0 <= spent.paused_ms <= spent.elapsed_ms + 1, spent
        last, self._spent = self._spent, (execution, spent)
        if last is not None and last[0] == execution:
            for name in spent.__struct_fields__:
                assert getattr(spent, name) >= getattr(last[1], name), f"{name} fell: {last[1]}, {spent}"

    def _is_expected(self, error: msg.ErrorReport) -> bool:
        excused = self._cluster.storage.files.excuses(error.error_type, error.message)
        # Who was frozen, and is replaced, may look for files of a checkpoint that is gone meanwhile.
        late = error.error_type == "CorruptStateError" and self._cluster.is_replaced(self._slot)
        return excused or late or error.message.startswith(_EXPECTED)

    def _on_ended(self, execution: int) -> None:
        self.execution = None
        self._slot.subtask_ended(self.stage, execution)

    # Turns (`Member`).

    def turn(self) -> bool:
        """Take a turn, if there is anything to do; return whether there may be more at once."""
        if not (self._slot.alive and self.subtask.is_due(self.now_ms())):
            return False  # it may have died in the turn of another one
        self.count_quiet()
        self._cluster.acting = self
        try:
            return self.subtask.turn(self.now_ms())
        finally:
            self._cluster.acting = None

    def check_woken(self, written: bytes) -> None:
        """Check that what wakes a subtask that waits has been written into the pipe."""
        assert written or not self.mailbox.has_mail, f"a mail did not wake subtask {self.slot}, which waits"
        self._check_signals(written)

    def _check_signals(self, written: bytes) -> None:
        """Check that rows which came to be polled wake the subtask, or have by the next time it wakes."""
        running, overlooked = self.subtask.execution, set[str]()
        if running is not None and self.execution is not None and not written:
            for uid, each in running.inputs.items():
                reader = self.execution.readers.get(uid)
                if isinstance(reader, LentReader) and each.status is InputStatus.NOTHING_AVAILABLE:
                    overlooked |= {uid} if reader.overlooks_rows() else set()
        again, self._overlooked = self._overlooked & overlooked, overlooked
        assert not again, f"no signal of rows of {again} woke subtask {self.slot}, which waits"

    # What its query opens, and what surrounds it (`Surroundings`, `Machine`).

    def _opened(self) -> Execution:
        number = self.subtask.number
        if self.execution is None or self.execution.number != number:
            self.execution = Execution(number)
        return self.execution

    def create_reader(self, source: ScriptedSource, context: SourceReaderContext) -> ScriptedReader:
        """Make a reader of the subtask."""
        uid = source.topic.script.uid
        of = LentReader if source.topic.script.fetches else ScriptedReader
        reader = self._opened().readers[uid] = of(source, context, self)
        return reader

    def create_writer(self, context: OperatorContext) -> ScriptedWriter:
        """Make the sink's writer of the subtask."""
        execution, slot = self._opened(), self._slot
        name = f"r{slot.run}-s{slot.slot}-a{slot.attempt}-e{execution.number}"
        return ScriptedWriter(name, context, self)

    def now_ms(self) -> int:
        """See `Surroundings`."""
        return self._clock.now_ms

    def _work_ms(self) -> float:
        return self._clock.now_ms + self._thread.worked_ms

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """See `Surroundings`."""
        self._clock.after(delay_ms, self._slot, what)

    def work(self, rows: int, *, at_source: bool) -> None:
        """See `Surroundings`."""
        scenario = self._cluster.scenario
        row_ms = scenario.source_row_ms if at_source else scenario.row_ms
        if self.execution is not None and self.execution.worked_ms is None:
            self.execution.worked_ms = self._work_ms()
        self._thread.worked_ms += rows * (min(row_ms, 5) if self._cluster.calm else row_ms)

    def uid_of(self, split_id: str) -> str:
        """See `Surroundings`."""
        return self._cluster.uid_of[split_id]

    def key_group(self, key: int) -> int:
        """See `Surroundings`."""
        return self._cluster.key_groups[key]

    def split_group(self, split_id: str) -> int:
        """See `Surroundings`."""
        return self._cluster.split_groups[split_id]

    @property
    def is_hurried(self) -> bool:
        """See `Surroundings`."""
        return self._cluster.calm and not (self._cluster.scenario.row_ms or self._cluster.scenario.source_row_ms)

    @property
    def reads_slowly(self) -> bool:
        """See `Surroundings`."""
        return self._cluster.scenario.source_row_ms > 0

    def rows_of_key(self, split_id: str, key: int, first: int, last: int) -> int:
        """See `Surroundings`."""
        return self._cluster.topics[self.uid_of(split_id)].rows_of_key(key, first, last)

    @property
    def excuses_late(self) -> bool:
        """See `Surroundings`."""
        return self._cluster.excuses_late

    @property
    def is_in_time(self) -> bool:
        """See `Surroundings`."""
        return self._cluster.scenario.in_time

    @property
    def loses_files(self) -> bool:
        """See `Surroundings`."""
        return self._cluster.scenario.loses_files

    def snapshot_taken(self, checkpoint_id: int) -> None:
        """See `Surroundings`."""
        self._cluster.snapshot_taken(self, checkpoint_id)
        assert self.subtask.execution is not None
        check_memory(self.subtask.execution, self._cluster.scenario.recovery_bytes)

    def restored(self) -> Restored:
        """See `Surroundings`."""
        assert self.subtask.execution is not None
        deployed, storage = self.subtask.execution.context.deployed, self._cluster.storage
        run, positions = storage.complete.get(deployed.checkpoint_id, (0, {}))
        stored = storage.copies.get((run, deployed.checkpoint_id), {})
        copies = stored[self._slot.slot % len(stored)] if stored else {}
        return Restored(positions, deployed.relocated, copies)

    def copies_stored(self, checkpoint_id: int, copies: dict[str, int]) -> None:
        """See `Surroundings`."""
        stored = self._cluster.storage.copies.setdefault((self.run, checkpoint_id), {})
        stored[self._slot.slot] = dict(copies)

    def copies_ended(self, copies: dict[str, int]) -> None:
        """See `Surroundings`."""
        others = self._cluster.ended_copies.setdefault((self.run, self.generation), copies)
        assert copies == others, f"copies: subtask {self.slot} ends with {copies}, another one with {others}"

    def begins_anywhere(self, split_id: str) -> bool:
        """See `Surroundings`."""
        return self._cluster.topics[self.uid_of(split_id)].script.latest

    @property
    def run(self) -> int:
        """The run that it is of."""
        return self._slot.run

    @property
    def slot(self) -> int:
        """Its number."""
        return self._slot.slot

    @property
    def generation(self) -> int:
        """The generation of its deployment."""
        assert self.subtask.execution is not None
        return self.subtask.execution.context.deployed.generation

    def passable_ms(self, checkpoint_id: int) -> int | None:
        """Return since when nothing keeps the barriers of a checkpoint from reaching it; None: that is not known."""
        execution = self.execution
        if execution is None or execution.passable_ms is None:
            return None
        at_head_ms = execution.at_head_ms.get(checkpoint_id, self.now_ms()) if self._always_aligned else 0
        return max(execution.passable_ms, at_head_ms)

    def room_made(self) -> None:
        """See `Surroundings`."""
        if self.execution is not None and self.execution.passable_ms is not None:
            self.execution.passable_ms = self.now_ms()

    def declines(self) -> bool:
        """See `Surroundings`."""
        declines, self.decline_next = self.decline_next, False
        if self.fail_at_snapshot:
            self.fail_at_snapshot = False
            self._clock.after(1, self._slot, self.fail)
        return declines

    def loses_rows(self) -> bool:
        """See `Surroundings`."""
        loses, self.lose_next = self.lose_next, False
        return loses

    def leaves_a_row(self) -> bool:
        """See `Surroundings`."""
        return self._delivery.random() < 0.1

    def snapshot_ms(self) -> int:
        """See `Surroundings`."""
        return self.choose.choice((1, 10, 60, 60 if self._cluster.calm else 350))

    def splits_added(self, reader: ScriptedReader, split_ids: set[str]) -> None:
        """See `Surroundings`."""
        self._cluster.splits_added(self._slot, reader.uid, split_ids)

    def rows_wanted(self, reader: ScriptedReader) -> None:
        """See `Surroundings`."""
        self.count_quiet()
        self.look()  # the turn may have found splits idle before it reads: they have no vote any more
        self._cluster.rows_wanted(self._slot, reader)

    def rows_read(self, reader: ScriptedReader, rows: list[Row]) -> None:
        """See `Surroundings`."""
        self._cluster.rows_read(self._slot, reader, rows)

    def count_quiet(self) -> None:
        """See `Surroundings`."""
        execution, running = self.execution, self.subtask.execution
        if execution is not None and self._counts_quiet and self._counted_ms != self._clock.now_ms:
            self._counted_ms = self._clock.now_ms
            has_room = running is None or _has_room(running)
            for reader in execution.readers.values():
                reader.count_quiet(has_room)

    def _look_at_gate(self, execution: Execution, gate: InputGate) -> None:
        """Note since when barriers can reach the subtask, and have in channels that keep them in their place."""
        if execution.passable_ms is None and gate.recovery != "reading":
            is_connected = all(each.state != "unconnected" for each in gate._channels.values())
            execution.passable_ms = self.now_ms() if is_connected else None
        if self._always_aligned:
            checkpoint = gate._checkpoint
            missing = (each for each in gate._channels if each.exchange in self._always_aligned)
            if all(each in checkpoint.at_head for each in missing):
                execution.at_head_ms.setdefault(checkpoint.newest, self.now_ms())

    def look(self) -> None:
        """Look at what a turn led to."""
        running = self.subtask.execution
        if running is None:
            return
        execution = self._opened()
        if running.inputs.keys() != execution.readers.keys():
            return
        if running._gate is not None:
            self._look_at_gate(execution, running._gate._gate)
        if not running.inputs:
            return
        outputs = {uid: each.output for uid, each in running.inputs.items()}
        if not execution.is_tapped:
            execution.is_tapped = True
            for uid, output in outputs.items():
                output._downstream = _Tap(execution, execution.readers[uid], output, output._downstream)
        for uid, output in outputs.items():
            self._cluster.looked(execution.readers[uid], output)


def _has_room(running: runtime.Execution) -> bool:
    try:
        return running.has_room
    except OSError:  # its sink is broken, of which it has not heard
        return False


def _raise() -> None:
    raise ValueError(FAULT)
