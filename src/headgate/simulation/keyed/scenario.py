"""What a seed decides before a keyed pipeline runs: its shape, sizes, speeds, options, and which faults come when.

Never: look at what happens: a scenario with a fault less is the same otherwise, so that traces can be shortened.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

import msgspec

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.simulation.keyed.rows import Row


class FaultKind(Enum):
    """What can go wrong, and what a user can do meanwhile."""

    CRASH = "crash subtask"
    CRASH_SOON = "crash subtask between actions"
    CRASH_IN_RECOVERY = "crash subtask while it recovers"
    RESCALE = "stop, and start at another parallelism"
    RESCALE_IN_RECOVERY = "stop in recovery, and start at another parallelism"
    RESCALE_FROM_SAVEPOINT = "savepoint, and start from it at another parallelism"
    CHECKPOINT = "ask for a checkpoint"
    SAVEPOINT = "ask for a savepoint"
    DECLINE = "decline snapshot"
    SLOW_LINKS = "slow links"
    SLOW_SUBTASK = "slow subtask"


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Parameters
    ----------
    at_ms
        When.
    kind
        What.
    pick
        Which subtask, or number of actions: any number, taken modulo what there is.
    parallelism
        Of the run that follows, where one does.
    """

    at_ms: int
    kind: FaultKind
    pick: int = 0
    parallelism: int = 1

    def __str__(self) -> str:
        return f"{self.at_ms} ms: {self.kind.value} (pick {self.pick}, then P={self.parallelism})"


class SplitScript(msgspec.Struct, frozen=True):
    """A split: its rows, of which none is earlier than the one before it.

    Parameters
    ----------
    number
        Names it in the query.
    rows
        How many.
    keys, first_key
        How many keys they have, and the lowest.
    first_ms, step_ms
        The event time of the first, and how much later each next one is.
    """

    number: int
    rows: int
    keys: int
    first_ms: int
    step_ms: int
    first_key: int = 0

    def row(self, number: int) -> Row:
        """Return a row."""
        key = self.first_key + (number * number * 7 + number * 3) % self.keys
        return Row(self.number, number, key, self.first_ms + number * self.step_ms, 0)

    @property
    def split_id(self) -> str:
        """Its id."""
        return f"split-{self.number:02}"


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


