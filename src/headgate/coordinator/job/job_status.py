"""How a query is, for people.

Never: be read by what decides.
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.job.scheduler import SubtaskStatus


class SourceInfo(msgspec.Struct, frozen=True):
    """A source for people: ``state`` as in `source_coordinator`, and what keeps its enumerator from its work."""

    state: str
    troubles: tuple[str, ...]


class SlotInfo(msgspec.Struct, frozen=True):
    """A slot for people: ``state`` as in `slots`, and what its newest attempt reported of itself.

    ``attempt`` is Spark's number of that in the ``job``, of which there may be several.
    """

    slot: int
    state: str
    job: int | None
    attempt: int | None
    host: str
    pid: int
    executor: str


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
