"""The kit: its report, its line in pytest, its script, and what it does with readers that are not ready-made."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from planted_bugs import Numbers, Range, numbers

from headgate.errors import OptionError, SourceError
from headgate.source import Boundedness, InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from headgate.testing import ReaderHarness
from headgate.testing.conformance import PROMISES, Promise, check, conformance_test

test_a_small_sound_source_passes = pytest.mark.parametrize("count", [0, 20])(
    conformance_test(lambda count: numbers(count=str(count)))
)


class DirectReader(SourceReader[Range]):
    """Reads without fetchers: its rows need no client."""

    def __init__(self, context: SourceReaderContext, forgetful: bool) -> None:
        self.context, self.forgetful = context, forgetful
        self.splits: dict[str, Range] = {}
        self.no_more = self.asked = False
        self.news: Future[None] = Future()

    def start(self) -> None:
        self.context.request_split()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        self.news = Future()
        for split_id, split in self.splits.items():
            if split.position == split.stop:
                del self.splits[split_id]
                output.release_output_for_split(split_id)
                self.context.request_split()
                return InputStatus.MORE_AVAILABLE
            batch = pa.record_batch({"n": pa.array([split.position], pa.int64())})
            output.create_output_for_split(split_id).emit_batch(batch)
            self.splits[split_id] = msgspec.structs.replace(split, position=split.position + 1)
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_INPUT if self.no_more else InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None]:
        if (self.splits or self.no_more) and not self.news.done():
            self.news.set_result(None)
        return self.news

    def add_splits(self, splits: Sequence[Range]) -> None:
        self.splits.update((split.split_id, split) for split in splits)

    def notify_no_more_splits(self) -> None:
        self.no_more = True

    def snapshot_state(self, checkpoint_id: int) -> list[Range]:
        if self.forgetful:
            return [msgspec.structs.replace(split, position=0) for split in self.splits.values()]
        return list(self.splits.values())

    def close(self) -> None:
        pass


class Direct(Numbers):
    """Has a reader of its own."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Range]:
        return DirectReader(context, self.bug == "forgets positions")


def test_a_reader_of_ones_own_is_checked_as_far_as_it_goes() -> None:
    report = check(lambda: Direct({"count": "9"}))
    assert report.kept, str(report)
    of_fetches = {each.promise.name: each.seen for each in report.results if each.verdict == "does not apply"}
    assert "the reader is not one of the ready-made ones" in str(of_fetches["slow-fetches-lose-nothing"])
    assert "the reader cannot pause" in str(of_fetches["paused-splits-are-silent"])
    broken = check(lambda: Direct({"count": "9", "bug": "forgets positions"}), only=["restore-at-every-step"])
    assert [each.promise.name for each in broken.broken] == ["restore-at-every-step"]


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


def test_a_source_that_ends_the_process_breaks_the_promise() -> None:
    class Ending(Numbers):
        def plan_ranges(self, splits: object, limits: object, now_ms: int) -> list[Any]:  # type: ignore[override]
            sys.exit("enough")

    (result,) = check(lambda: Ending({}), only=["plans-can-be-replayed"]).results
    assert (result.verdict, result.seen) == ("broken", "SystemExit was raised: enough")


def test_what_does_not_apply_says_why() -> None:
    class Whole(Numbers):
        plan_ranges = None  # type: ignore[assignment]

    report = check(lambda: Whole({}), only=["plans-can-be-replayed"])
    assert report.kept and "plans-can-be-replayed: the source has no plan_ranges" in str(report)
    assert str(report).startswith("numbers: 1 promises checked: 1 does not apply.")
    assert "2 do not apply." in str(check(lambda: Whole({}), only=["plans-can-be-replayed", "plans-keep-limits"]))


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
