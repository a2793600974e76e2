"""Makes random programs as values: what they read, what they do with it, and what happens to them meanwhile.

Never: import Spark or Headgate, or run anything: `fuzz.runner` does. A program is decided by its seed alone, but for
what the runner allows: how many slots there may be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec

T = TypeVar("T")


class SourceKind(StrEnum):
    """Where rows come from."""

    EVENTS = "events"
    """Splits whose rows come slowly, and whose last rows come after the last fault."""
    DATAGEN = "datagen"
    KAFKA = "kafka"
    """The rows of events, in a topic that ends."""


class Ending(StrEnum):
    """What the rows come to."""

    ROWS = "rows"
    DISTINCT = "distinct"
    """Each ``k`` and ``v`` once."""
    GROUPS = "groups"
    """Aggregates by ``k`` in the output mode complete: the rows of the last checkpoint count."""
    WINDOWS = "windows"
    UPDATES = "updates"
    """Windows in the output mode update: the newest row of each counts."""
    SESSIONS = "sessions"
    STATE = "state"
    """A `StatefulProcessor` that adds up by key until all timers fire."""
    PAIRS = "pairs"
    """Rows of the first branch joined with those of the others: of one key, and near in time."""


JOINS = ("inner", "left", "right", "full", "left_semi")
WITHOUT_TIME = (Ending.ROWS, Ending.DISTINCT, Ending.GROUPS)


class Filter(msgspec.Struct, frozen=True, tag=True):
    """Keep the rows for which a condition is true."""

    condition: str


class Compute(msgspec.Struct, frozen=True, tag=True):
    """Compute a column anew."""

    column: str
    expression: str


class Sql(msgspec.Struct, frozen=True, tag=True):
    """Compute ``v`` in a query over the rows as a table."""

    query: str


class Udf(msgspec.Struct, frozen=True, tag=True):
    """Compute ``v`` in a user's function: ``python``, ``pandas`` or ``arrow``."""

    kind: str
    by: int


class Map(msgspec.Struct, frozen=True, tag=True):
    """Multiply ``v`` in ``mapInArrow``, which takes some time over each batch."""

    by: int
    batch_ms: int


class Explode(msgspec.Struct, frozen=True, tag=True):
    """Make several rows of each, or none."""

    at_most: int


class Join(msgspec.Struct, frozen=True, tag=True):
    """Join rows that end, by ``k``: ``inner``, ``left``, ``left_semi`` or ``left_anti``."""

    how: str
    keys: int


class Repartition(msgspec.Struct, frozen=True, tag=True):
    """Send rows to so many subtasks: in turn, by a column, or where one says."""

    subtasks: int
    by: str


Verb = Filter | Compute | Sql | Udf | Map | Explode | Join | Repartition

CONDITIONS = (
    "n % 5 <> 2", "v > 0 OR k IS NULL", "k IN (1, 2, 3, 5, 8)", "CAST(v AS string) LIKE '%1%'",
    "CAST(v AS string) RLIKE '^-?[1-5]'", "nullif(k, 3) IS NOT NULL", "NOT (v BETWEEN -100 AND 100)", "n % 2 = k % 2",
)  # fmt: skip
"""Those of texts and of regular expressions are not all evaluated by Arrow."""
EXPRESSIONS = (
    "v + 1", "-v", "abs(v) % 7", "v * 3 - k", "v div 2", "CASE WHEN k > 3 THEN v ELSE -v END",
    "coalesce(nullif(v, 0), k)", "greatest(v, k, 5)", "pmod(v, 13)", "if(n > 20, v, 0)",
    "length(concat(CAST(k AS string), '-', CAST(v AS string)))",
    "crc32(CAST(v AS string)) % 100", "CAST(get_json_object(concat('{\"a\":', v, '}'), '$.a') AS bigint)",
    "size(split(CAST(v AS string), '1'))", "hash(k, v) % 1000", "levenshtein(CAST(k AS string), CAST(v AS string))",
    "CAST(round(v / 7.0D, 1) * 10 AS bigint)", "CAST(v AS decimal(20, 2)) * 2", "array_max(array(k, v, 3L))",
)  # fmt: skip
"""Of ``v``: cast to a bigint. About half of them are evaluated by Spark's own code."""
PHASES = ("TWO_PHASE", "ONE_PHASE", "AUTO", "ONE_PHASE, then TWO_PHASE")
AGGREGATES = (
    "sum(v)", "min(v)", "max(v)", "avg(v)", "count_if(v > 0)", "bool_or(v > 900)", "bool_and(k < 30)",
    "max_by(k, struct(v, k))", "sort_array(collect_set(abs(v) % 5))", "round(stddev(v), 3)", "percentile(v, 0.5)",
    "count(nullif(v, 0))", "sum(v) FILTER (WHERE v > 100)", "max(struct(v, n))", "any_value(k)", "bit_xor(n)",
    "sum(v) + max(k)", "sum(CAST(v AS decimal(12, 2)))",
)  # fmt: skip
"""Beside the count of rows; what they give does not depend on an order."""
QUERIES = (
    "SELECT * EXCEPT (v), v + 1 AS v FROM {{rows}} WHERE {}",
    "WITH some AS (SELECT * FROM {{rows}} WHERE {}) SELECT * FROM some WHERE v > 0 UNION ALL SELECT * FROM some",
    "SELECT * EXCEPT (e) FROM {{rows}} LATERAL VIEW explode(array(1, k)) AS e WHERE e = 1 OR {}",
)
"""With a condition each."""


