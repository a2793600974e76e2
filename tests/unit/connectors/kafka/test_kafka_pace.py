"""How long a batch of records waits for more of them."""

from __future__ import annotations

from headgate.connectors.kafka.consumer import Pace


def test_what_comes_after_silence_does_not_wait() -> None:
    pace = Pace()
    assert pace.linger_s(100.0) == 0, "nothing came before"
    pace.given_out(1, 100.0)
    assert pace.linger_s(101.0) == 0


def test_records_that_go_on_coming_are_gathered() -> None:
    """For 1 ms since the batch before, or 10 ms when that was a large one: never for longer than that."""
    pace = Pace()
    for records, spacing_s in ((1, 0.001), (255, 0.001), (256, 0.01), (50_000, 0.01), (1, 0.001)):
        pace.given_out(records, 100.0)
        assert round(pace.linger_s(100.0), 9) == spacing_s
        assert round(pace.linger_s(100.0 + spacing_s / 2), 9) == spacing_s / 2
        assert pace.linger_s(100.0 + spacing_s) == 0
