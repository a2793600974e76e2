"""A slot's process: the production `SlotMachine`, its subtasks, and what they share.

Never: decide anything: this is `headgate.runtime.slot.SlotRuntime` without threads and sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from headgate.checkpoint.state_uploader import StateUploader
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope
from headgate.runtime.execution_context import SlotPlace
from headgate.simulation.data_network import Plane
from headgate.simulation.network import Connection
from headgate.simulation.simulated_thread import SimulatedThread
from headgate.simulation.slot_services import SlotStorage, SteppedRecovery, Uploads
from headgate.simulation.subtask_process import Execution, SlotOfSubtasks, SubtaskProcess
from headgate.simulation.world import World
from headgate.task import slot as sl

_TICK_MS = 1000
_LINGER_MS = 60  # from the order to exit to the end of the process


class SlotProcess(SlotOfSubtasks):
    """One attempt of a slot, with its subtasks.

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
        self, cluster: World, run: int, slot: int, attempt: int, on_exit: Callable[[SlotProcess, str | None], None]
    ) -> None:
        super().__init__(f"slot {slot}.{attempt} of run {run}")
        self.cluster = cluster
        self._clock = cluster.clock
        self.choose = cluster.choose
        self._on_exit = on_exit
        self.run, self.slot, self.attempt = run, slot, attempt
        host = f"host-{(slot + cluster.moved.get(slot, 0)) % 2}"
        self.machine = sl.SlotMachine(
            run=run, slot=slot, attempt=attempt, host=host,
            heartbeat_timeout_ms=cluster.scenario.heartbeat_timeout_ms, data_address=self.address,
        )  # fmt: skip
        self.subtasks: dict[int, SubtaskProcess] = {}
        self._threads: list[SimulatedThread] = []
        self._connections: dict[int, Connection] = {}
        self._slot_wake_ms: int | None = None
        self.crash_in: int | None = None
        """After how many more of its messages and orders the process dies; None: it does not."""
        self.fail_uploads = 0
        """How many of the next uploads fail."""
        self.disk_buffers, self.target_bytes = cluster.scenario.disk_buffers, cluster.scenario.target_bytes
        self._place = SlotPlace(
            run=run, slot=slot, attempt=attempt, host=host, query_id="simulated", time_zone="UTC",
            checkpoint_location="",
        )  # fmt: skip
        self.storage = SlotStorage(self, cluster.storage.files)
        self._services = self._open_services()

    def _open_services(self) -> dict[str, Any]:
        """Return what the subtasks share."""
        uploader = StateUploader(self.storage, f"{self.run}-{self.slot}-{self.attempt}", Uploads(self))
        if not self.cluster.definition.graph.exchanges:
            return {"uploader": uploader}
        return {
            "plane": Plane(self.cluster.data, self, self.address),
            "uploader": uploader,
            "recovery": partial(SteppedRecovery, self),
            "recovery_memory_bytes": self.cluster.scenario.recovery_bytes,
        }

    @property
    def address(self) -> str:
        """Where its channels are."""
        return f"slot-{self.slot}-{self.attempt}-{self.run}"

    @property
    def execution(self) -> Execution | None:
        """What its subtask that reads sources opened."""
        return self.subtasks[0].execution if 0 in self.subtasks else None

    def start(self) -> None:
        """Begin."""
        self._clock.after(_TICK_MS, self, self._tick)
        self._notify_slot(sl.SlotStarted())

    # Faults.

    def forget_faults(self) -> None:
        """Let nothing go wrong that has not yet."""
        self.crash_in = None
        self.fail_uploads = 0
        for each in self.subtasks.values():
            each.decline_next = each.fail_at_snapshot = each.lose_next = False

    def decline(self, *, fail: bool) -> None:
        """Let the next snapshot fail, and perhaps the subtask after it."""
        for each in self.subtasks.values():
            each.decline_next, each.fail_at_snapshot = True, fail

    def lose_rows(self) -> None:
        """Let brokers not take the next rows."""
        for each in self.subtasks.values():
            each.lose_next = True

    def fail(self, pick: int) -> None:
        """Let a user's function raise, and something else a little later."""
        if self.subtasks:
            list(self.subtasks.values())[pick % len(self.subtasks)].fail()

    # The slot.

    @property
    def connection(self) -> Connection | None:
        """The connection that is up, if there is one."""
        up = [each for each in self._connections.values() if each.up]
        return up[-1] if up else None

    def _notify_slot(self, event: sl.Event) -> None:
        self.cluster.note(self, event)
        actions = self.machine.handle(event, self._clock.now_ms)
        self.cluster.check(self.machine)
        for action in actions:
            if not self._survives():
                return
            self.cluster.note_action(self, action)
            match action:
                case sl.OpenStream(connection=number):
                    self._clock.after(1 + self.choose.randrange(20), self, self._connect, number)
                case sl.SendEnvelope(connection=number, envelope=envelope):
                    self.cluster.send_to_driver(self._connections[number], envelope)
                case sl.Deliver(message=message):
                    self._deliver(message)
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
                self.cluster.crash_slot(self)
        return self.alive

    def _connect(self, number: int) -> None:
        for older in self._connections.values():
            self.cluster.break_connection(older)
        connection = self.cluster.connect(self)
        if connection is None:
            self._notify_slot(sl.StreamBroken(number))
            return
        self._connections[number] = connection
        self._notify_slot(sl.StreamOpened(number))

    def receive(self, connection: Connection, envelope: Envelope) -> None:
        """Take an envelope of the driver."""
        self._notify_slot(sl.EnvelopeReceived(self._number_of(connection), envelope))

    def lose(self, connection: Connection) -> None:
        """Notice that a connection broke."""
        self._notify_slot(sl.StreamBroken(self._number_of(connection)))

    def _number_of(self, connection: Connection) -> int:
        return next(number for number, each in self._connections.items() if each is connection)

    def _exit(self, reason: str | None) -> None:
        for thread in self._threads:
            thread.is_over = True
        for connection in self._connections.values():
            self.cluster.break_connection(connection)
        self._clock.after(_LINGER_MS, self, self._end, reason)

    def _end(self, reason: str | None) -> None:
        self.alive = False
        self._on_exit(self, reason)

    def _tick(self) -> None:
        """Look at the clock now and then, due or not, as the real slot does."""
        self._notify_slot(sl.SlotTimePassed())
        self._clock.after(_TICK_MS, self, self._tick)

    def _arm_slot(self) -> None:
        due_ms = self.machine.next_time_ms()
        if due_ms is not None and (self._slot_wake_ms is None or due_ms < self._slot_wake_ms):
            self._slot_wake_ms = due_ms
            self._clock.at(max(due_ms, self._clock.now_ms), self, self._wake_slot, due_ms)

    def _wake_slot(self, due_ms: int) -> None:
        if self._slot_wake_ms == due_ms:
            self._slot_wake_ms = None
            self._notify_slot(sl.SlotTimePassed())

    # The subtasks, and what they share (`Machine`).

    def _deliver(self, message: Any) -> None:
        stage = message.stage
        if stage not in self.subtasks:
            self._start_thread(self.cluster.definition.graph.sharing_thread(stage))
        self.subtasks[stage].deliver(message)

    def _start_thread(self, stages: Sequence[int]) -> None:
        thread = SimulatedThread(self.cluster, self)
        self._threads.append(thread)
        for stage in stages:
            self.subtasks[stage] = SubtaskProcess(self, thread, stage, self._place, self._services)

    def post(self, message: msg.FromSlot) -> None:
        """Send a subtask's message."""
        if self._survives():
            self._notify_slot(sl.MessagePosted(message))

    def subtask_ended(self, stage: int, execution: int) -> None:
        """Note that an execution of a subtask is closed."""
        if self._survives():
            self._notify_slot(sl.SubtaskEnded(stage, execution))

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """See `Machine`."""
        self._clock.after(delay_ms, self, what)

    def upload_ms(self) -> int:
        """See `Machine`."""
        delay_ms = self.choose.choice((0, 1, 10, 10 if self.cluster.calm else 200))
        return delay_ms + (600 if self._clock.now_ms < self.cluster.pending.slow_storage_until_ms else 0)

    def upload_fails(self) -> bool:
        """See `Machine`."""
        fails = self.fail_uploads > 0
        self.fail_uploads -= fails
        return fails

    def read_fails(self) -> bool:
        """See `Machine`."""
        fails = self.cluster.pending.reads > 0
        self.cluster.pending.reads -= fails
        return fails

    def read_ms(self) -> int:
        """See `Machine`."""
        return self.choose.choice((0, 0, 1, 8))
