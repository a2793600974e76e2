"""Which windows a row is in: as counting them all says, on both sides of 1970."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.windows.assigner import Buckets
from headgate.state.watermarks import LEAST_US
from tests.unit.operators.windows.words import window

SPECS = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 11)).filter(
    lambda spec: spec[2] < spec[1] <= spec[0]
)


def buckets(spec: tuple[int, int, int], *, apart: bool) -> Buckets:
    return Buckets(window("at", *(f"{each} ms" for each in spec)), apart=apart)


def counted(spec: tuple[int, int, int], time: int) -> set[int]:
    """Return the starts of the windows of an event time, by trying them."""
    size, slide, start = (each * 1000 for each in spec)
    starts = range(start - 200_000 // slide * slide, 200_000, slide)
    return {each for each in starts if each <= time < each + size}


@given(
    spec=SPECS,
    times=st.lists(st.integers(-50_000, 50_000), min_size=1, max_size=9),
    horizon=st.integers(-60_000, 60_000),
    apart=st.booleans(),
)
def test_rows_are_in_the_windows_that_hold_their_time(
    spec: tuple[int, int, int], times: list[int], horizon: int, apart: bool
) -> None:
    """Of buckets that are windows those that have not ended; else all windows that the bucket is part of."""
    found = buckets(spec, apart=apart)
    micros = np.array(times)
    last = found.of(micros)
    assert last.tolist() == [sorted(counted(spec, time))[-1] for time in times]
    if found.per_row == 1:
        for time, bucket in zip(times, last):
            ended = found.ended(np.array([bucket]), LEAST_US, 10**9)
            assert all(start <= bucket <= start + found.reach_us for start in ended)
            assert set(ended.tolist()) == counted(spec, time)
        return
    kept = last + found.size_us > horizon
    rows, starts = found.all(last[kept], micros[kept], horizon)
    assert (np.diff(rows) >= 0).all()
    pairs = list(zip(micros[kept][rows].tolist(), starts.tolist()))
    wanted = [(time, start) for time in times for start in counted(spec, time) if start + found.size_us > horizon]
    assert sorted(pairs) == sorted(wanted)


@given(
    spec=SPECS,
    numbers=st.sets(st.integers(-20, 20), max_size=6),
    before=st.integers(-60_000, 60_000),
    more=st.integers(0, 60_000),
)
def test_windows_end_in_order(spec: tuple[int, int, int], numbers: set[int], before: int, more: int) -> None:
    """Those that the watermark has passed since the one before, each once, and no other."""
    found = buckets(spec, apart=False)
    starts = sorted(spec[2] * 1000 + number * spec[1] * 1000 for number in numbers)
    of_bucket = range(0, found.reach_us + 1, spec[1] * 1000)
    there = {start - back for start in starts for back in of_bucket}
    ended = found.ended(np.array(starts, np.int64), before, before + more).tolist()
    assert ended == sorted(start for start in there if before < start + found.size_us <= before + more)
    assert found.ended(np.array(starts, np.int64), LEAST_US, LEAST_US).tolist() == []
