"""A slot and its stream, over the real control plane: the test is the coordinator."""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.fs as pa_fs
import pytest

from headgate.errors import HeadgateError, OptionError, SinkError
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Operator
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope
from headgate.protocol.session import Session
from headgate.runtime import slot as slot_module
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.process import OwnProcess, SharedProcess, SlotProcess
from headgate.runtime.slot import ADDRESS_FILE, SlotRuntime, SlotSettings, _local_folders
from headgate.task import slot as machine
from headgate.transport.address_file import CoordinatorAddress, write_address
from headgate.transport.control_server import ControlServer
from headgate.versions import Versions
from tests.unit.runtime.toy_query import PATIENCE_S, SCHEMA, ToySink, ToySource, state_of, toy_definition
from tests.waiting import wait_until

MessageT = TypeVar("MessageT", bound=msg.FromSlot)
HEARTBEAT_MS = 60_000
RUN = 5


class Coordinator:
    """Serves one slot; its server may move."""

    def __init__(self, location: Path, secret: str) -> None:
        self._location = location
        self._messages: queue.Queue[tuple[int, Envelope]] = queue.Queue()
        self.session = Session(run=RUN, slot=0, attempt=7)
        self.connection = 0
        self.closed: queue.Queue[tuple[ControlServer, int]] = queue.Queue()
        self.server = self.move(secret)

    def move(self, secret: str) -> ControlServer:
        """Listen somewhere else, and write it to the address file."""
        server = ControlServer(
            secret,
            "127.0.0.1",
            on_opened=lambda connection, peer: None,
            on_message=self._on_message,
            on_closed=lambda connection: self.closed.put((server, connection)),
        )
        address = CoordinatorAddress(run=RUN, address=server.address)
        write_address(pa_fs.LocalFileSystem(), str(self._location / ADDRESS_FILE), address)
        self.server = server
        return server

    def next(self, kind: type[MessageT]) -> MessageT:
        """Return the next message of a kind; those before it are skipped."""
        while True:
            _, envelope = self._messages.get(timeout=PATIENCE_S)
            assert (envelope.run, envelope.slot, envelope.attempt) == (RUN, 0, 7)
            for message in self.session.receive(envelope):
                if isinstance(message, kind):
                    return message

    def accept(self) -> msg.RegisterSlot:
        """Wait for a registration, accept it, and send again what did not arrive."""
        while True:
            connection, envelope = self._messages.get(timeout=PATIENCE_S)
            if isinstance(envelope.message, msg.RegisterSlot):
                break
        self.connection = connection
        unconfirmed = self.session.resend(envelope.received)
        self.send(msg.SlotAccepted())
        for each in unconfirmed:
            self.server.send(self.connection, each)
        return envelope.message

    def send(self, message: msg.ToSlot) -> None:
        own = isinstance(message, msg.SlotAccepted | msg.SlotFenced | msg.ShutDownSlot | msg.CoordinatorHeartbeat)
        envelope = self.session.send_uncounted(message) if own else self.session.send(message)
        self.server.send(self.connection, envelope)

    def deploy(self, execution: int = 1) -> None:
        """Run a subtask that reads split s."""
        self.send(msg.Deploy(stage=0, execution=execution, parallelism=1))
        self.send(msg.AssignSplits(stage=0, execution=execution, source="a", number=1, splits=(state_of("s"),)))
        assert self.next(msg.SubtaskRunning).execution == execution

    def _on_message(self, connection: int, envelope: Envelope) -> None:
        self._messages.put((connection, envelope))


