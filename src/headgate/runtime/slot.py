"""A slot: its stream to the coordinator, and the subtasks it runs.

Never: decide (`SlotMachine` does), or end with an error because a user's function raised.

The thread that calls `SlotRuntime.run` handles all events of the machine; a connection is made, and the one before it
closed, on a thread of its own.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from headgate.checkpoint.local_copies import LocalCopies
from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import HeadgateError
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol import messages as msg
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.process import STUCK_STATUS, OwnProcess, SlotProcess
from headgate.runtime.subtask_thread import SubtaskRunner, SubtaskThread
from headgate.runtime.watchdog import Watchdog
from headgate.task import slot as machine
from headgate.transport.address_file import read_address
from headgate.transport.control_client import ControlClient
from headgate.transport.data_plane import DataPlane
from headgate.transport.endpoint import host_of
from headgate.transport.options import TlsOptions
from headgate.transport.sockets import address_in, address_towards
from headgate.versions import Versions

_log = logging.getLogger(__name__)

ADDRESS_FILE = "coordinator"
"""The name of the address file at the checkpoint location."""
_MAX_WAIT_S = 1.0
_TIME_TO_FINISH_S = 60.0
_TIME_TO_CLOSE_S = 5.0
_TIME_TO_SEND_S = 0.3
"""How long a slot that is stuck leaves its last message to get out."""


class SlotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot is started with.

    Parameters
    ----------
    run, query_id
        Whose slot it is.
    application
        The id of its Spark application, for what slots on a host share.
    submission
        Which submission of Spark's job this is; later ones fence earlier ones.
    address
        Where the coordinator is. When it is not there any longer, slots look into `ADDRESS_FILE` at the location.
    data_network
        The network in which slots listen for one another (CIDR); None: each at the address that its connection to the
        coordinator comes from.
    secret
        The query's.
    tls
        How to encrypt, or None.
    checkpoint_location
        Where state that lies in files is read from, and the address file.
    heartbeat_timeout_ms, stuck_timeout_ms
        When a silent slot, and a subtask that makes no progress, is given up.
    start_timeout_ms
        When a silent slot is given up whose subtasks have not begun, if that is longer.
    time_zone
        For texts without one (an IANA name).
    versions
        The driver's.
    structured_logs
        Whether a slot's own process logs JSON (`headgate.event_log`).
    """

    run: int
    query_id: str
    submission: int
    address: str
    data_network: str | None
    secret: str
    tls: TlsOptions | None
    checkpoint_location: str
    heartbeat_timeout_ms: int
    stuck_timeout_ms: int
    start_timeout_ms: int = 0
    time_zone: str
    versions: Versions
    application: str = ""
    structured_logs: bool = False


