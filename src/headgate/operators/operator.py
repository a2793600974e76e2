"""The contracts of a stage's parts: an operator between source and sink, and a sink's writer and committer.

Never: call these from another thread than the one each method names.

Follows FLIP-27's threading model; Flink's Sink V2 (SinkWriter, Committer) for two-phase sinks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from headgate.protocol.key_groups import KeyGroupRange, key_group_range
from headgate.protocol.state import OperatorState

Emit = Callable[[pa.RecordBatch, str], None]
"""Takes rows and the id of the split that they come from."""


def _nobody_wants(batch: pa.RecordBatch) -> None:
    """Do nothing."""


class OperatorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may know.

    Parameters
    ----------
    uid
        Names the operator in checkpoints.
    subtask, parallelism
        Which one of how many.
    run, attempt, execution
        They make names of staged files unique.
    query_id
        The query's.
    options
        The query's options (``spark.headgate.*`` and those of ``writeStream``).
    max_parallelism
        How many key groups there are.
    time_zone
        The session's.
    spill_folder
        A folder on the local disk, for this execution alone; deleted behind it.
    memory_bytes
        How much of its keyed state an operator keeps in memory (`state.memory`); the rest is spilled.
    """

    uid: str
    subtask: int
    parallelism: int
    run: int = 0
    attempt: int = 0
    execution: int = 0
    query_id: str = ""
    options: dict[str, str] = {}
    max_parallelism: int = 128
    time_zone: str = "UTC"
    spill_folder: str = ""
    memory_bytes: int = 0

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of this subtask."""
        return key_group_range(self.subtask, self.parallelism, self.max_parallelism)


class Operator(ABC):
    """Turns batches into batches. Pickled from the driver to every slot; all methods run on the mailbox thread."""

    uid: str
    schema: pa.Schema
    """The columns of what it emits."""

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready, with the list state that the checkpoint holds for this subtask."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take rows of one split; everything that follows from them has been emitted when this returns."""

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit what the watermark of this stage completes, in milliseconds; it goes on behind that. It never goes back.

        The last one, before `end_input`, is `headgate.source.watermark.MAX_WATERMARK_MS`.
        """

    def due_ms(self) -> int | None:
        """Return when `process_time` is wanted, in milliseconds since 1970-01-01 UTC; None: not at all."""
        return None

    def process_time(self, now_ms: int, emit: Emit) -> None:
        """Take note that the wall clock shows ``now_ms`` (milliseconds since 1970-01-01 UTC): `due_ms` is over."""

    def prepare_snapshot(self, emit: Emit) -> None:
        """Emit what is to stand before the barrier. Called before every `snapshot`, upstream operators first."""

    def end_input(self, emit: Emit) -> None:
        """Emit what is held: no rows follow. Called once, before the last snapshot."""

    def snapshot(self, checkpoint_id: int) -> OperatorState | None:
        """Return the state between two batches; None: there is none."""
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is durable. Not promised for every one."""

    def close(self) -> None:
        """Release what it holds. Called once, also after an error."""


class KeyedChunk(msgspec.Struct, frozen=True):
    """An immutable part of a keyed operator's state.

    Parameters
    ----------
    chunk_id
        Unique in the query for ever: made of `OperatorContext`'s uid, run, subtask, attempt, execution, and a counter.
        It is stored once, however many checkpoints name it.
    first_key_group, last_key_group
        It holds keys of these groups only, both included.
    serialize
        Returns its bytes, an Arrow IPC stream or file. Called on another thread, while the operator goes on: what it
        reads never changes.
    """

    chunk_id: str
    first_key_group: int
    last_key_group: int
    serialize: Callable[[], bytes]


class RestoredChunk(msgspec.Struct, frozen=True):
    """A chunk of the checkpoint that is restored.

    Parameters
    ----------
    chunk_id
        Its name.
    whole
        All its keys are of this subtask, and the file stays where it is: the operator may name the chunk again, under
        the same ``chunk_id``, in its next snapshot, and nothing is uploaded. False: the operator keeps only the rows of
        its own key groups, in chunks of new names.
    read
        Returns its bytes.
    """

    chunk_id: str
    whole: bool
    read: Callable[[], bytes]


