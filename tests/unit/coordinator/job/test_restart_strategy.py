"""When a restart comes, and when restarting is in vain."""

from __future__ import annotations

import random

import pytest

from headgate.coordinator.job.restart_strategy import (
    ExponentialDelay,
    FixedDelay,
    NoRestart,
    RestartOptions,
    RestartStrategy,
)


def exponential(**options: float | None) -> RestartStrategy:
    """Return an exponential strategy without jitter."""
    return RestartStrategy(ExponentialDelay(**({"jitter_factor": 0} | options)), random.Random(0))  # type: ignore[arg-type]


def test_delays_double_up_to_the_longest() -> None:
    strategy = exponential(max_backoff_ms=1_000, reset_backoff_threshold_ms=10**9)
    now_ms, delays = 0, []
    for _ in range(6):
        delay_ms = strategy.failed(now_ms)
        assert delay_ms is not None
        delays.append(delay_ms)
        now_ms += delay_ms

    assert delays == [100, 200, 400, 800, 1_000, 1_000]


def test_a_failure_while_a_restart_is_waited_for_is_the_same_failure() -> None:
    strategy = exponential(attempts=1)
    assert strategy.failed(0) == 100
    assert strategy.failed(60) == 40
    assert strategy.failed(99) == 1
    assert strategy.failures == 1
    assert strategy.failed(100) is None


def test_after_a_time_without_failures_the_first_delay_counts_again() -> None:
    strategy = exponential()
    strategy.failed(0)
    assert strategy.failed(200) == 200

    strategy.started("a subtask", 5_000)
    assert strategy.failed(5_000 + 10_000) == 100
    assert strategy.failures == 1


def test_a_time_almost_without_failures_is_not_enough() -> None:
    strategy = exponential()
    strategy.failed(0)

    strategy.started("a subtask", 5_000)
    assert strategy.failed(5_000 + 9_999) == 200


def test_it_ran_from_when_all_had_started_that_a_failure_restarted() -> None:
    strategy = exponential()
    strategy.failed(0)
    strategy.restarts("ab")
    strategy.started("a", 40)
    strategy.failed(50)
    strategy.restarts("c")
    strategy.started("b", 2_000)
    strategy.started("c", 5_000)
    assert strategy.failed(5_000 + 9_999) == 200, "not yet long enough"

    strategy.restarts("d")
    strategy.started("d", 16_000)
    strategy.started("e", 20_000)
    assert strategy.failed(16_000 + 10_000) == 100, "nothing of that failure started later"


def test_the_time_that_a_start_takes_is_none_without_failures() -> None:
    strategy = exponential(attempts=2)
    assert [strategy.failed(now_ms) for now_ms in (0, 60_000, 120_000)] == [100, 200, None]


def test_too_many_failures_in_a_row_are_in_vain() -> None:
    strategy = exponential(attempts=2)
    assert [strategy.failed(now_ms) for now_ms in (0, 1_000, 2_000)] == [100, 200, None]


def test_without_a_limit_it_never_gives_up_nor_overflows() -> None:
    strategy = exponential(attempts=None, reset_backoff_threshold_ms=10**12)
    delay_ms: int | None = 0
    for attempt in range(2_000):
        delay_ms = strategy.failed(attempt * 100_000)

    assert delay_ms == 60_000


def test_jitter_is_the_given_generators_and_stays_within_its_part() -> None:
    def delays(seed: int) -> list[int | None]:
        options = ExponentialDelay(initial_backoff_ms=1_000, backoff_multiplier=1.0, attempts=None)
        strategy = RestartStrategy(options, random.Random(seed))
        return [strategy.failed(now_ms * 5_000) for now_ms in range(50)]

    assert delays(1) == delays(1)
    assert delays(1) != delays(2)
    assert all(delay_ms is not None and 900 <= delay_ms <= 1_100 for delay_ms in delays(3))
    assert len(set(delays(3))) > 10


def test_a_fixed_delay_counts_over_the_whole_life() -> None:
    strategy = RestartStrategy(FixedDelay(attempts=2, delay_ms=500), random.Random(0))

    assert [strategy.failed(now_ms) for now_ms in (0, 10**9, 2 * 10**9)] == [500, 500, None]
    patient = RestartStrategy(FixedDelay(attempts=None, delay_ms=500), random.Random(0))
    assert {patient.failed(1000 * each) for each in range(100)} == {500} and patient.given_up == ""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ExponentialDelay(attempts=2), "it has failed 3 times in a row, and restart-strategy.attempts is 2"),
        (ExponentialDelay(attempts=0), "it has failed once in a row, and restart-strategy.attempts is 0"),
        (FixedDelay(attempts=1), "it has failed 2 times since it began, and restart-strategy.attempts is 1"),
        (NoRestart(), "it has failed once, and restart-strategy is 'none'"),
    ],
    ids=str,
)
def test_it_says_why_it_gives_up(options: RestartOptions, why: str) -> None:
    strategy = RestartStrategy(options, random.Random(0))
    now_ms = 0
    while (delay_ms := strategy.failed(now_ms)) is not None:
        now_ms += delay_ms

    assert why in strategy.given_up


def test_without_restarts_the_first_failure_is_the_last() -> None:
    assert RestartStrategy(NoRestart(), random.Random(0)).failed(0) is None
