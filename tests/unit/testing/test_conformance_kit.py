"""The kit passes a correct source, and each of its checks finds the bug that it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from countable_source import SCHEMA, Numbers

import headgate.testing
from headgate.connectors.datagen import DatagenSource
from headgate.errors import ConnectorContractError, SourceError
from headgate.source import Boundedness
from headgate.testing import (
    ALL_CHECKS,
    ReaderHarness,
    check_a_failed_readers_splits_are_read_again,
    check_close_is_quick,
    check_nobody_assigns_to_a_reader_that_is_gone,
    check_parallel_readers_read_the_same_rows,
    check_pausing,
    check_planned_ranges,
    check_positions_of_rows,
    check_restore_at_every_step,
    check_rows_and_splits_repeat,
    check_source,
    check_source_can_be_sent_to_readers,
    check_splits_finished_before_a_restore_can_come_back,
    check_threads,
)

Check = Callable[..., None]


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_a_correct_source_passes(check: Check, count: int) -> None:
    check(lambda: Numbers({"count": str(count)}))


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_generated_data_passes(check: Check) -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    check(
        lambda: DatagenSource({"numRows": "50", "numPartitions": "3", "rowsPerSecond": "1000"}),
        schema=schema,
    )


@pytest.mark.parametrize(
    ("check", "bug", "error"),
    [
        (check_rows_and_splits_repeat, "split ids differ", AssertionError),
        (check_rows_and_splits_repeat, "other rows each time", AssertionError),
        (check_rows_and_splits_repeat, "another schema in the second batch", AssertionError),
        (check_rows_and_splits_repeat, "assigns a split twice", ConnectorContractError),
        (check_source_can_be_sent_to_readers, "cannot be pickled", TypeError),
        (check_threads, "work touches the enumerator", AssertionError),
        (check_parallel_readers_read_the_same_rows, "other rows each time", AssertionError),
        (check_restore_at_every_step, "position of the last row", AssertionError),
        (check_restore_at_every_step, "enumerator forgets what is pending", AssertionError),
        (check_restore_at_every_step, "reader forgets a split", AssertionError),
        (check_restore_at_every_step, "never ends after a restore", AssertionError),
        (check_restore_at_every_step, "assigns to a reader that is not there", ConnectorContractError),
        (check_a_failed_readers_splits_are_read_again, "drops what comes back", AssertionError),
        (check_nobody_assigns_to_a_reader_that_is_gone, "answers readers that are gone", ConnectorContractError),
        (check_splits_finished_before_a_restore_can_come_back, "takes back only what it assigned", AssertionError),
        (check_pausing, "pausing does nothing", AssertionError),
        (check_pausing, "a pause drops the rest of a batch", AssertionError),
        (check_positions_of_rows, "position of a row is one off", AssertionError),
        (check_close_is_quick, "close blocks", AssertionError),
        (check_planned_ranges, "ranges overlap", AssertionError),
        (check_planned_ranges, "other rows each time", AssertionError),
        (check_planned_ranges, "plans nothing", AssertionError),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_check_finds_the_bug_that_it_is_for(
    check: Check, bug: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "pausing does nothing":
        monkeypatch.setattr("headgate.testing.kit._LATE_S", 30)  # it ends with the first rows that come
    if bug == "close blocks":
        monkeypatch.setattr("headgate.testing.kit._CLOSE_S", 0.2)  # of five times the quickest counts
    with pytest.raises(error):
        check(lambda: Numbers({"bug": bug}))


def test_close_is_as_quick_as_it_is_when_nobody_else_holds_the_machine_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = [1.1, 0.1] * 3 * len(Boundedness)
    close = ReaderHarness.close

    def timed(reader: ReaderHarness[Any]) -> None:
        close(reader)
        reader.close_s = times_s.pop(0)

    monkeypatch.setattr(ReaderHarness, "close", timed)
    check_close_is_quick(lambda: Numbers({}))
    assert not times_s, "once is enough where it was quick"


def test_check_source_runs_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source(lambda: Numbers({}), schema=SCHEMA)
    monkeypatch.setattr("headgate.testing.kit._LATE_S", 30)
    with pytest.raises(AssertionError):
        check_source(lambda: Numbers({"bug": "pausing does nothing"}))


def test_every_check_is_public_and_in_the_list() -> None:
    public = {name for name in headgate.testing.__all__ if name.startswith("check_")}

    assert {check.__name__ for check in ALL_CHECKS} == public - {"check_source"}


def test_an_error_of_the_source_passes_through() -> None:
    class Broken(Numbers):
        def plan_ranges(self, splits: object, limits: object, now_ms: int) -> list[object]:  # type: ignore[override]
            raise SourceError("the planner is broken")

    with pytest.raises(SourceError, match="the planner is broken"):
        check_planned_ranges(lambda: Broken({}))