class Slot:
    """A slot on a thread of its own."""

    def __init__(
        self,
        location: Path,
        address: str,
        secret: str = "secret",
        process: SlotProcess | None = None,
        stuck_ms: int = HEARTBEAT_MS,
        operator: Operator | None = None,
        data_network: str | None = None,
    ) -> None:
        self.source, self.sink = ToySource(), ToySink()
        settings = SlotSettings(
            run=RUN,
            query_id="q",
            submission=0,
            address=address,
            data_network=data_network,
            secret=secret,
            tls=None,
            checkpoint_location=str(location),
            heartbeat_timeout_ms=HEARTBEAT_MS,
            stuck_timeout_ms=stuck_ms,
            start_timeout_ms=2 * HEARTBEAT_MS,
            time_zone="UTC",
            versions=Versions.here(),
        )
        definition = toy_definition(self.sink, {"a": self.source}, operator=operator)
        self.runtime = SlotRuntime(settings, definition, slot=0, attempt=7, process=process)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="slot under test", daemon=True)

    def start(self) -> Slot:
        self._thread.start()
        return self

    def join(self) -> BaseException | None:
        """Wait for its end; return what it ended with."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self.runtime.run()
        except BaseException as error:
            self.error = error


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """Return a coordinator; when the test is over no thread of it or of its slot may be left."""
    before = set(threading.enumerate())
    made = Coordinator(tmp_path, "secret")
    yield made
    made.server.close()
    wait_until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()])


@pytest.fixture
def slot(coordinator: Coordinator, tmp_path: Path) -> Slot:
    """Return a slot that is registered."""
    started = Slot(tmp_path, coordinator.server.address).start()
    assert coordinator.accept().running == {}
    return started


def test_a_slot_runs_its_subtask_until_it_is_shut_down(coordinator: Coordinator, slot: Slot) -> None:
    coordinator.deploy()
    slot.source.reader.offer("s", 1)
    wait_until(lambda: slot.sink.numbers == [1])
    coordinator.send(msg.ShutDownSlot())

    assert slot.join() is None
    assert slot.source.reader.log[-1] == "close"
    assert slot.sink.calls[-1] == "close"


def test_a_slot_that_loses_the_coordinator_reads_on_and_finds_it_elsewhere(
    coordinator: Coordinator, slot: Slot
) -> None:
    coordinator.deploy()
    wait_until(lambda: "add s" in slot.source.reader.log)  # an assignment that is under way is lost with the server
    coordinator.server.kill()
    slot.source.reader.offer("s", 1)
    slot.source.reader.offer("s")
    wait_until(lambda: slot.sink.numbers == [1])
    coordinator.send(msg.AssignSplits(stage=0, execution=1, source="a", number=2, splits=(state_of("t"),)))  # is lost
    coordinator.move("secret")

    assert coordinator.accept().running == {0: 1}
    assert [end.split_id for end in coordinator.next(msg.SplitsFinished).finished] == ["s"]
    coordinator.next(msg.SplitRequested)
    slot.source.reader.offer("t", 2)
    wait_until(lambda: slot.sink.numbers == [1, 2])
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_connection_that_is_given_up_is_closed(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_ms = [0]
    monkeypatch.setattr(slot_module, "monotonic_ms", lambda: monotonic_ms() + late_ms[0])
    slot = Slot(tmp_path, coordinator.server.address).start()
    coordinator.accept()
    coordinator.deploy()
    first = coordinator.connection
    late_ms[0] = HEARTBEAT_MS + 1  # the coordinator was silent for so long

    assert coordinator.accept().running == {0: 1}
    assert coordinator.closed.get(timeout=PATIENCE_S) == (coordinator.server, first)
    assert coordinator.connection != first
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_fenced_slot_ends_with_an_error(coordinator: Coordinator, slot: Slot) -> None:
    coordinator.deploy()
    coordinator.send(msg.SlotFenced(reason="a newer attempt is there"))

    error = slot.join()
    assert isinstance(error, HeadgateError)
    assert "Slot 0, attempt 7, ends: a newer attempt is there" in str(error)
    assert slot.sink.calls[-1] == "close"


def test_an_error_of_a_subtask_does_not_end_the_slot(coordinator: Coordinator, slot: Slot) -> None:
    slot.source.fails["poll"] = OSError("broken")
    coordinator.deploy()
    assert coordinator.next(msg.SubtaskFailed).error.message == "broken"
    slot.source.fails.clear()
    coordinator.deploy(2)
    slot.source.reader.offer("s", 1)
    wait_until(lambda: slot.sink.numbers == [1])
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_slot_whose_secret_is_refused_says_so_and_tries_again(
    coordinator: Coordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> list[str]:
        found = [record.message for record in caplog.records if "cannot reach the coordinator" in record.message]
        return [each for each in found if "did not answer within" not in each]  # on a busy machine

    with caplog.at_level(logging.WARNING):
        slot = Slot(tmp_path, coordinator.server.address, secret="another").start()
        wait_until(lambda: len(refusals()) >= 2)
    assert all("secret" in refusal for refusal in refusals())
    refusing = coordinator.server
    coordinator.move("another")
    coordinator.accept()
    refusing.close()
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_slot_ends_when_its_sink_has_published_what_it_owes(coordinator: Coordinator, slot: Slot) -> None:
    coordinator.deploy()
    slot.sink.finished = Future()
    coordinator.send(msg.ShutDownSlot())
    wait_until(lambda: slot.runtime._exit is not None)
    assert "close" not in slot.sink.calls
    slot.sink.finished.set_result(None)
    assert slot.join() is None
    assert slot.sink.calls[-1] == "close"


def test_a_sink_that_cannot_publish_ends_the_slot_with_its_error(coordinator: Coordinator, slot: Slot) -> None:
    coordinator.deploy()
    slot.sink.fails["finish"] = SinkError("refused")
    coordinator.send(msg.ShutDownSlot())

    error = slot.join()
    assert isinstance(error, SinkError) and error.message == "refused"
    assert slot.sink.calls[-1] == "close"


class HastyClient:
    """Receives a message and breaks before its constructor returns."""

    made: list[HastyClient]

    def __init__(
        self, *arguments: Any, on_message: Callable[[Envelope], None], on_closed: Callable[[None], None]
    ) -> None:
        self.closed = False
        accepted = Envelope(run=RUN, slot=0, attempt=7, number=0, received=0, message=msg.SlotAccepted())

        def call() -> None:
            on_message(accepted)
            on_closed(None)

        self._thread = threading.Thread(target=call)
        self._thread.start()
        self._thread.join(0.05)
        type(self).made.append(self)

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        self.closed = True


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> type[HastyClient]:
    HastyClient.made = []
    monkeypatch.setattr(slot_module, "ControlClient", HastyClient)
    return HastyClient


def test_what_comes_of_a_connection_is_reported_after_that_it_is_open(tmp_path: Path, hasty: type[HastyClient]) -> None:
    runtime = Slot(tmp_path, "nowhere:1").runtime
    for connection in (1, 2):
        runtime._connect(connection)
        reported = [runtime._inbox.get(timeout=PATIENCE_S) for _ in range(3)]
        assert [type(each) for each in reported] == [
            machine.StreamOpened,
            machine.EnvelopeReceived,
            machine.StreamBroken,
        ]
    assert [client.closed for client in hasty.made] == [True, False]


def test_a_connection_that_comes_when_the_slot_has_ended_is_closed(tmp_path: Path, hasty: type[HastyClient]) -> None:
    runtime = Slot(tmp_path, "nowhere:1").runtime
    runtime._watchdog.start()
    runtime._close()
    runtime._connect(1)
    assert hasty.made[0].closed


def test_the_slots_of_a_host_spill_to_all_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with another one, and leaves out those that cannot be written."""
    folders = [str(tmp_path / name) for name in "ab"]
    for folder in folders:
        Path(folder).mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join([folders[0], str(tmp_path / "missing"), folders[1]]))
    of_spark = OwnProcess().local_folders
    assert [_local_folders(of_spark, slot) for slot in (0, 1, 2)] == [folders, folders[::-1], folders]
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert _local_folders(OwnProcess().local_folders, 1) == [None]


