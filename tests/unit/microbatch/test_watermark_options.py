"""Wrong options of event time are reported before anything is read, by every engine."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from counting_source import CountingSource, World

from headgate.errors import OptionError
from headgate.microbatch.watermark_options import strategy_of
from headgate.source import WatermarkAlignment

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
GROUP, DRIFT = "scan.watermark.alignment.group", "scan.watermark.alignment.max-drift"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eventTimeColumn": "at", GROUP: "g"}, "max-drift' must be set too"),
        ({"eventTimeColumn": "at", DRIFT: "1 minute"}, "group' must be set too"),
        ({GROUP: "g", DRIFT: "1 minute"}, "needs 'eventTimeColumn'"),
        ({"eventTimeColumn": "n", GROUP: "g", DRIFT: "1 minute"}, "must be a timestamp"),
        ({"eventTimeColumn": "missing"}, "missing"),
    ],
)
def test_what_is_missing_or_wrong_is_named(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        strategy_of(CountingSource(options, World()).options, SCHEMA)


def test_the_column_is_found_without_regard_to_case_and_the_rest_is_taken_over() -> None:
    options = {"eventTimeColumn": "AT", GROUP: "g", DRIFT: "1 minute", "scan.watermark.idle-timeout": "5 seconds"}
    strategy = strategy_of(CountingSource(options, World()).options, SCHEMA)
    assert strategy is not None
    assert (strategy.event_time_column, strategy.idle_timeout_ms) == ("at", 5000)
    assert strategy.alignment == WatermarkAlignment(group="g", max_drift_ms=60_000)
    assert strategy_of(CountingSource({}, World()).options, SCHEMA) is None
