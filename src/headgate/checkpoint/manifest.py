"""The manifest: everything that a completed checkpoint holds, or where it lies.

Never: hold a reference to a file that is not durable when the manifest is written.

Durable: version 1; golden bytes in ``tests/golden``.
"""

from __future__ import annotations

import msgspec

from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import StateHandle, SubtaskState


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One source in a checkpoint.

    Parameters
    ----------
    name
        The format's name.
    enumerator
        The enumerator's state, as its ``state_serializer`` wrote it.
    fixed
        The options that may not change, with their values.
    """

    name: str
    enumerator: StateHandle
    fixed: dict[str, object] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint.

    Parameters
    ----------
    checkpoint_id
        Counts the checkpoints at a location, across runs and failed ones.
    epoch
        Counts the completed checkpoints at a location, without a gap: the number that sinks see.
    kind
        What it is.
    query_id
        The query it belongs to.
    run
        The run that took it.
    created_ms
        When, in milliseconds since 1970-01-01 UTC.
    parallelism, max_parallelism
        Of the query.
    sources
        By uid.
    stages
        The operators' uids of each stage, in the order of the data.
    subtasks
        By stage, in the order of the subtasks.
    commits
        By sink uid: what is to be committed when this checkpoint is restored, because it may not have been.
    """

    checkpoint_id: int
    epoch: int
    kind: CheckpointKind
    query_id: str
    run: int
    created_ms: int
    parallelism: int
    max_parallelism: int
    sources: dict[str, SourceEntry]
    stages: tuple[tuple[str, ...], ...]
    subtasks: tuple[tuple[SubtaskState, ...], ...]
    commits: dict[str, tuple[bytes, ...]] = {}
