"""Which options are the query's, what they mean, and what contradicts what."""

from __future__ import annotations

import pytest

from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.coordinator.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart
from headgate.errors import OptionError
from headgate.graph.query_options import (
    QUERY_OPTION_SPECS,
    autoscaler_options,
    checkpoints_during_recovery,
    parse_query_options,
    restart_options,
    split_options,
)

UNALIGNED = "execution.checkpointing.unaligned"


def test_the_defaults_are_those_that_are_documented() -> None:
    options = parse_query_options({}, {})
    assert options["slots"] == "spark"
    assert options["max-parallelism"] == 128
    assert options[f"{UNALIGNED}.enabled"] is True
    assert options["execution.checkpointing.aligned-checkpoint-timeout"] == 0
    assert options["execution.checkpointing.timeout"] == 600_000
    assert options["execution.checkpointing.num-retained"] == 1
    assert options["execution.checkpointing.tolerable-failed-checkpoints"] == 0
    assert restart_options(options) == ExponentialDelay()
    assert options["failover-strategy"] == "region"
    assert options["pipeline.watermark-alignment.allow-unaligned-source-splits"] is False
    assert options["state.memory"] == 256 * 1024 * 1024
    assert options["exchange.buffer-timeout"] == 5
    assert options["heartbeat.timeout"] == 10_000
    assert options["task.stuck.timeout"] == 30_000
    assert (options["transport.port"], options["transport.tls.enabled"]) == (0, False)
    assert options["badRecords"] == "fail"


def test_options_of_the_sink_are_distinguished() -> None:
    given = {"path": "out", "CheckpointLocation": "c", "badRecords": "parquet", "badRecords.path": "bad", "topic": "t"}
    query, sink = split_options(given)
    assert sink == {"path": "out", "topic": "t"}
    assert query == {"CheckpointLocation": "c", "badRecords": "parquet", "badRecords.path": "bad"}
    assert parse_query_options(query, {}).matching("badRecords.*") == {"path": "bad"}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("checkpointLocaton", "checkpointLocation"),
        ("restart-stategy", "restart-strategy"),
        ("execution.checkpointing.num-retaind", "execution.checkpointing.num-retained"),
        ("badRecord", "badRecords"),
    ],
)
def test_a_slip_of_the_pen_is_no_option_of_the_sink(wrong: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"no option '{wrong}'.*'{meant}'"):
        split_options({wrong: "1"})


def test_the_session_has_defaults() -> None:
    options = parse_query_options(
        {"Heartbeat.Timeout": "3 seconds"},
        {"heartbeat.timeout": "5 seconds", "max-parallelism": "16", "subscribe": "rides"},
    )
    assert (options["heartbeat.timeout"], options["max-parallelism"]) == (3000, 16)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max-parallelism", "0", "a whole number from 1 to 32768"),
        ("restart-strategy", "sometimes", "one of exponential-delay, fixed-delay, none"),
        ("slots", "processes", "one of spark, threads"),
        ("heartbeat.timeout", "soon", "an interval like"),
        ("transport.port", "70000", "a whole number from 0 to 65535"),
        ("restart-strategy.attempts", "-1", "a whole number from 0"),
    ],
)
def test_a_bad_value_says_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is '{value}'; it must be {allowed}"):
        parse_query_options({name: value}, {})


def test_checkpoints_during_recovery_need_rows_with_who_gets_them() -> None:
    downstream = f"{UNALIGNED}.recover-output-on-downstream.enabled"
    during = f"{UNALIGNED}.during-recovery.enabled"
    assert parse_query_options({}, {})[during] is None
    with pytest.raises(OptionError, match="Set both to true"):
        parse_query_options({downstream: "false", during: "true"}, {})
    for given, wanted in (
        ({}, True),
        ({downstream: "false"}, False),
        ({during: "false"}, False),
        ({downstream: "true", during: "true"}, True),
    ):
        assert checkpoints_during_recovery(parse_query_options(given, {})) is wanted


def test_rows_may_be_sent_at_once() -> None:
    """0 stands for no time, which an interval cannot."""
    assert parse_query_options({"exchange.buffer-timeout": "0"}, {})["exchange.buffer-timeout"] == 0
    assert parse_query_options({"state.memory": "64m"}, {})["state.memory"] == 64 << 20


def test_restart_strategies() -> None:
    def of(**options: str) -> object:
        given = {
            name.replace("_", "-").replace("restart-strategy-", "restart-strategy."): v for name, v in options.items()
        }
        return restart_options(parse_query_options(given, {}))

    assert of(restart_strategy="none") == NoRestart()
    fixed = of(restart_strategy="fixed-delay", restart_strategy_attempts="2", restart_strategy_delay="0")
    assert fixed == FixedDelay(attempts=2, delay_ms=0)
    exponential = of(restart_strategy_attempts="infinite", restart_strategy_max_backoff="5 seconds")
    assert exponential == ExponentialDelay(attempts=None, max_backoff_ms=5000)
    with pytest.raises(OptionError, match="no meaning for the restart strategy 'none'"):
        of(restart_strategy="none", restart_strategy_attempts="2")
    patient = of(restart_strategy="fixed-delay", restart_strategy_attempts="infinite")
    assert patient == FixedDelay(attempts=None, delay_ms=1000)


def test_the_autoscaler() -> None:
    def of(**options: str) -> AutoscalerOptions | None:
        return autoscaler_options(parse_query_options(options, {}))

    assert of() is None
    assert of(autoscaler="off", **{"parallelism.max": "4"}) is None
    assert of(autoscaler="lag") == AutoscalerOptions(min_parallelism=1, max_parallelism=128)
    bounds = {"parallelism.min": "2", "parallelism.max": "4", "autoscaler.catch-up.duration": "0"}
    wanted = AutoscalerOptions(min_parallelism=2, max_parallelism=4, catch_up_ms=0)
    assert of(autoscaler="lag", **bounds) == wanted
    with pytest.raises(OptionError, match="has no meaning without the option 'autoscaler'"):
        of(**{"parallelism.max": "4"})
    with pytest.raises(OptionError, match="is 5, more than the maximum, 4"):
        of(autoscaler="lag", **(bounds | {"parallelism.min": "5"}))
    with pytest.raises(OptionError, match="at most max-parallelism, which is 128"):
        of(autoscaler="lag", **{"parallelism.max": "129"})


def test_every_option_has_a_meaning() -> None:
    assert all(spec.meaning for spec in QUERY_OPTION_SPECS)
