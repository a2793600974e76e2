"""Drives a split enumerator: readers come, ask and fail, and slow work runs, when the test says so.

Never: run anything on its own. Work given to `call_async` runs on another thread, as in a real runtime, but the test
waits for it; everything else runs on the test's thread.

It checks what a runtime relies on: splits go to registered readers, none goes to two, and none after the promise that
there are no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from headgate.errors import ConnectorContractError
from headgate.formats.ddl import parsed_schema
from headgate.source.enumerator import Boundedness, SplitEnumeratorContext
from headgate.source.events import ReaderInfo, SourceEvent
from headgate.source.source import Source
from headgate.source.split import Split
from headgate.testing.clock import VirtualClock
from headgate.testing.threads import assert_single_threaded

SplitT = TypeVar("SplitT", bound=Split)
StateT = TypeVar("StateT")


class AsyncCall:
    """One run of work that an enumerator gave to `call_async`: first `run_work`, then `run_handler`."""

    def __init__(
        self,
        work: Callable[[], Any],
        handler: Callable[[Any, Exception | None], None],
        due_ms: int,
        period_ms: int | None,
    ) -> None:
        self.work = work
        self.handler = handler
        self.due_ms = due_ms
        self.period_ms = period_ms
        self._outcome: tuple[Any, Exception | None] | None = None

    def run_work(self, timeout_s: float | None = None) -> bool:
        """Run the slow part, on a thread of its own; its outcome is kept for `run_handler`.

        Returns
        -------
        Whether it ended within ``timeout_s``; None waits for as long as it takes.
        """
        thread = threading.Thread(target=self._run, name="headgate-harness-work", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def fail(self, error: Exception) -> None:
        """Let the slow part have failed with ``error``, instead of running it."""
        self._outcome = (None, error)

    def run_handler(self) -> None:
        """Hand the outcome to the enumerator, on this thread."""
        assert self._outcome is not None, "run_work (or fail) comes before run_handler"
        self.handler(*self._outcome)

    def _run(self) -> None:
        try:
            self._outcome = (self.work(), None)
        except Exception as error:
            self._outcome = (None, error)


class _Context(SplitEnumeratorContext[SplitT]):
    def __init__(self, harness: EnumeratorHarness[SplitT, Any], schema: pa.Schema) -> None:
        self._harness = harness
        self._schema = schema

    @property
    def boundedness(self) -> Boundedness:
        return self._harness.boundedness

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def current_parallelism(self) -> int:
        return self._harness.parallelism

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return dict(self._harness.readers)

    def assign_splits(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        self._harness.on_assign(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        self._harness.on_no_more_splits(subtask)

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> None:
        self._harness.on_event(subtask, event)

    def call_async(
        self,
        work: Callable[[], Any],
        handler: Callable[[Any, Exception | None], None],
        *,
        initial_delay_ms: int = 0,
        period_ms: int | None = None,
    ) -> None:
        due_ms = self._harness.clock() + initial_delay_ms
        self._harness.calls.append(AsyncCall(work, handler, due_ms, period_ms))


class EnumeratorHarness(Generic[SplitT, StateT]):
    """An enumerator and the runtime around it, under a test's control.

    Parameters
    ----------
    source
        Makes the enumerator.
    schema
        The columns that are read; None: what ``source.schema()`` says.
    boundedness
        How the source is read.
    parallelism
        How many readers there will be.
    state
        Bytes of `snapshot` to restore from; None starts afresh.
    clock
        The time.

    Attributes
    ----------
    assigned
        For each subtask the splits it was given and still holds, by id.
    no_more_splits
        The subtasks that were promised that nothing follows.
    readers
        The registered readers.
    requests
        Subtasks whose request has no answer yet.
    outbox
        What was sent to readers, in order: (subtask, splits), (subtask, event), or (subtask, None) for the promise
        that no more splits follow. The test may take things out.
    calls
        Work waiting to be run.
    metric_group
        What the enumerator registers its metrics with; `metrics` collects them.
    """

    def __init__(
        self,
        source: Source[SplitT, StateT],
        *,
        schema: pa.Schema | None = None,
        boundedness: Boundedness = Boundedness.BOUNDED,
        parallelism: int = 1,
        state: bytes | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.source = source
        self.boundedness = boundedness
        self.parallelism = parallelism
        self.clock = clock or VirtualClock()
        self.readers: dict[int, ReaderInfo] = {}
        self.assigned: dict[int, dict[str, SplitT]] = {}
        self.no_more_splits: set[int] = set()
        self.requests: set[int] = set()
        self.outbox: list[tuple[int, list[SplitT] | SourceEvent | None]] = []
        self.calls: list[AsyncCall] = []
        self._checkpoints = 0
        self._finished: set[str] = set()
        context: _Context[SplitT] = _Context(self, arrow_schema(source, schema))
        self.metric_group = context.metric_group
        if state is None:
            enumerator = source.create_enumerator(context)
        else:
            enumerator = source.restore_enumerator(context, source.state_serializer.deserialize(state))
        self.enumerator = assert_single_threaded(enumerator)

    def start(self) -> None:
        """Start the enumerator; first of all."""
        self.enumerator.start()

    def register_reader(
        self,
        subtask: int,
        host: str | None = None,
        reported_splits: Sequence[SplitT] = (),
        held_split_ids: Sequence[str] = (),
    ) -> None:
        """Let a reader come, for the first time or again."""
        self.readers[subtask] = ReaderInfo(
            subtask=subtask,
            host=host,
            reported_splits_on_registration=tuple(reported_splits),
            held_split_ids=tuple(held_split_ids),
        )
        self.assigned.setdefault(subtask, {})
        self._finished.difference_update(split.split_id for split in reported_splits)
        self.enumerator.add_reader(subtask)

    def request_split(self, subtask: int) -> None:
        """Let a reader ask for a split."""
        self.requests.add(subtask)
        self.enumerator.handle_split_request(subtask, self.readers[subtask].host)

    def hold_restored(self, subtask: int, splits: Sequence[SplitT]) -> None:
        """Note that a reader was restored with splits; before it registers."""
        self._finished.difference_update(split.split_id for split in splits)
        self.assigned.setdefault(subtask, {}).update((split.split_id, split) for split in splits)

    def fail_reader(self, subtask: int, lost: Sequence[SplitT] | None = None) -> None:
        """Let a reader be lost with what it holds.

        Parameters
        ----------
        subtask
            The reader. It is not registered any longer.
        lost
            The splits that go back, at their positions in the last checkpoint; None: as they were assigned.
        """
        assigned = self.assigned.pop(subtask, {})
        held = list(assigned.values()) if lost is None else list(lost)
        self.forget_reader(subtask)
        self._finished.difference_update(split.split_id for split in held)
        self.enumerator.add_splits_back(held, subtask)

    def forget_reader(self, subtask: int) -> None:
        """Let a reader be gone, before anything goes back: what the enumerator called may be done in between.

        A reader that holds nothing is only forgotten.
        """
        self.readers.pop(subtask, None)
        self.requests.discard(subtask)
        self.no_more_splits.discard(subtask)
        self.outbox = [message for message in self.outbox if message[0] != subtask]

    def finish_split(self, subtask: int, split_id: str) -> None:
        """Let a reader have read a split to its end. It must not be assigned again."""
        del self.assigned[subtask][split_id]
        self._finished.add(split_id)

    def run_next_call(self) -> bool:
        """Run the work that is due next and its handler; the clock moves on to it. False: there is none."""
        if not self.calls:
            return False
        call = min(self.calls, key=lambda each: each.due_ms)
        self.clock.advance_to(call.due_ms)
        call.run_work()
        self.finish_call(call)
        return True

    def run_due_calls(self) -> int:
        """Run all work that is due now, once; return how much that was."""
        due = [call for call in self.calls if call.due_ms <= self.clock()]
        for call in due:
            call.run_work()
            self.finish_call(call)
        return len(due)

    def fail_next_call(self, error: Exception) -> None:
        """Let the work that is due next fail with ``error``."""
        call = min(self.calls, key=lambda each: each.due_ms)
        self.clock.advance_to(call.due_ms)
        call.fail(error)
        self.finish_call(call)

    def finish_call(self, call: AsyncCall) -> None:
        """Run the handler of a call whose work ran; periodic work is due again a period later."""
        self.calls.remove(call)
        if call.period_ms is not None:
            self.calls.append(AsyncCall(call.work, call.handler, self.clock() + call.period_ms, call.period_ms))
        call.run_handler()

    def snapshot(self) -> bytes:
        """Return the enumerator's state as bytes, after checking that no split in it is with a reader as well."""
        self._checkpoints += 1
        state = self.enumerator.snapshot_state(self._checkpoints)
        serializer = self.source.state_serializer
        data: bytes = serializer.serialize(state)
        assert serializer.deserialize(data) == state, f"the state does not survive its serializer: {state!r}"
        held = {split_id for of_reader in self.assigned.values() for split_id in of_reader}
        inside = [split.split_id for split in splits_in(state)]
        assert len(inside) == len(set(inside)), f"a split is twice in the enumerator's state: {sorted(inside)}"
        both = held.intersection(inside)
        assert not both, f"splits are in the enumerator's state though readers hold them: {sorted(both)}"
        return data

    def complete_checkpoint(self) -> None:
        """Let the checkpoint of the newest `snapshot` be complete."""
        self.enumerator.notify_checkpoint_complete(self._checkpoints)

    def state(self) -> StateT:
        """Return the state of a `snapshot`."""
        return self.source.state_serializer.deserialize(self.snapshot())  # type: ignore[no-any-return]

    def metrics(self) -> dict[str, float]:
        """Return what the enumerator counts and measures now, by name."""
        return {name: each.value for name, each in self.metric_group.collect().metrics.items()}

    def close(self) -> None:
        """Close the enumerator; last of all."""
        self.enumerator.close()

    # What the enumerator asks of the runtime.

    def on_assign(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        """Check and record an assignment; the splits pass through their serializer."""
        serializer = self.source.split_serializer
        for subtask, splits in assignment.items():
            self._check_registered(subtask, "assign_splits")
            if splits and subtask in self.no_more_splits:
                raise _broken("assign_splits", f"reader {subtask} was promised no more splits and got {splits[0]!r}")
            for split in splits:
                holders = [each for each, held in self.assigned.items() if split.split_id in held]
                if holders:
                    raise _broken("assign_splits", f"{split!r} goes to {subtask}, but reader {holders[0]} has it")
                if split.split_id in self._finished:
                    raise _broken("assign_splits", f"{split!r} was read to its end and is assigned again")
                sent = serializer.deserialize(serializer.serialize(split))
                assert sent == split, f"a split does not survive its serializer: {split!r} became {sent!r}"
                self.assigned[subtask][split.split_id] = sent
                self.requests.discard(subtask)
                self.outbox.append((subtask, [sent]))

    def on_no_more_splits(self, subtask: int) -> None:
        """Check and record the promise."""
        self._check_registered(subtask, "signal_no_more_splits")
        self.no_more_splits.add(subtask)
        self.outbox.append((subtask, None))
        self.requests.discard(subtask)

    def on_event(self, subtask: int, event: SourceEvent) -> None:
        """Check and record an event."""
        self._check_registered(subtask, "send_event_to_source_reader")
        self.outbox.append((subtask, event))

    def _check_registered(self, subtask: int, method: str) -> None:
        if subtask not in self.readers:
            raise _broken(method, f"reader {subtask} is not registered, only {sorted(self.readers)} are")


def arrow_schema(source: Source[Any, Any], schema: pa.Schema | None) -> pa.Schema:
    """Return the columns that a harness reads: those given, or else those that the source names."""
    if schema is None:
        named = source.schema()
        schema = parsed_schema(named) if isinstance(named, str) else named
    return schema


def splits_in(value: Any) -> Iterator[Split]:
    """Yield all splits inside a value of structs, lists, tuples and dicts."""
    if isinstance(value, Split):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from splits_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from splits_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from splits_in(each)


def _broken(method: str, what: str) -> ConnectorContractError:
    return ConnectorContractError(f"The enumerator broke a promise of {method}: {what}.", method=method)
