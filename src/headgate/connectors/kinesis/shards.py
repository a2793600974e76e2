"""Which shards there are, where they are, and which may be read: a shard waits for those it was made from.

Never: ask Kinesis or read a clock. `ShardTable` decides, the enumerator carries it out.

A split makes two shards out of one, a merge one out of two; the old ones are closed then and keep their records until
those expire. Records of one key stay in order if parents are read to their end before their children.

    place       event       next
    ----------  ----------  ----------------------------------------------------------------------------------------
    (unknown)   discovered  unassigned, or finished where it is not to be read (closed before a start at ``latest``)
    unassigned  assigned    assigned; not before all its parents are finished or unknown
    any         taken note  assigned, where the enumerator's state is older than that
    assigned    ended       ended
    unassigned  ended       unassigned; from a restored state that is older than both: ended once it is assigned
    ended       snapshot    ended; it is in that checkpoint
    ended       complete    finished, once that checkpoint is complete: nobody reads it again, and children may follow
    assigned    given back  unassigned (its reader failed); likewise when ended, since no checkpoint knew of that
    any         reported    unassigned, at the position that the reader was restored with; unless another one has it
    finished    unlisted    (unknown): its records have expired

Follows FLIP-27, "Split Enumerator"; FLINK-37627 and FLINK-37416 for shards that finish between two snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from headgate.connectors.kinesis.api import Shard
from headgate.connectors.kinesis.options import StartingPosition
from headgate.connectors.kinesis.split import TRIM_HORIZON, KinesisSplit, KinesisState, at_timestamp


class Discovered(msgspec.Struct, frozen=True):
    """What a look at the stream found.

    Parameters
    ----------
    listed
        All shards that Kinesis names.
    splits
        Those that are new and to be read.
    skipped
        Those that are new and not to be read.
    """

    listed: frozenset[str]
    splits: tuple[KinesisSplit, ...]
    skipped: frozenset[str] = frozenset()


def new_shards(
    listed: Sequence[Shard], known: Collection[str], start: StartingPosition | None, now_ms: int
) -> Discovered:
    """Return which shards are new, and where they are read from.

    Parameters
    ----------
    listed
        All shards that Kinesis names.
    known
        Those that were discovered before.
    start
        At the first look: where to start; later None, as what is new then is read from its beginning.
    now_ms
        When Kinesis listed them, by its clock: a start at ``latest`` is this time.
    """
    position = TRIM_HORIZON
    if start is not None and start.kind != "trim_horizon":
        position = at_timestamp(now_ms if start.timestamp_ms is None else start.timestamp_ms)
    only_open = start is not None and start.kind == "latest"
    # Should a listing have missed a shard that is long done with, it is not a new one: its children are known.
    parents_of_known = {parent for shard in listed if shard.shard_id in known for parent in shard.parents}
    splits, skipped = [], []
    for shard in listed:
        if shard.shard_id in known:
            continue
        if (only_open and not shard.is_open) or shard.shard_id in parents_of_known:
            skipped.append(shard.shard_id)
        else:
            splits.append(KinesisSplit(split_id=shard.shard_id, position=position, parents=shard.parents))
    return Discovered(frozenset(shard.shard_id for shard in listed), tuple(splits), frozenset(skipped))


class ShardTable:
    """All shards that matter, each in one place.

    Parameters
    ----------
    state
        What to go on from.
    """

    def __init__(self, state: KinesisState) -> None:
        self.initial_discovery_finished = state.initial_discovery_finished
        self.unassigned: dict[str, KinesisSplit] = {split.split_id: split for split in state.unassigned}
        # Unassigned since the restore, and whether the end of each was reported meanwhile: then the state is older than
        # its assignment, which will be made again and not be carried out.
        self._ended_since: dict[str, bool] = dict.fromkeys(self.unassigned, False)
        self.assigned: dict[str, int | None] = dict.fromkeys(state.assigned)
        """The readers of shards; None: one of before a restore, that has not reported yet."""
        self._stored = state.assigned
        self.ended: dict[str, int | None] = dict.fromkeys(state.ended)
        """Shards that are read to their end, and the first checkpoint that has that; None: none, as far as is known."""
        self.finished: dict[str, None] = dict.fromkeys(state.finished)
        """Those that nobody reads again."""

    def known(self) -> frozenset[str]:
        """Return the shards that are not new."""
        return frozenset((*self.unassigned, *self.assigned, *self.ended, *self.finished))

    def discovered(self, found: Discovered) -> None:
        """Add what is new, and forget finished shards that Kinesis names no longer."""
        known = self.known()  # a reader may have reported one meanwhile
        self.unassigned.update((split.split_id, split) for split in found.splits if split.split_id not in known)
        self.finished.update(dict.fromkeys(sorted(found.skipped - known)))
        self.finished = {split_id: None for split_id in self.finished if split_id in found.listed}
        self.initial_discovery_finished = True

    def ready(self) -> list[KinesisSplit]:
        """Return the unassigned splits whose parents nobody reads again, as far as there are any."""
        return [split for split in self.next_in_line() if self.ended.keys().isdisjoint(split.parents)]

    def next_in_line(self) -> list[KinesisSplit]:
        """Return the unassigned splits whose parents are read to their end, be it that they may be read again."""
        unread = self.unassigned.keys() | self.assigned.keys()
        return [split for split in self.unassigned.values() if unread.isdisjoint(split.parents)]

    def owners(self) -> dict[str, int | None]:
        """Return the readers of assigned shards; of one that nobody has reported since a restore, what is stored."""
        return {
            split_id: self._stored.get(split_id) if subtask is None else subtask
            for split_id, subtask in self.assigned.items()
        }

    def forget_stored_owners(self) -> None:
        """Note that there is another number of readers now."""
        self._stored = {}

    def assign(self, split_id: str, subtask: int) -> KinesisSplit:
        """Note that a split goes to a reader, and return it."""
        split = self.unassigned.pop(split_id)
        if self._ended_since.pop(split_id, False):
            self.ended[split_id] = None
        else:
            self.assigned[split_id] = subtask
        return split

    def take_assigned(self, splits: Iterable[KinesisSplit], subtask: int) -> None:
        """Note splits that a reader was given after the state was taken."""
        for split in splits:
            self.unassigned.pop(split.split_id, None)
            self._ended_since.pop(split.split_id, None)
            self.ended.pop(split.split_id, None)
            self.finished.pop(split.split_id, None)
            self.assigned[split.split_id] = subtask

    def hold(self, split_ids: Iterable[str], subtask: int) -> None:
        """Note assigned splits that a reader has, which the state knows as somebody's at most."""
        for split_id in split_ids:
            if split_id in self.assigned and self.assigned[split_id] is None:
                self.assigned[split_id] = subtask

    def end(self, split_ids: Iterable[str]) -> None:
        """Note splits that are read to their end; those that were given back meanwhile are not."""
        for split_id in split_ids:
            if split_id in self.assigned:
                del self.assigned[split_id]
                self.ended[split_id] = None
            elif split_id in self._ended_since:
                self._ended_since[split_id] = True

    def finish(self, checkpoint_id: int | None = None) -> None:
        """Note that nobody reads ended shards again: those whose ends are in a checkpoint, or (None) all."""
        finished = [
            split_id
            for split_id, known_by in self.ended.items()
            if checkpoint_id is None or (known_by is not None and known_by <= checkpoint_id)
        ]
        for split_id in finished:
            del self.ended[split_id]
            self.finished[split_id] = None

    def give_back(self, splits: Iterable[KinesisSplit]) -> None:
        """Take splits back whose reader failed."""
        for split in splits:
            self.assigned.pop(split.split_id, None)
            self.ended.pop(split.split_id, None)
            self.finished.pop(split.split_id, None)
            self._ended_since.pop(split.split_id, None)
            self.unassigned[split.split_id] = split

    def report(self, split: KinesisSplit, subtask: int) -> bool:
        """Take a split that a reader was restored with; return False if it is somebody else's by now."""
        if self.assigned.get(split.split_id) not in (None, subtask) or split.split_id in self.unassigned:
            return False
        self.give_back([split])
        return True

    def snapshot(self, checkpoint_id: int, parallelism: int | None) -> KinesisState:
        """Return the state to be stored in a checkpoint."""
        self.ended = {
            split_id: checkpoint_id if known_by is None else known_by for split_id, known_by in self.ended.items()
        }
        return KinesisState(
            initial_discovery_finished=self.initial_discovery_finished,
            unassigned=tuple(self.unassigned.values()),
            assigned=self.owners(),
            ended=tuple(self.ended),
            finished=tuple(self.finished),
            parallelism=parallelism,
        )