class KeyedScenario(msgspec.Struct, frozen=True, kw_only=True):
    """All that is decided beforehand.

    Parameters
    ----------
    seed
        What chooses whatever is chosen while it runs.
    parallelism, max_parallelism
        Of the first run, and of key groups.
    exchanges
        By uid, in the order of the data; the last one is a ``hash`` exchange into the windows.
    sources
        The splits of each source stage, by its number.
    read_ms, read_rows
        How often a source reads, and how many rows at most.
    watermark_reads
        After how many reads it tells its watermark.
    cost_ms
        What a row costs each stage behind an exchange, in milliseconds, by its number.
    slice_ms
        How long a slice of a buffer takes at most, of more than one row.
    window_ms
        How long windows are.
    credits, queue_buffers
        As for `InputGate`; and at how many queued buffers a producer waits.
    buffer_rows, room
        How many rows fill a repacked buffer, and how many recovered buffers a subtask has memory for.
    disk
        How many more it has a disk for; None: any number.
    link_ms, read_state_ms
        How slow links, and the reading of a recovered buffer, are at most.
    interval_ms, first_after_restore_ms, timeout_ms
        Of checkpoints.
    tolerable_failed
        How many checkpoints may fail in a row.
    unaligned, alignment_timeout_ms
        As for `headgate.protocol.channels.Barrier`.
    switches
        Of each run in turn; the last one for all that follow.
    faults
        In the order of their times.
    idle_ms
        How long a reader without rows is idle before it ends, and one that stands before a pause of its split.
    holds
        Whether a stage behind nothing but ``hash`` exchanges keeps rows until its watermark is past them.
    held_ms
        Until when nothing that comes through an exchange is processed, as behind a function that hangs.
    """

    seed: int
    parallelism: int
    max_parallelism: int
    exchanges: dict[str, ExchangePlan]
    sources: dict[int, tuple[SplitScript, ...]]
    read_ms: int = 4
    read_rows: int = 4
    watermark_reads: int = 1
    cost_ms: dict[int, int]
    slice_ms: int = 5
    window_ms: int = 100
    credits: int = 2
    queue_buffers: int = 4
    buffer_rows: int = 4
    room: int = 3
    disk: int | None = None
    link_ms: int = 4
    read_state_ms: int = 2
    interval_ms: int = 100
    first_after_restore_ms: int = 30
    timeout_ms: int = 5000
    tolerable_failed: int = 10_000
    unaligned: bool = True
    alignment_timeout_ms: int = 0
    switches: tuple[Switches, ...] = (Switches(),)
    faults: tuple[Fault, ...] = ()
    idle_ms: int = 0
    holds: bool = False
    held_ms: int = 0

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return 1 + max(exchange.consumer_stage for exchange in self.exchanges.values())

    def inputs_of(self, stage: int) -> dict[str, ExchangePlan]:
        """Return the exchanges that a stage consumes."""
        return {uid: each for uid, each in self.exchanges.items() if each.consumer_stage == stage}

    def output_of(self, stage: int) -> str | None:
        """Return the exchange that a stage produces for; the last one produces for none."""
        return next((uid for uid, each in self.exchanges.items() if each.producer_stage == stage), None)

    def holds_at(self, stage: int) -> bool:
        """Return whether a stage keeps rows until its watermark is past them, before it hands them on."""
        kinds = [each.kind for each in self.inputs_of(stage).values()]
        return self.holds and stage < self.stages - 1 and bool(kinds) and set(kinds) == {"hash"}

    def is_told_to_all(self, uid: str) -> bool:
        """Return whether all subtasks behind an exchange are told the same watermarks, as `StageGraph` does."""
        exchange = self.exchanges[uid]
        return exchange.kind != "forward" or self.idles_together(exchange.producer_stage)

    def idles_together(self, stage: int) -> bool:
        """Return whether no subtask of a stage stays idle unless all do, as `StageGraph` does.

        It says so too where sources are in several stages, and one may stay idle longer: that is waited for.
        """
        return any(map(self.is_told_to_all, self.inputs_of(stage)))

    def pause_of(self, script: SplitScript) -> int | None:
        """Return the number of the row before which a split may be idle; None: there is none.

        Nobody waits for an idle split. So what is left of it must not be earlier than any row of another one.
        """
        others = (each for scripts in self.sources.values() for each in scripts if each.number != script.number)
        latest_ms = max((each.row(each.rows - 1).event_ms for each in others), default=script.first_ms)
        number = max(script.rows // 2, -((script.first_ms - latest_ms) // script.step_ms))
        return number if number < script.rows else None

    def switches_of(self, run: int) -> Switches:
        """Return the options of a run, counted from 1."""
        return self.switches[min(run, len(self.switches)) - 1]

    def with_faults(self, faults: tuple[Fault, ...]) -> KeyedScenario:
        """Return the same with other faults."""
        return msgspec.structs.replace(self, faults=faults)

    @classmethod
    def of(cls, seed: int) -> KeyedScenario:
        """Return the scenario of a seed."""
        draw = random.Random(f"keyed scenario {seed}")
        exchanges, source_stages = _shape(draw)
        stages = 1 + max(exchange.consumer_stage for exchange in exchanges.values())
        slow = draw.choice((0, 1, 3, 8, 8, 30))
        rows = draw.choice((30, 60, 60, 90)) if slow < 8 else 30
        splits = draw.randint(1, 4)
        keys = draw.choice((3, 10, 40))
        sources = {
            stage: tuple(
                SplitScript(
                    number=10 * stage + each,
                    rows=rows // splits // draw.choice((1, 1, 1, 2, 5)),
                    keys=draw.choice((1, keys, keys, keys)),
                    first_key=draw.choice((0, draw.randrange(40))),
                    first_ms=draw.choice((0, 0, 250)),
                    step_ms=draw.choice((1, 5, 20)),
                )
                for each in range(splits)
            )
            for stage in source_stages
        }
        read_ms, read_rows = draw.choice((1, 1, 4, 10)), draw.choice((1, 4, 8))
        costs_ms = {
            stage: slow if draw.random() < 0.7 else draw.choice((0, 1))
            for stage in range(stages)
            if stage not in source_stages
        }
        return cls(
            seed=seed,
            parallelism=_parallelism(draw),
            max_parallelism=draw.choice((8, 16, 100)),
            exchanges=exchanges,
            sources=sources,
            read_ms=read_ms,
            read_rows=read_rows,
            watermark_reads=draw.choice((1, 1, 3)),
            cost_ms=costs_ms,
            slice_ms=draw.choice((1, 5, 20)),
            window_ms=draw.choice((40, 100, 1000)),
            credits=draw.choice((1, 2, 4)),
            queue_buffers=draw.choice((1, 3, 6)),
            buffer_rows=draw.choice((2, 4, 10)),
            room=draw.choice((1, 1, 2, 4)),
            link_ms=draw.choice((1, 4, 12)),
            read_state_ms=draw.choice((0, 2, 8)),
            interval_ms=draw.choice((60, 100, 200)),
            first_after_restore_ms=draw.choice((1, 10, 30)),
            timeout_ms=draw.choice((50, 5000, 5000)),
            unaligned=draw.random() < 0.9,
            alignment_timeout_ms=draw.choice((0, 0, 0, 3, 30)),
            switches=_switches(draw),
            faults=_faults(draw, 50 + rows * (read_ms // read_rows + max(costs_ms.values()))),
            idle_ms=draw.choice((0, 0, 0, 50)),
            holds=draw.random() < 0.7,
            disk=draw.choice((None, None, None, 0, 2)),
        )


def _parallelism(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 2, 3, 3, 4, 5, draw.randint(6, 8)))


def _faults(draw: random.Random, phase_ms: int) -> tuple[Fault, ...]:
    """Return what goes wrong while there is something to read and to process, and what users do."""
    kinds = draw.sample(list(FaultKind), draw.randint(2, len(FaultKind)))
    kinds += [FaultKind.RESCALE, FaultKind.RESCALE_IN_RECOVERY] * 2
    faults = (
        Fault(draw.randrange(10, phase_ms), draw.choice(kinds), draw.randrange(1000), _parallelism(draw))
        for _ in range(draw.choice((2, 3, 4, 5, 6)))
    )
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def _switches(draw: random.Random) -> tuple[Switches, ...]:
    choices = [Switches()] * 5 + [
        Switches(during_recovery=False),
        Switches(on_downstream=False, during_recovery=False),
    ]
    return tuple(draw.choice(choices) for _ in range(draw.choice((1, 1, 3))))


def _shape(draw: random.Random) -> tuple[dict[str, ExchangePlan], tuple[int, ...]]:
    """Return the exchanges, and the stages that are sources."""
    kinds = ("hash", "rebalance", "broadcast", "custom", "forward")

    def first(consumer: int, producer: int) -> ExchangePlan:
        kind = draw.choice((*kinds, "forward") if producer else kinds)
        targets = draw.choice((None, 1, 2)) if kind == "rebalance" else None
        return ExchangePlan(kind=kind, producer_stage=producer, consumer_stage=consumer, targets=targets)

    def windows(producer: int) -> ExchangePlan:
        return ExchangePlan(kind="hash", producer_stage=producer, consumer_stage=producer + 1)

    match draw.choice(("one", "two", "two", "union")):
        case "one":
            return {"windows": windows(0)}, (0,)
        case "two":
            return {"first": first(1, 0), "windows": windows(1)}, (0,)
        case _:
            return {"left": first(2, 0), "right": first(2, 1), "windows": windows(2)}, (0, 1)


def describe(scenario: KeyedScenario) -> str:
    """Return a scenario in a few words."""
    kinds: dict[str, Any] = {uid: each.kind for uid, each in scenario.exchanges.items()}
    return (
        f"parallelism {scenario.parallelism} of {scenario.max_parallelism}, exchanges {kinds}, row costs "
        f"{scenario.cost_ms} ms, switches {[(each.on_downstream, each.during_recovery) for each in scenario.switches]}"
    )
