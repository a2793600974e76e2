"""What a seed decides before anything runs: sizes, rates, options, and which faults come when.

Never: look at what happens: a scenario with a fault less is the same otherwise, so that traces can be shortened.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.coordinator.job.job_plan import JobOptions
from headgate.coordinator.job.restart_strategy import FixedDelay
from headgate.coordinator.job.scheduler import SchedulerOptions
from headgate.operators.exchange import ExchangeKind
from headgate.runtime.source_input import ALLOW_UNALIGNED_SPLITS
from headgate.simulation.fault_kinds import (
    ConnectionFaults,
    Fault,
    FaultKind,
    Kinds,
    MoreFaults,
    SinkFaults,
    StorageFaults,
    UserFaults,
)
from headgate.simulation.load import noisy
from headgate.simulation.source_scripts import PHASE_MS, draw_families, draw_source, draw_splits_in_time
from headgate.simulation.topic import SourceScript, TopicSplit
from headgate.source.watermark import MIN_WATERMARK_MS, WatermarkAlignment, WatermarkStrategy

LOAD_PHASES = ((7_000, 1000), (8_000, 2000), (9_000, 4000), (9_000, 2000), (9_000, 1000))
"""The load of `Scenario.of_load`: how long each phase takes, in milliseconds, and thousandths of the first one's."""
LOAD_ROW_MS = 240
"""How often each of its splits grows by a row at first, in milliseconds: 33 rows a second come in all."""
NEIGHBOUR_PERIOD_MS = 70
"""How often another query of the application votes."""


class Neighbour(msgspec.Struct, frozen=True):
    """Another query of the application in the alignment group: it votes for a while, and leaves.

    Parameters
    ----------
    begins_ms, ends_ms
        From when to when it has a vote.
    first_ms, step_ms
        Its first vote, and by how much it moves every `NEIGHBOUR_PERIOD_MS`.
    """

    begins_ms: int
    ends_ms: int
    first_ms: int
    step_ms: int


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """The options that recovery knows, which a user may change between runs.

    Parameters
    ----------
    on_downstream
        ``recover-output-on-downstream``.
    during_recovery
        ``during-recovery``: only with the other.
    """

    on_downstream: bool = True
    during_recovery: bool = True


