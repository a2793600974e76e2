"""When a query is reported to be too slow, and that the text names what is slow."""

from __future__ import annotations

import pytest

from headgate.monitor.growing_lag import GROWING, growing_lag
from headgate.monitor.progress import ProgressReporter, QueryIdentity
from headgate.protocol.messages import SubtaskProgress

IDENTITY = QueryIdentity(
    query_id="q", run_id="r", name="rides", sources={"gen": "datagen", "kafka": "kafka[rides]"}, sinks={"s": "console"}
)


class Query:
    """Two subtasks of a query that reports every second."""

    def __init__(self) -> None:
        self.reporter = ProgressReporter(IDENTITY, started_ms=0)
        self.now_ms = 0
        self.busy_ms = 0
        self.report(0, 0)

    def report(self, lag: int | None, busy_percent: int, name: str = "rowsBehind") -> str | None:
        """Return the warning, if any, after a second with this lag and this busy ``map`` in the second subtask."""
        self.now_ms += 1000
        self.busy_ms += 10 * busy_percent
        for subtask, busy_ms in enumerate([0, self.busy_ms]):
            message = SubtaskProgress(
                stage=0, execution=1,
                busy_ms={"parse": self.now_ms // 10, "map": busy_ms},
            )  # fmt: skip
            self.reporter.take(subtask, message, self.now_ms)
        if lag is not None:
            self.reporter.take_lag("kafka", {name: lag})
        return next(iter(self.reporter.report(self.now_ms)[1]), None)


def test_a_growing_lag_and_a_busy_operator_make_a_warning_once() -> None:
    query = Query()
    warnings = [query.report(1000 * step, 95) for step in range(1, 10)]
    assert [text is not None for text in warnings] == [step == GROWING for step in range(1, 10)]
    assert warnings[GROWING - 1] == (
        "The query 'rides' cannot keep up with its source kafka[rides]: rowsBehind grew from 0 to 4,000 in the last 4 "
        "reports. The slowest is stage 0, where 'map' is busy 95 % of the time in subtask 1. Make it faster, or start "
        "the query again at a higher parallelism."
    )


def test_it_warns_again_after_the_query_had_caught_up() -> None:
    query = Query()
    assert any(query.report(1000 * step, 95) for step in range(1, 6))
    assert query.report(10, 20) is None
    assert [query.report(1000 * step, 95) is not None for step in range(1, 6)].count(True) == 1


@pytest.mark.parametrize("lags", [[5, 5, 5, 5, 5, 5], [60, 50, 40, 30, 20], [10, 20, 15, 30, 40, 35, 50]])
def test_a_lag_that_does_not_keep_growing_is_none(lags: list[int]) -> None:
    query = Query()
    assert not any(query.report(lag, 95) for lag in lags)


def test_a_lag_that_grows_while_everything_is_idle_is_not_the_querys_fault() -> None:
    query = Query()
    assert not any(query.report(1000 * step, 60) for step in range(1, 10))


def test_sources_that_report_no_lag() -> None:
    query = Query()
    assert not any(query.report(None, 95) for _ in range(10))


def test_a_source_that_reports_time_instead_of_rows() -> None:
    query = Query()
    assert query.report(0, 95, "millisBehindLatest") is None
    texts = [query.report(1000 * step, 95, "millisBehindLatest") for step in range(1, 6)]
    assert "millisBehindLatest grew" in "".join(text or "" for text in texts)


def test_too_few_reports_say_nothing() -> None:
    assert growing_lag([]) is None
    query = Query()
    query.report(1, 100)
    assert growing_lag(query.reporter.recent) is None
