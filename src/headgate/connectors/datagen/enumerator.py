"""The enumerator of `headgate.datagen`: makes the splits once and hands them out.

Never: make a split again after a restore: the state and the readers have all of them.

A bounded read is pulled, so that the fastest reader takes the next piece: the one with the earliest rows. In an
unbounded one a partition belongs to the reader ``partition % parallelism``, and its split is pushed there as soon as
every reader has registered.

Follows FLIP-27, "Split Enumerator"; FLIP-537 for splits that readers report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headgate.connectors.datagen.split import DatagenSplit, DatagenState
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.watermark import MIN_WATERMARK_MS


class DatagenEnumerator(SplitEnumerator[DatagenSplit, DatagenState]):
    """Hands out the splits of a generated source.

    Parameters
    ----------
    context
        The runtime.
    make_splits
        Makes all splits of a read that starts afresh; called in `start`.
    next_event_ms
        Returns the time of a split's next row by the row's number, in milliseconds: splits are handed out in its order.
    has_event_times
        Whether these times are those of the event-time column.
    state
        What to go on from, or None to start afresh.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[DatagenSplit],
        make_splits: Callable[[Boundedness], Sequence[DatagenSplit]],
        next_event_ms: Callable[[DatagenSplit], int],
        *,
        has_event_times: bool,
        state: DatagenState | None = None,
    ) -> None:
        self._context = context
        self._make_splits = make_splits
        self._next_event_ms = next_event_ms
        self._has_event_times = has_event_times
        self._fresh = state is None
        self._pending: dict[str, DatagenSplit] = {}  # the earliest first
        self._add(state.pending if state else ())

    def start(self) -> None:
        """Make the splits, unless restored."""
        if self._fresh:
            self._add(self._make_splits(self._context.boundedness))
            self._fresh = False

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign the next piece, or say that there is none."""
        if self._is_pushed():
            self._push()
        elif self._pending:
            split = self._pending.pop(next(iter(self._pending)))
            self._context.assign_split(split, subtask)
        else:
            self._context.signal_no_more_splits(subtask)

    def add_reader(self, subtask: int) -> None:
        """Take the splits that the reader reports, and push what is pending once all readers are there."""
        reported = []
        for split in self._context.registered_readers[subtask].reported_splits_on_registration:
            assert isinstance(split, DatagenSplit), f"reader {subtask} reported {split!r}"
            reported.append(split)
        self._add(reported)
        if self._is_pushed():
            self._push()

    def take_assignments(self, assignment: Mapping[int, Sequence[DatagenSplit]]) -> bool:
        """Let the splits be pending no longer."""
        for splits in assignment.values():
            for split in splits:
                self._pending.pop(split.split_id, None)
        return True

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        """Take splits back; their reader gets them when it registers again, or asks."""
        self._add(splits)

    def snapshot_state(self, checkpoint_id: int) -> DatagenState:
        """Return what is pending."""
        return DatagenState(pending=tuple(self._pending.values()))

    def unassigned_event_time_ms(self) -> int | None:
        """Return the time of the earliest row that no reader has.

        Where it is not known, because event times are drawn at random or made by an operator of the query, nobody may
        go on in event time before all rows are assigned.
        """
        if self._fresh or (self._pending and not self._has_event_times):
            return MIN_WATERMARK_MS
        return next(map(self._next_event_ms, self._pending.values()), None)

    def close(self) -> None:
        """Nothing to release."""

    def _add(self, splits: Iterable[DatagenSplit]) -> None:
        """Put splits where their rows are in time; one that is pending already is replaced."""
        added = self._pending | {split.split_id: split for split in splits}
        in_order = sorted(added.values(), key=lambda split: (self._next_event_ms(split), split.partition))
        self._pending = {split.split_id: split for split in in_order}

    def _is_pushed(self) -> bool:
        return self._context.boundedness is Boundedness.CONTINUOUS_UNBOUNDED

    def _push(self) -> None:
        """Assign everything, and promise that nothing follows: a partition's reader never changes meanwhile."""
        parallelism = self._context.current_parallelism
        if len(self._context.registered_readers) < parallelism:
            return
        assignment: dict[int, list[DatagenSplit]] = {}
        for split in self._pending.values():
            assignment.setdefault(split.partition % parallelism, []).append(split)
        self._pending.clear()
        if assignment:
            self._context.assign_splits(assignment)
        for subtask in self._context.registered_readers:
            self._context.signal_no_more_splits(subtask)