class Scenario(msgspec.Struct, frozen=True):
    """All that is decided beforehand."""

    seed: int
    parallelism: int
    sources: tuple[SourceScript, ...]
    faults: tuple[Fault, ...]
    interval_ms: int | None
    checkpoint_timeout_ms: int
    heartbeat_timeout_ms: int
    failover_strategy: Literal["region", "full"]
    publish_later: float
    """How likely the committer keeps a committable for later."""
    drain: bool
    """How an unbounded query is ended."""
    neighbour: Neighbour | None = None
    is_keyed: bool = False
    """Whether there is an exchange by key, and a function with state after it."""
    first_exchange: ExchangeKind | None = None
    """An exchange before that one."""
    second_exchange: ExchangeKind | None = None
    """One of the sources but the first beside it; they meet after it."""
    holds: bool = False
    """Whether the function between the exchanges keeps rows until the watermark has passed them."""
    in_time: bool = False
    """Whether no row is late, whatever goes wrong: a split is idle only before rows that are later than all others."""
    max_parallelism: int = 128
    row_ms: float = 0
    """What a row costs a function after an exchange."""
    source_row_ms: float = 0
    """What a row costs a function right after a source; 0: there is none."""
    unaligned: bool = True
    alignment_timeout_ms: int = 0
    first_checkpoint_ms: int = 100
    """When the first checkpoint of a deployment begins."""
    switches: tuple[Switches, ...] = (Switches(),)
    """Of each run in turn; the last one of all that follow."""
    recovery_bytes: int = 1 << 20
    """How much of what is recovered waits in memory."""
    target_bytes: int = 400
    """How large recovered buffers become that are packed again."""
    phase_ms: int = PHASE_MS
    """How long faults come."""
    disk_buffers: int | None = None
    """How many more buffers a local disk has room for; None: any number."""
    autoscaler: AutoscalerOptions | None = None
    """How the query is rescaled automatically; None: it is not."""

    @property
    def shares_threads(self) -> bool:
        """Whether its functions are like built-in operators, whose stages share a thread in each slot."""
        return random.Random(f"threads {self.seed}").random() < 0.5

    def __str__(self) -> str:
        query = f"{len(self.sources)} sources"
        if self.source_row_ms:
            query += f", {self.source_row_ms} ms a row right after them"
        if self.is_keyed:
            query += f", exchanges {self.first_exchange}, {self.second_exchange} and hash, {self.row_ms} ms a row"
        query += ", one thread a slot" if self.shares_threads and self.is_keyed else ""
        return f"parallelism {self.parallelism}, failover-strategy {self.failover_strategy}, {query}"

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        draw = random.Random(f"scenario {seed}")
        bounded = draw.random() < 0.4
        sources = tuple(
            draw_source(draw, f"source-{number}", bounded) for number in range(draw.choice((1, 1, 1, 2, 2)))
        )
        rate = draw.choice((4, 5, 6, 8, 11))
        kinds = draw.sample(list(FaultKind), draw.randint(4, len(FaultKind)))
        faults = sorted(
            (
                Fault(draw.randrange(50, PHASE_MS), draw.choice(kinds), draw.randrange(1000), draw.randint(1, 4))
                for _ in range(rate)
            ),
            key=lambda fault: fault.at_ms,
        )
        return (
            cls(
                seed=seed,
                parallelism=draw.randint(1, 4),
                sources=sources,
                faults=tuple(faults),
                interval_ms=draw.choice((100, 200, 400)),
                checkpoint_timeout_ms=draw.choice((300, 2000)),
                heartbeat_timeout_ms=draw.choice((400, 1000)),
                failover_strategy="full" if draw.random() < 0.15 else "region",
                publish_later=draw.choice((0.0, 0.0, 0.3)),
                drain=draw.random() < 0.5,
            )
            ._with_event_time()
            ._with_readers_that_cannot_pause()
            ._with_exchanges()
            ._with_two_exchanges()
            ._with_rows_in_time()
            ._with_parents()
            ._with_more_faults()
            ._with_storage_faults()
            ._with_late_connections()
            ._with_more("impatience", 0.1, (UserFaults.GIVE_UP,), (1, 3, 6))
            ._with_more("lost files", 0.1, (UserFaults.DELETE,), (1, 3, 6))
            ._with_more("lost rows", 0.2, (SinkFaults.LOSE_ROWS,), (1, 3, 6))
            ._with_time_for_barriers()
            ._with_slow_reading()
            ._with_pace()
            ._with_fetchers()
        )

    @classmethod
    def of_load(cls, seed: int, *, with_faults: bool = False) -> Scenario:
        """Return a scenario of a load that doubles twice and halves twice, with noise, and an autoscaler."""
        draw = random.Random(f"load {seed}")
        phase_ms = sum(length_ms for length_ms, _ in LOAD_PHASES)
        faults = tuple(
            Fault(at_ms, draw.choice(_LOAD_FAULTS), draw.randrange(1000), draw.randint(1, 4))
            for at_ms in sorted(draw.sample(range(1000, phase_ms), draw.randint(3, 8)))
        )
        source = SourceScript(
            uid="source-0",
            kind="kafka",
            splits=tuple(TopicSplit(split_id=f"source-0-{number}", appears_ms=0, stop=None) for number in range(8)),
            bounded=False,
            row_ms=LOAD_ROW_MS,
            keys=200,
            load=noisy(draw, LOAD_PHASES, noise=draw.choice((50, 150, 250)), step_ms=draw.choice((50, 200, 500))),
        )
        return cls(
            seed=seed,
            parallelism=1,
            sources=(source,),
            faults=faults if with_faults else (),
            interval_ms=draw.choice((200, 400)),
            checkpoint_timeout_ms=5000,
            heartbeat_timeout_ms=1000,
            failover_strategy="region",
            publish_later=0.0,
            drain=draw.random() < 0.5,
            is_keyed=True,
            row_ms=20,
            unaligned=draw.random() < 0.7,
            autoscaler=AutoscalerOptions(
                min_parallelism=1,
                max_parallelism=6,
                window_ms=2000,
                stabilization_ms=400,
                scale_down_interval_ms=2000,
                catch_up_ms=10_000,
            ),
            phase_ms=phase_ms,
        )

    def _with_event_time(self) -> Scenario:
        """Return the same with event time in some or all of its sources, if the seed wants it."""
        draw = random.Random(f"event time {self.seed}")
        if draw.random() < 0.6:
            return self
        silence = random.Random(f"silence {self.seed}")
        silent_from_ms = silence.randrange(300, 2000)
        silent_to_ms = silent_from_ms + silence.choice((0, 1000))
        drift_ms = draw.choice((0, 50, 200, 1000))
        aligned = draw.random() < 0.8
        sources = []
        for source in self.sources:
            idle_ms = None if source.bounded else draw.choice((150, 400))
            strategy = WatermarkStrategy(
                event_time_column="at",
                max_out_of_orderness_ms=draw.choice((0, 20)),
                idle_timeout_ms=draw.choice((idle_ms, 400)) if source.bounded else idle_ms,
                alignment=WatermarkAlignment(group="group", max_drift_ms=drift_ms, update_interval_ms=100)
                if aligned
                else None,
            )
            splits = tuple(
                msgspec.structs.replace(
                    split,
                    first_ms=draw.choice((0, 0, 0, 300, 5000)),
                    step_ms=draw.choice((1, 10, 10, 50)),
                    gap_at=draw.randrange(40),
                    gap_ms=draw.choice((0, 0, 3000)),
                )
                for split in source.splits
            )
            kept = draw.random() < 0.95
            sources.append(
                msgspec.structs.replace(
                    source,
                    splits=splits,
                    strategy=strategy if kept else None,
                    knows_rows=draw.random() < 0.6,
                    silent_from_ms=silent_from_ms,
                    silent_to_ms=silent_to_ms,
                )
            )
        changed = msgspec.structs.replace(self, sources=tuple(sources))
        if changed.alignment_group is None:
            return changed
        # Where things go wrong all the time much is excused.
        faults = () if draw.random() < 0.15 else self.faults
        return msgspec.structs.replace(changed, neighbour=_neighbour(draw), faults=faults)

    def _with_readers_that_cannot_pause(self) -> Scenario:
        """Return the same with readers that cannot pause splits, and the option for it, if the seed wants them."""
        draw = random.Random(f"cannot pause {self.seed}")
        if self.alignment_group is None or draw.random() < 0.6:
            return self
        parallelism, from_ms = min(self.parallelism, draw.randint(1, 2)), draw.randrange(300, 1200)
        changed = msgspec.structs.replace(
            self,
            parallelism=parallelism,
            sources=tuple(
                msgspec.structs.replace(
                    each,
                    pauses_splits=draw.random() < 0.2,
                    silent_from_ms=from_ms,
                    silent_to_ms=from_ms + draw.choice((800, 2000)),
                    # Some splits of a reader have rows, and another one has none.
                    splits=tuple(
                        msgspec.structs.replace(split, falls_silent=number % (2 * parallelism) == 0)
                        for number, split in enumerate(each.splits)
                    ),
                )
                for each in self.sources
            ),
        )
        if draw.random() < 0.4:
            return changed
        slow = Neighbour(begins_ms=0, ends_ms=PHASE_MS, first_ms=0, step_ms=draw.choice((1, 10)))
        return msgspec.structs.replace(changed, neighbour=slow, faults=())

    def _with_exchanges(self) -> Scenario:
        """Return the same with exchanges, if the seed wants them."""
        draw = random.Random(f"exchanges {self.seed}")
        if draw.random() < 0.5:
            return self
        switches = draw.choice(((True, True), (True, True), (True, False), (False, False)))
        keys = draw.choice((1, 3, 10, 40))
        return msgspec.structs.replace(
            self,
            sources=tuple(msgspec.structs.replace(source, keys=keys) for source in self.sources),
            is_keyed=True,
            first_exchange=draw.choice((None, None, None, "hash", "rebalance", "broadcast", "custom", "forward")),
            max_parallelism=draw.choice((8, 16, 128)),
            row_ms=draw.choice((0, 0, 1, 5)),
            unaligned=draw.random() < 0.9,
            alignment_timeout_ms=draw.choice((0, 0, 0, 3, 30)),
            switches=(Switches(on_downstream=switches[0], during_recovery=switches[1]),),
            recovery_bytes=draw.choice((400, 2000, 1 << 20)),
            disk_buffers=draw.choice((None, None, None, 0, 2)),
        )

    def _with_two_exchanges(self) -> Scenario:
        """Return the same with an exchange for each source and other options in later runs, if the seed wants them."""
        draw = random.Random(f"two exchanges {self.seed}")
        if not self.is_keyed:
            return self
        later = tuple(draw.choice(_SWITCHES) for _ in range(draw.choice((0, 0, 0, 2))))
        changed = msgspec.structs.replace(self, switches=self.switches + later)
        if len(self.sources) == 1 or draw.random() < 0.5:
            return changed
        kinds: tuple[ExchangeKind, ...] = ("hash", "hash", "rebalance", "broadcast", "custom", "forward")
        second = draw.choice((*kinds, "forward"))
        return msgspec.structs.replace(changed, first_exchange=draw.choice(kinds), second_exchange=second)

    def _with_rows_in_time(self) -> Scenario:
        """Return the same with rows of which none is ever late, if the seed wants them."""
        draw = random.Random(f"rows in time {self.seed}")
        if not self.is_keyed or draw.random() < 0.6:
            return self
        idle_ms = draw.choice((None, 400, 400))
        bounded = draw.random() < 0.7
        scripts = draw_splits_in_time(draw, [source.uid for source in self.sources], bounded, idle_ms is not None)
        sources = tuple(
            msgspec.structs.replace(
                source,
                kind=scripts[source.uid][0],
                splits=scripts[source.uid][1],
                bounded=bounded,
                latest=False,
                strategy=WatermarkStrategy(event_time_column="at", idle_timeout_ms=idle_ms),
                knows_rows=False,
                in_turn=True,
            )
            for source in self.sources
        )
        kinds: tuple[ExchangeKind | None, ...] = (None, "hash", "hash", "hash", "rebalance", "custom", "forward")
        first = self.first_exchange if self.second_exchange else draw.choice(kinds)
        by_key = {first, self.second_exchange or "hash"} == {"hash"}
        return msgspec.structs.replace(
            self,
            sources=sources,
            first_exchange=first,
            in_time=True,
            drain=False,
            holds=bounded and by_key and draw.random() < 0.8,  # else the last rows are held for ever
            row_ms=draw.choice((0, 0, 1, 5)),
            neighbour=None,
            # Who is frozen hears nothing of rows that are there: that counts as idle. After a drain all is late.
            faults=tuple(each for each in self.faults if each.kind not in (FaultKind.FREEZE_SLOT, FaultKind.DRAIN)),
        )

    def _with_parents(self) -> Scenario:
        """Return the same with shards that others came from, whose readers fail, if the seed wants them."""
        draw = random.Random(f"parents {self.seed}")
        if self.is_keyed or self.sources[0].bounded or draw.random() < 0.85:
            return self
        shards = msgspec.structs.replace(
            self.sources[0], kind="kinesis", splits=tuple(draw_families(draw, self.sources[0].uid)), latest=False
        )
        failing = [
            Fault(draw.randrange(100, 2500), FaultKind.FAIL_SUBTASK, draw.randrange(1000), draw.randint(1, 4))
            for _ in range(draw.randint(3, 6))
        ]
        changed = msgspec.structs.replace(
            self,
            sources=(shards, *self.sources[1:]),
            parallelism=max(2, self.parallelism),
            failover_strategy="region",
            interval_ms=400,
        )
        return changed.with_faults(tuple(sorted((*self.faults, *failing), key=lambda fault: fault.at_ms)))

    def _with_more_faults(self) -> Scenario:
        """Return the same with faults of storage, links and recoveries, if the seed wants them."""
        draw = random.Random(f"more faults {self.seed}")
        if not self.faults or draw.random() < (0.4 if self.is_keyed else 0.8):
            return self
        if self.is_keyed and draw.random() < 0.5:
            return self._rescaled(draw)
        kinds = draw.sample(list(MoreFaults), 4)
        more = (
            Fault(draw.randrange(50, PHASE_MS), draw.choice(kinds), draw.randrange(1000), draw.randint(1, 4))
            for _ in range(draw.choice((1, 2, 3)))
        )
        return self.with_faults(tuple(sorted((*self.faults, *more), key=lambda fault: fault.at_ms)))

    def _with_storage_faults(self) -> Scenario:
        """Return the same with faults of the checkpoint location, if the seed wants them, and runs that read it."""
        kinds = (*StorageFaults, FaultKind.CRASH_DRIVER, FaultKind.FAIL_SUBTASK)
        return self._with_more("storage faults", 0.15, kinds, (2, 3, 4))

    def _with_late_connections(self) -> Scenario:
        """Return the same with connections that overtake one another, if the seed wants them."""
        return self._with_more("late connections", 0.2, (ConnectionFaults.LATE,), (1, 3, 10), earliest_ms=5)

    @property
    def loses_files(self) -> bool:
        """Whether somebody deletes files of keyed state."""
        return any(each.kind is UserFaults.DELETE for each in self.faults)

    def _with_more(
        self, name: str, share: float, kinds: Sequence[Kinds], counts: Sequence[int], earliest_ms: int = 50
    ) -> Scenario:
        """Return the same with more faults, if it is of the share of seeds that have them."""
        draw = random.Random(f"{name} {self.seed}")
        if not self.faults or draw.random() < 1 - share:
            return self
        of_kinds = draw if len(kinds) > 1 else random.Random(0)
        more = (
            Fault(
                draw.randrange(earliest_ms, PHASE_MS), of_kinds.choice(kinds), draw.randrange(1000), draw.randint(1, 4)
            )
            for _ in range(draw.choice(counts))
        )
        return self.with_faults(tuple(sorted((*self.faults, *more), key=lambda fault: fault.at_ms)))

    def _rescaled(self, draw: random.Random) -> Scenario:
        """Return the same rescaled at one checkpoint after the other, with slow functions and so rows on their way."""
        faults, parallelism = list[Fault](), self.parallelism
        for _ in range(draw.randint(2, 4)):
            parallelism = draw.choice((parallelism, draw.randint(1, 4)))
            faults.append(Fault(50, MoreFaults.RESCALE_AT_CHECKPOINT, draw.randrange(1000), parallelism))
        batch_rows = draw.choice((8, 30))
        changed = msgspec.structs.replace(
            self,
            sources=tuple(msgspec.structs.replace(source, batch_rows=batch_rows) for source in self.sources),
            row_ms=draw.choice((5, 20)),
            interval_ms=100,
            first_checkpoint_ms=draw.choice((1, 10, 30)),
        )
        return changed.with_faults((*faults, *self.faults[:: draw.choice((2, 3))]))

    def _with_time_for_barriers(self) -> Scenario:
        """Return the same with time for barriers that wait for slow functions, where there are more than before."""
        kinds = {self.first_exchange, self.second_exchange}
        waits = self.row_ms and (not self.unaligned or "forward" in kinds)
        more = any(isinstance(fault.kind, MoreFaults) for fault in self.faults)
        if not waits or not (self.in_time or self.second_exchange or more):
            return self
        return msgspec.structs.replace(self, checkpoint_timeout_ms=5000)

    def _with_slow_reading(self) -> Scenario:
        """Return the same with a slow function right after each source, if the seed wants it, and larger batches."""
        draw = random.Random(f"slow reading {self.seed}")
        if draw.random() < 0.75:
            return self
        source_row_ms, batch_rows, rows = draw.choice(_SLOW_READING)
        # Where rows are let through one by one, or small buffers are recovered, very many would only take time.
        if rows > _MANY_ROWS and (self.alignment_group is not None or self.in_time):
            source_row_ms, batch_rows, rows = _SLOW_READING[0]
        changed = msgspec.structs.replace(
            self,
            source_row_ms=source_row_ms,
            sources=tuple(msgspec.structs.replace(each, batch_rows=batch_rows) for each in self.sources),
            checkpoint_timeout_ms=max(2000, self.checkpoint_timeout_ms) if self.unaligned else 5000,
        )
        if rows > _MANY_ROWS:
            changed = msgspec.structs.replace(changed, row_ms=0, recovery_bytes=1 << 20, disk_buffers=None)
        return changed if self.in_time else changed._with_rows_waiting(rows)  # else rows would be late

    def _with_rows_waiting(self, rows: int) -> Scenario:
        """Return the same with so many rows more in a split that ends, if there is one."""
        for number, source in enumerate(self.sources):
            for place, split in enumerate(source.splits):
                if split.stop is None or split.path or split.parents:
                    continue
                longer = msgspec.structs.replace(split, stop=split.stop + rows)
                splits = (*source.splits[:place], longer, *source.splits[place + 1 :])
                sources = [*self.sources]
                sources[number] = msgspec.structs.replace(source, splits=splits)
                return msgspec.structs.replace(self, sources=tuple(sources))
        return self

    def _with_pace(self) -> Scenario:
        """Return the same in less time, if the seed wants it: the same faults, less that goes well between them."""
        draw = random.Random(f"pace {self.seed}")
        pace = draw.choice(_PACES if self.faults else _CALM_PACES)
        if any(fault.kind is MoreFaults.RESCALE_AT_CHECKPOINT for fault in self.faults):
            pace = 1  # each of them waits for a checkpoint, and rows for slow functions
        if not all(source.pauses_splits for source in self.sources):
            pace = 1  # a split is idle after a while

        def sooner(at_ms: int) -> int:
            return round(at_ms * pace)

        sources = tuple(
            msgspec.structs.replace(
                source,
                splits=tuple(
                    msgspec.structs.replace(each, appears_ms=sooner(each.appears_ms)) for each in source.splits
                ),
                silent_from_ms=sooner(source.silent_from_ms),
                silent_to_ms=sooner(source.silent_from_ms) + source.silent_to_ms - source.silent_from_ms,
                # More rows than that only take time, unless functions are slow.
                row_ms=source.row_ms
                if self.row_ms or self.source_row_ms
                else max(source.row_ms, _ROW_MS * len(source.splits)),
            )
            for source in self.sources
        )
        faults = tuple(msgspec.structs.replace(each, at_ms=sooner(each.at_ms)) for each in self.faults)
        neighbour = self.neighbour
        if neighbour is not None:
            begins_ms, ends_ms = sooner(neighbour.begins_ms), sooner(neighbour.ends_ms)
            neighbour = msgspec.structs.replace(neighbour, begins_ms=begins_ms, ends_ms=ends_ms)
        changed = msgspec.structs.replace(self, sources=sources, neighbour=neighbour, phase_ms=sooner(PHASE_MS))
        return changed.with_faults(faults)

    def _with_fetchers(self) -> Scenario:
        """Return the same with readers of production's, if the seed wants them and they can pause splits."""
        draw = random.Random(f"fetchers {self.seed}")
        if draw.random() < 0.5 or not all(each.pauses_splits and not each.in_turn for each in self.sources):
            return self
        sources = tuple(msgspec.structs.replace(each, fetches=draw.random() < 0.8) for each in self.sources)
        return msgspec.structs.replace(self, sources=sources)

    def switches_of(self, run: int) -> Switches:
        """Return the options of a run, counted from 1."""
        return self.switches[min(run, len(self.switches)) - 1]

    def query_options(self, run: int) -> dict[str, str]:
        """Return the options of the query in a run as a user gives them."""
        switches = self.switches_of(run)
        unaligned = "execution.checkpointing.unaligned"
        return {
            "max-parallelism": str(self.max_parallelism),
            f"{unaligned}.enabled": str(self.unaligned).lower(),
            f"{unaligned}.recover-output-on-downstream.enabled": str(switches.on_downstream).lower(),
            f"{unaligned}.during-recovery.enabled": str(switches.during_recovery).lower(),
            ALLOW_UNALIGNED_SPLITS: str(not all(each.pauses_splits for each in self.sources)).lower(),
        }

    def job_options(self, run: int) -> JobOptions:
        """Return the machine's options in a run."""
        return JobOptions(
            checkpoints=CheckpointOptions(
                interval_ms=self.interval_ms,
                timeout_ms=self.checkpoint_timeout_ms,
                num_retained=1 + self.seed % 2,
                tolerable_failed=self.seed % 3,
                first_after_restore_ms=self.first_checkpoint_ms,
                look_interval_ms=1 if self.loses_files else 60_000,
            ),
            scheduler=SchedulerOptions(
                failover_strategy=self.failover_strategy,
                restart=FixedDelay(attempts=1000, delay_ms=50),
                heartbeat_timeout_ms=self.heartbeat_timeout_ms,
                registration_timeout_ms=1500,
                release_timeout_ms=1000,
            ),
            unaligned=self.unaligned,
            alignment_timeout_ms=self.alignment_timeout_ms,
            recover_output_downstream=self.switches_of(run).on_downstream,
        )

    @property
    def alignment_group(self) -> str | None:
        """The alignment group of all sources that have one; None: no source has."""
        groups = (source.strategy.alignment for source in self.sources if source.strategy is not None)
        return next((alignment.group for alignment in groups if alignment is not None), None)

    def with_faults(self, faults: tuple[Fault, ...]) -> Scenario:
        """Return the same with other faults."""
        return msgspec.structs.replace(self, faults=faults)


