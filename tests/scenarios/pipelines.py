"""Clusters with a given query, which are rescaled at one checkpoint after the other."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.simulation.fault_kinds import Fault, MoreFaults
from headgate.simulation.scenario import Scenario
from headgate.simulation.topic import SourceScript, TopicSplit

HELD_MS = 15_000
"""How long faults come."""


def source(*stops: int, keys: int, batch_rows: int) -> SourceScript:
    return SourceScript(
        uid="source-0",
        kind="simple",
        splits=tuple(
            TopicSplit(split_id=f"source-0-{number}", appears_ms=0, stop=stop) for number, stop in enumerate(stops)
        ),
        bounded=False,  # its splits end all the same, and are all assigned at once
        row_ms=1,
        keys=keys,
        batch_rows=batch_rows,
    )


def pipeline(**changes: Any) -> Scenario:
    """Return a source that is read to its end at once."""
    scenario = Scenario(
        seed=1,
        parallelism=1,
        sources=(source(400, keys=100, batch_rows=100_000),),
        faults=(),
        interval_ms=10_000,
        checkpoint_timeout_ms=5_000,
        heartbeat_timeout_ms=1_000,
        failover_strategy="region",
        publish_later=0.0,
        drain=False,
        is_keyed=True,
        max_parallelism=100,
        recovery_bytes=2_000,
        target_bytes=1 << 18,
        phase_ms=HELD_MS,
    )
    return msgspec.structs.replace(scenario, **changes)


def rescales(*parallelisms: int) -> tuple[Fault, ...]:
    """Return rescales, each as soon as a checkpoint is complete, of the recovery from the one before mostly."""
    return tuple(Fault(1, MoreFaults.RESCALE_AT_CHECKPOINT, 0, parallelism) for parallelism in parallelisms)
