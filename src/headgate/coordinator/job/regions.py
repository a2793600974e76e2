"""Knows what exchanges connect: which subtasks are deployed together, and who takes on which channel state.

Never: deploy anything, or know where a slot is.

Where an exchange is not `forward`, all subtasks are one region: any failure restarts them all, in place. With `forward`
ones only, the subtasks of a slot are one. Channels connect subtasks of one generation, which is one deployment of a
region.

Follows FLIP-547, 4.3.1.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint.channel_assignment import assign_channels, relocated_exchanges
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job.job_plan import JobPlan
from headgate.coordinator.job.scheduler import Scheduler
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import RecoveredChannel


class Region(msgspec.Struct):
    """Subtasks that exchanges connect: how often they were deployed, and which of them are."""

    generation: int = 0
    deployed: dict[SubtaskId, int] = {}  # their executions


class Channels(msgspec.Struct, frozen=True):
    """Who takes on which channel state of a checkpoint, and of which exchanges it is relocated."""

    manifest: Manifest | None
    assigned: dict[SubtaskId, tuple[RecoveredChannel, ...]]
    relocated: frozenset[str]


_NO_CHANNELS = Channels(None, {}, frozenset())


class Regions:
    """The regions of one query.

    Parameters
    ----------
    plan
        The query.
    on_downstream
        Whether rows under way are recovered by who was to get them.
    """

    def __init__(self, plan: JobPlan, *, on_downstream: bool) -> None:
        self._plan = plan
        self._on_downstream = on_downstream
        self._moving = plan.moving_exchanges
        self._regions = [Region() for _ in range(1 if plan.is_connected else plan.parallelism)]
        self._channels = _NO_CHANNELS
        exchanges = plan.exchanges.values()
        self.connected_stages = {stage for each in exchanges for stage in (each.producer_stage, each.consumer_stage)}
        """The stages that an exchange begins or ends at."""

    def of(self, slot: int) -> Region:
        """Return the region of a slot's subtasks."""
        return self._regions[0 if self._plan.is_connected else slot]

    def generation(self, slot: int) -> int:
        """Return the generation that a subtask of the slot is deployed in: another one if none of its region is."""
        region = self.of(slot)
        if self._plan.exchanges and not region.deployed:
            region.generation += 1
        return region.generation

    def deployed(self, subtask: SubtaskId, execution: int) -> Region | None:
        """Note a deployment, and return its region if that was the last of it; None: no, or nothing is exchanged."""
        if not self._plan.exchanges:
            return None
        region = self.of(subtask.subtask)
        region.deployed[subtask] = execution
        slots = self._plan.parallelism if self._plan.is_connected else 1
        return region if len(region.deployed) == len(self._plan.stages) * slots else None

    def forget(self, slot: int) -> None:
        """Note that nothing of a slot's region is deployed any longer."""
        self.of(slot).deployed.clear()

    def forget_all(self) -> None:
        """Note that nothing is deployed any longer."""
        for region in self._regions:
            region.deployed.clear()

    def channels_of(self, manifest: Manifest | None) -> Channels:
        """Return which subtask takes on which of a checkpoint's channel state."""
        if manifest is None:
            return _NO_CHANNELS
        if self._channels.manifest is not manifest:
            old, parallelism = manifest.channels_parallelism, self._plan.parallelism
            relocated = relocated_exchanges(
                manifest.channels, old_parallelism=old, parallelism=parallelism, moving=self._moving
            )
            assigned = assign_channels(
                manifest.channels,
                self._plan.exchanges,
                old_parallelism=old,
                parallelism=parallelism,
                max_parallelism=self._plan.max_parallelism,
                on_downstream=self._on_downstream,
                relocated=relocated,
            )
            self._channels = Channels(manifest, assigned, relocated)
        return self._channels

    def check(self, scheduler: Scheduler) -> None:
        """Assert that all that is deployed of a region is of its generation."""
        for region in self._regions:
            for subtask, execution in region.deployed.items():
                assert scheduler.execution(subtask) in (None, execution), f"{subtask} is of another generation"
