"""Calls of an enumerator that take long."""

from __future__ import annotations

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_watch import EnumeratorWatch


def calls(for_ms: int, *, slow: bool = False) -> tuple[src.BusyCall, ...]:
    return (src.BusyCall("listing", for_ms, slow),)


def test_a_call_is_warned_of_and_then_counts_as_failed() -> None:
    watch = EnumeratorWatch("uid", 3000)
    looks = [watch.look(calls(second * 1000)) for second in range(1, 5)]
    assert [len(warned) for warned, _ in looks] == [1, 1, 0, 0]
    assert [error is None for _, error in looks] == [True, True, True, False]


def test_slow_work_holds_no_reader_and_has_more_time() -> None:
    watch = EnumeratorWatch("uid", 1000)
    for second in range(1, 21):
        assert watch.look(calls(second * 1000, slow=True))[1] is None
    assert "readers continue with their splits" in watch.troubles([3])[0]
    error = watch.look(calls(21_000, slow=True))[1]
    assert error is not None and error.error_type == "SourceUnavailableError"


def test_another_enumerator_has_no_troubles() -> None:
    watch = EnumeratorWatch("uid", 3000)
    watch.look(calls(1000))
    watch.slow_work_tried(src.SlowWorkTried(1, "listing", 1, "gone"))
    assert len(watch.troubles([])) == 2
    watch.forget()
    assert watch.troubles([]) == ()
