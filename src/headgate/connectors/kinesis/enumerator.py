"""The enumerator of `headgate.kinesis`: finds shards and hands them out, parents before their children.

Never: ask Kinesis on the enumerator's thread, or resolve a start twice.

A bounded read looks once, and is pulled: its splits are ranges up to what was there, so that none waits for another
and the fastest reader takes the next. An unbounded one looks again and again, and pushes each shard to a reader, as
soon as every reader has registered: to the one that had it before, if there are as many readers as then, otherwise to
the one with the fewest. Its children follow once nobody will read it again: where a reader may fail alone, that is
when a completed checkpoint has its end.

Follows FLIP-27, "Split Enumerator"; FLIP-537 for splits that readers report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from headgate.assigners import SplitAssigner
from headgate.connectors.kinesis.shards import Discovered, ShardTable
from headgate.connectors.kinesis.split import KinesisSplit, KinesisState
from headgate.errors import SourceUnavailableError
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.watermark import MIN_WATERMARK_MS

logger = logging.getLogger(__name__)

Discover = Callable[[frozenset[str], bool], Discovered]
"""Looks at the stream: called with the ids of known shards, and whether it is the initial discovery. Blocks."""

_GROUP = "shards"


class KinesisEnumerator(SplitEnumerator[KinesisSplit, KinesisState]):
    """Hands out the shards of a stream.

    Parameters
    ----------
    context
        The runtime.
    discover
        Finds shards; called off the enumerator's thread.
    assigner
        Decides who reads a shard in an unbounded read.
    discovery_interval_ms
        Time between two looks, in milliseconds.
    state
        What to go on from, or None to start afresh.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[KinesisSplit],
        discover: Discover,
        assigner: SplitAssigner,
        discovery_interval_ms: int,
        state: KinesisState | None = None,
    ) -> None:
        self._context = context
        self._discover = discover
        self._assigner = assigner
        self._bounded = context.boundedness is Boundedness.BOUNDED
        self._period_ms = None if self._bounded else discovery_interval_ms
        self._readers_stay = state is not None and state.parallelism == context.current_parallelism
        self._table = ShardTable(state or KinesisState())
        if not self._readers_stay:
            self._table.forget_stored_owners()
        self._owners: dict[str, int] = {}  # who is to get an unassigned split
        self._waiting: dict[int, None] = {}
        self._all_registered_once = False
        # Read by discovery on its thread: replaced as a whole, never changed.
        self._known: tuple[frozenset[str], bool] = (frozenset(), True)
        self._publish_known()

    def start(self) -> None:
        """Begin discovery: for a bounded read once, and not again after a restore, as its ends are fixed."""
        if not (self._bounded and self._table.initial_discovery_finished):
            self._context.call_async(
                lambda: self._discover(*self._known), self._on_discovered, period_ms=self._period_ms
            )

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign the next split of a bounded read, or say that there is none; an unbounded one assigns on its own."""
        if self._bounded:
            self._waiting[subtask] = None
        self._assign()

    def add_reader(self, subtask: int) -> None:
        """Take the splits that the reader reports, and assign what is pending."""
        self._waiting.pop(subtask, None)
        reader = self._context.registered_readers[subtask]
        self._table.hold(reader.held_split_ids, subtask)
        for split in reader.reported_splits_on_registration:
            assert isinstance(split, KinesisSplit), f"reader {subtask} reported {split!r}"
            is_here = split.split_id in self._table.unassigned  # from the state: it was reported before that, too
            if not is_here and not self._table.report(split, subtask):
                logger.info("reader %d reported %s, which somebody else reads by now", subtask, split.split_id)
            elif self._readers_stay or self._all_registered_once:
                self._owners.setdefault(split.split_id, subtask)
        self._publish_known()
        self._assign()

    def take_assignments(self, assignment: Mapping[int, Sequence[KinesisSplit]]) -> bool:
        """Let the splits be assigned to their readers, found yet or not."""
        for subtask, splits in assignment.items():
            self._table.take_assigned(splits, subtask)
        self._publish_known()
        return True

    def add_splits_back(self, splits: Sequence[KinesisSplit], subtask: int) -> None:
        """Take splits back; their reader gets them when it registers again, in a bounded read whoever asks first."""
        self._table.give_back(splits)
        self._owners.update((split.split_id, subtask) for split in splits)
        self._waiting.pop(subtask, None)
        self._publish_known()
        self._assign()

    def unreported_splits(self) -> Collection[str]:
        """Return the shards that are assigned by the restored state only."""
        return [split_id for split_id, subtask in self._table.assigned.items() if subtask is None]

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        """Note shards that are read to their end; children follow after the snapshot that this call precedes."""
        self._table.end(split_ids)
        if not self._context.readers_fail_alone:
            self._table.finish()
            self._context.call_async(lambda: None, lambda _, __: self._assign())

    def snapshot_state(self, checkpoint_id: int) -> KinesisState:
        """Return what is unassigned, and the ids of what is assigned, ended or finished."""
        shared_out = self._readers_stay or self._all_registered_once
        return self._table.snapshot(checkpoint_id, self._context.current_parallelism if shared_out else None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Assign the children of shards whose ends are in the checkpoint: nobody reads those again."""
        self._table.finish(checkpoint_id)
        self._assign()

    def unassigned_event_time_ms(self) -> int | None:
        """Hold all watermarks while a shard waits for a reader: it may have records of any time.

        One whose parents are being read holds nobody back: its records are later than theirs. Nor do those of a bounded
        read, which are pulled, and would hold them for too long.
        """
        if not self._table.initial_discovery_finished:
            return MIN_WATERMARK_MS
        return MIN_WATERMARK_MS if not self._bounded and self._table.next_in_line() else None

    def close(self) -> None:
        """Nothing to release: the client belongs to the process."""

    def _on_discovered(self, found: Discovered | None, error: Exception | None) -> None:
        if error is not None:
            is_tried_again = self._table.initial_discovery_finished and self._period_ms is not None
            if not (is_tried_again and isinstance(error, SourceUnavailableError)):
                raise error
            logger.warning("looking for new shards failed and is retried: %s", error)
            return
        assert found is not None
        self._table.discovered(found)
        self._publish_known()
        self._assign()

    def _publish_known(self) -> None:
        self._known = (self._table.known(), not self._table.initial_discovery_finished)

    def _assign(self) -> None:
        readers = self._context.registered_readers
        self._all_registered_once = self._all_registered_once or len(readers) >= self._context.current_parallelism
        if self._bounded:
            self._answer_requests()
        elif self._all_registered_once:
            self._push()

    def _answer_requests(self) -> None:
        for subtask in [each for each in self._waiting if each in self._context.registered_readers]:
            if self._table.unassigned:
                split_id = next(iter(self._table.unassigned))
                self._context.assign_split(self._table.assign(split_id, subtask), subtask)
            elif self._table.initial_discovery_finished:
                self._context.signal_no_more_splits(subtask)
            else:
                return
            del self._waiting[subtask]

    def _push(self) -> None:
        """Assign what may be read."""
        ready = [split.split_id for split in self._table.ready()]
        taken = {split_id: (_GROUP, owner) for split_id, owner in self._table.owners().items() if owner is not None}
        taken.update((split_id, (_GROUP, owner)) for split_id, owner in self._owners.items())
        new = [(_GROUP, split_id) for split_id in ready if split_id not in self._owners]
        self._owners.update(self._assigner.assign(new, taken, self._context.current_parallelism))
        assignment: dict[int, list[KinesisSplit]] = {}
        for split_id in ready:
            owner = self._owners[split_id]
            if owner in self._context.registered_readers:
                assignment.setdefault(owner, []).append(self._table.assign(split_id, owner))
                del self._owners[split_id]
        if assignment:
            self._context.assign_splits(assignment)
