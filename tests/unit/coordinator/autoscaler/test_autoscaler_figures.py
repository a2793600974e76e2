"""What the autoscaler takes from a snapshot, and that what is not known stays so."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.coordinator.autoscaler.figures import FiguresObserved, SubtaskBusy, figures_of


def source(**different: Any) -> dict[str, Any]:
    known = {"uid": "rides", "rowsRead": 700, "rowsPerSecond": 50.0, "numSplits": 4, "lag": {}, "splits": []}
    return known | {"pausedSplits": 0} | different


def snapshot(*sources: dict[str, Any], **different: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "state": "running", "parallelism": 2, "sources": list(sources), "recovery": [], "restore": [],
        "stages": [{"stage": 0, "name": "parse"}, {"stage": 1, "name": "count"}], "restarts": {"count": 3},
        "subtasks": [{"stage": 0, "subtask": 1, "busy": 0.5}, {"stage": 1, "subtask": 0, "busy": None}],
    }  # fmt: skip
    return made | different


def of(made: dict[str, Any], *bounded: str) -> FiguresObserved:
    return figures_of(made, bounded_by_splits=bounded, most_slots=6, threads=((0,), (1,)))


def test_stages_that_share_a_thread_are_as_busy_as_it_is() -> None:
    """One of which it is not known how busy it is says nothing of the others either."""
    shares = [(0, 0, 0.25), (1, 0, 0.5), (0, 1, 0.75), (1, 1, 0.75), (0, 2, 0.5), (1, 2, None), (2, 0, 0.125)]
    subtasks = [{"stage": stage, "subtask": subtask, "busy": share} for stage, subtask, share in shares]
    stages = [{"stage": stage, "name": name} for stage, name in enumerate(("read", "udf", "count"))]
    made = snapshot(source(), subtasks=subtasks, stages=stages)
    figures = figures_of(made, bounded_by_splits=(), most_slots=6, threads=((0, 1), (2,)))
    assert figures.busy == (
        SubtaskBusy("read, udf", 0, 0.75), SubtaskBusy("read, udf", 1, 1.0), SubtaskBusy("count", 0, 0.125),
    )  # fmt: skip


def test_figures_of_a_query_that_runs() -> None:
    made = snapshot(source(lag={"rowsBehind": 12}), source(uid="users", rowsRead=None, lag={}))
    assert of(made, "rides", "users") == FiguresObserved(
        parallelism=2, is_settled=True, restarts=3, rows_read=700, lag_rows=12, busy=(SubtaskBusy("parse", 1, 0.5),),
        is_paused=False, num_splits=8, most_slots=6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("different", "lag"),
    [
        ({"lag": {}}, None),
        ({"lag": None}, None),
        ({"lag": {"filesBehind": 3}}, None),
        ({"splits": [{"lag": 5}, {"lag": 7}]}, 12),
        ({"splits": [{"lag": 5}, {"lag": None}]}, None),
        ({"splits": [{"lag": 5}], "splitsLeftOut": 2}, None),
        ({"lag": {"millisBehindLatest": 4000}}, 200),
        ({"lag": {"millisBehindLatest": 4000}, "rowsPerSecond": None}, None),
    ],
)
def test_a_lag_is_in_rows(different: dict[str, Any], lag: int | None) -> None:
    assert of(snapshot(source(**different))).lag_rows == lag


def test_splits_bound_only_where_readers_have_all_of_them() -> None:
    made = snapshot(source(), source(uid="files"))
    assert of(made, "rides").num_splits is None
    assert of(snapshot(source(numSplits=None)), "rides").num_splits is None
    assert of(snapshot(source()), "rides").num_splits == 4


@pytest.mark.parametrize(
    "different", [{"state": "restarting"}, {"recovery": [{"subtasks": 1}]}, {"restore": [{"subtasks": 2}]}]
)
def test_a_query_that_recovers_is_not_settled(different: dict[str, Any]) -> None:
    assert not of(snapshot(source(), **different)).is_settled
    assert of(snapshot(source(), restore=[{"subtasks": 0}])).is_settled


def test_paused_splits_are_noticed() -> None:
    assert of(snapshot(source(), source(pausedSplits=1))).is_paused
