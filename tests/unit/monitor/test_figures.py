"""Sums over subtasks and deployments: they never fall, and nothing is counted twice."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from headgate.monitor.figures import BusyOperator, Figures
from headgate.protocol.messages import RecoveryProgress, RestoreProgress, SplitEventTime, SubtaskProgress
from headgate.source.metrics import Measurement


def figures_of(*messages: tuple[int, int, SubtaskProgress]) -> Figures:
    """Return figures that took (subtask, time in milliseconds, message)."""
    figures = Figures()
    for subtask, now_ms, message in messages:
        figures.take(subtask, message, now_ms)
        figures.check()
    return figures


def message(execution: int = 1, stage: int = 0, **fields: Any) -> SubtaskProgress:
    return SubtaskProgress(stage=stage, execution=execution, **fields)


def test_rows_are_added_up_over_subtasks() -> None:
    figures = figures_of(
        (0, 10, message(rows_in={"a": 5, "b": 1}, rows_out={"s": 4}, skipped=1)),
        (1, 11, message(rows_in={"a": 7}, rows_out={"s": 7})),
        (0, 20, message(rows_in={"a": 9, "b": 1}, rows_out={"s": 8}, skipped=3, late=2)),
        (1, 21, message(rows_in={"a": 7}, rows_out={"s": 7}, late=1)),
        (1, 22, message(2, late=4)),
    )
    assert (figures.rows_in, figures.rows_out, figures.skipped) == ({"a": 16, "b": 1}, {"s": 15}, 3)
    assert figures.late == 7, "of two subtasks, and of two deployments of one"


def test_what_is_left_to_recover_is_added_up_by_stage() -> None:
    """The phase is that of the subtask that has the most left; who is through is not counted."""

    def recovering(phase: str, rows: int) -> RecoveryProgress:
        return RecoveryProgress(phase=phase, rows_to_read=1, rows_left=rows, memory_bytes=10, disk_bytes=20)

    figures = figures_of(
        (0, 1, message(stage=2, recovery=recovering("processing", 5))),
        (1, 1, message(stage=2, recovery=recovering("reading", 7))),
        (2, 1, message(stage=2, recovery=recovering("replaying", 7))),
        (2, 2, message(stage=2)),
        (0, 1, message(stage=1, recovery=recovering("replaying", 1))),
    )
    assert [(each.stage, each.subtasks, each.phase, each.rows_left) for each in figures.recovery()] == [
        (1, 1, "replaying", 1),
        (2, 2, "reading", 12),
    ]
    assert figures.recovery()[1].disk_bytes == 40


def test_what_is_left_to_restore_is_added_up_by_stage() -> None:
    """The time is that of the subtask that takes longest; who is through counts with its bytes."""

    def restoring(left: int, duration_ms: int) -> RestoreProgress:
        return RestoreProgress(bytes_to_read=10, bytes_left=left, duration_ms=duration_ms, is_over=not left)

    figures = figures_of(
        (0, 1, message(stage=2, restore=restoring(0, 70))),
        (1, 1, message(stage=2, restore=restoring(4, 90))),
        (2, 1, message(stage=2)),
        (0, 1, message(stage=1, restore=restoring(0, 5))),
    )
    assert [(each.stage, each.subtasks, each.bytes_to_read, each.bytes_left) for each in figures.restore()] == [
        (1, 0, 10, 0),
        (2, 1, 20, 4),
    ]
    assert figures.restore()[1].duration_ms == 90


def test_a_deployment_counts_from_zero_again() -> None:
    figures = figures_of((0, 10, message(1, rows_in={"a": 100})), (0, 20, message(2, rows_in={"a": 3})))
    assert figures.rows_in["a"] == 103


def test_a_message_of_an_older_deployment_is_ignored() -> None:
    figures = figures_of((0, 10, message(2, rows_in={"a": 3})), (0, 20, message(1, rows_in={"a": 500}, watermark_ms=1)))
    assert figures.rows_in["a"] == 3
    assert figures.watermark_ms() is None


def test_stages_of_a_slot_are_distinguished() -> None:
    figures = figures_of((0, 10, message(1, 0, rows_in={"a": 3})), (0, 11, message(7, 1, rows_in={"a": 4})))
    assert figures.rows_in["a"] == 7


def test_the_lowest_watermark_counts_and_none_has_no_vote() -> None:
    figures = figures_of((0, 1, message(watermark_ms=50)), (1, 1, message(watermark_ms=-40)), (2, 1, message()))
    assert figures.watermark_ms() == -40


def test_positions_of_all_subtasks_the_latest_counts() -> None:
    """A split that moved is in two messages for a while."""
    figures = figures_of(
        (1, 10, message(splits={"a": 2}, positions={"a": {"x": b"1", "y": b"1"}})),
        (0, 20, message(splits={"a": 1, "b": 1}, positions={"a": {"x": b"2"}, "b": {"z": b"9"}})),
        (1, 15, message(rows_in={"a": 5})),
    )
    assert figures.positions("a") == {"x": b"2", "y": b"1"}
    assert figures.positions("none") == {}
    assert (figures.splits("a"), figures.are_positions_reported("a")) == (3, True)


def test_positions_that_are_too_many_to_be_reported() -> None:
    figures = figures_of(
        (0, 10, message(splits={"a": 1}, positions={"a": {"x": b"1"}})),
        (1, 10, message(splits={"a": 100_000}, positions={"a": {}})),
    )
    assert figures.positions("a") == {"x": b"1"}
    assert (figures.splits("a"), figures.are_positions_reported("a")) == (100_001, False)


def test_event_times_stay_until_the_splits_are_reported_again() -> None:
    """A message without splits contains neither their positions nor how far they are."""
    at, later = SplitEventTime(watermark_ms=5), SplitEventTime(watermark_ms=9, paused=True)
    figures = figures_of(
        (0, 10, message(splits={"a": 2}, event_times={"a": {"x": at, "y": at}})),
        (1, 11, message(splits={"a": 1}, event_times={"a": {"z": at}})),
        (0, 12, message(rows_in={"a": 5})),
    )
    assert figures.event_times("a") == {"x": at, "y": at, "z": at}
    figures.take(0, message(splits={"a": 1}, event_times={"a": {"x": later}}), 13)
    assert figures.event_times("a") == {"x": later, "z": at}, "y has finished"
    figures.take(0, message(execution=2), 14)
    assert figures.event_times("a") == {"z": at}
    assert figures.event_times("b") == {}


def test_what_an_earlier_deployment_reported_of_splits_does_not_count() -> None:
    figures = figures_of(
        (0, 10, message(splits={"a": 1}, positions={"a": {"x": b"1"}})),
        (0, 20, message(execution=2)),
    )
    assert (figures.splits("a"), figures.positions("a")) == (0, {})


def test_the_busiest_subtask_speaks_for_an_operator() -> None:
    figures = figures_of(
        (0, 1000, message(busy_ms={"map": 100, "sink": 0})),
        (1, 1000, message(busy_ms={"map": 0, "sink": 0})),
        (0, 2000, message(busy_ms={"map": 350, "sink": 10})),
        (1, 3000, message(busy_ms={"map": 1800, "sink": 10})),
    )
    assert figures.busiest() == [
        BusyOperator(uid="map", stage=0, subtask=1, share=0.9), BusyOperator(uid="sink", stage=0, subtask=0, share=0.01)
    ]  # fmt: skip
    figures.begin_interval()
    assert figures.busiest() == [], "nothing is known of the new interval yet"
    figures.take(0, message(busy_ms={"map": 350, "sink": 510}), 3000)
    assert [(each.uid, each.share) for each in figures.busiest()] == [("sink", 0.5), ("map", 0.0)]


def test_a_new_deployment_is_no_idle_time() -> None:
    figures = figures_of((0, 1000, message(1, busy_ms={"map": 900})), (0, 5000, message(2, busy_ms={"map": 10})))
    assert figures.busiest() == []
    figures.take(0, message(2, busy_ms={"map": 1010}), 6000)
    assert figures.busiest()[0].share == 1.0


def test_a_rescaled_query_counts_on() -> None:
    """Its subtasks are others, and their executions begin with 1 again."""
    figures = figures_of((0, 1, message(4, rows_in={"a": 10}, watermark_ms=7)), (1, 1, message(3, rows_in={"a": 10})))
    figures.forget_subtasks()
    assert figures.watermark_ms() is None
    figures.take(0, message(1, rows_in={"a": 2}), 2)
    assert figures.rows_in["a"] == 22


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-5, 50), st.integers(1, 3), st.integers(0, 1000), st.integers(0, 5000))
    )
)
def test_totals_never_fall_and_shares_are_shares(messages: list[tuple[int, int, int, int, int]]) -> None:
    """Whatever comes, in any order, with a clock that may be set back."""
    figures, before = Figures(), 0
    for subtask, now_ms, execution, rows, busy_ms in messages:
        figures.take(subtask, message(execution, rows_in={"a": rows}, busy_ms={"map": busy_ms}), now_ms)
        assert figures.rows_in["a"] >= before
        before = figures.rows_in["a"]
        assert all(0 <= each.share <= 1 for each in figures.busiest())


def test_a_subtask_that_waits_for_a_split_holds_the_watermark_and_one_without_splits_does_not() -> None:
    waits, silent = SplitEventTime(), SplitEventTime(idle=True)
    assert (
        figures_of((0, 1, message(watermark_ms=50)), (1, 1, message(event_times={"a": {"s": waits}}))).watermark_ms()
        is None
    )
    assert (
        figures_of((0, 1, message(watermark_ms=50)), (1, 1, message(event_times={"a": {"s": silent}}))).watermark_ms()
        == 50
    )


def counted(value: float) -> Measurement:
    return Measurement(kind="counter", value=value)


def gauge(value: float, aggregate: Literal["sum", "max"] = "sum") -> Measurement:
    return Measurement(kind="gauge", value=value, aggregate=aggregate)


def test_what_connectors_measure_is_put_together_and_their_counts_never_fall() -> None:
    figures = figures_of(
        (0, 1, message(metrics={"a": {"requests": counted(5), "waiting": gauge(2), "lagMs": gauge(7, "max")}})),
        (1, 2, message(metrics={"a": {"requests": counted(3), "waiting": gauge(1), "lagMs": gauge(9, "max")}})),
        (1, 3, message()),
        (0, 4, message(execution=2, metrics={"a": {"requests": counted(1), "waiting": gauge(4)}})),
    )
    figures.take_enumerator("a", 1, {"found": counted(10), "waiting": gauge(100)})
    figures.take_enumerator("a", 1, {"found": counted(12), "waiting": gauge(100)})
    figures.take_enumerator("a", 2, {"found": counted(1), "waiting": gauge(50)})
    values = {name: (each.kind, each.value) for name, each in figures.metrics("a").items()}
    assert values == {
        "requests": ("counter", 9), "found": ("counter", 13), "waiting": ("gauge", 55), "lagMs": ("gauge", 9),
    }  # fmt: skip
    figures.forget_subtasks()
    assert set(figures.metrics("a")) == {"requests", "found"}


def test_bytes_by_second_are_between_messages_that_count_them() -> None:
    figures = Figures()
    for quarter in range(41):  # counted once a second, reported four times
        metrics = {"a": {"numBytesIn": counted(1000 * quarter // 4)}} if quarter % 4 == 0 else {}
        figures.take(0, message(metrics=metrics), 250 * quarter + 3)
    [only] = figures.subtasks().values()
    assert only.bytes_in_per_second == {"a": 1000}
    assert figures.metrics("a")["numBytesIn"].value == 10_000


def test_rates_of_a_subtask_are_of_a_window_that_moves_on() -> None:
    figures = Figures()
    for second in range(20):
        figures.take(0, SubtaskProgress(stage=0, execution=1, rows_in={"kafka": second**2}), 1000 * second)
    [only] = figures.subtasks().values()
    assert only.rows_in_per_second == {"kafka": (19**2 - 14**2) / 5}
    figures.take(0, SubtaskProgress(stage=0, execution=2, rows_in={"kafka": 1}), 20_000)
    [only] = figures.subtasks().values()
    assert (only.last.execution, only.rows_in_per_second, only.busy) == (2, None, None)
