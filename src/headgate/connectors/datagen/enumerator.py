"""The enumerator of `headgate.datagen`: makes the splits once and hands them out.

Never: make a split again after a restore: the state and the readers have all of them.

A bounded read is pulled, so that the fastest reader takes the next piece. In an unbounded one a partition belongs to
the reader ``partition % parallelism``, and its split is pushed there as soon as every reader has registered.

Follows FLIP-27, "Split Enumerator"; FLIP-537 for splits that readers report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.connectors.datagen.split import DatagenSplit, DatagenState
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext


class DatagenEnumerator(SplitEnumerator[DatagenSplit, DatagenState]):
    """Hands out the splits of a generated source.

    Parameters
    ----------
    context
        The runtime.
    make_splits
        Makes all splits of a read that starts afresh; called in `start`.
    state
        What to go on from, or None to start afresh.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[DatagenSplit],
        make_splits: Callable[[Boundedness], Sequence[DatagenSplit]],
        state: DatagenState | None = None,
    ) -> None:
        self._context = context
        self._make_splits = make_splits
        self._fresh = state is None
        self._pending = {split.split_id: split for split in state.pending} if state else {}

    def start(self) -> None:
        """Make the splits, unless restored."""
        if self._fresh:
            self._pending = {split.split_id: split for split in self._make_splits(self._context.boundedness)}

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
        for split in self._context.registered_readers[subtask].reported_splits_on_registration:
            assert isinstance(split, DatagenSplit), f"reader {subtask} reported {split!r}"
            self._pending[split.split_id] = split
        if self._is_pushed():
            self._push()

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        """Take splits back; their reader gets them when it registers again, or asks."""
        self._pending.update((split.split_id, split) for split in splits)

    def snapshot_state(self, checkpoint_id: int) -> DatagenState:
        """Return what is pending."""
        return DatagenState(pending=tuple(self._pending.values()))

    def close(self) -> None:
        """Nothing to release."""

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
