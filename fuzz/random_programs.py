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
    FILES = "files"


class Ending(StrEnum):
    """What the rows come to."""

    ROWS = "rows"
    WINDOWS = "windows"
    UPDATES = "updates"
    """Windows in the output mode update: the newest row of each counts."""
    SESSIONS = "sessions"
    STATE = "state"
    """A `StatefulProcessor` that adds up by key until all timers fire."""


class Filter(msgspec.Struct, frozen=True, tag=True):
    """Drop rows whose ``n`` leaves a rest."""

    modulus: int
    rest: int


class Project(msgspec.Struct, frozen=True, tag=True):
    """Compute ``v`` and ``k`` anew."""

    add: int
    keys: int


class Map(msgspec.Struct, frozen=True, tag=True):
    """Multiply ``v`` in a Python function, which takes some time over each batch."""

    by: int
    batch_ms: int


class Repartition(msgspec.Struct, frozen=True, tag=True):
    """Send rows to all subtasks in turn; to the first one only."""

    to_one: bool


class PartitionBy(msgspec.Struct, frozen=True, tag=True):
    """Send rows where a function of ``n`` says."""

    step: int


Verb = Filter | Project | Map | Repartition | PartitionBy


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
        start from it in a new location; ``kill`` a worker.
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
    size_s
        Of windows; the gap of sessions.
    interval_ms
        From one checkpoint to the next.
    aligned
        Whether barriers keep their place.
    parallelism
        How many slots it begins with.
    faults
        What happens, one after the other.
    """

    seed: int
    branches: tuple[Branch, ...]
    verbs: tuple[Verb, ...]
    ending: Ending
    size_s: int
    interval_ms: int
    aligned: bool
    parallelism: int
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int, max_parallelism: int = 4) -> Program:
        """Return the program of a seed."""
        dice = random.Random(seed)
        ending = dice.choice(list(Ending))
        parallelism = dice.randint(1, max_parallelism)
        kinds = [SourceKind.EVENTS] * 3 if ending != Ending.ROWS else list(SourceKind)
        # The first one is slow, so that the program is not over before its faults.
        later = [dice.choice(kinds) for _ in range(dice.randint(0, 2))]
        return cls(
            seed=seed,
            branches=tuple(_branch(dice, kind, ending) for kind in (SourceKind.EVENTS, *later)),
            verbs=_verbs(dice, 3, ending),
            ending=ending,
            size_s=dice.choice((1, 2, 5)),
            interval_ms=dice.choice((200, 1_000, 30_000)),
            aligned=dice.random() < 0.25,
            parallelism=parallelism,
            faults=tuple(_fault(dice, parallelism, max_parallelism) for _ in range(dice.randint(0, 5))),
        )

    def smaller(self) -> Iterator[Program]:
        """Yield programs that lack one thing that this one has: a fault first, then a branch, then a verb."""
        for fewer in _without_one(self.faults):
            yield msgspec.structs.replace(self, faults=fewer)
        if len(self.branches) > 1:
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
        lines = [f"seed {self.seed}: {self.parallelism} slots, a checkpoint every {self.interval_ms} ms"]
        lines[0] += ", aligned" if self.aligned else ""
        for each in self.branches:
            lines.append(f"  {each.kind}: {each.splits} splits of {each.rows} rows; {_listed(each.verbs)}")
        size = "" if self.ending in (Ending.ROWS, Ending.STATE) else f" of {self.size_s} s"
        lines.append(f"  union; {_listed(self.verbs)}; {self.ending}{size}")
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
    # What a function in Python returns has no event time that a StatefulProcessor's timers could use.
    return tuple(each for each in verbs if ending is not Ending.STATE or not isinstance(each, Map))


def _verb(dice: random.Random) -> Verb:
    kind = dice.randrange(5)
    if kind == 0:
        modulus = dice.randint(2, 9)
        return Filter(modulus, dice.randrange(modulus))
    if kind == 1:
        return Project(dice.randint(-9, 9), dice.choice((1, 3, 20)))
    if kind == 2:
        return Map(dice.randint(2, 5), dice.choice((0, 0, 5, 30)))
    if kind == 3:
        return Repartition(dice.random() < 0.2)
    return PartitionBy(dice.choice((1, 3, 7)))


def _fault(dice: random.Random, parallelism: int, max_parallelism: int) -> Fault:
    return Fault(
        kind=dice.choice(("checkpoint", "rescale", "rescale", "stop", "savepoint", "kill", "kill")),
        after_ms=dice.choice((0, 50, 300, 1_000)),
        parallelism=dice.randint(1, max_parallelism),
        slot=dice.randrange(parallelism),
    )


def _without_one(things: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    return (things[:number] + things[number + 1 :] for number in range(len(things)))


def _listed(things: tuple[msgspec.Struct, ...]) -> str:
    return ", ".join(map(str, things)) or "nothing"
