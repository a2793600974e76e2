"""A slot's process: the production `SlotMachine` and `SubtaskMachine`, and models of what they command.

Never: decide anything that a machine decides.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, SubtaskId
from headgate.simulation.clockwork import Process
from headgate.simulation.scripted_source import Nudge
from headgate.simulation.task_model import ModelReader, ModelWriter
from headgate.task import slot as sl
from headgate.task import subtask as st

if TYPE_CHECKING:
    from headgate.simulation.cluster import Cluster
    from headgate.simulation.network import Connection

_POLL_MS = 25
_TICK_MS = 1000
_LINGER_MS = 60  # from the order to exit to the end of the process
_NUDGE = pickle.dumps(Nudge())


class Execution:
    """What one deployment of the subtask holds."""

    def __init__(self, number: int, readers: dict[str, ModelReader], writer: ModelWriter) -> None:
        self.number = number
        self.readers = readers
        self.writer = writer
        self.reading = False
        self.ended = False


class SlotProcess(Process):
    """One attempt of a slot, with the one subtask that it runs.

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
        self._choose = cluster.choose
        self._on_exit = on_exit
        self.run, self.slot, self.attempt = run, slot, attempt
        parts, options = cluster.parts, cluster.scenario
        host = f"host-{slot % 2}"
        self.machine = parts.slot(
            run=run, slot=slot, attempt=attempt, host=host, heartbeat_timeout_ms=options.heartbeat_timeout_ms
        )
        sources = {uid: topic.script.reassigns for uid, topic in cluster.topics.items()}
        self.subtask = parts.subtask(SubtaskId(0, slot), sources=sources, host=host)
        self.execution: Execution | None = None
        self._connections: dict[int, Connection] = {}
        self._wake_ms: int | None = None
        self.crash_in: int | None = None
        """After how many more actions the process dies; None: it does not."""
        self.decline_next = self.fail_at_snapshot = False

    def start(self) -> None:
        """Begin."""
        self._clock.after(_TICK_MS, self, self._tick)
        self._tell_slot(sl.SlotStarted())

    def forget_faults(self) -> None:
        """Let nothing go wrong that has not yet."""
        self.crash_in, self.decline_next, self.fail_at_snapshot = None, False, False

    def fail(self) -> None:
        """Let the user's function raise."""
        failed = st.SomethingFailed(msg.ErrorReport(error_type="ValueError", message="a fault"))
        if self.execution is not None:
            self._clock.after(self._choose.randrange(60), self, self._tell_subtask, failed)  # another part of it
            self._tell_subtask(failed)

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
            if not self._acts(action):
                return
            match action:
                case sl.OpenStream(connection=number):
                    self._clock.after(1 + self._choose.randrange(20), self, self._connect, number)
                case sl.SendEnvelope(connection=number, envelope=envelope):
                    self._cluster.send_to_driver(self._connections[number], envelope)
                case sl.Deliver(letter=letter):
                    self._tell_subtask(st.LetterCame(letter))  # type: ignore[arg-type]
                case sl.ExitSlot(reason=reason):
                    self._exit(reason)
                    return
                case _:
                    assert_never(action)
        self._arm()

    def _tell_subtask(self, event: st.Event) -> None:
        self._cluster.note(self, event)
        actions = self.subtask.handle(event, self._clock.now_ms)
        self._cluster.check(self.subtask)
        for action in actions:
            if not self._acts(action):
                return
            self._carry_out(action)

    def _acts(self, action: Any) -> bool:
        """Return whether the process lives long enough for the action."""
        if not self.alive:
            return False
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self._cluster.crash_slot(self)
                return False
        self._cluster.note_action(self, action)
        return True

    def _carry_out(self, action: st.Action) -> None:
        execution = self.execution
        match action:
            case st.OpenOperators():
                self._open()
            case st.CloseAll():
                self._close()
            case st.Post(letter=letter):
                self._tell_slot(sl.LetterPosted(letter))
            case st.AddSplits(source=uid, splits=splits):
                assert execution is not None
                execution.readers[uid].add(splits)
                self._cluster.splits_added(self, uid, splits)
                self._report(execution)
            case st.TellNoMoreSplits(source=uid):
                assert execution is not None
                execution.readers[uid].no_more = True
            case st.StartReading() | st.ResumeReading():
                assert execution is not None
                execution.reading = True
                self._clock.after(self._choose.randrange(_POLL_MS), self, self._poll, execution)
            case st.TakeSnapshot():
                self._snapshot(action)
            case st.NotifyOperators(checkpoint_id=checkpoint_id):
                assert execution is not None
                execution.writer.confirm(checkpoint_id)
            case st.HandEvent(source=uid):
                self._answer_event(uid)
            case st.SetUnassigned(source=uid, event_time_ms=event_time_ms):
                assert execution is not None
                execution.readers[uid].set_unassigned(event_time_ms)
                self._report(execution)
            case st.Announce(source=uid):
                assert execution is not None
                execution.readers[uid].announce(action.max_watermark_ms, action.others_ms)
                self._report(execution)
            case _:
                assert_never(action)

    def _answer_event(self, uid: str) -> None:
        """Let the reader do something about its enumerator's event, at times."""
        assert self.execution is not None
        reader = self.execution.readers[uid]
        if self._choose.random() < 0.3:
            self._tell_subtask(st.EventMade(uid, _NUDGE))
        elif reader.wants_split():
            reader.asking = True
            self._tell_subtask(st.RequestMade(uid))

    def _open(self) -> None:
        number = self.subtask.execution
        now_ms = lambda: self._clock.now_ms  # noqa: E731
        readers = {uid: ModelReader(uid, topic, now_ms) for uid, topic in self._cluster.topics.items()}
        writer = ModelWriter(f"r{self.run}-s{self.slot}-a{self.attempt}-e{number}")
        self.execution = Execution(number, readers, writer)
        for uid, reader in readers.items():
            if reader.wants_split() and self._choose.random() < 0.3:
                reader.asking = True
                self._clock.after(0, self, self._at_start, self.execution, st.RequestMade(uid))
            if self._choose.random() < 0.1:
                self._clock.after(0, self, self._at_start, self.execution, st.EventMade(uid, _NUDGE))
        self._clock.after(self._choose.randrange(30), self, self._opened, self.execution)

    def _at_start(self, execution: Execution, event: st.Event) -> None:
        if self.execution is execution:
            self._tell_subtask(event)

    def _opened(self, execution: Execution) -> None:
        if self.execution is execution:
            self._tell_subtask(st.OperatorsOpened())

    def _close(self) -> None:
        execution, self.execution = self.execution, None
        if execution is not None:
            self._tell_slot(sl.SubtaskEnded(0, execution.number))

    def _poll(self, execution: Execution) -> None:
        """Read a little of every source, and come back."""
        if self.execution is not execution or not execution.reading:
            return
        for uid, reader in execution.readers.items():
            self._cluster.rows_wanted(self, reader)
            rows, ended = reader.read(self._choose)
            self._cluster.rows_read(self, reader, rows)
            execution.writer.write(rows)
            if ended is not None:
                self._tell_subtask(st.SplitsEnded(uid, (ended,)))
            if reader.ended():
                reader.end()
            self._report(execution)
            if self.execution is execution and reader.wants_split():
                reader.asking = True
                self._tell_subtask(st.RequestMade(uid))
            if self.execution is execution and self._choose.random() < 0.01:
                self._tell_subtask(st.EventMade(uid, _NUDGE))
            if self.execution is not execution or not self.alive:
                return
        if all(reader.ended() for reader in execution.readers.values()):
            execution.reading, execution.ended = False, True
            self._tell_subtask(st.AllInputEnded())
            return
        self._clock.after(1 + self._choose.randrange(2 * _POLL_MS), self, self._poll, execution)

    def _report(self, execution: Execution) -> None:
        """Post what outputs have to tell their alignment groups."""
        for uid, reader in execution.readers.items():
            reports, reader.reports = reader.reports, []
            for watermark_ms, slowest in reports:
                if self.execution is execution and self.alive and self.subtask.state != "opening":
                    self._tell_subtask(st.WatermarkFound(uid, watermark_ms, slowest))

    def _snapshot(self, action: st.TakeSnapshot) -> None:
        execution = self.execution
        assert execution is not None
        if action.drain or action.suspend:
            execution.reading = False
        splits = {uid: reader.snapshot() for uid, reader in execution.readers.items()}
        operators = {"sink": execution.writer.prepare(action.checkpoint_id)}
        made: st.Event = st.SnapshotMade(action.checkpoint_id, splits, operators)
        if self.decline_next:
            self.decline_next, made = False, st.SnapshotFailed(action.checkpoint_id, "a fault")
        if self.fail_at_snapshot:
            self.fail_at_snapshot = False
            self._clock.after(1, self, self.fail)
        slow_ms = 60 if self._cluster.calm else 350
        self._clock.after(self._choose.choice((1, 10, 60, slow_ms)), self, self._tell_subtask, made)

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

    def _arm(self) -> None:
        due_ms = self.machine.next_time_ms()
        if due_ms is not None and (self._wake_ms is None or due_ms < self._wake_ms):
            self._wake_ms = due_ms
            self._clock.at(max(due_ms, self._clock.now_ms), self, self._wake, due_ms)

    def _wake(self, due_ms: int) -> None:
        if self._wake_ms == due_ms:
            self._wake_ms = None
            self._tell_slot(sl.SlotTimePassed())