class KeyedOperator(Operator):
    """An operator behind a keyed exchange, with state that is partitioned by key group."""

    signature = ""
    """What its state is of, for people to read: an operator of another signature would take it for something else.

    Set by who builds the program.
    """

    @abstractmethod
    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint. Called once after `open`, also without any.

        Chunks of one former subtask come in the order in which its `snapshot_keyed` gave them.
        """

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Do the same as `restore_keyed`, in steps that take well below a second each, where there may be many keys.

        The subtask answers its mailbox between them. It is called instead of `restore_keyed`.
        """
        self.restore_keyed(chunks)
        yield

    @abstractmethod
    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return all of the state, as chunks: old ones by their names, and what changed in new ones.

        Called right behind `snapshot`. Returns at once: what costs time is in `KeyedChunk.serialize`.
        """

    @property
    def late_rows(self) -> int:
        """How many rows came behind the watermark since the deployment."""
        return 0

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late: those of its input; None: no row can."""
        return None

    on_late: Callable[[pa.RecordBatch], None] = staticmethod(_nobody_wants)
    """Takes rows that came too late, with the columns of the operator's input; set before `open`."""


class SinkWriter(ABC):
    """One subtask's end of a sink. All methods run on the mailbox thread and none blocks for long."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. An error of earlier rows surfaces here or at `ready`, at the latest at the next barrier."""

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when they may (back pressure)."""
        return None

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Make safe what was written up to now, and say what is to be committed once the checkpoint is complete.

        Returns at once; rows that follow belong to the next checkpoint. The state's ``committables`` hold what was
        prepared for earlier checkpoints too, as long as none of those completed. ``final``: no rows follow.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The driver owns that checkpoint's committables now: they need not be reported again."""

    def finish(self) -> Future[None] | None:
        """Return a future that is done when all that is known complete is published; None: nothing is left to do here.

        Called once, after `notify_checkpoint_complete` of the last checkpoint and before `close`. A slot that is killed
        before it is done leaves the rest to the next run of the query.
        """
        return None

    def unpublished_ms(self) -> int:
        """Return how long the oldest rows of a complete checkpoint have waited to be published here; 0: none wait."""
        return 0

    def close(self) -> None:
        """Release what it holds; what is in no checkpoint is thrown away. Called once, also after an error."""


def _nobody_asks() -> None:
    """Do nothing."""


class SinkCommitter(ABC):
    """The driver's end of a sink. All methods run on one thread and may block."""

    check_owner: Callable[[], None] = staticmethod(_nobody_asks)
    """Raises if a newer run of the query took over, which may happen at any time; set by the driver after construction.

    It was called before `commit`. A sink that takes long, and then makes rows visible in one step, calls it again
    right before that step.
    """

    @abstractmethod
    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """Publish; return what is to be published later (it stays in checkpoints and comes again).

        Idempotent: after a crash the same committables come again, perhaps with an epoch that was committed in part.
        Epochs are contiguous from 1. ``final``: no epoch follows; publish everything, return nothing. What was staged
        and never comes, since its writer was restored from an older checkpoint, a sink finds by the names it gave.
        """

    def close(self) -> None:
        """Release what it holds."""


class Sink(ABC):
    """A sink of a query: a factory. Made and validated on the driver, pickled to every slot.

    Raises
    ------
    OptionError
        From construction: an unknown option, a bad value, columns that the sink cannot take.
    """

    uid: str = "sink"
    name: str
    publishes_on_slots: bool = False
    """Whether rows of the last checkpoint are published by the slots, after it is complete (`SinkWriter.finish`)."""

    @abstractmethod
    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer, with the list state that the checkpoint holds for it. On the slot."""

    def create_committer(self) -> SinkCommitter | None:
        """Return the committer; None: there is nothing to commit on the driver. On the driver."""
        return None
