"""Runs a source's enumerator on a thread of its own, its slow work in a pool, and serialises beside it.

Never: let an enumerator that hangs hold up the query: what is asked of it waits in a queue, and `close` does not.

    thread                          what it does
    ------------------------------  --------------------------------------------------------------------
    headgate-enumerator-UID         the enumerator, one call after the other
    headgate-enumerator-UID-says    serialises splits and states, and reports, in the order of the calls
    headgate-enumerator-UID-work    (up to 4) what the enumerator gave to ``call_async``

Follows FLIP-27, "Where to run the enumerator" ("called from an additional thread").
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner, Output, SlowWork, method_of
from headgate.errors import ConnectorContractError
from headgate.event_log import describe, set_thread_context, thread_context
from headgate.protocol.state import SplitState
from headgate.source.enumerator import Boundedness
from headgate.source.metrics import Measurement
from headgate.source.source import Source

_log = logging.getLogger(__name__)

_WORKERS = 4
_PATIENCE_S = 0.8
_LONG_S = 1.0
"""A call that has been under way for so long is reported."""


class EnumeratorMeasured(msgspec.Struct, frozen=True):
    """What an enumerator counts and measures, by name; counts of another incarnation begin at 0 again."""

    source: str
    incarnation: int
    metrics: Mapping[str, Measurement]


class EnumeratorThread:
    """One incarnation of an enumerator, running from construction on.

    Parameters
    ----------
    source, uid, incarnation, boundedness, schema, parallelism, state, checkpoint_id, holders, assigned, returned
        As for `EnumeratorRunner`.
    on_event
        Takes the uid and what the enumerator says, on a thread of ours; must not block.
    """

    def __init__(
        self,
        source: Source[Any, Any],
        uid: str,
        *,
        incarnation: int,
        boundedness: Boundedness,
        schema: pa.Schema,
        parallelism: int,
        state: bytes | None,
        checkpoint_id: int,
        holders: Mapping[str, int],
        assigned: Mapping[int, Sequence[SplitState]],
        returned: Mapping[int, Sequence[SplitState]],
        on_event: Callable[[str, src.Event], None],
    ) -> None:
        self._uid = uid
        self._log_context = {**thread_context(), "source": uid}
        self._incarnation = incarnation
        self._on_event = on_event
        self._turns: queue.SimpleQueue[tuple[str, Callable[[], list[Output]]] | None] = queue.SimpleQueue()
        self._outputs: queue.SimpleQueue[list[Output] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # Calls of the connector's code under way: name, beginning, whether it is slow work. Any thread.
        self._under_way: dict[int, tuple[str, float, bool]] = {}
        self._was_busy = False
        # Written on the enumerator's thread, read on the driver's.
        self._measured: EnumeratorMeasured | None = None
        self._measures = False
        # On the enumerator's thread only: slow work by the time it is due.
        self._due: list[tuple[float, int, SlowWork]] = []
        self._number = itertools.count()
        self._calls = itertools.count()
        self._runner = EnumeratorRunner(
            source,
            uid,
            incarnation=incarnation,
            boundedness=boundedness,
            schema=schema,
            parallelism=parallelism,
            state=state,
            checkpoint_id=checkpoint_id,
            holders=holders,
            assigned=assigned,
            returned=returned,
            call_async=lambda work: self._work_later(work, work.initial_delay_ms),
        )
        name = f"headgate-enumerator-{uid}"
        self._pool = _Pool(f"{name}-work")
        self._turns.put(("start", self._runner.start))
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True),
            threading.Thread(target=self._say, name=f"{name}-says", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def call(self, call: src.EnumeratorCall) -> None:
        """Let the enumerator be called, after all calls before. Does not block."""
        self._turns.put((method_of(call), lambda: self._runner.call(call)))

    def busy(self) -> src.EnumeratorBusy | None:
        """Return which calls take long; None: none does, nor did when this was asked last. On the driver's thread."""
        now_s = time.monotonic()
        longest: dict[str, src.BusyCall] = {}
        for name, since_s, is_slow_work in list(self._under_way.values()):  # the oldest first
            if now_s - since_s >= _LONG_S:
                longest.setdefault(name, src.BusyCall(name, int((now_s - since_s) * 1000), is_slow_work))
        calls = tuple(longest.values())
        was_busy, self._was_busy = self._was_busy, bool(calls)
        return src.EnumeratorBusy(self._incarnation, calls) if calls or was_busy else None

    def measured(self) -> EnumeratorMeasured | None:
        """Return what the enumerator's metrics were when this was called before; None: they were not looked at yet.

        They are looked at again, once the enumerator is done with what it was asked before. On the driver's thread.
        """
        if self._runner.has_metrics and not self._measures:
            self._measures = True
            self._turns.put(("metric_group", self._measure))
        return self._measured

    def close(self) -> None:
        """Close the enumerator. Blocks for less than a second; one that hangs is left to itself, and says no more."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._pool.close()
        self._turns.put(None)
        until = time.monotonic() + _PATIENCE_S
        for thread in (*self._threads, *self._pool.threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in (*self._threads, *self._pool.threads)):
            _log.warning("The enumerator of %s does not end; its thread is abandoned.", self._uid)

    # On the enumerator's thread.

    def _run(self) -> None:
        set_thread_context(**self._log_context)
        while not self._closed.is_set():
            turn = self._next_turn()
            if turn is not None:
                name, do = turn
                with self._watched(name):
                    outputs = do()
                self._outputs.put(outputs)
        self._outputs.put(None)
        try:
            self._runner.close()
        except BaseException as error:
            _log.warning("The enumerator of %s failed when it was closed: %s", self._uid, describe(error))

    def _next_turn(self) -> tuple[str, Callable[[], list[Output]]] | None:
        """Wait for a turn, and meanwhile give out the work that comes due; None: look again."""
        while self._due and self._due[0][0] <= time.monotonic():
            work = heapq.heappop(self._due)[2]
            self._pool.do(partial(self._do_work, work))
        try:
            return self._turns.get(timeout=max(0.0, self._due[0][0] - time.monotonic()) if self._due else None)
        except queue.Empty:
            return None

    def _measure(self) -> list[Output]:
        self._measured = EnumeratorMeasured(self._uid, self._incarnation, self._runner.metrics())
        self._measures = False
        return []

    def _work_later(self, work: SlowWork, delay_ms: int) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_ms / 1000, next(self._number), work))

    def _finish(self, work: SlowWork, result: Any, error: Exception | None) -> list[Output]:
        outputs = self._runner.finish(work, result, error)
        if (next_run_ms := self._runner.next_run_ms(work)) is not None:
            self._work_later(work, next_run_ms)
        return outputs

    @contextlib.contextmanager
    def _watched(self, name: str, *, is_slow_work: bool = False) -> Iterator[None]:
        """Let `busy` know of a call. Any thread."""
        number = next(self._calls)
        self._under_way[number] = name, time.monotonic(), is_slow_work
        try:
            yield
        finally:
            del self._under_way[number]

    # On others.

    def _do_work(self, work: SlowWork) -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            with self._watched(work.name, is_slow_work=True):
                result = work.work()
        except Exception as error:
            failure = error
        except BaseException as error:  # sys.exit() in a connector's code: its handler must hear of it
            failure = ConnectorContractError(
                f"Slow work of the source {self._uid!r} raised {type(error).__name__}: {error}.", method="call_async"
            )
            failure.__cause__ = error
        self._turns.put((f"the handler of {work.name}", lambda: self._finish(work, result, failure)))

    def _say(self) -> None:
        while (outputs := self._outputs.get()) is not None:
            for output in outputs:
                with self._watched("a serializer"):
                    event = self._runner.report(output)
                if event is None or self._closed.is_set():
                    continue
                if isinstance(event, src.EnumeratorFailed) and not event.error.final:
                    # If it is restored alone, nobody else says so.
                    _log.warning(
                        "The enumerator of the source %r failed: %s: %s",
                        self._uid, event.error.error_type, event.error.message,
                    )  # fmt: skip
                self._on_event(self._uid, event)


class _Pool:
    """A few daemon threads, made when they are needed: one that hangs keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self.threads: list[threading.Thread] = []
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._unfinished = 0

    def do(self, job: Callable[[], None]) -> None:
        """Let a thread do something. Called on one thread only."""
        with self._lock:
            self._unfinished += 1
            is_busy = self._unfinished > len(self.threads)
        if is_busy and len(self.threads) < _WORKERS:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self.threads)}", daemon=True)
            self.threads.append(thread)
            thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Let the threads end after what they are doing; what waits is not done."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        for _ in range(_WORKERS):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._unfinished -= 1