def test_a_slot_listens_where_it_reaches_the_driver_from_whatever_its_host_is_called(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nobody.invalid")
    slot = Slot(tmp_path, coordinator.server.address, operator=Exchange(SCHEMA, "rebalance")).start()
    assert coordinator.accept().data_address.startswith("127.0.0.1:")
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_network_that_slots_are_to_listen_in_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'transport\.slots\.network' is '203\.0\.113\.0/24'"):
        Slot(tmp_path, "127.0.0.1:1", operator=Exchange(SCHEMA, "rebalance"), data_network="203.0.113.0/24")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedProcess:
    """Return a process that is the tests' own, too: what would end it, or change it for all, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this process is not the slot's own")

    for module, name in ((os, "_exit"), (os, "kill"), (faulthandler, "dump_traceback_later")):
        monkeypatch.setattr(module, name, refuse)
    return SharedProcess((), pickle.loads)


def test_a_slot_that_is_cancelled_ends_with_the_reason(
    coordinator: Coordinator, shared: SharedProcess, tmp_path: Path
) -> None:
    slot = Slot(tmp_path, coordinator.server.address, process=shared).start()
    assert coordinator.accept().executor == "driver"
    coordinator.deploy()
    slot.runtime.cancel("the job is over")

    error = slot.join()
    assert isinstance(error, HeadgateError)
    assert "Slot 0, attempt 7, ends: the job is over" in str(error)
    assert slot.sink.calls[-1] == "close"


def test_a_stuck_slot_leaves_a_process_that_it_shares_alone(
    coordinator: Coordinator, shared: SharedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports what is stuck and ends; the thread that is stuck ends on its own, when it can."""
    monkeypatch.setattr(slot_module, "_TIME_TO_CLOSE_S", 0.2)
    slot = Slot(tmp_path, coordinator.server.address, process=shared, stuck_ms=400).start()
    coordinator.accept()
    slot.sink.stuck = threading.Event()
    coordinator.deploy()
    slot.source.reader.offer("s", 1)

    reported = coordinator.next(msg.SubtaskFailed).error
    assert reported.message.startswith("subtask 0.0 has not ended for")
    assert reported.message.endswith("cannot be ended and is abandoned, and another slot takes its place.")
    assert "toy_query.py" in reported.traceback, "the stacks say where"
    error = slot.join()
    assert isinstance(error, HeadgateError) and "ends: it is stuck" in str(error)
    abandoned = [thread for thread in threading.enumerate() if thread.name == "headgate-subtask-0-0"]
    assert abandoned and slot.sink.calls[-1] != "close"
    slot.sink.stuck.set()
    abandoned[0].join(PATIENCE_S)
    assert slot.sink.calls[-1] == "close"


def test_a_subtask_in_a_long_call_has_figures_that_say_so(
    coordinator: Coordinator, shared: SharedProcess, tmp_path: Path
) -> None:
    """From the first call on, before it could report any itself: the time is the call's, rows are what they were."""
    slot = Slot(tmp_path, coordinator.server.address, process=shared)
    slot.runtime._watchdog._look_s = 0.02
    slot.start()
    coordinator.accept()
    slot.sink.stuck = threading.Event()
    coordinator.deploy()
    slot.source.reader.offer("s", 1, 2)
    seen: list[msg.SubtaskProgress] = []
    while len(seen) < 3:
        progress = coordinator.next(msg.SubtaskProgress)
        if progress.busy_ms.get("sink"):
            seen.append(progress)
    for before, after in pairwise(seen):
        assert before.time is not None and after.time is not None
        assert after.busy_ms["sink"] > before.busy_ms["sink"] and after.time.elapsed_ms > before.time.elapsed_ms
        assert (after.rows_out, after.time.idle_ms, after.positions) == (before.rows_out, before.time.idle_ms, {})
    slot.sink.stuck.set()
    wait_until(lambda: slot.sink.numbers == [1, 2])
    while coordinator.next(msg.SubtaskProgress).rows_out.get("sink") != 2:
        pass
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_process_has_longer_between_two_beats_until_its_slot_has_begun(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """What it imports may hold the GIL, on cores that many processes share which start at once."""
    beats: set[float] = set()

    class Process(SharedProcess):
        def beat(self, timeout_s: float) -> None:
            beats.add(timeout_s)

    slot = Slot(tmp_path, coordinator.server.address, process=Process((), pickle.loads))
    slot.runtime._watchdog._look_s = 0.02
    slot.start()
    coordinator.accept()
    wait_until(lambda: beats == {2 * HEARTBEAT_MS / 1000})
    coordinator.deploy()
    wait_until(lambda: beats == {2 * HEARTBEAT_MS / 1000, HEARTBEAT_MS / 1000})
    coordinator.send(msg.ShutDownSlot())
    assert slot.join() is None


def test_a_sink_that_does_not_publish_in_time_ends_the_slot_with_an_error(
    coordinator: Coordinator, shared: SharedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_module, "_TIME_TO_FINISH_S", 0.05)
    slot = Slot(tmp_path, coordinator.server.address, process=shared).start()
    coordinator.accept()
    coordinator.deploy()
    slot.sink.finished = Future()
    coordinator.send(msg.ShutDownSlot())

    error = slot.join()
    assert isinstance(error, HeadgateError) and "did not publish all that slot 0 left to it in time" in str(error)
    slot.sink.finished.set_result(None)


def test_a_slot_that_is_cancelled_waits_no_longer_for_its_sink(
    coordinator: Coordinator, shared: SharedProcess, tmp_path: Path
) -> None:
    slot = Slot(tmp_path, coordinator.server.address, process=shared).start()
    coordinator.accept()
    coordinator.deploy()
    slot.sink.finished = Future()
    coordinator.send(msg.ShutDownSlot())
    wait_until(lambda: slot.runtime._exit is not None)
    slot.runtime.cancel("the job is over")

    assert isinstance(slot.join(), HeadgateError)
    slot.sink.finished.set_result(None)


def test_two_slots_live_in_one_process(tmp_path: Path, shared: SharedProcess) -> None:
    """One ends as it likes, and the other reads on."""
    coordinators = [Coordinator(tmp_path, "secret") for _ in range(2)]
    slots = [Slot(tmp_path, each.server.address, process=shared).start() for each in coordinators]
    for coordinator in coordinators:
        coordinator.accept()
        coordinator.deploy()
    slots[0].runtime.cancel("enough")
    assert slots[0].join() is not None
    slots[1].source.reader.offer("s", 1)
    wait_until(lambda: slots[1].sink.numbers == [1])
    coordinators[1].send(msg.ShutDownSlot())
    assert slots[1].join() is None
    for coordinator in coordinators:
        coordinator.server.close()
