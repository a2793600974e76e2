"""What a query is made of, and what its user set.

Never: hold what changes while it runs.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.coordinator.job.scheduler import SchedulerOptions
from headgate.protocol.state_schema import StateSchema
from headgate.source.watermark import WatermarkAlignment


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A source of the query.

    Parameters
    ----------
    name, fixed
        Its format's name, and the options that may not change.
    reassigns_on_recovery
        Whether it has FLIP-537's marker.
    keeps_subtask
        Whether splits that a reader gives back wait for that reader (event time is in use).
    alignment
        Its alignment group; None: it is read at full speed.
    """

    name: str
    reassigns_on_recovery: bool
    fixed: dict[str, object] = {}
    keeps_subtask: bool = False
    alignment: WatermarkAlignment | None = None


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the query is made of.

    Parameters
    ----------
    sources
        By uid.
    stages
        The uids of each stage's operators (sources and sinks included), in the order of the data.
    parallelism, max_parallelism
        How many slots; how many there may ever be.
    query_id, run
        Whose it is.
    exchanges
        The exchanges between its stages, by uid; what a stage consumes comes from stages of lower numbers.
    signatures
        By uid: what keyed state, and rows on their way by key, are of.
    state_schemas
        By uid: which columns these have, where they may change.
    named
        The uids of operators that the user chose.
    """

    sources: dict[str, SourcePlan]
    stages: tuple[tuple[str, ...], ...]
    parallelism: int
    max_parallelism: int
    query_id: str
    run: int
    exchanges: dict[str, ExchangePlan] = {}
    signatures: dict[str, str] = {}
    state_schemas: dict[str, StateSchema] = {}
    named: frozenset[str] = frozenset()

    @property
    def is_connected(self) -> bool:
        """Whether exchanges connect subtasks of different slots."""
        return any(exchange.kind != "forward" for exchange in self.exchanges.values())

    @property
    def moving_exchanges(self) -> frozenset[str]:
        """The exchanges whose rows may come from another producer after any restart.

        A source that reassigns splits on recovery gives one to another reader then, at the same parallelism, too. What
        is downstream of a ``forward`` exchange follows its producers; other exchanges send a row where they did before.
        """
        if not any(source.reassigns_on_recovery for source in self.sources.values()):
            return frozenset()
        moving, stages = set[str](), {0}
        for uid, exchange in sorted(self.exchanges.items(), key=lambda each: each[1].producer_stage):
            if exchange.producer_stage in stages:
                moving.add(uid)
                stages |= {exchange.consumer_stage} if exchange.kind == "forward" else set()
        return frozenset(moving)


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user set.

    Parameters
    ----------
    checkpoints, scheduler
        The options of those machines.
    unaligned
        Whether barriers pass rows; those of savepoints never do.
    alignment_timeout_ms
        How long such a barrier keeps its place first, in milliseconds.
    recover_output_downstream
        Whether rows under way are recovered by who was to get them.
    stuck_timeout_ms
        How long a call of an enumerator may take, in milliseconds.
    """

    checkpoints: CheckpointOptions
    scheduler: SchedulerOptions = SchedulerOptions()
    unaligned: bool = True
    alignment_timeout_ms: int = 0
    recover_output_downstream: bool = True
    stuck_timeout_ms: int = 30_000
