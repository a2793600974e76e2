"""Remembers which reader was assigned which splits since which checkpoint; takes them back when the reader fails.

Never: know where a split is that was assigned before the last completed checkpoint: the reader's own state has it.

A map of two levels, reader and checkpoint. To begin a checkpoint costs nothing, to complete one as much as what it
forgets, to give a reader's splits back as much as they are.

Follows FLIP-27, "Where to run the enumerator" (the two-level map); Flink's SplitAssignmentTracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headgate.protocol.state import SplitState


class SplitAssignmentTracker:
    """Splits under way or not yet in a completed checkpoint, by reader.

    Parameters
    ----------
    checkpoint_id
        The checkpoint that everything goes on from; 0: none.

    Examples
    --------
    >>> tracker = SplitAssignmentTracker()
    >>> tracker.assign(0, [SplitState("a", b"")])
    >>> tracker.begin(1)
    >>> tracker.assign(0, [SplitState("b", b"")])
    >>> tracker.complete(1)
    >>> [split.split_id for split in tracker.take_back(0, 1)]
    ['b']
    """

    def __init__(self, checkpoint_id: int = 0) -> None:
        self._current = checkpoint_id
        self._readers: dict[int, dict[int, dict[str, SplitState]]] = {}
        # Which readers have an entry for which checkpoint, so that completing one looks at no others.
        self._touched: dict[int, set[int]] = {}
        self._holders: dict[str, int] = {}

    def assign(self, subtask: int, splits: Iterable[SplitState]) -> None:
        """Note splits that a reader is given after the snapshot of the current checkpoint; others lose them."""
        since = self._readers.setdefault(subtask, {})
        held = since.get(self._current)
        if held is None:
            held = since[self._current] = {}
            self._touched.setdefault(self._current, set()).add(subtask)
        for split in splits:
            split_id = split.split_id
            if split_id in self._holders:
                self.discard(split_id)
            held[split_id] = split
            self._holders[split_id] = subtask

    def holder(self, split_id: str) -> int | None:
        """Return the reader that was given a split; None if that is not known."""
        return self._holders.get(split_id)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered."""
        return not self._holders

    def begin(self, checkpoint_id: int) -> None:
        """Count what follows as assigned after the snapshot of this checkpoint."""
        self._current = checkpoint_id

    def complete(self, checkpoint_id: int) -> None:
        """Forget what was assigned before the snapshot of this checkpoint: the readers' states in it have it."""
        for past in [each for each in self._touched if each < checkpoint_id]:
            for subtask in self._touched.pop(past):
                since = self._readers[subtask]
                for split_id in since.pop(past):
                    del self._holders[split_id]
                if not since:
                    del self._readers[subtask]

    def take_back(self, subtask: int, checkpoint_id: int) -> tuple[SplitState, ...]:
        """Remove and return what a reader was given since a checkpoint, in the order in which it was assigned."""
        since = self._readers.get(subtask, {})
        taken: list[SplitState] = []
        for past in sorted(each for each in since if each >= checkpoint_id):
            taken.extend(since.pop(past).values())
            self._touched[past].discard(subtask)
        if not since:
            self._readers.pop(subtask, None)
        for split in taken:
            del self._holders[split.split_id]
        return tuple(taken)

    def discard(self, split_id: str) -> None:
        """Forget one split."""
        subtask = self._holders.pop(split_id, None)
        if subtask is not None:
            for held in self._readers[subtask].values():
                held.pop(split_id, None)

    def __iter__(self) -> Iterator[tuple[int, SplitState]]:
        """Yield every reader and split."""
        for subtask, since in self._readers.items():
            for held in since.values():
                for split in held.values():
                    yield subtask, split

    def __len__(self) -> int:
        return sum(len(held) for since in self._readers.values() for held in since.values())
