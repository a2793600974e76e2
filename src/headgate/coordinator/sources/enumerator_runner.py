"""Runs a connector's enumerator: carries out calls one by one, and collects what it says, in order.

Never: start a thread, wait, read a clock. Slow work is handed to whoever runs this (a pool, or the simulator), and so
is serialising: `EnumeratorRunner.call` and `finish` belong to the enumerator's thread, `report` may be called on
another one, for one output after the other.

It checks what readers and checkpoints rely on: splits go to registered readers, none goes to a reader while another
has it, and none after the promise that there are no more. An enumerator that breaks this, or raises, has failed: it is
not called again.

Follows FLIP-27, "Split Enumerator"; FLIP-537, "ReaderInfo"; Flink's SourceCoordinatorContext.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, assert_never

import msgspec
import pyarrow as pa

from headgate.coordinator.sources import source_events as src
from headgate.errors import ConnectorContractError, HeadgateError, StoredStateError, is_final
from headgate.protocol.messages import ErrorReport
from headgate.protocol.state import SplitState
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.events import ReaderInfo, SourceEvent
from headgate.source.metrics import Measurement
from headgate.source.source import Source
from headgate.source.split import Split
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

AnySplit = Any

_FIRST_RETRY_MS, _LAST_RETRY_MS = 500, 10_000
"""Until failed periodic work is retried at first, and at last if its period is not longer."""


class SlowWork(msgspec.Struct, frozen=True):
    """What an enumerator gave to ``call_async``.

    Parameters
    ----------
    work
        To be run anywhere, after ``initial_delay_ms``; its outcome goes to `EnumeratorRunner.finish`.
    handler
        Called there.
    initial_delay_ms
        Time until the first run, in milliseconds.
    period_ms
        Time from a run whose outcome was handled to the next, in milliseconds; None: it runs once. See
        `EnumeratorRunner.next_run_ms` for runs that failed.
    """

    work: Callable[[], Any]
    handler: Callable[[Any, Exception | None], None]
    initial_delay_ms: int
    period_ms: int | None

    @property
    def name(self) -> str:
        """What it is called, for people."""
        return str(getattr(self.work, "__qualname__", type(self.work).__name__)).partition(".<locals>")[0].lstrip("_")


class Assigned(msgspec.Struct, frozen=True):
    """Splits were assigned; they are not serialised yet."""

    assignment: dict[int, tuple[AnySplit, ...]]


class StateTaken(msgspec.Struct, frozen=True):
    """The enumerator's state, not serialised yet. ``checkpoint_id``: None where no checkpoint asked."""

    checkpoint_id: int | None
    state: Any


Output = (
    Assigned | StateTaken | src.EnumeratorStarted | src.NoMoreSplitsSignalled | src.EventSent | src.ReaderAdded
    | src.SourceEventHandled | src.SlowWorkTried | src.UnassignedChanged | src.ReaderForgotten | src.SplitsTakenBack
    | src.EnumeratorFailed
)  # fmt: skip


def method_of(call: src.EnumeratorCall) -> str:
    """Return the name of the enumerator's method that a call is of."""
    return _METHODS.get(type(call), "forgetting a reader")


_METHODS: dict[type, str] = {
    src.AddReader: "add_reader",
    src.AddSplitsBack: "add_splits_back",
    src.HandleSplitRequest: "handle_split_request",
    src.HandleSourceEvent: "handle_source_event",
    src.NotifySplitsFinished: "notify_splits_finished",
    src.SnapshotEnumerator: "snapshot_state",
    src.NotifyEnumerator: "notify_checkpoint_complete",
}


