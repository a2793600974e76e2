"""How a query is, for people.

Never: be read by what decides.
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.job.scheduler import SubtaskStatus
from headgate.coordinator.slots.slots import ATTEMPT_BITS


class SourceInfo(msgspec.Struct, frozen=True):
    """A source for people: ``state`` as in `source_coordinator`, and what keeps its enumerator from its work."""

    state: str
    troubles: tuple[str, ...]


class SlotInfo(msgspec.Struct, frozen=True):
    """A slot: ``state`` as in `slots`, and what its newest attempt reported of itself."""

    slot: int
    state: str
    attempt: int | None
    host: str
    pid: int
    executor: str
    job: int | None = None

    @property
    def shown(self) -> SlotInfo:
        """The same for people: ``attempt`` is Spark's number of it in the ``job``, of which there may be several."""
        if self.attempt is None:
            return self
        job, attempt = divmod(self.attempt, 1 << ATTEMPT_BITS)
        return msgspec.structs.replace(self, attempt=attempt, job=job)


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the query is.

    Parameters
    ----------
    state
        ``created``, ``starting``, ``running``, ``restarting``, ``ending``, ``ended``, ``failing`` or ``failed``.
    slots, subtasks
        How they are, in order.
    checkpoint
        What the coordinator of checkpoints is doing.
    completed_checkpoint, epoch
        The last completed checkpoint and its epoch; None and 0: there is none.
    pending_checkpoint, pending_since_ms
        The one under way, and when it was ordered, in milliseconds since 1970-01-01 UTC.
    sources
        How they are, by uid.
    """

    state: str
    slots: tuple[SlotInfo, ...]
    subtasks: tuple[SubtaskStatus, ...]
    checkpoint: str
    completed_checkpoint: int | None
    epoch: int
    pending_checkpoint: int | None
    pending_since_ms: int | None = None
    sources: dict[str, SourceInfo] = {}
