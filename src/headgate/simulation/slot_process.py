"""A slot's process: the production `SlotMachine`, and a production `Subtask` with its readers, chain and snapshots.

Never: decide anything: this is `headgate.runtime.slot.SlotRuntime` and `SubtaskThread` without threads and sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope
from headgate.protocol.state import SplitState
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Letter, Mailbox
from headgate.runtime.subtask import Subtask
from headgate.simulation.clockwork import Process
from headgate.simulation.scripted_query import Observed, ScriptedReader, ScriptedWriter
from headgate.simulation.scripted_source import SPLITS, ScriptedSplit
from headgate.source import SourceReaderContext
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task import slot as sl

if TYPE_CHECKING:
    from headgate.protocol.operator_context import OperatorContext
    from headgate.simulation.cluster import Cluster
    from headgate.simulation.durable import Row
    from headgate.simulation.network import Connection
    from headgate.simulation.scripted_source import ScriptedSource
    from headgate.task.outputs import Downstream, StreamingOutput

_TICK_MS = 1000
FAULT = "a fault"
_EXPECTED = (FAULT, "The input was ended for checkpoint")
"""How errors begin with which a subtask may fail: the second is that of a drain that was not completed."""
_LINGER_MS = 60  # from the order to exit to the end of the process


class SimulatedMailbox(Mailbox):
    """A mailbox whose owner is woken by the cluster's clock."""

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        super().__init__(now_ms)
        self._wake = wake

    def post(self, letter: Letter) -> None:
        """Queue a letter, and have its owner look."""
        super().post(letter)
        self._wake()


class Execution:
    """What one deployment of a subtask opened."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.readers: dict[str, ScriptedReader] = {}
        self.writer: ScriptedWriter | None = None
        self.function: Observed | None = None
        self.is_tapped = False
        self.drains = False
        """Whether its input is ended before its splits are."""


class _Tap:
    """Looks at what a reader's output lets through, on its way to the chain."""

    def __init__(
        self, execution: Execution, reader: ScriptedReader, output: StreamingOutput, downstream: Downstream
    ) -> None:
        self._execution = execution
        self._reader = reader
        self._output = output
        self._downstream = downstream
        self.on_batch = downstream.on_batch
        self.on_idle = downstream.on_idle
        self.on_active = downstream.on_active

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


