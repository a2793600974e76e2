"""The kit finds nothing in a sound source, and each planted bug by the name of the promise that it breaks."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from planted_bugs import BUGS, Numbers, numbers

from headgate.connectors.datagen import DatagenSource
from headgate.errors import OptionError, SourceError
from headgate.source import Boundedness
from headgate.testing import ReaderHarness
from headgate.testing.conformance import PROMISES, Promise, check, conformance_test

test_a_sound_source_passes = pytest.mark.parametrize("count", [0, 1, 20])(
    conformance_test(lambda count: numbers(count=str(count)))
)
test_generated_data_passes = conformance_test(
    lambda: DatagenSource({"numRows": "50", "numPartitions": "3", "rowsPerSecond": "1000"})
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found_by_the_promise_that_it_breaks(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "pausing does nothing":
        monkeypatch.setattr("headgate.testing.conformance.pausing.LATE_S", 30)  # it ends with the first rows that come
    if bug == "close blocks":
        monkeypatch.setattr("headgate.testing.conformance.clients.CLOSE_S", 0.2)  # of five times the quickest counts
    report = check(lambda: numbers(bug=bug), only=[BUGS[bug]])
    assert [each.promise.name for each in report.broken] == [BUGS[bug]]
    with pytest.raises(AssertionError, match=f"BROKEN  {BUGS[bug]}"):
        report.require()


def test_every_promise_has_a_bug() -> None:
    assert {promise.name for promise in PROMISES} == set(BUGS.values())


def test_close_is_as_quick_as_it_is_when_nobody_else_holds_the_machine_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = [1.1, 0.1] * 3 * len(Boundedness)
    close = ReaderHarness.close

    def timed(reader: ReaderHarness[Any]) -> None:
        close(reader)
        reader.close_s = times_s.pop(0)

    monkeypatch.setattr(ReaderHarness, "close", timed)
    check(lambda: numbers(), only=["close-is-quick"]).require()
    assert not times_s, "once is enough where it was quick"


class Refusing(Numbers):
    """Its planner raises."""

    def plan_ranges(self, splits: object, limits: object, now_ms: int) -> list[Any]:  # type: ignore[override]
        raise SourceError("the planner is broken")


def test_a_report_says_what_was_promised_done_and_seen_and_where() -> None:
    report = check(lambda: Refusing({}), only=["reads-repeat", "plans-can-be-replayed"])
    line = inspect.getsourcelines(Refusing.plan_ranges)[1] + 1
    assert str(report) == (
        "numbers: 2 promises checked: 1 broken, 1 kept.\n"
        "\n"
        "BROKEN  plans-can-be-replayed\n"
        "  promised  A planned range gives the same rows whenever it is read; all ranges together give those of the\n"
        "            source.\n"
        "  done      Plan without limits until nothing is left, and read each plan twice.\n"
        "  seen      SourceError: the planner is broken\n"
        f"  at        {__file__}:{line} in plan_ranges\n"
        '  contract  docs/full-source.md, "Optional abilities"\n'
        "\n"
        "KEPT  reads-repeat"
    )
    assert not report.kept
    with pytest.raises(AssertionError, match="the planner is broken") as raised:
        report.require()
    assert isinstance(raised.value.__cause__, SourceError)
    kept, broken = json.loads(json.dumps(report.to_json()))["results"]
    assert (kept["verdict"], kept["seen"], kept["traceback"]) == ("kept", None, None)
    assert broken["promise"]["name"] == "plans-can-be-replayed" and "in plan_ranges" in broken["traceback"]


def test_a_call_that_does_not_return_breaks_the_promise_and_is_named() -> None:
    gone = threading.Event()

    class Hanging(Numbers):
        def plan_ranges(self, splits: object, limits: object, now_ms: int) -> list[Any]:  # type: ignore[override]
            gone.wait()
            return []

    (result,) = check(lambda: Hanging({}), only=["plans-can-be-replayed"], timeout_s=2).results
    gone.set()
    assert result.verdict == "broken"
    assert result.seen is not None and "did not end within 2 s" in result.seen and "in plan_ranges" in result.seen


def test_what_does_not_apply_says_why() -> None:
    class Whole(Numbers):
        plan_ranges = None  # type: ignore[assignment]

    report = check(lambda: Whole({}), only=["plans-can-be-replayed"])
    assert report.kept and "plans-can-be-replayed: the source has no plan_ranges" in str(report)


def test_a_name_that_no_promise_has_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"no promise 'restores'.*restore-at-every-step"):
        check(lambda: numbers(), only=["restores"])


def test_fixtures_are_those_that_the_factory_names() -> None:
    test = conformance_test(lambda path, tmp_path, count=3: numbers(), only=["reads-repeat"])
    assert list(inspect.signature(test).parameters) == ["promise", "path", "tmp_path"]
    test(promise=next(each for each in PROMISES if each.name == "reads-repeat"), path=1, tmp_path=2)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_promise_is_written_in_sentences(promise: Promise) -> None:
    assert promise.sentence.endswith(".") and promise.how.endswith(".")
    assert promise.contract.startswith(("docs/", "FLIP-"))


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["planted_bugs:numbers", "--only", "reads-repeat"], 0, "KEPT  reads-repeat"),
        (["planted_bugs:forgetful", "--only", "restore-at-every-step"], 1, "BROKEN  restore-at-every-step"),
        (["planted_bugs:forgetful", "--only", "restore-at-every-step", "--json"], 1, '"verdict": "broken"'),
        (["planted_bugs:nothing"], 2, "has no attribute 'nothing'"),
        (["--list"], 0, "restore-at-every-step\n  A checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_script(arguments: list[str], code: int, output: str) -> None:
    """Also where pytest is not installed."""
    without_pytest = "import sys, runpy; sys.modules['pytest'] = None; sys.argv[0] = 'conformance'; " + (
        "sys.path.insert(0, '.'); runpy.run_module('headgate.testing.conformance', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", without_pytest, *arguments], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert (ran.returncode, output in ran.stdout + ran.stderr) == (code, True), ran.stdout + ran.stderr
