"""The tiers of the tests: what an ordinary run leaves out has a test that it does not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import tiers

NAMED = re.compile(r"`(tests/[\w/.]+\.py(?:::\w+(?:\[[^\]]+\])?)?)`")


@cache
def docstrings(repository: Path, file: str) -> dict[str, str]:
    """Return what a module says of itself and of its functions, by their names; the module's is empty."""
    module = ast.parse((repository / file).read_text())
    functions = {each.name: ast.get_docstring(each) or "" for each in module.body if isinstance(each, ast.FunctionDef)}
    return {"": ast.get_docstring(module) or "", **functions}


@pytest.mark.parametrize("named", tiers.REST)
def test_what_is_left_out_names_a_test_of_the_first_tier_that_fails_for_the_same_fault(
    repository: Path, named: str
) -> None:
    file, _, function = named.partition("[")[0].partition("::")
    known = docstrings(repository, file)
    named_there = NAMED.findall(known[function]) or NAMED.findall(known[""])
    assert named_there, f"neither the docstring of {named} nor its module's names one"
    for each in named_there:
        its_file, _, its_function = each.partition("[")[0].partition("::")
        assert tiers.tier_of(each) == "first", f"{each} is not in the first tier"
        if "[" in each and any(its.startswith(f"{its_file}::") for its in tiers.collected):
            assert each in tiers.collected, f"there is no {each}"
        assert its_function in docstrings(repository, its_file) or not its_function, f"there is no {each}"


def test_each_test_is_named_once_and_is_there() -> None:
    assert tiers.unknown() == []
    named = [*tiers.ENVIRONMENTS, *tiers.REST, *tiers.EXHAUSTIVE]
    assert len(set(named)) == len(named)
    assert [each for each in named for other in named if each.startswith((f"{other}[", f"{other}::"))] == []


def test_a_test_is_found_by_its_file_its_function_or_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tiers, "REST", ("tests/real/test_a.py", "tests/real/test_b.py::test_c", "tests/x.py::test_d[1]")
    )
    monkeypatch.setattr(tiers, "EXHAUSTIVE", ("tests/x.py::test_d[2]",))
    found = {
        each: tiers.tier_of(each)
        for each in (
            "tests/real/test_a.py::test_z[0]",
            "tests/real/test_b.py::test_c[3]",
            "tests/real/test_b.py::test_cc",
        )
    }
    assert [*found.values()] == ["rest", "rest", "first"]
    assert [tiers.tier_of(f"tests/x.py::test_d[{each}]") for each in (0, 1, 2)] == ["first", "rest", "exhaustive"]
    monkeypatch.setattr(tiers, "collected", {"tests/real/test_a.py::test_z", "tests/x.py::test_d[2]"})
    assert tiers.unknown() == ["tests/x.py::test_d[1]"], "of the files that were collected"


@pytest.mark.parametrize(
    ("only", "exhaustive", "expected"),
    [
        ("first", False, ["first"]),
        ("rest", False, ["rest"]),
        (None, False, ["first", "rest"]),
        (None, True, ["first", "rest", "exhaustive"]),
    ],
)
def test_a_run_has_one_tier_or_all_that_do_not_only_search_or_all(
    monkeypatch: pytest.MonkeyPatch, only: tiers.Tier | None, exhaustive: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(tiers, "REST", ("rest",))
    monkeypatch.setattr(tiers, "EXHAUSTIVE", ("exhaustive",))
    assert [each for each in ("first", "rest", "exhaustive") if tiers.is_run(each, only, exhaustive)] == expected