class SlotRuntime:
    """Drives a `SlotMachine` and the subtasks of one slot.

    Parameters
    ----------
    settings, definition
        The query's.
    slot, attempt
        Which slot this is, and which attempt of it: later ones fence earlier ones.
    process
        Where it runs; None: a Python worker of its own.
    """

    def __init__(
        self,
        settings: SlotSettings,
        definition: QueryDefinition,
        slot: int,
        attempt: int,
        process: SlotProcess | None = None,
    ) -> None:
        self._settings = settings
        self._definition = definition
        self._slot = slot
        self._attempt = attempt
        self._host = socket.gethostname()
        self._process = process or OwnProcess()
        self._storage = CheckpointStorage(settings.checkpoint_location)
        self._inbox: queue.SimpleQueue[machine.Event] = queue.SimpleQueue()
        self._services = self._open_services()
        plane = self._services.plane
        self._machine = machine.SlotMachine(
            run=settings.run,
            slot=slot,
            attempt=attempt,
            host=self._host,
            pid=os.getpid(),
            executor=self._process.executor,
            data_address="" if plane is None else plane.address,
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
        )
        self._threads: list[SubtaskThread] = []
        self._runners: dict[int, SubtaskRunner] = {}  # by stage
        self._exit: machine.ExitSlot | None = None
        self._cancelled = threading.Event()  # for who waits elsewhere than for events
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._client: tuple[int, ControlClient] | None = None
        self._ended = False
        self._watchdog = Watchdog(
            self._process,
            stuck_timeout_ms=settings.stuck_timeout_ms,
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
            start_timeout_ms=settings.start_timeout_ms,
            report=self._report_stuck,
            end=self._end_stuck,
            look=self._report_overdue,
        )
        self._begun: set[int] = set()  # stages whose subtasks run

    def _open_services(self) -> SlotServices:
        """Return what the subtasks share; only what stores and reads state where there is no exchange."""
        settings = self._settings
        self._copies = self._open_copies()
        uploader = StateUploader(self._storage, f"{settings.run}-{self._slot}-{self._attempt}", copies=self._copies)
        if not self._definition.graph.exchanges:
            return SlotServices(uploader=uploader, load=self._process.load)
        coordinator = host_of(settings.address)
        network = settings.data_network
        host = address_towards(coordinator) if network is None else address_in(network)
        folders = [
            tempfile.mkdtemp(prefix=f"headgate-slot-{self._slot}-", dir=each)
            for each in _local_folders(self._process.local_folders, self._slot)
        ]
        return SlotServices(
            plane=DataPlane(
                settings.run,
                settings.secret,
                host,
                0,
                settings.tls,
                certified=coordinator,
                unread_s=settings.heartbeat_timeout_ms / 1000,
            ),
            uploader=uploader,
            spill_folders=tuple(folders),
            load=self._process.load,
        )

    def _open_copies(self) -> LocalCopies | None:
        """Return what copies state to a folder of Spark's, which its next attempt here finds; None: nothing does."""
        folder = _local_folders(self._process.local_folders, self._slot)[0]
        is_wanted = self._definition.options["execution.state-recovery.from-local"]
        if folder is None or not is_wanted or self._storage.store.is_local:
            return None
        name = f"headgate-copies-{self._settings.query_id}-{self._slot}"
        return LocalCopies(os.path.join(folder, name), self._storage.read_state)

    def cancel(self, reason: str) -> None:
        """Let `run` end with an error that says so. Any thread; does not wait."""
        self._cancelled.set()
        self._inbox.put(machine.SlotCancelled(reason))

    def run(self) -> None:
        """Run until the machine orders the end.

        Raises
        ------
        HeadgateError
            The machine ended the slot for a reason: it is fenced, or the run is over.
        """
        self._watchdog.start()
        self._handle(machine.SlotStarted())
        try:
            while self._exit is None:
                self._handle(self._next_event())
        finally:
            self._close()
        if self._exit.reason is not None:
            raise HeadgateError(f"Slot {self._slot}, attempt {self._attempt}, ends: {self._exit.reason}.")

    def _next_event(self) -> machine.Event:
        due_ms = self._machine.next_time_ms()
        wait_s = _MAX_WAIT_S if due_ms is None else min(_MAX_WAIT_S, (due_ms - monotonic_ms()) / 1000)
        if wait_s <= 0:
            return machine.SlotTimePassed()
        try:
            return self._inbox.get(timeout=wait_s)
        except queue.Empty:
            return machine.SlotTimePassed()

    def _handle(self, event: machine.Event) -> None:
        for action in self._machine.handle(event, monotonic_ms()):
            self._carry_out(action)

    def _carry_out(self, action: machine.Action) -> None:
        match action:
            case machine.OpenStream(connection=connection):
                threading.Thread(target=self._connect, args=(connection,), name="headgate-connect", daemon=True).start()
            case machine.SendEnvelope(connection=connection, envelope=envelope):
                with self._lock:
                    to = self._client
                if to is not None and to[0] == connection:
                    to[1].send(envelope)
            case machine.Deliver(message=message):
                self._deliver(message)
            case machine.ExitSlot():
                self._exit = action
            case _:
                assert_never(action)

    def _connect(self, connection: int) -> None:
        """Close the older connection and make a new one. Its events are posted after the one that it is open."""
        settings = self._settings
        opened = threading.Event()

        def post_event(event: machine.Event) -> None:
            opened.wait()
            self._inbox.put(event)

        try:
            self._close_client()
            client = ControlClient(
                self._look_up() if connection > 1 else settings.address,
                settings.secret,
                settings.tls,
                on_message=lambda envelope: post_event(machine.EnvelopeReceived(connection, envelope)),
                on_closed=lambda _: post_event(machine.StreamBroken(connection)),
            )
        except Exception as error:  # whatever it is, the machine waits for an answer
            _log.warning("slot %d cannot reach the coordinator: %s", self._slot, error)
            self._inbox.put(machine.StreamBroken(connection))
            opened.set()
            return
        with self._lock:
            self._client = (connection, client)
            ended = self._ended
        self._inbox.put(machine.StreamOpened(connection))
        opened.set()
        if ended:
            self._close_client()

    def _close_client(self) -> None:
        with self._lock:
            superseded, self._client = self._client, None
        if superseded is not None:
            superseded[1].close()

    def _look_up(self) -> str:
        """Return where the coordinator is by now."""
        store = self._storage.store
        found = read_address(store.file_system, store.path(ADDRESS_FILE))
        return self._settings.address if found is None or found.run != self._settings.run else found.address

    def _deliver(self, message: Any) -> None:
        if message.stage not in self._runners:
            self._start_thread(self._definition.graph.sharing_thread(message.stage))
        self._runners[message.stage].deliver(message)

    def _start_thread(self, stages: Sequence[int]) -> None:
        """Start the thread of these stages' subtasks."""
        place = SlotPlace(
            run=self._settings.run,
            slot=self._slot,
            attempt=self._attempt,
            host=self._host,
            query_id=self._settings.query_id,
            time_zone=self._settings.time_zone,
            checkpoint_location=self._settings.checkpoint_location,
            application=self._settings.application,
        )
        thread = SubtaskThread(
            self._definition,
            stages,
            place,
            post=self._post,
            on_ended=lambda stage, execution: self._inbox.put(machine.SubtaskEnded(stage, execution)),
            read_state=self._storage.read_state if self._copies is None else self._copies.read_state,
            services=self._services,
        )
        self._threads.append(thread)
        for stage, runner in thread.runners.items():
            self._runners[stage] = runner
            self._watchdog.watch(f"subtask {stage}.{self._slot}", runner.busy_since)
            self._watchdog.watch(f"a fetch of subtask {stage}.{self._slot}", runner.fetching_since)

    def _post(self, message: msg.FromSlot) -> None:
        """On the thread of a subtask."""
        self._inbox.put(machine.MessagePosted(message))
        if isinstance(message, msg.SubtaskRunning):
            self._begun.add(message.stage)
            if len(self._begun) == len(self._definition.graph.stages):
                self._watchdog.slot_began()

    def _report_overdue(self) -> None:
        """Send figures of subtasks whose threads are in a long call; on the watchdog's thread."""
        for runner in list(self._runners.values()):
            progress = runner.overdue_progress()
            if progress is not None:
                self._inbox.put(machine.MessagePosted(progress))

    def _report_stuck(self, what: str, stacks: str) -> None:
        """Report to the coordinator before the slot ends; on the watchdog's thread."""
        for stage, runner in list(self._runners.items()):
            error = msg.ErrorReport(error_type="HeadgateError", message=what, traceback=stacks)
            message = msg.SubtaskFailed(stage=stage, execution=runner.number, error=error)
            self._inbox.put(machine.MessagePosted(message))
        time.sleep(_TIME_TO_SEND_S)

    def _end_stuck(self) -> None:
        """On the watchdog's thread."""
        self._process.end(STUCK_STATUS)
        self.cancel("it is stuck")

    def _close(self) -> None:
        try:
            if self._exit is not None and self._exit.reason is None:
                self._finish()
        finally:
            self._watchdog.close()
            deadline = time.monotonic() + _TIME_TO_CLOSE_S
            for thread in self._threads:
                thread.close(max(0.1, deadline - time.monotonic()))
            with self._lock:
                self._ended = True
            self._close_client()
            self._close_services()

    def _close_services(self) -> None:
        services = self._services
        if services.plane is not None:
            services.plane.close()
        if services.uploader is not None:
            services.uploader.close(_TIME_TO_CLOSE_S)  # nothing is written after the end of the query
        if self._copies is not None and self._exit is not None and self._exit.reason is None:
            self._copies.delete()  # else the slot may start again on this host
        for folder in services.spill_folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _finish(self) -> None:
        for runner in self._runners.values():
            if not runner.finish(_TIME_TO_FINISH_S, self._cancelled):
                _log.error("slot %d: its sink did not publish all in time", self._slot)
                self._process.end(1)  # the driver sees that this slot did not end well
                raise HeadgateError(f"The sink did not publish all that slot {self._slot} left to it in time.")


def _local_folders(folders: Sequence[str], slot: int) -> list[str | None]:
    """Return those folders that can be written to, another one first in each slot of a host.

    None: the machine's own.
    """
    found = [each for each in folders if os.access(each, os.W_OK | os.X_OK)]
    first = slot % len(found) if found else 0
    return [*found[first:], *found[:first]] or [None]
