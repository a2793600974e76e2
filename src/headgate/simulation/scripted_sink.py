"""A model of a sink of brokers: production's writer, which sends rows at once, and brokers that keep them for a commit.

Never: forget rows that were staged and not confirmed, or keep to itself that brokers did not take some.

Rows are sent by the subtask or by the writer's thread, as production decides; a barrier's flush is a job of the thread.
What was sent by then is staged. Brokers may lose rows: of that the next call says, and no flush succeeds any more.

Follows the contract (`headgate.sink`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pyarrow as pa

from headgate.futures import mapped
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.serial_executor import SerialExecutor
from headgate.simulation.durable import Committable, Row, encode_committable
from headgate.simulation.scripted_reader import Surroundings
from headgate.simulation.slot_services import FAULT
from headgate.sink import Sink, SinkWriter
from headgate.sink.broker_sink import AtLeastOnceWriter, RowSender


class SteppedExecutor(SerialExecutor):
    """Runs functions one after another, by the cluster's clock."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__("stepped")
        self._around = around
        self._jobs: deque[tuple[int, Callable[[], None], Callable[[], None]]] = deque()
        self._runs = False
        self._is_closed = False
        self.next_ms = 1
        """How long the next job takes that comes."""

    def do(self, work: Callable[[], None], discard: Callable[[], None] = lambda: None) -> None:
        """Run this when those before it have run."""
        if self._is_closed:
            discard()
            return
        self._jobs.append((self.next_ms, work, discard))
        self.next_ms = 1
        if not self._runs:
            self._go_on()

    def do_after(self, delay_s: float, work: Callable[[], None]) -> None:
        """Run this in so many seconds."""
        self._around.later(round(delay_s * 1000), lambda: None if self._is_closed else work())

    def abandon(self, timeout_s: float) -> bool:
        """Drop what waits."""
        self._is_closed = True
        jobs, self._jobs = self._jobs, deque()
        for _, _, discard in jobs:
            discard()
        return True

    def _go_on(self) -> None:
        self._runs = bool(self._jobs)
        if self._jobs:
            self._around.later(self._jobs[0][0], self._run)

    def _run(self) -> None:
        if self._jobs:
            self._jobs.popleft()[1]()
        self._go_on()


class ScriptedSender(RowSender):
    """Brokers that take rows, and have not all that they were sent where a fault wants it."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._sent: list[Row] = []
        self._flushed: list[Row] = []
        self._has_lost = False

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSender`."""
        self.serve()
        if self._around.loses_rows():
            self._has_lost = True
            return
        splits, offsets = batch.column(1).to_pylist(), batch.column(2).to_pylist()
        self._sent += [(self._around.uid_of(split_id), split_id, offset) for split_id, offset in zip(splits, offsets)]

    def write_now(self, batch: pa.RecordBatch) -> int:
        """Take all rows but the last, at times: there is no room for more."""
        rows: int = batch.num_rows - self._around.leaves_a_row()
        self.write(batch.slice(0, rows))
        return rows

    def flush(self) -> None:
        """See `RowSender`."""
        self.serve()
        self._flushed += self._sent
        self._sent.clear()

    def serve(self) -> None:
        """See `RowSender`."""
        if self._has_lost:
            raise OSError(f"{FAULT}: brokers did not take rows")

    def drop_rows(self) -> None:
        """Nobody waits for them."""

    def close(self) -> None:
        """Nothing is open."""

    def take(self) -> tuple[Row, ...]:
        """Return the rows that were flushed since the last call."""
        rows, self._flushed = tuple(self._flushed), []
        return rows


class ScriptedWriter(SinkWriter):
    """Stages rows at each barrier; has no room at times.

    Parameters
    ----------
    name
        Of this writer alone.
    context
        The subtask's.
    around
        The process.
    """

    def __init__(self, name: str, context: OperatorContext, around: Surroundings) -> None:
        self._name = name
        self._around = around
        self._executor = SteppedExecutor(around)
        self._sender = ScriptedSender(around)
        self._writer = AtLeastOnceWriter("scripted", context, self._sender, None)
        self._writer._thread._executor = self._executor
        self._staged: list[tuple[int, list[bytes]]] = []  # by the checkpoint that they are for; none before its flush
        self._count = 0
        self._room: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        self._writer.write(batch)
        if self._room is None and self._around.choose.random() < 0.1:
            self._around.count_quiet()
            room: Future[None] = Future()
            self._room = room
            self._around.later(self._around.choose.randrange(100), lambda: self._make_room(room))

    def ready(self) -> Future[None] | None:
        """Return None, or when there is room."""
        return self._writer.ready() or self._room

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Stage what was written; what was staged before and is not confirmed stands there again."""
        own: list[bytes] = []
        self._staged.append((checkpoint_id, own))
        staged = [each for _, each in self._staged]
        declines = self._around.declines()
        self._executor.next_ms = self._around.snapshot_ms()

        def stage(flushed: OperatorState) -> OperatorState:
            rows = self._sender.take()
            if rows:
                self._count += 1
                own.append(encode_committable(Committable(f"{self._name}-{self._count}", rows)))
            if declines:
                raise OSError(FAULT)
            return OperatorState(committables=tuple(data for each in staged for data in each))

        return mapped(self._writer.prepare_commit(checkpoint_id, final=final), stage)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget what is in a completed checkpoint."""
        self._staged = [(staged, data) for staged, data in self._staged if staged > checkpoint_id]

    def close(self) -> None:
        """See `SinkWriter`."""
        self._writer.close()

    def _make_room(self, room: Future[None]) -> None:
        self._around.count_quiet()
        self._around.room_made()
        self._room = None
        room.set_result(None)


class ScriptedSink(Sink):
    """A sink whose writers the simulator makes."""

    name = "scripted"

    def __init__(self, make: Callable[[OperatorContext], ScriptedWriter]) -> None:
        self._make = make

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> ScriptedWriter:
        """Return a subtask's writer."""
        return self._make(context)
