"""The enumerator of a `SimpleSource`: lists the author's splits, and hands out those that are new.

Never: call the author's code on the enumerator's thread, or assign an id that is known already.

A bounded read lists once and is pulled. An unbounded one lists again and again and is pushed: each new split goes to
the reader with the fewest, as soon as every reader has registered.

Follows FLIP-27, "Split Enumerator".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from headgate.connectors.simple.split import SimpleSplit, SimpleState
from headgate.errors import InternalError, SourceError, UserFunctionError
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.watermark import MIN_WATERMARK_MS

_log = logging.getLogger(__name__)


class SimpleEnumerator(SplitEnumerator[SimpleSplit, SimpleState]):
    """Hands out the splits of a `SimpleSource`.

    Parameters
    ----------
    context
        The runtime.
    list_splits
        Returns all split ids there are; may block. Once it has succeeded, it may fail: it is retried.
    discovery_interval_ms
        Time from one listing to the next, in milliseconds.
    finite_splits
        Whether splits end on their own in an unbounded read.
    state
        What to go on from, or None to start afresh.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[SimpleSplit],
        list_splits: Callable[[], Sequence[str]],
        *,
        discovery_interval_ms: int,
        finite_splits: bool,
        state: SimpleState | None = None,
    ) -> None:
        state = state or SimpleState()
        self._context = context
        self._list_splits = list_splits
        self._discovery_interval_ms = discovery_interval_ms
        self._bounded = context.boundedness is Boundedness.BOUNDED
        self._finite = self._bounded or finite_splits
        self._known = dict.fromkeys(state.known)
        self._pending = {split.split_id: split for split in state.pending}
        self._listed = state.listed
        self._finished = dict.fromkeys(state.finished)
        self._waiting: dict[int, None] = {}
        # Who has which split, as far as that is known, and how many each.
        self._owners: dict[str, int] = {}
        self._counts: Counter[int] = Counter()

    def start(self) -> None:
        """Begin to list splits: once for a bounded read, for ever for an unbounded one."""
        if not self._bounded:
            self._context.call_async(self._list_splits, self._on_listed, period_ms=self._discovery_interval_ms)
        elif not self._listed:
            self._context.call_async(self._list_splits, self._on_listed)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign the next split; say that there is none, if the read is bounded; else note the request."""
        if self._bounded:
            self._waiting[subtask] = None
        self._assign()

    def add_reader(self, subtask: int) -> None:
        """Count what the reader was restored with, and assign what is pending."""
        for split_id in [each for each, owner in self._owners.items() if owner == subtask]:
            self._disown(split_id)
        for split_id in self._context.registered_readers[subtask].held_split_ids:
            self._own(split_id, subtask)
        self._waiting.pop(subtask, None)
        self._assign()

    def add_splits_back(self, splits: Sequence[SimpleSplit], subtask: int) -> None:
        """Hand out what came back before anything else. One that was finished in the meantime is not so any more."""
        self._pending = {split.split_id: split for split in splits} | self._pending
        for split in splits:
            self._known[split.split_id] = None
            self._finished.pop(split.split_id, None)
            self._disown(split.split_id)
        self._waiting.pop(subtask, None)
        self._assign()

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        """Note which ids to forget once the author lists them no more, so that the state stays small."""
        for split_id in split_ids:
            self._disown(split_id)
            if split_id in self._known:
                del self._known[split_id]
                self._finished[split_id] = None

    def snapshot_state(self, checkpoint_id: int) -> SimpleState:
        """Return the ids that must not be assigned again, and the pending splits."""
        return SimpleState(
            known=tuple(self._known),
            finished=tuple(self._finished),
            pending=tuple(self._pending.values()),
            listed=self._listed,
        )

    def unassigned_event_time_ms(self) -> int | None:
        """Hold all watermarks until the splits are listed and assigned: their times are not known."""
        return None if self._listed and not self._pending else MIN_WATERMARK_MS

    def close(self) -> None:
        """Nothing to release."""

    def _on_listed(self, listed: Sequence[str] | None, error: Exception | None) -> None:
        if error is not None:
            # Whatever the author's code raised may pass; what it returned wrongly does not.
            passes = isinstance(error, UserFunctionError) or (isinstance(error, SourceError) and error.retryable)
            if not (self._listed and passes):
                raise error
            _log.warning("Listing splits failed and is retried; readers continue with their splits: %s", error)
            return
        if listed is None:
            raise InternalError("A listing of splits ended with neither splits nor an error.")
        self._listed = True
        still_listed = set(listed)
        self._finished = {split_id: None for split_id in self._finished if split_id in still_listed}
        for split_id in listed:
            if split_id not in self._known and split_id not in self._finished:
                self._known[split_id] = None
                self._pending[split_id] = SimpleSplit(split_id=split_id, finite=self._finite)
        self._assign()

    def _assign(self) -> None:
        if self._bounded:
            self._answer_requests()
        elif len(self._context.registered_readers) >= self._context.current_parallelism:
            self._push()

    def _answer_requests(self) -> None:
        for subtask in [each for each in self._waiting if each in self._context.registered_readers]:
            if self._pending:
                split = self._pending.pop(next(iter(self._pending)))
                self._context.assign_split(split, subtask)
            elif self._listed:
                self._context.signal_no_more_splits(subtask)
            else:
                return
            del self._waiting[subtask]

    def _push(self) -> None:
        assignment: dict[int, list[SimpleSplit]] = {}
        for split in self._pending.values():
            subtask = min(self._context.registered_readers, key=lambda each: (self._counts[each], each))
            self._own(split.split_id, subtask)
            assignment.setdefault(subtask, []).append(split)
        self._pending.clear()
        if assignment:
            self._context.assign_splits(assignment)

    def _own(self, split_id: str, subtask: int) -> None:
        self._disown(split_id)
        self._owners[split_id] = subtask
        self._counts[subtask] += 1

    def _disown(self, split_id: str) -> None:
        owner = self._owners.pop(split_id, None)
        if owner is not None:
            self._counts[owner] -= 1
