"""When a query is rescaled: within bounds, once, for a reason, and not to and fro."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pytest

from headgate.coordinator.autoscaler.autoscaler import (
    Action,
    Autoscaler,
    Decision,
    Event,
    Rescale,
    RescaleFailed,
    RescaleFinished,
    RescaleYielded,
    ShowDecision,
)
from headgate.coordinator.autoscaler.figures import FiguresObserved, SubtaskBusy
from headgate.coordinator.autoscaler.options import AutoscalerOptions
from tests.machines import Later, explore

STEP_MS = 1000
OPTIONS = AutoscalerOptions(
    min_parallelism=1,
    max_parallelism=8,
    window_ms=4000,
    stabilization_ms=2000,
    scale_down_interval_ms=6000,
    catch_up_ms=60_000,
)


class Query:
    """A query of one stage: a slot processes so many rows a second, and what is left is the lag.

    Parameters
    ----------
    options
        The autoscaler's.
    parallelism
        How many slots it begins with.
    capacity
        By the number of slots: how many rows a second go through; default: 1,000 for each slot.
    """

    def __init__(
        self,
        options: AutoscalerOptions = OPTIONS,
        parallelism: int = 1,
        capacity: Callable[[int], float] = lambda slots: 1000 * slots,
    ) -> None:
        self.machine = Autoscaler(options)
        self.parallelism, self.capacity = parallelism, capacity
        self.now_ms = 0
        self.rows_read = self.lag = 0.0
        self.restarts = 0
        self.is_settled = True
        self.splits: int | None = None
        self.slots: int | None = None
        self.knows_lag = self.knows_busy = True
        self.refusal: str | None = None
        self.user_is_first = False
        self.decisions: list[Decision] = []
        self.troubles: list[str] = []
        self.path = [parallelism]
        """The parallelism, each time that it changed."""

    def give(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event, self.now_ms)
        self.machine.check()
        for action in actions:
            if isinstance(action, ShowDecision):
                self.decisions.append(action.decision)
                self.troubles += [action.decision.reason] if action.is_trouble else []
        return actions

    def run(self, seconds: int, rate: float | Callable[[], float]) -> None:
        """Let rows come at a rate, and the autoscaler do what it decides."""
        for _ in range(seconds):
            self.now_ms += STEP_MS
            came = rate if isinstance(rate, int | float) else rate()
            could = self.capacity(self.parallelism)
            read = min(self.lag + came, could)
            self.rows_read, self.lag = self.rows_read + read, self.lag + came - read
            share = read / could if could else 0.0
            figures = FiguresObserved(
                parallelism=self.parallelism,
                is_settled=self.is_settled,
                restarts=self.restarts,
                rows_read=round(self.rows_read),
                lag_rows=round(self.lag) if self.knows_lag else None,
                busy=(SubtaskBusy("scan", 0, share / 10), SubtaskBusy("parse", 1, share)) if self.knows_busy else (),
                num_splits=self.splits,
                most_slots=self.slots,
            )
            self.carry_out(self.give(figures))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if not isinstance(action, Rescale):
                continue
            assert action.before == self.parallelism
            if self.user_is_first:
                self.give(RescaleYielded())
            elif self.refusal is not None:
                self.give(RescaleFailed(self.refusal))
            else:
                self.parallelism = action.parallelism
                self.path.append(action.parallelism)
                self.now_ms += 500
                self.give(RescaleFinished())

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.decisions]


SMALL = msgspec.structs.replace(OPTIONS, window_ms=2000, stabilization_ms=1000, scale_down_interval_ms=1000)


def events(machine: Autoscaler) -> Iterator[Event | Later]:
    if machine.state == "rescaling":
        yield from (RescaleFinished(), RescaleFailed("no cores"), RescaleYielded())
    points = machine._window._points
    rows = points[-1].figures.rows_read if points else 0
    now = machine._ordered.before if machine._ordered else machine._parallelism or 2
    figures = FiguresObserved(parallelism=now, is_settled=True, restarts=machine._restarts, rows_read=rows, lag_rows=0)
    change = msgspec.structs.replace
    yield Later(change(figures, rows_read=rows + 1000, busy=(SubtaskBusy("a", 0, 1.0),)), 1000)
    yield Later(change(figures, rows_read=rows + 1000, busy=(SubtaskBusy("a", 0, 0.1),)), 1000)
    yield Later(change(figures, rows_read=rows + 1000), 1000)
    yield Later(change(figures, lag_rows=(points[-1].figures.lag_rows or 0) + 900 if points else 0), 1000)
    yield change(figures, is_settled=False)
    yield Later(change(figures, restarts=machine._restarts + 1), 60_000)
    yield change(figures, parallelism=now % 3 + 1)


def test_the_table_is_what_the_machine_does() -> None:
    explore(lambda: Autoscaler(SMALL), events, depth=8, limit=6000)


def test_parallelism_follows_a_load_that_doubles_and_halves() -> None:
    query = Query()
    query.run(60, 650)
    assert query.path == [1]
    query.run(60, 1300)
    assert query.path[-1] in (2, 3)
    query.run(60, 2600)
    assert query.path[-1] in (3, 4, 5)
    query.run(60, 650)
    assert query.path[-1] == 1
    ups = [one < other for one, other in pairwise(query.path)]
    assert ups == sorted(ups, reverse=True), f"to and fro: {query.path}"
    assert query.lag == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_make_it_flap(seed: int) -> None:
    """A rate that varies by a third about what the slots are well utilised by is no reason to rescale twice."""
    draw = random.Random(seed)
    query = Query(msgspec.structs.replace(OPTIONS, window_ms=10_000))
    query.run(40, 1300)
    path = list(query.path)
    query.run(400, lambda: 1300 * draw.uniform(0.67, 1.33))
    assert len(query.path) <= len(path) + 1, query.path


@pytest.mark.parametrize("rate", [100, 690, 710, 899, 901, 1390, 1410, 2500, 5599, 20_000])
@pytest.mark.parametrize("begin", [1, 3, 8])
def test_at_a_steady_rate_it_comes_to_rest(rate: int, begin: int) -> None:
    query = Query(parallelism=begin)
    query.run(200, rate)
    path = list(query.path)
    query.run(200, rate)
    assert query.path == path
    assert all(1 <= each <= 8 for each in path)
    if rate <= 8000:
        assert query.lag < rate, "it keeps up"


def test_a_lag_is_caught_up_in_time_and_then_the_slots_go() -> None:
    query = Query(msgspec.structs.replace(OPTIONS, catch_up_ms=20_000))
    query.lag = 60_000
    query.run(30, 500)
    assert query.path[:2] == [1, 4]  # 3,000 rows a second for the lag, and 500 / 0.7 for what comes
    query.run(90, 500)
    assert query.lag < 500
    assert query.path[-1] == 1


def test_without_a_catch_up_time_a_lag_alone_is_no_reason() -> None:
    query = Query(msgspec.structs.replace(OPTIONS, catch_up_ms=0))
    query.lag = 60_000
    query.run(60, 500)
    assert query.path == [1]


def test_a_source_that_does_not_know_its_lag_scales_by_busy_time() -> None:
    query = Query()
    query.knows_lag = False
    query.run(30, 1000)
    assert query.path == [1, 2]


def test_without_busy_time_the_rate_while_it_lags_counts() -> None:
    query = Query()
    query.knows_busy = False
    query.run(60, 3000)
    assert query.path[-1] >= 4


def test_without_either_nothing_changes_and_it_is_shown() -> None:
    query = Query()
    query.knows_busy = query.knows_lag = False
    query.run(30, 5000)
    assert query.path == [1]
    assert query.reasons[-1] == "it is not known how busy the stages are"


def test_fewer_slots_must_be_enough_for_a_while() -> None:
    query = Query(parallelism=4)
    query.run(10, 500)
    assert "are enough; they must be for 6 s" in query.reasons[-1]
    query.run(3, 3500)  # a break: the time begins anew
    query.run(5, 500)
    assert query.path == [4]
    query.run(60, 500)
    assert query.path[1:] == [3, 2, 1]


def test_a_single_rescale_takes_away_a_share_at_most() -> None:
    query = Query(parallelism=8)
    query.run(100, 10)
    assert query.path == [8, 4, 2, 1]  # at least 40 % are left, rounded up


def test_the_largest_number_that_was_enough_in_the_meantime_is_chosen() -> None:
    query = Query(msgspec.structs.replace(OPTIONS, scale_down_interval_ms=10_000, scale_down_max_factor=1), 8)
    query.run(8, 700)
    query.run(4, 1900)
    query.run(6, 700)
    assert query.path[1] > 1


def test_nothing_is_read_and_nothing_comes() -> None:
    query = Query(parallelism=4)
    query.run(60, 0)
    assert query.path[-1] == 1


def test_a_query_that_is_stuck_is_not_rescaled() -> None:
    query = Query(parallelism=2, capacity=lambda slots: 0)
    query.run(60, 1000)
    assert query.path == [2]
    assert "nothing is read, and the lag grows" in query.troubles[-1]


def test_bounds_are_kept_and_named() -> None:
    query = Query()
    query.run(100, 50_000)
    assert query.path[-1] == 8
    assert "more than 8 slots are wanted, but parallelism.max is 8" in query.reasons[-1]

    query = Query(msgspec.structs.replace(OPTIONS, min_parallelism=2), parallelism=3)
    query.run(100, 10)
    assert query.path == [3, 2]


def test_a_number_that_the_user_chose_outside_of_the_bounds_stays_until_the_load_wants_another() -> None:
    query = Query(parallelism=10)
    query.run(60, 7500)
    assert query.path == [10]
    query.run(60, 20_000)
    assert query.path == [10]
    query.lag = 0
    query.run(60, 3000)
    assert query.path[-1] in (4, 5)


@pytest.mark.parametrize(("splits", "rate", "expected"), [(4, 2000, 4), (4, 50_000, 4), (10, 2500, 5), (7, 3000, 7)])
def test_no_reader_is_without_splits_and_none_has_more_than_it_must(splits: int, rate: int, expected: int) -> None:
    query = Query()
    query.splits = splits
    query.run(100, rate)
    assert query.path[-1] == expected


def test_splits_limit_and_the_reason_names_them() -> None:
    query = Query()
    query.splits = 3
    query.run(100, 50_000)
    assert query.path[-1] == 3
    assert "there are 3 splits to read" in query.reasons[-1]


def test_cores_of_the_session_limit() -> None:
    query = Query()
    query.slots = 2
    query.run(100, 50_000)
    assert query.path == [1, 2]
    assert "the session has cores for 2 slots" in query.reasons[-1]


def test_a_scale_up_that_did_not_help_is_not_repeated() -> None:
    """A sink that takes 1,000 rows a second, whoever writes: more slots bring nothing."""
    query = Query(capacity=lambda slots: 1000)
    query.run(300, 2000)
    assert len(query.path) == 2
    (trouble,) = query.troubles
    assert "the last scale-up, from 1 to 4, brought 0 rows/s more instead of 3,000 rows/s" in trouble

    query.capacity = lambda slots: 700 * slots  # it helps after all
    query.run(100, 4000)
    assert query.path[-1] > query.path[1]


def test_figures_count_only_when_the_query_has_run_for_a_while_without_a_pause() -> None:
    query = Query()
    query.run(2, 100)
    query.is_settled = False
    query.run(3, 100)
    query.is_settled = True
    query.run(2, 100)
    assert query.machine.state == "stabilizing", "the time before the pause does not count"
    query.run(1, 100)
    assert query.machine.state == "collecting"


def test_a_rescale_that_fails_is_repeated_later_and_later() -> None:
    query = Query()
    query.refusal = "there are 2 cores"
    query.run(120, 5000)
    failed = [each.at_ms for each in query.decisions if "failed" in each.reason]
    waits = [other - one for one, other in pairwise(failed)]
    assert len(waits) > 1 and waits == sorted(waits) and waits[-1] > waits[0]
    assert "there are 2 cores" in query.troubles[0]
    assert query.path == [1]
    query.refusal = None
    query.run(60, 5000)
    assert query.path[-1] > 1
    assert query.machine.state != "backing off"


def test_who_uses_the_query_is_first() -> None:
    query = Query()
    query.user_is_first = True
    query.run(12, 5000)
    assert query.path == [1]
    assert any("by its user" in each for each in query.reasons)
    query.parallelism = 4  # which the user chose
    query.run(3, 5000)
    assert "the query was rescaled from 1 to 4 by its user" in query.reasons


def test_a_restart_begins_the_window_anew() -> None:
    """What is read again after a failure would count twice."""
    query = Query()
    query.run(10, 500)
    assert query.machine.state == "watching"
    query.restarts += 1
    query.rows_read += 100_000
    query.run(1, 500)
    assert query.machine.state == "stabilizing"
    query.is_settled = False
    query.run(30, 500)
    assert query.machine.state == "stabilizing"
    query.is_settled = True
    query.run(30, 500)
    assert query.path == [1]


def test_a_reason_is_shown_once_and_again_when_it_changes() -> None:
    query = Query()
    query.run(60, 700)
    assert len(query.reasons) == 3  # stabilizing, collecting, enough
    assert query.reasons[-1].startswith("1 are as many as it needs (between 50 % and 90 % busy): 700 rows/s come in")
    query.run(60, 700)
    assert len(query.reasons) == 3


def test_a_decision_is_written_as_the_snapshot_has_it() -> None:
    query = Query()
    query.run(10, 2000)
    written = msgspec.to_builtins(next(each for each in query.decisions if each.to != each.before))
    assert written["from"] == 1 and written["to"] > 1 and written["atMs"] > 0
    assert written["reason"].startswith("scale up: 2,000 rows/s come in and 1,000 rows/s are read")


def test_with_a_boundary_as_large_as_the_target_there_are_never_fewer() -> None:
    query = Query(msgspec.structs.replace(OPTIONS, target_utilization=0.3, boundary=0.3), parallelism=4)
    query.run(100, 1)
    assert query.path == [4]
