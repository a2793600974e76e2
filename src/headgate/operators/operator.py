"""The contract of an operator: rows in, rows out, between source and sink.

Never: call these from another thread than the one each method names.

Follows FLIP-27's threading model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.protocol.state_schema import StateSchema
from headgate.state.chunks import KeyedChunk, RestoredChunk

Emit = Callable[[pa.RecordBatch, str], None]
"""Takes rows and the id of the split that they come from."""


def _nobody_wants(batch: pa.RecordBatch) -> None:
    """Do nothing."""


class Operator(ABC):
    """Turns batches into batches. Pickled from the driver to every slot; all methods run on the mailbox thread."""

    uid: str
    schema: pa.Schema
    """The columns of what it emits."""
    watermark_delay_ms = 0
    """How far the event times of what it emits may be below the watermark: so much less is the watermark after it."""
    blocks = False
    """Whether calls may wait for others, or last as long as a user's function: then its stage has its own thread."""

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """Wait for what `open` needs and what takes long, in steps well below a second each."""
        return iter(())

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready, with the list state that the checkpoint holds for this subtask."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take rows; everything that follows from them has been emitted when this returns.

        ``split_id``: of which split they are; the ids of several are joined by ", ", empty where nobody knows.
        """

    def process_input(self, number: int, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take rows of one of several inputs, which are numbered from 0; see `process`.

        To an operator that does not distinguish its inputs all are one.
        """
        self.process(batch, split_id, emit)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit what the watermark of this stage completes, in milliseconds; it is forwarded next. It never goes back.

        The last one, before `end_input`, is `headgate.source.watermark.MAX_WATERMARK_MS`.
        """

    def due_ms(self) -> int | None:
        """Return when `process_time` is wanted, in milliseconds since 1970-01-01 UTC; None: not at all."""
        return None

    def process_time(self, now_ms: int, emit: Emit) -> None:
        """Take note that the wall clock shows ``now_ms`` (milliseconds since 1970-01-01 UTC): `due_ms` is over."""

    def prepare_snapshot(self, emit: Emit) -> None:
        """Emit what is to be before the barrier. Called before every `snapshot`, upstream operators first."""

    def end_input(self, emit: Emit) -> None:
        """Emit what is held: no rows follow. Called once, before the last snapshot."""

    def snapshot(self, checkpoint_id: int) -> OperatorState | None:
        """Return the state between two batches; None: there is none."""
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is durable. Not promised for every one."""

    def close(self) -> None:
        """Release what it holds. Called once, also after an error."""


class KeyedOperator(Operator):
    """An operator downstream of a keyed exchange, with state that is partitioned by key group."""

    signature = ""
    """What its state is of, for people to read: an operator of another signature would take it for something else.

    Set by who builds the program.
    """
    state_schema: StateSchema | None = None
    """Which columns its state has, if state of another schema may be taken on. Set by who builds the program."""

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

        Called right after `snapshot`. Returns at once: what costs time is in `KeyedChunk.serialize`.
        """

    @property
    def late_rows(self) -> int:
        """How many rows came after the watermark since the deployment."""
        return 0

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late: those of its input; None: no row can."""
        return None

    on_late: Callable[[pa.RecordBatch], None] = staticmethod(_nobody_wants)
    """Takes rows that came too late, with the columns of the operator's input; set before `open`."""