class Branch(msgspec.Struct, frozen=True):
    """A source, and what is done with its rows before they meet those of others."""

    kind: SourceKind
    splits: int
    rows: int
    """Of each split."""
    seed: int
    verbs: tuple[Verb, ...]


class Fault(msgspec.Struct, frozen=True):
    """What happens after some time.

    Parameters
    ----------
    kind
        ``checkpoint``; ``rescale``; ``stop`` and start again from the last checkpoint; ``savepoint``: stop with one and
        start from it in a new location; ``kill`` a worker; ``fail``: a source raises an error.
    after_ms
        After what happened before.
    parallelism
        Of a rescale, or of the new start.
    slot
        Whose worker is killed.
    """

    kind: str
    after_ms: int
    parallelism: int
    slot: int


class Program(msgspec.Struct, frozen=True):
    """A whole program.

    Parameters
    ----------
    seed
        Which one.
    branches
        What is united.
    verbs
        What is done with the union.
    ending
        What it comes to.
    aggregates
        Of what is grouped, beside the number of rows.
    size_s, slide_s
        Of windows; the size is the gap of sessions.
    interval_ms
        From one checkpoint to the next.
    how
        The kind of join that pairs rows.
    aligned
        Whether barriers keep their place.
    phases
        In how many phases rows are aggregated: values of the option ``table.optimizer.agg-phase-strategy``, of the
        first start and of those that follow.
    parallelism
        How many slots it begins with.
    slots
        Whether they are tasks of ``spark``, or ``threads``: no worker of theirs can be killed.
    faults
        What happens, one after the other.
    """

    seed: int
    branches: tuple[Branch, ...]
    verbs: tuple[Verb, ...]
    ending: Ending
    aggregates: tuple[str, ...]
    size_s: int
    slide_s: float
    how: str
    interval_ms: int
    aligned: bool
    phases: str
    parallelism: int
    slots: str
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int, max_parallelism: int = 4) -> Program:
        """Return the program of a seed."""
        dice = random.Random(seed)
        # Drawn apart, as what came later: what a seed has shown before is what it shows.
        others = random.Random(f"pairs {seed}")
        ending = dice.choice([each for each in Ending if each is not Ending.PAIRS])
        ending = Ending.PAIRS if others.random() < 0.15 else ending
        parallelism = dice.randint(1, max_parallelism)
        kinds = [SourceKind.EVENTS, SourceKind.KAFKA] + [SourceKind.DATAGEN] * (ending in WITHOUT_TIME)
        size_s = dice.choice((1, 2, 6))
        slots = random.Random(f"slots {seed}").choice(("spark", "threads"))
        # The first one is slow, so that the program is not over before its faults.
        later = [dice.choice(kinds) for _ in range(dice.randint(int(ending is Ending.PAIRS), 2))]
        return cls(
            seed=seed,
            branches=tuple(_branch(dice, kind, ending) for kind in (SourceKind.EVENTS, *later)),
            verbs=_verbs(dice, 3, ending),
            ending=ending,
            aggregates=tuple(dice.sample(AGGREGATES, dice.randint(1, 4))),
            size_s=size_s,
            slide_s=dice.choice((size_s, size_s, size_s / 2)),
            how=others.choice(JOINS),
            interval_ms=dice.choice((200, 1_000, 30_000)),
            aligned=dice.random() < 0.25,
            phases=random.Random(f"phases {seed}").choice(PHASES),
            parallelism=parallelism,
            slots=slots,
            faults=tuple(_fault(dice, slots, parallelism, max_parallelism) for _ in range(dice.randint(0, 5))),
        )

    def smaller(self) -> Iterator[Program]:
        """Yield programs that lack one thing that this one has: a fault first, then a branch, then a verb."""
        for fewer in _without_one(self.faults):
            yield msgspec.structs.replace(self, faults=fewer)
        if len(self.branches) > 1 + (self.ending is Ending.PAIRS):
            for branches in list(_without_one(self.branches))[1:]:
                yield msgspec.structs.replace(self, branches=branches)
        for verbs in _without_one(self.verbs):
            yield msgspec.structs.replace(self, verbs=verbs)
        for number, branch in enumerate(self.branches):
            for verbs in _without_one(branch.verbs):
                branches = list(self.branches)
                branches[number] = msgspec.structs.replace(branch, verbs=verbs)
                yield msgspec.structs.replace(self, branches=tuple(branches))

    def described(self) -> str:
        """Return what it is, a line for each thing."""
        lines = [f"seed {self.seed}: {self.parallelism} slots ({self.slots}), a checkpoint every {self.interval_ms} ms"]
        lines[0] += f"{', aligned' if self.aligned else ''}, {self.phases}"
        for each in self.branches:
            lines.append(f"  {each.kind}: {each.splits} splits of {each.rows} rows; {_listed(each.verbs)}")
        size = (
            ""
            if self.ending in (*WITHOUT_TIME, Ending.STATE, Ending.PAIRS)
            else f" of {self.size_s} s every {self.slide_s} s"
        )
        size += f", {', '.join(self.aggregates)}" if self.ending not in (Ending.ROWS, Ending.PAIRS) else ""
        meet = f"{self.how} join of the first with the others" if self.ending is Ending.PAIRS else "union"
        lines.append(f"  {meet}; {_listed(self.verbs)}; {self.ending}{size}")
        lines.append(f"  {_listed(self.faults)}")
        return "\n".join(lines)


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int) -> Program:
    """Return a program with fewer things that still fails, found with so many tries."""
    smallest, left = program, tries
    again = True
    while again and left:
        again = False
        for smaller in smallest.smaller():
            if not left:
                break
            left -= 1
            if fails(smaller):
                smallest, again = smaller, True
                break
    return smallest


