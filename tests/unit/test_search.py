"""What an ordinary run searches and what an exhaustive one does, and the random programs of ``./run fuzz``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fuzz.random_programs import (
    AGGREGATES,
    CONDITIONS,
    EXPRESSIONS,
    JOINS,
    PHASES,
    QUERIES,
    Compute,
    Ending,
    Explode,
    Fault,
    Filter,
    Join,
    Map,
    Program,
    Repartition,
    SourceKind,
    Sql,
    Udf,
    Verb,
    shrunk,
)
from tests import search
from tests.fixed_programs import FIXED, program_of

AGGREGATED = tuple(each for each in Ending if each not in (Ending.ROWS, Ending.DISTINCT, Ending.STATE, Ending.PAIRS))
KINDS = (
    (Filter,), (Compute,), (Map,), (Explode,),
    *((Sql, query.partition("{")[0]) for query in QUERIES),
    *((Udf, kind) for kind in ("python", "pandas", "arrow")),
    *((Join, how) for how in ("inner", "left", "left_semi", "left_anti")),
    *((Repartition, by) for by in ("turn", "k", "place")),
)  # fmt: skip
"""The kinds of verbs, and what is different among those of one kind."""


def _kind(verb: Verb) -> tuple[str, ...]:
    match verb:
        case Sql(query):
            return (query.partition("{")[0],)
        case Udf(kind=kind):
            return (kind,)
        case Join(how=how):
            return (how,)
        case Repartition(by=by):
            return (by,)
    return ()


FIXED_SCHEDULES = "test_fixed_schedules_and_those_that_once_failed_hold_and_converge"
OF_THE_COMMIT = "test_this_commits_schedules_hold_and_converge"
ALL_SCHEDULES = "test_two_thousand_schedules_hold_and_converge"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tier=first"], {FIXED_SCHEDULES}),
        (["--tier=rest"], {OF_THE_COMMIT}),
        ([], {FIXED_SCHEDULES, OF_THE_COMMIT}),
        (["--exhaustive"], {FIXED_SCHEDULES, OF_THE_COMMIT, ALL_SCHEDULES}),
    ],
    ids=["first", "rest", "both", "exhaustive"],
)
def test_a_run_has_its_tier(repository: Path, options: list[str], expected: set[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-v", "--durations=1"]
    files = ["tests/scenarios/test_simulated_cluster.py", "tests/scenarios/test_autoscaler_follows_the_load.py"]
    ran = subprocess.run([*command, *files, *options], cwd=repository, capture_output=True, text=True)
    assert {each for each in (FIXED_SCHEDULES, OF_THE_COMMIT, ALL_SCHEDULES) if each in ran.stdout} == expected
    assert ("halves[23]" in ran.stdout) == ("exhaustive: all seeds" in ran.stdout) == ("--exhaustive" in options)
    assert ("seeds: block" in ran.stdout) == (options in ([], ["--tier=rest"]))
    assert "all tests together: " in ran.stdout


def test_blocks_follow_each_other_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    for number in range(12):
        monkeypatch.setattr(search, "block", lambda number=number: number)
        tried += search.rotating(200, 2_400)
    assert tried == list(range(2_400))
    monkeypatch.setattr(search, "block", lambda: 12)
    assert search.rotating(200, 2_400) == range(200)


def test_a_program_is_decided_by_its_seed() -> None:
    assert Program.of(7) == Program.of(7) != Program.of(8)


@pytest.mark.parametrize("seeds", [range(300), FIXED], ids=["many", "fixed"])
def test_programs_have_all_that_there_is(seeds: Sequence[int]) -> None:
    programs = [program_of(seed) for seed in seeds]
    branches = [branch for program in programs for branch in program.branches]
    verbs = [verb for each in [*programs, *branches] for verb in each.verbs]
    faults = [fault for program in programs for fault in program.faults]
    assert {program.ending for program in programs} == set(Ending)
    assert {len(program.branches) for program in programs} == {1, 2, 3}
    assert {branch.kind for program in programs for branch in program.branches[1:]} == set(SourceKind)
    assert {(type(verb), *_kind(verb)) for verb in verbs} == set(KINDS)
    assert {type(verb) for verb in verbs} == set(get_args(Verb))
    assert {program.how for program in programs if program.ending is Ending.PAIRS} == set(JOINS)
    for slots, worst in (("spark", "kill"), ("threads", "fail")):
        those = {fault.kind for program in programs if program.slots == slots for fault in program.faults}
        assert those == {"checkpoint", "rescale", "stop", "savepoint", worst}
    assert {each.parallelism for each in [*programs, *faults]} == {1, 2, 3}
    assert {program.aligned for program in programs} == {True, False}
    assert {program.phases for program in programs if program.ending in AGGREGATED} == set(PHASES)
    assert {
        program.slide_s == program.size_s for program in programs if program.ending in (Ending.WINDOWS, Ending.UPDATES)
    } == {True, False}
    texts = " ".join(map(str, verbs))
    assert [each for each in (*CONDITIONS, *EXPRESSIONS) if repr(each)[1:-1] not in texts] == []
    assert {each for program in programs if program.ending in AGGREGATED for each in program.aggregates} == set(
        AGGREGATES
    )


def test_of_the_fixed_programs_many_are_rescaled_and_some_are_killed() -> None:
    programs = [program_of(seed) for seed in FIXED]
    faults = [{fault.kind for fault in program.faults} for program in programs]
    assert len(set(FIXED)) == 30 and all(each - {"checkpoint"} for each in faults)
    assert sum(map(_is_rescaled, programs)) >= 20
    assert sum("fail" in each for each in faults) >= 5
    killed = [program.ending for program, kinds in zip(programs, faults, strict=True) if "kill" in kinds]
    assert len(killed) >= 5 and len(set(killed)) >= 4


def _is_rescaled(program: Program) -> bool:
    """Return whether a rescale changes the number of slots."""
    slots = program.parallelism
    for fault in program.faults:
        if fault.kind == "rescale" and fault.parallelism != slots:
            return True
        if fault.kind in ("stop", "savepoint"):
            slots = fault.parallelism
    return False


def test_a_failing_program_is_made_smaller() -> None:
    """Of all that it has, only what it fails for is left."""
    last = Repartition(subtasks=2, by="turn")
    kill = Fault(kind="kill", after_ms=0, parallelism=1, slot=0)
    programs = (each for each in map(Program.of, range(100)) if each.ending is not Ending.PAIRS)  # of two branches
    program = next(each for each in programs if len(each.branches) > 1 and len(each.faults) > 3)
    program = msgspec.structs.replace(program, verbs=(*program.verbs, last), faults=(*program.faults, kill))

    def fails(smaller: Program) -> bool:
        return kill in smaller.faults and last in smaller.verbs

    smallest = shrunk(program, fails, 100)
    assert (smallest.faults, smallest.verbs) == ((kill,), (last,))
    assert [branch.verbs for branch in smallest.branches] == [()]
    assert shrunk(program, fails, 0) == program
