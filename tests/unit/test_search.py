"""What an ordinary run searches and what an exhaustive one does, and the random programs of ``./run fuzz``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fuzz.random_programs import Ending, Fault, Program, Repartition, SourceKind, Verb, shrunk
from tests import search

TESTS = """
import pytest
from tests import search

@pytest.mark.exhaustive
def test_all():
    assert search.exhaustive

def test_some():
    pass
"""


@pytest.mark.parametrize(("options", "reported"), [((), "1 passed, 1 deselected"), (("--exhaustive",), "2 passed")])
def test_what_is_exhaustive_runs_when_it_is_asked_for(
    repository: Path, tmp_path: Path, options: tuple[str, ...], reported: str
) -> None:
    (tmp_path / "conftest.py").write_text((repository / "tests/conftest.py").read_text())
    (tmp_path / "test_searching.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(repository / "pyproject.toml"), "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--durations=1", str(tmp_path), *options], cwd=repository, capture_output=True, text=True
    )
    assert reported in ran.stdout, ran.stdout + ran.stderr
    assert ("seeds: block" in ran.stdout) is not bool(options)
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


def test_programs_have_all_that_there_is() -> None:
    programs = [Program.of(seed, 3) for seed in range(300)]
    branches = [branch for program in programs for branch in program.branches]
    verbs = [verb for each in [*programs, *branches] for verb in each.verbs]
    faults = [fault for program in programs for fault in program.faults]
    assert {program.ending for program in programs} == set(Ending)
    assert {branch.kind for branch in branches} == set(SourceKind)
    assert {type(verb) for verb in verbs} == set(get_args(Verb))
    assert {fault.kind for fault in faults} == {"checkpoint", "rescale", "stop", "savepoint", "kill"}
    assert {each.parallelism for each in [*programs, *faults]} == {1, 2, 3}


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