class SlotProcess(Process):
    """One attempt of a slot, with the subtask that it runs.

    Parameters
    ----------
    cluster
        Where it lives.
    run, slot, attempt
        Who it is.
    on_exit
        Called when it ends by itself, with the reason of an error or None.
    """

    def __init__(
        self, cluster: Cluster, run: int, slot: int, attempt: int, on_exit: Callable[[SlotProcess, str | None], None]
    ) -> None:
        super().__init__(f"slot {slot}.{attempt} of run {run}")
        self._cluster = cluster
        self._clock = cluster.clock
        self.choose = cluster.choose
        self._on_exit = on_exit
        self.run, self.slot, self.attempt = run, slot, attempt
        host = f"host-{slot % 2}"
        self.machine = cluster.parts.slot(
            run=run, slot=slot, attempt=attempt, host=host,
            heartbeat_timeout_ms=cluster.scenario.heartbeat_timeout_ms,
        )  # fmt: skip
        self._mailbox = SimulatedMailbox(self.now_ms, self._wake_subtask)
        self.subtask = Subtask(
            cluster.definition, 0,
            SlotPlace(run=run, slot=slot, attempt=attempt, host=host, query_id="simulated", time_zone="UTC",
                      checkpoint_location=""),
            SlotServices(work_ms=self._work_ms, wall_clock_ms=self.now_ms),
            self._mailbox, self.now_ms, self._post, self._on_ended, cluster.storage.read_state,
        )  # fmt: skip
        self.execution: Execution | None = None
        self._connections: dict[int, Connection] = {}
        self._slot_wake_ms: int | None = None
        self._turn_ms: int | None = None  # when the next turn of the subtask is
        self._is_in_turn = self._has_started = self._has_exited = False
        self.crash_in: int | None = None
        """After how many more of its messages and orders the process dies; None: it does not."""
        self._decline_next = self._fail_at_snapshot = False

    def start(self) -> None:
        """Begin."""
        self._clock.after(_TICK_MS, self, self._tick)
        self._tell_slot(sl.SlotStarted())

    # Faults.

    def forget_faults(self) -> None:
        """Let nothing go wrong that has not yet."""
        self.crash_in, self._decline_next, self._fail_at_snapshot = None, False, False

    def decline(self, *, fail: bool) -> None:
        """Let the next snapshot fail, and perhaps the subtask after it."""
        self._decline_next, self._fail_at_snapshot = True, fail

    def fail(self) -> None:
        """Let the user's function raise, and something else a little later."""
        if self.execution is not None:
            self._mailbox.post(Letter(_raise))
            self._clock.after(self.choose.randrange(60), self, self._mailbox.post, Letter(_raise))

    # The slot.

    @property
    def connection(self) -> Connection | None:
        """The connection that is up, if there is one."""
        up = [each for each in self._connections.values() if each.up]
        return up[-1] if up else None

    def _tell_slot(self, event: sl.Event) -> None:
        self._cluster.note(self, event)
        actions = self.machine.handle(event, self._clock.now_ms)
        self._cluster.check(self.machine)
        for action in actions:
            if not self._survives():
                return
            self._cluster.note_action(self, action)
            match action:
                case sl.OpenStream(connection=number):
                    self._clock.after(1 + self.choose.randrange(20), self, self._connect, number)
                case sl.SendEnvelope(connection=number, envelope=envelope):
                    self._cluster.send_to_driver(self._connections[number], envelope)
                case sl.Deliver(letter=letter):
                    self._deliver(letter)
                case sl.ExitSlot(reason=reason):
                    self._exit(reason)
                    return
                case _:
                    assert_never(action)
        self._arm_slot()

    def _survives(self) -> bool:
        """Return whether the process lives long enough for what comes next."""
        if self.alive and self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self._cluster.crash_slot(self)
        return self.alive

    def _connect(self, number: int) -> None:
        for older in self._connections.values():
            self._cluster.break_connection(older)
        connection = self._cluster.connect(self)
        if connection is None:
            self._tell_slot(sl.StreamBroken(number))
            return
        self._connections[number] = connection
        self._tell_slot(sl.StreamOpened(number))

    def receive(self, connection: Connection, envelope: Envelope) -> None:
        """Take an envelope of the driver."""
        self._tell_slot(sl.EnvelopeReceived(self._number_of(connection), envelope))

    def lose(self, connection: Connection) -> None:
        """Notice that a connection broke."""
        self._tell_slot(sl.StreamBroken(self._number_of(connection)))

    def _number_of(self, connection: Connection) -> int:
        return next(number for number, each in self._connections.items() if each is connection)

    def _exit(self, reason: str | None) -> None:
        self._has_exited = True
        for connection in self._connections.values():
            self._cluster.break_connection(connection)
        self._clock.after(_LINGER_MS, self, self._end, reason)

    def _end(self, reason: str | None) -> None:
        self.alive = False
        self._on_exit(self, reason)

    def _tick(self) -> None:
        """Look at the clock now and then, due or not, as the real slot does."""
        self._tell_slot(sl.SlotTimePassed())
        self._clock.after(_TICK_MS, self, self._tick)

    def _arm_slot(self) -> None:
        due_ms = self.machine.next_time_ms()
        if due_ms is not None and (self._slot_wake_ms is None or due_ms < self._slot_wake_ms):
            self._slot_wake_ms = due_ms
            self._clock.at(max(due_ms, self._clock.now_ms), self, self._wake_slot, due_ms)

    def _wake_slot(self, due_ms: int) -> None:
        if self._slot_wake_ms == due_ms:
            self._slot_wake_ms = None
            self._tell_slot(sl.SlotTimePassed())

    # The subtask.

    def _work_ms(self) -> float:
        return float(self._clock.now_ms)

    def _deliver(self, message: msg.ToSlot) -> None:
        execution = self.execution
        if execution is not None and message.execution == execution.number:
            match message:
                case msg.UnassignedWork(source=source, event_time_ms=event_time_ms) if source in execution.readers:
                    execution.readers[source].unassigned_ms = event_time_ms
                case msg.TriggerCheckpoint(kind=msg.CheckpointKind.DRAIN):
                    execution.drains = True
        if not self._has_started:
            self._has_started = True
            self.subtask.start()
        self.subtask.deliver(message)

    def _post(self, message: msg.FromSlot) -> None:
        if isinstance(message, msg.SubtaskFailed) and not message.error.message.startswith(_EXPECTED):
            self._cluster.violated(message.error)
        if self._survives():
            self._tell_slot(sl.LetterPosted(message))

    def _on_ended(self, execution: int) -> None:
        self.execution = None
        if self._survives():
            self._tell_slot(sl.SubtaskEnded(0, execution))

    def _wake_subtask(self) -> None:
        """Have the subtask look at its mailbox; a turn that goes on sees to it itself."""
        if not self._is_in_turn:
            self._arm_subtask(self._clock.now_ms)

    def _arm_subtask(self, at_ms: int) -> None:
        if self._turn_ms is None or at_ms < self._turn_ms:
            self._turn_ms = at_ms
            self._clock.at(at_ms, self, self._turn, at_ms)

    def _turn(self, at_ms: int) -> None:
        if self._turn_ms != at_ms or self._has_exited:
            return
        self._turn_ms = None
        self.count_quiet()
        self._cluster.acting, self._is_in_turn = self, True
        try:
            busy = self.subtask.turn()
        finally:
            self._cluster.acting, self._is_in_turn = None, False
        self._look()
        if busy or self._mailbox.has_letters:
            self._arm_subtask(self._clock.now_ms)
        elif (due_ms := self._mailbox.due_ms()) is not None:
            self._arm_subtask(max(due_ms, self._clock.now_ms))

    # What its query opens, and what surrounds it.

    def _opened(self) -> Execution:
        number = self.subtask.number
        if self.execution is None or self.execution.number != number:
            self.execution = Execution(number)
        return self.execution

    def create_reader(self, source: ScriptedSource, context: SourceReaderContext) -> ScriptedReader:
        """Make a reader of the subtask."""
        uid = source.topic.script.uid
        reader = self._opened().readers[uid] = ScriptedReader(uid, source.topic, context, self)
        return reader

    def create_writer(self, context: OperatorContext) -> ScriptedWriter:
        """Make the sink's writer of the subtask."""
        execution = self._opened()
        name = f"r{self.run}-s{self.slot}-a{self.attempt}-e{execution.number}"
        writer = execution.writer = ScriptedWriter(name, self)
        return writer

    def function_opened(self, function: Observed) -> None:
        """Take note of the subtask's function."""
        self._opened().function = function

    def now_ms(self) -> int:
        """See `Surroundings`."""
        return self._clock.now_ms

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """See `Surroundings`."""
        self._clock.after(delay_ms, self, what)

    def uid_of(self, split_id: str) -> str:
        """See `Surroundings`."""
        return self._cluster.uid_of[split_id]

    def declines(self) -> bool:
        """See `Surroundings`."""
        declines, self._decline_next = self._decline_next, False
        if self._fail_at_snapshot:
            self._fail_at_snapshot = False
            self._clock.after(1, self, self.fail)
        return declines

    def snapshot_ms(self) -> int:
        """See `Surroundings`."""
        return self.choose.choice((1, 10, 60, 60 if self._cluster.calm else 350))

    def splits_added(self, reader: ScriptedReader, splits: Sequence[ScriptedSplit]) -> None:
        """See `Surroundings`."""
        states = tuple(SplitState(split.split_id, SPLITS.serialize(split)) for split in splits)
        self._cluster.splits_added(self, reader.uid, states)

    def rows_wanted(self, reader: ScriptedReader) -> None:
        """See `Surroundings`."""
        self._cluster.rows_wanted(self, reader)

    def rows_read(self, reader: ScriptedReader, rows: list[Row]) -> None:
        """See `Surroundings`."""
        self._cluster.rows_read(self, reader, rows)

    def count_quiet(self) -> None:
        """See `Surroundings`."""
        execution = self.execution
        if execution is not None:
            has_room = execution.writer is None or execution.writer.ready() is None
            for reader in execution.readers.values():
                reader.count_quiet(has_room)

    def _look(self) -> None:
        """Look at what a turn led to."""
        execution, running = self.execution, self.subtask.execution
        if execution is None or running is None or not self.alive or running.inputs.keys() != execution.readers.keys():
            return
        outputs = {uid: each.output for uid, each in running.inputs.items()}
        if not execution.is_tapped:
            execution.is_tapped = True
            for uid, output in outputs.items():
                output._downstream = _Tap(execution, execution.readers[uid], output, output._downstream)
        for uid, output in outputs.items():
            self._cluster.looked(execution.readers[uid], output)


def _raise() -> None:
    raise ValueError(FAULT)
