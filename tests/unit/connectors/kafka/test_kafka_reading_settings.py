"""How librdkafka is set for reading."""

from __future__ import annotations

import pytest

from headgate.connectors.kafka.reading_settings import reading_settings

MIB = 2**20


@pytest.mark.parametrize("buffered_bytes", [1, MIB, 64 * MIB, 2**40])
def test_what_is_fetched_ahead_follows_the_memory_allowed(buffered_bytes: int) -> None:
    settings = reading_settings({}, buffered_bytes, bounded=True)
    # librdkafka's own bounds, beyond which a client cannot be made
    assert 1 <= int(settings["queued.max.messages.kbytes"]) <= 2_097_151
    assert 1 <= int(settings["queued.min.messages"]) <= 10_000_000
    assert 1 <= int(settings["fetch.max.bytes"]) <= 2_147_483_135
    assert 1 <= int(settings["max.partition.fetch.bytes"]) <= 1_000_000_000
    if buffered_bytes == 64 * MIB:
        assert int(settings["queued.max.messages.kbytes"]) * 1024 + int(settings["fetch.max.bytes"]) <= buffered_bytes


def test_what_the_user_set_of_fetching_stays() -> None:
    settings = reading_settings({"fetch.wait.max.ms": "7", "queued.min.messages": 5}, 64 * MIB, bounded=False)
    assert "fetch.wait.max.ms" not in settings
    assert "queued.min.messages" not in settings


def test_positions_are_never_chosen_or_committed_by_the_client() -> None:
    given: dict[str, str | int | bool] = {
        "auto.offset.reset": "latest", "enable.auto.commit": True, "enable.auto.offset.store": True,
        "enable.partition.eof": False,
    }  # fmt: skip
    settings = given | reading_settings(given, 64 * MIB, bounded=True)
    assert {name: settings[name] for name in given} == {
        "auto.offset.reset": "error", "enable.auto.commit": False, "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }  # fmt: skip
