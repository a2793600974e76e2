"""How long to wait after a failure, and when it has been long enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kinesis.api import Trouble, TroubleKind
from headgate.connectors.kinesis.cursor import FIRST_WAIT_MS, LONGEST_WAIT_MS, Patience, wait_ms
from headgate.errors import SourceUnavailableError

ERROR = SourceUnavailableError("no answer")


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_waits_are_drawn_below_a_bound_that_doubles(failures, draw):
    bound = wait_ms(failures, lambda: 1.0)
    assert bound == min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (failures - 1))
    assert 0 <= wait_ms(failures, lambda: draw) <= bound


@given(st.lists(st.sampled_from([TroubleKind.THROTTLED, TroubleKind.EXPIRED]), max_size=200))
def test_being_throttled_is_never_fatal(kinds):
    patience, now_ms = Patience(1000, lambda: 1.0), 0
    for kind in kinds:
        now_ms += patience.failed(Trouble(kind, ERROR), now_ms)
    assert now_ms <= len(kinds) * LONGEST_WAIT_MS


def test_silence_is_fatal_after_its_time_and_not_before():
    patience = Patience(1000, lambda: 1.0)
    silence = Trouble(TroubleKind.UNAVAILABLE, ERROR)
    assert [patience.failed(silence, now_ms) for now_ms in (5000, 5500, 5999)] == [100, 200, 400]
    with pytest.raises(SourceUnavailableError):
        patience.failed(silence, 6000)


@pytest.mark.parametrize("answer", ["answered", "throttled"])
def test_any_answer_ends_a_silence(answer):
    patience = Patience(1000, lambda: 1.0)
    silence = Trouble(TroubleKind.UNAVAILABLE, ERROR)
    patience.failed(silence, 0)
    if answer == "answered":
        patience.answered()
    else:
        patience.failed(Trouble(TroubleKind.THROTTLED, ERROR), 500)
    patience.failed(silence, 1000)
    patience.failed(silence, 1999)
    with pytest.raises(SourceUnavailableError):
        patience.failed(silence, 2000)
