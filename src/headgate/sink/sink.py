"""The contract of a sink of continuous queries: a writer in each subtask, and a committer on the driver.

Never: call these from another thread than the one each method names.

Follows Flink's Sink V2 (SinkWriter, Committer) for two-phase sinks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import ClassVar

import pyarrow as pa

from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState


class SinkWriter(ABC):
    """One subtask's end of a sink. All methods run on the mailbox thread and none blocks for long."""

    waits_for_rows: ClassVar[bool] = False
    """Whether `ready` says that there is room only when the rows before were taken by code of the user's, which may be
    slow: then the time until there is room is that of the rows, and so many are written at a time as take little of it.
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. An error of earlier rows surfaces here or at `ready`, at the latest at the next barrier."""

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when they may (back pressure)."""
        return None

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Make durable what was written up to now; return what to commit once the checkpoint is complete.

        Returns at once; rows that follow belong to the next checkpoint. The state's ``committables`` hold what was
        prepared for earlier checkpoints too, until one of those completes. ``final``: no rows follow.
        """

    def discard_rows(self) -> None:
        """Forget the rows since the last `prepare_commit`, where a sink can: others follow that stand for them.

        Called in the output mode ``complete`` before the rows of each checkpoint: those of one that was given up may
        have come, and no others do between two checkpoints.
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
        """Release what it holds; what is not in a checkpoint is discarded. Called once, also after an error."""


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
        """Publish; return what to publish later (it stays in checkpoints and is passed again).

        Idempotent: after a crash the same committables come again, perhaps with an epoch that was partly committed.
        Epochs are contiguous from 1. ``final``: no epoch follows; publish everything, return nothing. What was staged
        but never comes, since its writer was restored from an older checkpoint, a sink finds by the names it chose.
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
    output_mode: str = "append"
    """What rows are to those before: ``append``; ``update`` of some; ``complete``: each checkpoint has all of them."""
    publishes_at_once: bool = False
    """Whether rows are there for others as soon as they are written, and not with the next checkpoint."""
    publishes_on_slots: bool = False
    """Whether rows of the last checkpoint are published by the slots, after it is complete (`SinkWriter.finish`)."""
    commits_with_spark: bool = False
    """Whether its committer runs Spark jobs, which need a core beside those of the slots."""

    @abstractmethod
    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer, with the list state that the checkpoint holds for it. On the slot."""

    def create_committer(self, checkpoint_location: str) -> SinkCommitter | None:
        """Return the committer; None: there is nothing to commit on the driver. On the driver.

        Parameters
        ----------
        checkpoint_location
            Where the query's checkpoints are; a writer finds it among its context's options.
        """
        return None
