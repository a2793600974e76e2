"""What a subtask's thread does with its time: each instant is counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol.messages import TimeSpent
from headgate.task.thread_time import ThreadTime


@given(st.lists(st.tuples(st.sampled_from(["work", "rows", "room"]), st.integers(0, 1000))))
def test_busy_back_pressured_and_idle_time_add_up(turns: list[tuple[str, int]]) -> None:
    now_ms = 500
    time = ThreadTime(now_ms)
    for what, took_ms in turns:
        if what != "work":
            time.rest(now_ms, for_room=what == "room")
        now_ms += took_ms
        time.go_on(now_ms)
    spent = time.spent(now_ms)
    assert spent.idle_ms == sum(took_ms for what, took_ms in turns if what == "rows")
    assert spent.back_pressured_ms == sum(took_ms for what, took_ms in turns if what == "room")
    busy_ms = spent.elapsed_ms - spent.idle_ms - spent.back_pressured_ms
    assert busy_ms == sum(took_ms for what, took_ms in turns if what == "work")


def test_a_subtask_is_paused_while_any_of_its_sources_has_paused_splits() -> None:
    time = ThreadTime(0)
    time.set_paused("a", True, 10)
    time.set_paused("b", True, 20)
    time.set_paused("a", True, 25)
    time.set_paused("a", False, 30)
    assert time.spent(35).paused_ms == 25
    time.set_paused("b", False, 40)
    assert time.spent(90) == TimeSpent(elapsed_ms=90, back_pressured_ms=0, idle_ms=0, paused_ms=30)


def test_a_clock_that_is_read_in_an_odd_order_takes_no_time_back() -> None:
    time = ThreadTime(100)
    time.rest(120, for_room=False)
    time.go_on(110)
    assert time.spent(90).elapsed_ms == 0
