"""One deployment of a simulated keyed pipeline: its subtasks, and the links between them.

Never: outlive a failure: what is under way then is lost, and all subtasks begin anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.channels import ChannelId
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import SubtaskState
from headgate.simulation.keyed.scenario import Switches
from headgate.simulation.keyed.stages import (
    PASS,
    HoldStage,
    PassStage,
    SourceStage,
    Stage,
    WindowStage,
    routing_of,
)
from headgate.simulation.keyed.subtask import KeyedSubtask

if TYPE_CHECKING:
    from headgate.simulation.keyed.cluster import KeyedCluster


class Link:
    """One channel between two subtasks."""

    __slots__ = ("barriers", "behind_rows", "consumer", "down_ms", "processed_ms", "producer", "sent", "up_ms")

    def __init__(self, producer: KeyedSubtask, consumer: KeyedSubtask) -> None:
        self.producer, self.consumer = producer, consumer
        self.down_ms = self.up_ms = 0  # when what was sent last arrives, in either direction
        self.sent = 0  # buffers
        self.processed_ms: list[int] = []  # when each was
        self.behind_rows = True  # whether nothing but rows and barriers was sent since the last buffer
        self.barriers: dict[int, tuple[int, int] | None] = {}
        """By checkpoint: when its barrier arrives, and how many buffers stand before it; None: events do as well."""


class Deployment:
    """The subtasks of all stages.

    Parameters
    ----------
    cluster
        Where they live.
    number, era
        Counts deployments, and times at which the parallelism changed.
    parallelism
        How many subtasks each stage has.
    stored
        The checkpoint as it was stored; None: a fresh start.
    fitted
        The same for this parallelism.
    switches
        The options of recovery.
    """

    def __init__(
        self,
        cluster: KeyedCluster,
        number: int,
        era: int,
        parallelism: int,
        stored: Manifest | None,
        fitted: Manifest | None,
        switches: Switches,
    ) -> None:
        scenario = cluster.scenario
        self.cluster, self.number, self.era, self.parallelism = cluster, number, era, parallelism
        self.stored = stored
        self.switches = switches
        self.producers_recover = stored is not None and not switches.on_downstream
        self.routings = {uid: routing_of(scenario, uid, parallelism) for uid in scenario.exchanges}
        recovered, self.relocated = {}, frozenset[str]()
        if stored is not None:
            self.relocated = cluster.parts.relocated(
                stored.channels, old_parallelism=stored.channels_parallelism, parallelism=parallelism
            )
            recovered = cluster.parts.assign(
                stored.channels,
                scenario.exchanges,
                old_parallelism=stored.channels_parallelism,
                parallelism=parallelism,
                max_parallelism=scenario.max_parallelism,
                on_downstream=switches.on_downstream,
            )
            cluster.invariants.on_assigned(stored, recovered, parallelism, switches)
        self.subtasks = {
            each: cluster.parts.subtask(
                cluster,
                self,
                each,
                None if fitted is None else fitted.subtasks[each.stage][each.subtask],
                recovered.get(each, ()),
            )
            for each in (
                SubtaskId(stage, subtask) for stage in range(scenario.stages) for subtask in range(parallelism)
            )
        }
        self.links: dict[ChannelId, Link] = {}
        for uid, plan in scenario.exchanges.items():
            for consumer in range(parallelism):
                for producer in self.producers(uid, consumer):
                    self.links[ChannelId(uid, producer, consumer)] = Link(
                        self.subtasks[SubtaskId(plan.producer_stage, producer)],
                        self.subtasks[SubtaskId(plan.consumer_stage, consumer)],
                    )
        self.slowest_link_ms = 0
        self.connected_ms = 0
        """When the last channel was there."""
        self.told_running = False
        self.triggered = False
        self.running_ms = 0

    def producers(self, uid: str, consumer: int) -> tuple[int, ...]:
        """Return who sends to a consumer."""
        forward = self.cluster.scenario.exchanges[uid].kind == "forward"
        return (consumer,) if forward else tuple(range(self.parallelism))

    def consumers(self, uid: str, producer: int) -> tuple[int, ...]:
        """Return whom a producer sends to: the same numbers."""
        return self.producers(uid, producer)

    def stage_of(self, subtask: KeyedSubtask, restore: SubtaskState | None) -> Stage:
        """Make what a subtask does with rows."""
        stage = subtask.id.stage
        if stage in self.cluster.scenario.sources:
            return SourceStage(subtask, restore)
        if stage == self.cluster.scenario.stages - 1:
            return WindowStage(subtask, restore)
        if self.cluster.scenario.holds_at(stage):
            return HoldStage(subtask, restore)
        return PassStage(subtask, restore)

    def seen_of(self, subtask: SubtaskId) -> set[tuple[int, int]]:
        """Return which rows of a broadcast are in the state that a subtask takes over: everybody had them all."""
        if self.stored is None:
            return set()
        old = self.stored.subtasks[subtask.stage]
        items = old[subtask.subtask % len(old)].operators.get(PASS)
        return set() if items is None or not items.items else set(self.cluster.storage.get(items.items[0]))

    @property
    def alive(self) -> bool:
        """Whether it has not failed."""
        return all(subtask.alive for subtask in self.subtasks.values())

    def kill(self) -> None:
        """End all subtasks."""
        for subtask in self.subtasks.values():
            subtask.alive = False
