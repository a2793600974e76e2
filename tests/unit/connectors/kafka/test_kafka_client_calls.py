"""Calls that may never return are not waited for longer than their time-outs."""

from __future__ import annotations

import threading

import pytest

from headgate.connectors.kafka import client_calls
from headgate.connectors.kafka.client_calls import CallOverdueError, call_within


def test_a_call_that_outlives_its_time_out_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_calls, "GRACE_S", 0.01)
    release, ended = threading.Event(), threading.Event()
    with pytest.raises(CallOverdueError):
        call_within(0.01, lambda: release.wait(60) and ended.set())
    assert not ended.is_set()
    release.set()
    assert ended.wait(60), "it may go on: what it was to do may happen yet"


def test_what_a_call_returns_or_raises_is_passed_on() -> None:
    assert call_within(60, lambda: 7) == 7
    with pytest.raises(TimeoutError, match="its own"):
        call_within(60, lambda: _raise(TimeoutError("its own")))


def _raise(error: Exception) -> None:
    raise error
