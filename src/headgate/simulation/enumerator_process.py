"""The thread of one source's enumerator: the production `EnumeratorRunner` with a connector's enumerator, call by call.

Never: run slow work on the enumerator's thread, or stop an older incarnation from saying what it still says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner, Output, SlowWork
from headgate.protocol.messages import ErrorReport
from headgate.simulation.clockwork import Process
from headgate.simulation.world import World
from headgate.source.enumerator import Boundedness

_BUGS = ("AssertionError", "ConnectorContractError", "InternalError", "InvalidTransitionError", "KeyError", "TypeError")
"""Errors that no fault makes: an enumerator was given something impossible."""


class EnumeratorProcess(Process):
    """One incarnation.

    Parameters
    ----------
    cluster, driver
        Where it lives.
    notify
        Takes what it says, in the driver's process.
    uid
        The source's.
    order
        What it is started from.
    parallelism
        Of the query.
    """

    def __init__(
        self,
        cluster: World,
        driver: Process,
        notify: Callable[[src.Event], None],
        uid: str,
        order: src.StartEnumerator,
        parallelism: int,
    ) -> None:
        super().__init__(f"enumerator of {uid}")
        self._driver = driver
        self._notify = notify
        self._cluster = cluster
        self._incarnation = order.incarnation
        self._free_ms = self._reported_ms = 0
        self.crash_next = False
        topic = self._cluster.topics[uid]
        self.runner = EnumeratorRunner(
            self._cluster.sources[uid],
            uid,
            incarnation=order.incarnation,
            boundedness=Boundedness.BOUNDED if topic.script.bounded else Boundedness.CONTINUOUS_UNBOUNDED,
            schema=pa.schema([]),
            parallelism=parallelism,
            state=order.state,
            checkpoint_id=order.checkpoint_id,
            holders=order.holders,
            assigned=order.assigned,
            returned=order.returned,
            call_async=self._begin_slow_work,
        )
        self._do(self.runner.start)

    def call(self, call: src.EnumeratorCall) -> None:
        """Queue a call."""
        self._do(lambda: self.runner.call(call))

    def _do(self, turn: Callable[[], list[Output]]) -> None:
        clock, choose = self._cluster.clock, self._cluster.choose
        self._free_ms = max(self._free_ms, clock.now_ms) + choose.choice((0, 1, 1, 2, 30))
        clock.at(self._free_ms, self, self._turn, turn)

    def _turn(self, turn: Callable[[], list[Output]]) -> None:
        crash = self.crash_next and self._cluster.choose.choice(("before", "after", "overtaking", "twice"))
        if crash != "before":
            for event in self.runner.reported(turn()):
                if isinstance(event, src.EnumeratorFailed) and event.error.error_type in _BUGS:
                    raise AssertionError(event.error.traceback)
                self._say(event)
        if crash:
            self._crash(crash)

    def _crash(self, how: str) -> None:
        """Die before or after the turn; that may be heard before what was reported, or twice."""
        self.alive = False
        failed = src.EnumeratorFailed(self._incarnation, ErrorReport(error_type="OSError", message="a fault"))
        if how in ("overtaking", "twice"):
            self._notify(failed)
        if how != "overtaking":
            self._say(failed)

    def _say(self, event: src.Event) -> None:
        clock = self._cluster.clock
        self._reported_ms = max(self._reported_ms, clock.now_ms + self._cluster.choose.choice((0, 1, 10, 40)))
        clock.at(self._reported_ms, self._driver, self._notify, event)

    def _begin_slow_work(self, work: SlowWork) -> None:
        delay_ms = work.initial_delay_ms + self._cluster.choose.choice((1, 5, 50))
        self._cluster.clock.after(delay_ms, self, self._work, work)

    def _work(self, work: SlowWork) -> None:
        result: Any = work.work()
        self._do(lambda: self._finish(work, result))

    def _finish(self, work: SlowWork, result: Any) -> list[Output]:
        outputs = self.runner.finish(work, result, None)
        if (next_run_ms := self.runner.next_run_ms(work)) is not None:
            self._cluster.clock.after(next_run_ms, self, self._work, work)
        return outputs
