"""The series of the page: as long as they say, and no longer."""

from __future__ import annotations

from headgate.monitor.history import MOST_POINTS, MOST_SPLITS, History


def test_series_are_as_long_as_the_points_with_null_where_nothing_is_known() -> None:
    history = History()
    history.add(1000, 1.04, {}, {0: None})
    history.add(2000, 2.0, {"kafka": {"a": 7}}, {0: 0.12345, 1: 1.0})
    assert history.document() == {
        "points": [1000, 2000],
        "inputRowsPerSecond": [1.0, 2.0],
        "watermarks": {"kafka": {"a": [None, 7]}},
        "busy": {"0": [None, 0.123], "1": [None, 1.0]},
    }


def test_old_points_go() -> None:
    history = History()
    for second in range(MOST_POINTS + 5):
        history.add(second, 0.0, {}, {})
    points = history.document()["points"]
    assert (len(points), points[0], points[-1]) == (MOST_POINTS, 5, MOST_POINTS + 4)


def test_of_many_splits_the_slowest_and_the_fastest_are_kept() -> None:
    history = History()
    history.add(0, 0.0, {"kafka": {f"{number:04d}": number for number in range(1000)}}, {})
    history.add(1, 0.0, {"kafka": {f"{number:04d}": 1000 - number for number in range(1000)}}, {})
    kept = history.document()["watermarks"]["kafka"]
    assert len(kept) == MOST_SPLITS
    assert {"0000", "0031", "0968", "0999"} <= kept.keys()
