"""``bench/latency.py`` without a query: what windows are measured from, what is asked for; never how fast it is."""

from __future__ import annotations

import argparse
import json
import math

import pytest

from bench import latency
from bench.latency import Comparison, Figures, comparisons
from bench.latency_load import WINDOW_NS, Load, Spent, WindowEnds, used
from bench.latency_sides import AT_LEAST_ONCE, FLOOR, REAL_TIME, WINDOWS, Side


def wanted(*arguments: str) -> list[str]:
    """Return the names of the cases that a command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append")
    parser.add_argument("--quick", action="store_true")
    latency.add_arguments(parser)
    return [each.name for each in latency._wanted(parser.parse_args(arguments))]


def test_a_window_could_end_when_its_last_partition_has_a_later_record() -> None:
    ends = WindowEnds(2, 100)
    for partition, stamp in ((0, 10), (1, 20), (0, 99), (0, 105), (1, 98), (0, 150), (1, 120), (1, 130)):
        ends.add(partition, stamp)
    assert ends.passed_ns(100) == 120


def test_a_record_at_a_window_s_end_ends_it_and_one_after_silence_all_windows_before() -> None:
    ends = WindowEnds(2, 100)
    for partition, stamp in ((0, 10), (1, 20), (0, 100), (1, 301), (0, 305)):
        ends.add(partition, stamp)
    assert [ends.passed_ns(end) for end in (100, 200, 300)] == [301, 305, 305]


def test_a_window_that_nobody_ended_is_an_error() -> None:
    ends = WindowEnds(2, 100)
    ends.add(0, 10)
    with pytest.raises(KeyError):
        ends.passed_ns(100)


def test_help_says_of_each_case_what_it_measures() -> None:
    assert latency.__doc__ is not None
    prose = latency.__doc__.replace("(-100ms)", "kafka-exactly-once-100ms").split()
    words = {word.strip(",.:") for word in prose}
    assert {each.name for each in comparisons()} <= words


def test_the_default_run_has_the_cases_that_it_always_had() -> None:
    always = ["kafka", "kafka-floor", "kafka-exactly-once", "kafka-exactly-once-100ms", "python", "kafka-real-time"]
    assert wanted() == [*always, "window"]
    assert wanted("--quick") == ["kafka"]
    assert wanted("--all") == [each.name for each in comparisons()]
    assert wanted("--quick", "--only", "stateful") == ["stateful"]
    with pytest.raises(SystemExit, match="no case statefull"):
        wanted("--only", "statefull")


def test_rates_are_numbers() -> None:
    assert latency._rates("1000,50_000") == [1000, 50_000]
    for wrong in ("fast", "0", "1000,"):
        with pytest.raises(ValueError):  # argparse shows it
            latency._rates(wrong)


def test_two_sides_that_are_compared_run_one_program() -> None:
    for each in comparisons():
        for theirs in (each.theirs, each.instead):
            if isinstance(theirs, Side):
                assert theirs.program == each.ours.program, each.name


def test_a_side_that_does_not_keep_up_is_an_error_at_the_usual_rate_and_a_figure_above_it() -> None:
    spent, few = Spent(1.0, math.nan, math.nan), [1.0, 2.0, 3.0] * 3_000
    found = latency._figures(FLOOR, Load(50_000, 1.0), few, spent, 50_000)
    assert (found.p50, found.out) == (3_000.0, 0.18)  # what did not come out is at least as late as that
    slow = latency._figures(FLOOR, Load(50_000, 1.0), [4_000.0] * 20_000, spent, 50_000)
    assert slow.p99 == 4_000.0
    assert latency._figures(FLOOR, Load(50_000, 1.0), [], spent, 50_000).p50 == 3_000.0
    with pytest.raises(SystemExit, match="only 300 records came out of 5000"):
        latency._figures(FLOOR, Load(5_000, 1.0), few[:300], spent, 5_000)


def test_a_process_that_ends_takes_nothing_from_what_others_used() -> None:
    assert used({1: 10.0, 2: 60.0}, {1: 12.0, 3: 0.5}) == 2.5  # Spark ends idle workers after a minute


def test_windows_are_measured_by_their_rows() -> None:
    side = Side("window-append", program=WINDOWS)
    found = latency._figures(side, Load(5_000, 1.0), [4.0] * 300, Spent(1.0, 0.5, 900.0), 5_000)
    assert math.isnan(found.out)
    assert WINDOW_NS % 1_000_000 == 0  # Spark's watermark has milliseconds


def test_the_json_has_each_round_and_nothing_for_what_a_side_does_not_have() -> None:
    rounds = [Figures(2.0, p99, 9.0, Spent(1.0, math.nan, math.nan), 1.0, 5_000.0) for p99 in (5.0, 7.0, 6.0)]
    out = json.loads(json.dumps(latency._as_json("floor", 5_000, rounds)))
    assert (out["p99_ms"], out["highest_p99_ms"]) == ([5.0, 7.0, 6.0], 7.0)
    assert (out["slot_cores"], out["fetch_us"]) == (None, None)


def test_what_real_time_mode_refuses_is_named_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "[STREAM_FAILED] Query terminated: [STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPPORTED] Append"
    monkeypatch.setattr(latency, "_refusal", lambda *_: refusal)
    case = Comparison("window-append", AT_LEAST_ONCE, REAL_TIME, instead=FLOOR)
    able = latency._able(None, None, case)  # type: ignore[arg-type]
    assert able.theirs is FLOOR
    assert able.peer_name == "spark kafka; real-time mode cannot: output mode not supported"
