"""Runs a source's enumerator in Spark's planner process, with one virtual reader that stands for all tasks.

Never: start a thread or read a clock. Spark's planner process calls in on one thread, with slow answers allowed, so
work given to `call_async` runs inline when it is due.

Follows FLIP-27, "Separating Work Discovery from Reading": to the enumerator this looks like a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from headgate.errors import ConnectorContractError, UnsupportedOperationError
from headgate.source import Boundedness, ReaderInfo, Source, SourceEvent, Split, SplitEnumerator, SplitEnumeratorContext

ResultT = TypeVar("ResultT")

VIRTUAL_READER = 0


@dataclass
class _Call:
    work: Callable[[], Any]
    handler: Callable[[Any, Exception | None], None]
    due_ms: int
    period_ms: int | None


class PlannerContext(SplitEnumeratorContext[Split]):
    """The enumerator's view of the planner: one reader, subtask 0, that takes whatever it is given.

    Parameters
    ----------
    name
        The source's name, for errors.
    boundedness
        How the source is read.
    schema
        The columns that are read.
    now_ms
        The time at which the enumerator starts, in milliseconds.
    """

    def __init__(self, name: str, boundedness: Boundedness, schema: pa.Schema, now_ms: int) -> None:
        self.assigned: list[Split] = []
        self.no_more_splits = False
        self.frozen = False
        self._name = name
        self._boundedness = boundedness
        self._schema = schema
        self._now_ms = now_ms
        self._calls: list[_Call] = []
        self._readers: dict[int, ReaderInfo] = {}

    @property
    def boundedness(self) -> Boundedness:
        """How the source is read."""
        return self._boundedness

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""
        return self._schema

    @property
    def current_parallelism(self) -> int:
        """One: the virtual reader."""
        return 1

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """The virtual reader, once it is registered."""
        return self._readers

    @property
    def readers_fail_alone(self) -> bool:
        """No: a micro-batch that fails is read again whole, before the next one is planned."""
        return False

    def register_reader(self, reported: Sequence[Split] = ()) -> None:
        """Make the virtual reader known, with the splits it was restored with where the source wants to see them."""
        info = ReaderInfo(subtask=VIRTUAL_READER, reported_splits_on_registration=tuple(reported))
        self._readers = {VIRTUAL_READER: info}

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Take splits; `StreamPlanner` and `plan_batch` collect them from ``assigned``."""
        for subtask, splits in assignment.items():
            self._check_registered(subtask, "assign_splits")
            self.assigned.extend(splits)

    def signal_no_more_splits(self, subtask: int) -> None:
        """Note that the input ends with what is assigned."""
        self._check_registered(subtask, "signal_no_more_splits")
        self.no_more_splits = True

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> None:
        """Refuse: tasks are not running while a batch is planned."""
        raise UnsupportedOperationError(
            f"The enumerator of {self._name} sends {type(event).__name__} to reader {subtask}, which cannot be "
            "delivered: spark.read and micro-batches are planned before any reader runs. Read the source with "
            "headgate.continuous, or let it put into a split what its reader must know.",
            source=self._name,
            operation="send_event_to_source_reader",
        )

    def call_async(
        self,
        work: Callable[[], ResultT],
        handler: Callable[[ResultT | None, Exception | None], None],
        *,
        initial_delay_ms: int = 0,
        period_ms: int | None = None,
    ) -> None:
        """Remember work for `run_due`."""
        self._calls.append(_Call(work, handler, self._now_ms + initial_delay_ms, period_ms))

    def run_due(self, now_ms: int, *, periodic_too_soon: bool = False) -> None:
        """Run what is due, and what that asks for in turn. A frozen context runs no periodic work any more.

        Parameters
        ----------
        now_ms
            The time, in milliseconds.
        periodic_too_soon
            Run periodic work even before its time, once.
        """
        self._now_ms = now_ms
        ran: set[int] = set()
        while True:
            due = [
                call
                for call in self._calls
                if id(call) not in ran
                and (call.period_ms is None or not self.frozen)
                and (call.due_ms <= now_ms or (periodic_too_soon and call.period_ms is not None))
            ]
            if not due:
                return
            call = due[0]
            ran.add(id(call))
            if call.period_ms is None:
                self._calls.remove(call)
            else:
                call.due_ms = now_ms + call.period_ms
            try:
                result, error = call.work(), None
            except Exception as raised:
                result, error = None, raised
            call.handler(result, error)

    def _check_registered(self, subtask: int, method: str) -> None:
        if subtask not in self._readers:
            raise ConnectorContractError(
                f"The enumerator of {self._name} called {method} for subtask {subtask}, which is not registered.",
                connector=self._name,
                method=method,
            )


def check_supported(source: Source[Any, Any], boundedness: Boundedness, entry_point: str) -> None:
    """Raise `UnsupportedOperationError` if ``source`` cannot be read in this way."""
    if not source.supports(boundedness):
        raise UnsupportedOperationError(
            f"{source.name} cannot be read by {entry_point}: it does not support {boundedness.value} reading.",
            source=source.name,
            operation=entry_point,
        )


def plan_batch(source: Source[Any, Any], schema: pa.Schema, now_ms: int) -> list[Split]:
    """Return all splits of a bounded read, in the order in which the enumerator hands them out.

    Raises
    ------
    UnsupportedOperationError
        The source cannot be read as a batch.
    ConnectorContractError
        The enumerator leaves a request unanswered although nothing is under way.
    """
    check_supported(source, Boundedness.BOUNDED, "spark.read")
    context = PlannerContext(source.name, Boundedness.BOUNDED, schema, now_ms)
    enumerator: SplitEnumerator[Any, Any] = source.create_enumerator(context)
    try:
        enumerator.start()
        context.register_reader()
        enumerator.add_reader(VIRTUAL_READER)
        context.run_due(now_ms)
        while not context.no_more_splits:
            before = len(context.assigned)
            enumerator.handle_split_request(VIRTUAL_READER, None)
            context.run_due(now_ms)
            if len(context.assigned) == before and not context.no_more_splits:
                raise ConnectorContractError(
                    f"The enumerator of {source.name} neither assigned a split nor signalled that there are no more "
                    "when a bounded read asked for one.",
                    connector=source.name,
                    method="handle_split_request",
                )
    finally:
        enumerator.close()
    return list(context.assigned)