_LOAD_FAULTS = (
    FaultKind.CRASH_SLOT,
    FaultKind.END_JOB,
    FaultKind.FAIL_COMMIT,
    FaultKind.FAIL_SUBTASK,
    FaultKind.LOSE_MANIFEST,
    FaultKind.LOSE_MANIFEST,
    FaultKind.SUSPEND,
)
"""What goes wrong meanwhile, and a user who rescales the query."""
_SLOW_READING = ((20, 30, 30), (20, 30, 30), (5, 100, 150), (5, 100, 150), (1, 1000, 600), (0.1, 10_000, 10_000))
"""What a row costs right after a source, rows that a reader emits at a time, and rows that there are in addition."""
_MANY_ROWS = 200
_ROW_MS = 8
"""How often a source grows by a row at most, where functions are quick."""
_PACES = (0.2, 0.2, 0.3, 0.3, 0.4, 0.5, 0.7, 1)
_CALM_PACES = (0.4, 0.4, 0.5, 0.7, 1)
"""Where nothing fails: how alignment goes on takes time."""
_SWITCHES = (
    Switches(),
    Switches(),
    Switches(during_recovery=False),
    Switches(on_downstream=False, during_recovery=False),
)


def _neighbour(draw: random.Random) -> Neighbour | None:
    if draw.random() < 0.6:
        return None
    begins_ms = draw.choice((0, draw.randrange(PHASE_MS)))
    return Neighbour(
        begins_ms=begins_ms,
        ends_ms=draw.randrange(begins_ms, PHASE_MS),
        first_ms=draw.choice((MIN_WATERMARK_MS, 0, 0, 300, 5000)),
        step_ms=draw.choice((1, 20, 100)),
    )