class EnumeratorRunner:
    """One incarnation of a source's enumerator.

    Parameters
    ----------
    source
        Makes the enumerator.
    uid
        The source's uid, for errors.
    incarnation
        Stands in everything it says.
    boundedness, schema, parallelism
        What the enumerator may know of the query.
    state
        What the source's ``state_serializer`` wrote; None: start afresh.
    checkpoint_id
        The newest checkpoint that may have a state of this source.
    holders
        Readers that have splits already, by split id.
    assigned
        Splits that the state holds although readers were given them since, by reader.
    returned
        Splits that it gets back before these, by the reader that they were with.
    call_async
        Takes slow work, on the enumerator's thread; must not run it there and then.

    Examples
    --------
    >>> from headgate.connectors.datagen import DatagenSource
    >>> source = DatagenSource({"numRows": "5"})
    >>> schema = pa.schema([("id", pa.int64())])
    >>> runner = EnumeratorRunner(source, "numbers", incarnation=1, boundedness=Boundedness.BOUNDED,
    ...     schema=schema, parallelism=1, state=None, checkpoint_id=0, call_async=print)
    >>> [type(event).__name__ for event in runner.reported(runner.start())]
    ['EnumeratorStarted', 'UnassignedChanged']
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
        call_async: Callable[[SlowWork], None],
        holders: Mapping[str, int] = MappingProxyType({}),
        assigned: Mapping[int, Sequence[SplitState]] = MappingProxyType({}),
        returned: Mapping[int, Sequence[SplitState]] = MappingProxyType({}),
    ) -> None:
        self.source = source
        self.uid = uid
        self.incarnation = incarnation
        self.failed = False
        self._context = _Context(self, boundedness, schema, parallelism)
        self._call_async = call_async
        self._state = state
        self._is_new = state is None  # no earlier start got as far as to have a state
        self._checkpoint_id = checkpoint_id
        self._enumerator: SplitEnumerator[Any, Any] | None = None
        self._readers: dict[int, ReaderInfo] = {}
        self._promised: set[int] = set()
        self._assigned = assigned
        self._returned = returned
        self._holders = dict(holders)  # who was given a split that is not known to be finished
        self._outputs: list[Output] = []
        self._failures: dict[str, int] = {}  # in a row, of slow work that is retried, by its name
        self._unassigned: src.UnassignedChanged | None = None  # the last report of that
        # What readers reported, as it came: an enumerator that assigns the very same split again needs no new bytes.
        # Filled on the enumerator's thread and emptied where outputs are reported.
        self._reported: dict[str, tuple[Split, SplitState]] = {}
        # Where outputs are reported only:
        self._last_state = state

    @property
    def has_metrics(self) -> bool:
        """Whether the enumerator has registered any. Any thread."""
        return not self._context.metric_group.is_empty

    # On the enumerator's thread.

    def metrics(self) -> dict[str, Measurement]:
        """Return what the enumerator counts and measures now."""
        return self._context.metric_group.collect().metrics

    def start(self) -> list[Output]:
        """Make the enumerator and start it; first of all."""
        return self._run(self._start)

    def call(self, call: src.EnumeratorCall) -> list[Output]:
        """Carry out one call, and return what the enumerator reported."""
        return self._run(lambda: self._carry_out(call))

    def finish(self, work: SlowWork, result: Any, error: Exception | None) -> list[Output]:
        """Hand the outcome of slow work to its handler, and return what the enumerator reported."""
        return self._run(lambda: self._finish(work, result, error))

    def next_run_ms(self, work: SlowWork) -> int | None:
        """Return the time until periodic work runs again, in milliseconds, after `finish`; None: it does not.

        Work that failed is retried soon, and then less and less often.
        """
        if work.period_ms is None or self.failed:
            return None
        failures = self._failures.get(work.name, 0)
        if not failures:
            return work.period_ms
        return min(_FIRST_RETRY_MS << min(failures - 1, 20), max(work.period_ms, _LAST_RETRY_MS))

    def close(self) -> None:
        """Close the enumerator, if it was made; its errors are its own. Last of all."""
        enumerator, self._enumerator = self._enumerator, None
        self.failed = True
        if enumerator is not None:
            enumerator.close()

    # Anywhere, one output after the other.

    def report(self, output: Output) -> src.Event | None:
        """Return an output as the coordinator takes it; None: it says nothing new."""
        try:
            match output:
                case Assigned():
                    return src.SplitsAssigned(self.incarnation, self._serialized(output.assignment))
                case StateTaken():
                    return self._state_event(output)
                case _:
                    return output
        except BaseException as error:
            return src.EnumeratorFailed(self.incarnation, self._report_of(error))

    def reported(self, outputs: Sequence[Output]) -> list[src.Event]:
        """Return several outputs as the coordinator takes them."""
        return [event for output in outputs if (event := self.report(output)) is not None]

    def _serialized(self, assignment: Mapping[int, Sequence[AnySplit]]) -> dict[int, tuple[SplitState, ...]]:
        return {subtask: tuple([self._stored(split) for split in splits]) for subtask, splits in assignment.items()}

    def _stored(self, split: AnySplit) -> SplitState:
        reported = self._reported.pop(split.split_id, None)
        if reported is not None and reported[0] is split:
            return reported[1]
        return SplitState(split.split_id, self.source.split_serializer.serialize(split))

    def _state_event(self, taken: StateTaken) -> src.Event | None:
        data = self.source.state_serializer.serialize(taken.state)
        changed, self._last_state = data != self._last_state, data
        if taken.checkpoint_id is not None:
            return src.EnumeratorSnapshotted(self.incarnation, taken.checkpoint_id, data)
        return src.EnumeratorStateChanged(self.incarnation, data) if changed else None

    # The enumerator's turns.

    def _run(self, turn: Callable[[], None]) -> list[Output]:
        if self.failed:
            return []
        try:
            turn()
            self._say_unassigned()
        except BaseException as error:  # sys.exit() of a connector's, too, would end the thread without a word
            self.failed = True
            self._outputs.append(src.EnumeratorFailed(self.incarnation, self._report_of(error)))
        outputs, self._outputs = self._outputs, []
        return outputs

    def _start(self) -> None:
        if self._state is None:
            self._enumerator = self.source.create_enumerator(self._context)
        else:
            state = self.source.state_serializer.deserialize(self._state)
            self._enumerator = self.source.restore_enumerator(self._context, state)
        self._state = None
        self._enumerator.start()
        for subtask, splits in self._returned.items():
            self._enumerator.add_splits_back(self._deserialized(splits), subtask)
        self._outputs.append(src.EnumeratorStarted(self.incarnation, self._take_assignments(self._enumerator)))

    def _take_assignments(self, enumerator: SplitEnumerator[Any, Any]) -> bool:
        given = {subtask: self._deserialized(splits) for subtask, splits in self._assigned.items()}
        if not given or not enumerator.take_assignments(given):
            return False
        self._holders.update((split.split_id, subtask) for subtask, splits in given.items() for split in splits)
        return True

    def _finish(self, work: SlowWork, result: Any, error: Exception | None) -> None:
        work.handler(result, error)
        self._take_state()
        if error is None and self._failures.pop(work.name, 0):
            self._outputs.append(src.SlowWorkTried(self.incarnation, work.name, 0))
        elif error is not None:  # and the handler can do with that
            failures = self._failures[work.name] = self._failures.get(work.name, 0) + 1
            reason = f"{type(error).__name__}: {error}"
            self._outputs.append(src.SlowWorkTried(self.incarnation, work.name, failures, reason))

    def _take_state(self) -> None:
        # The next checkpoint is the first to hold what this state holds.
        self._outputs.append(StateTaken(None, self._made.snapshot_state(self._checkpoint_id + 1)))

    def _carry_out(self, call: src.EnumeratorCall) -> None:
        enumerator = self._made
        match call:
            case src.AddReader():
                self._add_reader(call)
            case src.ForgetReader(subtask=subtask):
                self._readers.pop(subtask, None)
                self._outputs.append(src.ReaderForgotten(self.incarnation, subtask))
            case src.AddSplitsBack(subtask=subtask, splits=splits):
                for split in splits:
                    self._holders.pop(split.split_id, None)
                enumerator.add_splits_back(self._deserialized(splits), subtask)
                self._outputs.append(src.SplitsTakenBack(self.incarnation, subtask))
            case src.HandleSplitRequest(subtask=subtask, host=host):
                enumerator.handle_split_request(subtask, host or None)
            case src.HandleSourceEvent(subtask=subtask, payload=payload):
                enumerator.handle_source_event(subtask, pickle.loads(payload))
                self._outputs.append(src.SourceEventHandled(self.incarnation, subtask))
            case src.NotifySplitsFinished(split_ids=split_ids):
                for split_id in split_ids:
                    self._holders.pop(split_id, None)
                enumerator.notify_splits_finished(split_ids)
            case src.SnapshotEnumerator(checkpoint_id=checkpoint_id):
                self._checkpoint_id = max(checkpoint_id, self._checkpoint_id)
                self._check_all_are_reported(enumerator)
                self._outputs.append(StateTaken(checkpoint_id, enumerator.snapshot_state(checkpoint_id)))
            case src.NotifyEnumerator(checkpoint_id=checkpoint_id):
                enumerator.notify_checkpoint_complete(checkpoint_id)
                if type(enumerator).notify_checkpoint_complete is not SplitEnumerator.notify_checkpoint_complete:
                    self._take_state()  # nobody will notify it again
            case _:
                assert_never(call)

    def _check_all_are_reported(self, enumerator: SplitEnumerator[Any, Any]) -> None:
        if len(self._readers) < self._context.current_parallelism:
            return  # some are yet to say what they have
        lost = sorted(set(enumerator.unreported_splits()) - self._holders.keys())
        if lost:
            shown = ", ".join(map(repr, lost[:20])) + (f" and {len(lost) - 20} more" if lost[20:] else "")
            raise StoredStateError(
                f"The enumerator of the source {self.uid!r} was restored with splits that no reader has: {shown}. "
                "Their rows would not be read any more, and no checkpoint would say from where on. Start from an older "
                "checkpoint or a savepoint, at another 'checkpointLocation', and report this: it is an error of "
                "Headgate's, or of whoever changed the checkpoint.",
                what="the state of a source", source=self.uid, splits=tuple(lost), final=True,
            )  # fmt: skip

    def _add_reader(self, call: src.AddReader) -> None:
        # An assignment to another reader that the coordinator has not heard of yet counts, and not the report.
        its_own = (None, call.subtask)
        stored_splits = [stored for stored in call.reported_splits if self._holders.get(stored.split_id) in its_own]
        reported = self._deserialized(stored_splits)
        for split, stored in zip(reported, stored_splits):
            self._reported[split.split_id] = split, stored
            if self._holders.get(split.split_id) == call.subtask:
                del self._holders[split.split_id]
        self._promised.discard(call.subtask)
        self._readers[call.subtask] = ReaderInfo(
            subtask=call.subtask,
            host=call.host or None,
            reported_splits_on_registration=reported,
            held_split_ids=call.held,
        )
        self._made.add_reader(call.subtask)
        self._say_unassigned()  # first: what this call changed is what the reader is to hear
        self._outputs.append(src.ReaderAdded(self.incarnation, call.subtask))

    def _say_unassigned(self) -> None:
        """Report unassigned work after what the enumerator reported, if it changed."""
        time_ms = self._made.unassigned_event_time_ms()
        if self._unassigned is not None and self._unassigned.event_time_ms == time_ms:
            return
        if time_ms is not None and not (isinstance(time_ms, int) and MIN_WATERMARK_MS <= time_ms <= MAX_WATERMARK_MS):
            raise self._broken("unassigned_event_time_ms", f"{time_ms!r} is not a time in milliseconds")
        self._unassigned = src.UnassignedChanged(self.incarnation, time_ms)
        self._outputs.append(self._unassigned)

    def _deserialized(self, splits: Sequence[SplitState]) -> tuple[Split, ...]:
        deserialize = self.source.split_serializer.deserialize
        return tuple([deserialize(split.data) for split in splits])

    @property
    def _made(self) -> SplitEnumerator[Any, Any]:
        assert self._enumerator is not None, "start comes first"
        return self._enumerator

    # What the enumerator asks of its context.

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """The registered readers."""
        return MappingProxyType(self._readers)

    def on_assign(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Check and note an assignment: all of it or, as the enumerator has failed then, nothing."""
        given = {subtask: tuple(splits) for subtask, splits in assignment.items() if splits}
        holders = self._holders
        for subtask, splits in given.items():
            self._check_registered(subtask, "assign_splits")
            if subtask in self._promised:
                raise self._broken(
                    "assign_splits", f"reader {subtask} was promised no more splits and got {splits[0]!r}"
                )
            for split in splits:
                split_id = split.split_id
                if split_id in holders:
                    why = f"{split!r} goes to {subtask}, but reader {holders[split_id]} has it"
                    raise self._broken("assign_splits", why)
                holders[split_id] = subtask
        if given:
            self._outputs.append(Assigned(given))

    def on_no_more_splits(self, subtask: int) -> None:
        """Check and note the promise."""
        self._check_registered(subtask, "signal_no_more_splits")
        self._promised.add(subtask)
        self._outputs.append(src.NoMoreSplitsSignalled(self.incarnation, subtask))

    def on_event(self, subtask: int, event: SourceEvent) -> None:
        """Check and note an event."""
        self._check_registered(subtask, "send_event_to_source_reader")
        self._outputs.append(src.EventSent(self.incarnation, subtask, pickle.dumps(event)))

    def on_call_async(self, work: SlowWork) -> None:
        """Hand slow work on."""
        self._call_async(work)

    def _check_registered(self, subtask: int, method: str) -> None:
        if subtask not in self._readers:
            raise self._broken(method, f"reader {subtask} is not registered, only {sorted(self._readers)[:20]} are")

    def _broken(self, method: str, why: str) -> ConnectorContractError:
        return ConnectorContractError(
            f"The enumerator of {self.source.name} broke its contract in {method}: {why}.",
            connector=self.source.name,
            method=method,
        )

    def _report_of(self, error: BaseException) -> ErrorReport:
        try:
            pickled: bytes | None = pickle.dumps(error)
        except Exception:
            pickled = None
        facts = error.facts if isinstance(error, HeadgateError) else {}
        plain = {name: fact for name, fact in facts.items() if isinstance(fact, str | int | float | bool)}
        return ErrorReport(
            error_type=type(error).__name__,
            message=str(error) or type(error).__name__,
            traceback="".join(traceback.format_exception(error)),
            pickled=pickled,
            facts={"source": self.uid, **plain},
            final=is_final(error, is_new=self._is_new),
        )


class _Context(SplitEnumeratorContext[Any]):
    """What an enumerator sees of its runner."""

    def __init__(self, runner: EnumeratorRunner, boundedness: Boundedness, schema: pa.Schema, parallelism: int) -> None:
        self._runner = runner
        self._boundedness = boundedness
        self._schema = schema
        self._parallelism = parallelism

    @property
    def boundedness(self) -> Boundedness:
        return self._boundedness

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def current_parallelism(self) -> int:
        return self._parallelism

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return self._runner.readers

    def assign_splits(self, assignment: Mapping[int, Sequence[Any]]) -> None:
        self._runner.on_assign(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        self._runner.on_no_more_splits(subtask)

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> None:
        self._runner.on_event(subtask, event)

    def call_async(
        self,
        work: Callable[[], Any],
        handler: Callable[[Any, Exception | None], None],
        *,
        initial_delay_ms: int = 0,
        period_ms: int | None = None,
    ) -> None:
        self._runner.on_call_async(SlowWork(work, handler, initial_delay_ms, period_ms))
