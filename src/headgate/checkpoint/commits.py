"""The completed epochs that are not known to be committed: one at a time is given to the sinks, in order.

Never: leave one out, or give the sinks an epoch again with other committables than before.

Part of `headgate.checkpoint.coordinator`, whose states it does not know.
"""

from __future__ import annotations

from headgate.checkpoint.manifest import Committables, UncommittedEpoch


class CommitQueue:
    """What is to be committed.

    Parameters
    ----------
    restored
        What a restored checkpoint holds, oldest first: it is committed before a checkpoint begins.
    """

    def __init__(self, restored: tuple[UncommittedEpoch, ...]) -> None:
        # Only the first can be under way.
        self._epochs = list(restored)
        self._under_way = False
        self._left: Committables = {}
        self._first_through = restored[-1].epoch if restored else 0

    @property
    def epochs(self) -> tuple[UncommittedEpoch, ...]:
        """The epochs, oldest first; those that were ordered as they were ordered."""
        return tuple(self._epochs)

    @property
    def under_way(self) -> int | None:
        """The epoch that the sinks were given, and have not answered."""
        return self._epochs[0].epoch if self._under_way else None

    @property
    def comes_first(self) -> bool:
        """Whether no checkpoint may begin before the next answer: an epoch was restored, or failed."""
        return bool(self._epochs) and self._epochs[0].epoch <= self._first_through

    def for_manifest(self, new: Committables) -> Committables:
        """Return what a checkpoint commits, given what is new: if no epoch is before it, what was left as well."""
        return new if self._epochs else _joined(self._left, new)

    def add(self, epoch: int, new: Committables) -> None:
        """Take an epoch that has completed."""
        self._epochs.append(UncommittedEpoch(epoch, new))

    def order_next(self) -> UncommittedEpoch | None:
        """Return the epoch that the sinks are to be given now, if there is one."""
        if self._under_way or not self._epochs:
            return None
        first = self._epochs[0]
        first = self._epochs[0] = UncommittedEpoch(first.epoch, _joined(self._left, first.committables))
        self._left, self._under_way = {}, True
        return first

    def committed(self, left: Committables) -> None:
        """Forget the epoch under way; ``left`` is given to the sinks with the next one."""
        self._epochs.pop(0)
        self._left, self._under_way = {uid: each for uid, each in left.items() if each}, False

    def failed(self) -> None:
        """Note that the epoch under way is to be ordered again, before checkpoints begin."""
        self._under_way = False
        self._first_through = self._epochs[-1].epoch

    def check(self, newest: int) -> None:
        """Assert what always holds, ``newest`` being the last completed epoch."""
        assert self._epochs or not self._under_way
        epochs = [each.epoch for each in self._epochs]
        assert epochs == list(range(newest - len(epochs) + 1, newest + 1)), f"gaps between epochs: {epochs}"


def _joined(first: Committables, second: Committables) -> Committables:
    return {uid: (*first.get(uid, ()), *second.get(uid, ())) for uid in {**first, **second}}
