"""The threads around an enumerator: order, slow work with delays and periods, and an end within a second."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from headgate.coordinator.sources import source_events as src
from headgate.driver.enumerator_thread import EnumeratorThread
from headgate.source.enumerator import Boundedness
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.unit.coordinator.sources.toy_sources import ToyEnumerator, ToySource, ToySplit
from tests.unit.runtime.toy_query import PATIENCE_S
from tests.waiting import wait_until


class Probe(ToyEnumerator):
    """Says on which thread it is called; the test sets what it starts with."""

    begin: Callable[[Probe], None] = lambda self: None
    on_request: Callable[[Probe], None] = lambda self: None

    def start(self) -> None:
        type(self).begin(self)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        type(self).on_request(self)

    def add_reader(self, subtask: int) -> None:
        self.context.assign_split(ToySplit(split_id=f"of {threading.current_thread().name}"), subtask)

    def add_splits_back(self, splits: Sequence[ToySplit], subtask: int) -> None:
        pass

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        pass

    def serve(self) -> None:
        pass


class Running:
    """An enumerator on its threads, and what it reported."""

    def __init__(self, **script: Callable[[Probe], None]) -> None:
        self.events: queue.Queue[tuple[str, src.Event]] = queue.Queue()
        source = ToySource([])
        source.enumerator = type("Script", (Probe,), script)
        self.thread = EnumeratorThread(
            source,
            "uid",
            incarnation=1,
            boundedness=Boundedness.BOUNDED,
            schema=source.schema(),
            parallelism=1,
            state=None,
            checkpoint_id=0,
            holders={},
            assigned={},
            returned={},
            on_event=lambda uid, event: self.events.put((uid, event)),
        )

    def next(self) -> Any:
        uid, event = self.events.get(timeout=PATIENCE_S)
        assert uid == "uid"
        return event

    def has_started(self) -> None:
        assert self.next() == src.EnumeratorStarted(1)
        assert self.next() == src.UnassignedChanged(1, MIN_WATERMARK_MS)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(**script: Callable[[Probe], None]) -> Running:
        made.append(Running(**script))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for each in made:
        each.thread.close()
    # `close` waits less than a second, which a busy machine may exceed.
    wait_until(lambda: not [each for each in set(threading.enumerate()) - before if "enumerator-uid" in each.name])


def test_calls_run_on_one_thread_and_are_reported_in_their_order(start: Callable[..., Running]) -> None:
    running = start()
    for checkpoint_id in range(1, 4):
        running.thread.call(src.AddReader(checkpoint_id, "h"))
        running.thread.call(src.SnapshotEnumerator(checkpoint_id))
        running.thread.call(src.NotifySplitsFinished(("of headgate-enumerator-uid",)))
    running.has_started()
    for checkpoint_id in range(1, 4):
        assigned, added, snapshot = running.next(), running.next(), running.next()
        assert added == src.ReaderAdded(1, checkpoint_id)
        assert [split.split_id for split in assigned.assignment[checkpoint_id]] == ["of headgate-enumerator-uid"]
        assert snapshot.checkpoint_id == checkpoint_id


def test_gauges_are_asked_for_on_its_thread_and_without_metrics_nothing_is(start: Callable[..., Running]) -> None:
    names: list[str] = []

    def begin(of: Probe) -> None:
        group = of.context.metric_group
        group.counter("found").inc(3)
        group.gauge("waiting", lambda: names.append(threading.current_thread().name) or 2)

    running = start(begin=begin)
    running.has_started()
    wait_until(lambda: running.thread.measured() is not None)
    measured = running.thread.measured()
    assert measured is not None and (measured.source, measured.incarnation) == ("uid", 1)
    assert {name: each.value for name, each in measured.metrics.items()} == {"found": 3, "waiting": 2}
    assert set(names) == {"headgate-enumerator-uid"}
    without = start()
    without.has_started()
    for _ in range(3):
        assert without.thread.measured() is None


def test_slow_work_runs_beside_it_and_is_handled_on_its_thread(start: Callable[..., Running]) -> None:
    names: list[str] = []
    gate = threading.Event()

    def work() -> None:
        gate.wait(PATIENCE_S)
        names.append(threading.current_thread().name)

    def handle(result: None, error: Exception | None) -> None:
        names.append(threading.current_thread().name)
        raise OSError("handled")

    running = start(begin=lambda of: of.context.call_async(work, handle))
    running.thread.call(src.SnapshotEnumerator(1))
    running.has_started()
    assert isinstance(running.next(), src.EnumeratorSnapshotted), "it is called while the work runs"
    gate.set()
    failed = running.next()
    assert failed.error.message == "handled"
    assert names == ["headgate-enumerator-uid-work-0", "headgate-enumerator-uid"]


def test_an_error_of_slow_work_goes_to_its_handler(start: Callable[..., Running]) -> None:
    def work() -> None:
        raise OSError("no broker")

    def handle(result: None, error: Exception | None) -> None:
        assert error is not None
        raise error

    running = start(begin=lambda of: of.context.call_async(work, handle))
    running.has_started()
    assert running.next().error.message == "no broker"


def test_periodic_work_runs_again_and_delayed_work_later(start: Callable[..., Running]) -> None:
    begun: list[float] = []
    late: queue.Queue[float] = queue.Queue()
    again: queue.Queue[float] = queue.Queue()

    def begin(of: Probe) -> None:
        begun.append(time.monotonic())
        of.context.call_async(lambda: late.put(time.monotonic()), lambda *outcome: None, initial_delay_ms=200)
        of.context.call_async(lambda: again.put(time.monotonic()), lambda *outcome: None, period_ms=20)

    start(begin=begin)
    first, second = again.get(timeout=PATIENCE_S), again.get(timeout=PATIENCE_S)
    assert second - first >= 0.02
    assert late.get(timeout=PATIENCE_S) - begun[0] >= 0.2
    while not again.empty():
        again.get_nowait()
    again.get(timeout=PATIENCE_S)
    assert late.empty(), "without a period it runs once"


@pytest.mark.parametrize("hangs_in", ["work", "call"])
def test_one_that_hangs_is_left_to_itself_and_says_no_more(hangs_in: str) -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(PATIENCE_S)

    script: dict[str, Callable[[Probe], None]] = {
        "begin": lambda of: of.context.call_async(hang, lambda *outcome: of.context.signal_no_more_splits(0)),
        "on_request": lambda of: hang(),
    }
    running = Running(
        **{"begin" if hangs_in == "work" else "on_request": script["begin" if hangs_in == "work" else "on_request"]}
    )
    running.has_started()
    running.thread.call(src.HandleSplitRequest(0, "h"))
    begin = time.monotonic()
    running.thread.close()
    assert time.monotonic() - begin < PATIENCE_S, "it does not wait for it"
    gate.set()
    for thread in threading.enumerate():
        if "enumerator-uid" in thread.name:
            thread.join(PATIENCE_S)
    assert running.events.empty()


@pytest.mark.parametrize("where", ["handle_split_request", "start.<locals>.work"])
def test_a_call_that_does_not_return_is_reported_by_its_name_until_it_does(
    start: Callable[..., Running], where: str
) -> None:
    gate = threading.Event()

    class Slow:
        def list_all(self) -> None:
            gate.wait(PATIENCE_S)

    is_slow_work = where != "handle_split_request"
    if is_slow_work:
        running = start(begin=lambda of: of.context.call_async(Slow().list_all, lambda _, __: None))
    else:
        running = start(on_request=lambda of: Slow().list_all())
        running.thread.call(src.HandleSplitRequest(0, "h"))
    found: list[src.EnumeratorBusy] = []

    def is_busy() -> bool:
        found.extend(filter(None, [running.thread.busy()]))
        return bool(found)

    wait_until(is_busy)
    (call,) = found[0].calls
    assert call.is_slow_work == is_slow_work
    assert call.for_ms >= 1000
    assert call.name.endswith("test_a_call_that_does_not_return_is_reported_by_its_name_until_it_does") or (
        call.name == "handle_split_request"
    )
    gate.set()
    wait_until(lambda: running.thread.busy() == src.EnumeratorBusy(1, ()))
    assert running.thread.busy() is None