def _branch(dice: random.Random, kind: SourceKind, ending: Ending) -> Branch:
    return Branch(
        kind=kind, splits=dice.randint(1, 4), rows=dice.choice((60, 300, 900)), seed=dice.randrange(10**6),
        verbs=_verbs(dice, 2, ending),
    )  # fmt: skip


def _verbs(dice: random.Random, most: int, ending: Ending) -> tuple[Verb, ...]:
    verbs = [_verb(dice) for _ in range(dice.randint(0, most))]
    # What a function in Python returns has no event time, for Spark.
    return tuple(each for each in verbs if ending in WITHOUT_TIME or not isinstance(each, Map))


def _verb(dice: random.Random) -> Verb:
    match dice.choice(("filter", "compute", "compute", "keys", "sql", "udf", "map", "explode", "join", "repartition")):
        case "filter":
            return Filter(dice.choice(CONDITIONS))
        case "compute":
            return Compute("v", f"CAST({dice.choice(EXPRESSIONS)} AS bigint)")
        case "keys":
            return Compute("k", f"k % {dice.choice((1, 3, 20))}")
        case "sql":
            return Sql(dice.choice(QUERIES).format(dice.choice(CONDITIONS)))
        case "udf":
            return Udf(dice.choice(("python", "pandas", "arrow")), dice.randint(-2, 3))
        case "map":
            return Map(dice.randint(2, 5), dice.choice((0, 0, 5, 30)))
        case "explode":
            return Explode(dice.randint(1, 3))
        case "join":
            return Join(dice.choice(("inner", "left", "left_semi", "left_anti")), dice.choice((1, 5, 20)))
        case _:
            return Repartition(dice.choice((1, 2, 2)), dice.choice(("turn", "k", "place")))


def _fault(dice: random.Random, slots: str, parallelism: int, max_parallelism: int) -> Fault:
    worst = "kill" if slots == "spark" else "fail"
    return Fault(
        kind=dice.choice(("checkpoint", "rescale", "rescale", "stop", "savepoint", worst, worst)),
        after_ms=dice.choice((0, 50, 300, 1_000)),
        parallelism=dice.randint(1, max_parallelism),
        slot=dice.randrange(parallelism),
    )


def _without_one(things: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    return (things[:number] + things[number + 1 :] for number in range(len(things)))


def _listed(things: tuple[msgspec.Struct, ...]) -> str:
    return ", ".join(map(str, things)) or "nothing"
