"""Finds partitions of topics and decides who reads them; bounded, unbounded, and unbounded with discovery.

Never: ask a broker on the enumerator's thread (`discover` runs in `call_async`), resolve a start position twice, or
move a partition of an unbounded read from a reader to another while the number of readers stays.

A bounded read is *pulled*: a reader that asks gets one pending partition, the one with the most left to read, so that
the fastest reader takes the next (Hudi 19520). When none is left, all readers have registered once and the only
discovery is over, it is notified that there are no more splits. An unbounded read is *pushed*: each partition has an
owner.

A partition's way. *Pending* ones are in the enumerator's state; *assigned* ones are with their reader, and the state
knows their numbers only; *finished* ones are remembered until a checkpoint with that knowledge is complete.

    place      event        next       why
    ---------  -----------  ---------  --------------------------------------------------------------------------
    (unknown)  discovered   pending    new; its position is resolved and part of the state from now on
    (unknown)  reported     pending    a reader was restored with it
    (unknown)  given back   pending    it was finished when the state was taken that this enumerator is restored from
    pending    reported     pending    its reader failed before it got it; what came first counts
    pending    assigned     assigned   pushed: its owner is registered; pulled: a reader asked
    assigned   reported     pending    its reader came back: it holds nothing but what it reports
    assigned   given back   pending    its reader failed; pushed: it waits for that reader
    assigned   finished     finished   read to its end, or its topic was deleted: it may be discovered again
    finished   discovered   pending    as a new partition
    finished   reported     pending    the checkpoint that knew of its end was never completed
    finished   given back   pending    likewise

A pair that is not there raises. So does a partition that comes back from a reader that does not own it, and one that
is unknown to an enumerator that started afresh. What another reader than the owner *reports* is ignored: it has been
assigned anew since (FLIP-537, section 3).

Who owns a partition of an unbounded read is decided once: its reporter owns it if there are as many readers as before,
otherwise the assigner decides, when all readers have registered for the first time. Later ones are added without moving
others. In a bounded read its owner is the reader that has it, or has read it to its end.

Follows FLIP-537, "Kafka connector" and "The Whole Contract of Kafka connector", sections 1 to 5.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from headgate.assigners import SplitAssigner
from headgate.enumerators.partition import PartitionSplit, PartitionsState, TopicPartition
from headgate.errors import InvalidTransitionError, SourceUnavailableError
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.watermark import MIN_WATERMARK_MS

logger = logging.getLogger(__name__)

_HISTORY = 8
"""How many of the last events are kept for each partition, for errors."""

SplitT = TypeVar("SplitT", bound=PartitionSplit)
StateT = TypeVar("StateT", bound=PartitionsState[Any])

Discover = Callable[[frozenset[TopicPartition], bool], Sequence[SplitT]]
"""Lists the partitions but the known ones, as splits at resolved positions; the second argument says whether it is the
initial discovery, to which ``startingOffsets`` applies. Blocks."""


class Subscription(Protocol):
    """What the options say about which partitions are read."""

    def matches(self, partition: TopicPartition) -> bool:
        """Return whether a partition is to be read, whether or not it exists."""
        ...


class _Place(Enum):
    PENDING = "pending"
    ASSIGNED = "assigned"
    FINISHED = "finished"


_NEXT: dict[tuple[_Place | None, str], _Place] = {
    (None, "discovered"): _Place.PENDING,
    (None, "reported"): _Place.PENDING,
    (None, "given back"): _Place.PENDING,
    (_Place.PENDING, "reported"): _Place.PENDING,
    (_Place.PENDING, "assigned"): _Place.ASSIGNED,
    (_Place.ASSIGNED, "reported"): _Place.PENDING,
    (_Place.ASSIGNED, "given back"): _Place.PENDING,
    (_Place.ASSIGNED, "finished"): _Place.FINISHED,
    (_Place.FINISHED, "discovered"): _Place.PENDING,
    (_Place.FINISHED, "reported"): _Place.PENDING,
    (_Place.FINISHED, "given back"): _Place.PENDING,
}


@dataclass
class _Partition(Generic[SplitT]):
    """What is known of one partition."""

    source: str
    split_id: str
    partition: TopicPartition
    place: _Place | None = None
    split: SplitT | None = None  # exactly while pending
    owner: int | None = None  # None: not decided yet, or not known
    owner_is_stored: bool = False  # assigned before this start: it counts for the balance, but a reader knows better
    reporter: int | None = None  # the reader a pending split came from
    known_to_checkpoint: int | None = None  # the first that holds that it is finished
    history: deque[str] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def belongs_to_another(self, subtask: int) -> bool:
        """Whether a reader cannot have it, as another one was given it since this start."""
        return self.owner not in (None, subtask) and not self.owner_is_stored

    def move(self, event: str, detail: str = "") -> None:
        """Go where the table says; on an error nothing has changed."""
        following = _NEXT.get((self.place, event))
        if following is None:
            raise self.invalid(event, detail)
        self.place = following
        self.history.append(f"{event}{detail}")

    def invalid(self, event: str, detail: str) -> InvalidTransitionError:
        """Return the error for an event that cannot be, with what happened before."""
        state = "unknown" if self.place is None else self.place.value
        owner = "" if self.owner is None else f" and belongs to reader {self.owner}"
        return InvalidTransitionError(
            f"{self.source}: the split {self.split_id} was {event}{detail}, but it is {state}{owner}. "
            f"Before: {'; '.join(self.history) or 'nothing'}.",
            source=self.source,
            split=self.split_id,
            state=state,
            event=event,
            history=tuple(self.history),
        )


class TopicEnumerator(SplitEnumerator[SplitT, StateT]):
    """Discovers partitions; pushes those of an unbounded read to their owners, hands out a bounded one's when asked.

    Parameters
    ----------
    context
        The runtime.
    discover
        Lists new partitions; called off the enumerator's thread. See `Discover`.
    subscription
        Says which partitions the options name: those of a restored state that they no longer name are dropped.
    assigner
        Decides who reads a partition of an unbounded read.
    discovery_interval_ms
        Time between two discoveries of an unbounded read, in milliseconds; None: once at each start only. A bounded
        read discovers once, and not again after a restore: its ends are fixed.
    state
        What to go on from, or None to start afresh.
    release
        Closes what ``discover`` opened; called by `close`.
    """

    source: ClassVar[str]
    """The format's name, for errors and the log."""
    state_type: type[StateT]

    def __init__(
        self,
        context: SplitEnumeratorContext[SplitT],
        discover: Discover[SplitT],
        subscription: Subscription,
        assigner: SplitAssigner,
        discovery_interval_ms: int | None,
        state: StateT | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._release = release
        self._is_restored = state is not None  # what was finished then, its state does not have
        state = state or self.state_type(initial_discovery_finished=False)
        self._bounded = bounded = context.boundedness is Boundedness.BOUNDED
        self._context = context
        self._discover = discover
        self._subscription = subscription
        self._assigner = assigner
        self._period_ms = None if bounded else discovery_interval_ms
        self._initial_finished = state.initial_discovery_finished
        self._may_find_more = not (bounded and self._initial_finished)
        self._readers_stay = state.parallelism == context.current_parallelism  # then reporters are owners
        self._discovered = not self._may_find_more  # whether a discovery of this start is over
        self._all_came = False  # whether all readers were there once; then every pushed split has its owner
        self._ended: set[int] = set()  # readers of an unbounded read that were notified that there are no more splits
        self._waiting: dict[int, None] = {}  # readers of a bounded read that asked, in their order
        self._pool: list[tuple[int, TopicPartition, str]] = []  # its pending splits, each once; a heap
        self._partitions: dict[str, _Partition[SplitT]] = {}
        self._restore(state)
        # Read by discovery on its thread: replaced as a whole, never changed.
        self._known: tuple[frozenset[TopicPartition], bool] = (frozenset(), True)
        self._publish_known()

    def start(self) -> None:
        """Begin discovery."""
        if self._may_find_more:
            self._context.call_async(self._run_discovery, self._on_discovered, period_ms=self._period_ms)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Bounded: answer with the next partition, or that nothing follows. Unbounded: it has its own, or gets it."""
        if self._bounded:
            self._waiting[subtask] = None
        else:
            self._ended.discard(subtask)
        self._assign()

    def add_reader(self, subtask: int) -> None:
        """Take what the reader reports, and assign what waits for it."""
        self._forget_answers(subtask)
        reader = self._context.registered_readers[subtask]
        for split in reader.reported_splits_on_registration:
            assert isinstance(split, PartitionSplit), f"reader {subtask} reported {split!r}"
            self._take_reported(cast(SplitT, split), subtask)
        for split_id in reader.held_split_ids:
            partition = self._partitions.get(split_id)
            is_known = partition is not None and partition.place is _Place.ASSIGNED
            if partition is not None and is_known and (partition.owner is None or partition.owner_is_stored):
                partition.owner, partition.owner_is_stored = subtask, False
        self._publish_known()
        self._assign()

    def take_assignments(self, assignment: Mapping[int, Sequence[SplitT]]) -> bool:
        """Let the splits be assigned to their readers, pending or not found yet as they may be."""
        for subtask, splits in assignment.items():
            for split in splits:
                partition = self._get(split)
                if partition.place is not _Place.ASSIGNED:
                    if partition.place is not _Place.PENDING:
                        self._make_pending(partition, "discovered", split, f" before this start, at {split.position}")
                    self._hand_out(partition)
                partition.owner, partition.owner_is_stored = subtask, False
        self._pool = [each for each in self._pool if self._partitions[each[2]].split is not None]
        heapq.heapify(self._pool)
        self._publish_known()
        return True

    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Keep splits for ``subtask`` until it registers again; others do not get them, which would unbalance them.

        Those of a bounded read go to the readers that wait, or to whoever asks next.

        Raises
        ------
        InvalidTransitionError
            ``subtask`` was not given one of them; the message holds what happened to it.
        """
        for split in splits:
            partition = self._get(split)
            detail = f" by reader {subtask} at {split.position}"
            is_strange = partition.place is None and not self._is_restored
            if is_strange or (partition.place is _Place.ASSIGNED and partition.belongs_to_another(subtask)):
                raise partition.invalid("given back", detail)
            self._make_pending(partition, "given back", split, detail)
            if not self._bounded:
                partition.owner = partition.reporter = subtask
        self._forget_answers(subtask)
        self._publish_known()
        self._assign()

    def snapshot_state(self, checkpoint_id: int) -> StateT:
        """Return the pending splits, and the partitions that readers have, with those readers."""
        unassigned, owners = [], {}
        assigned: dict[str, list[tuple[int, int | None]]] = {}
        for partition in sorted(self._partitions.values(), key=lambda each: each.partition):
            if partition.split is not None:
                unassigned.append(partition.split)
                if partition.owner is not None:
                    owners[partition.split_id] = partition.owner
            elif partition.place is _Place.ASSIGNED:
                each = partition.partition
                assigned.setdefault(each.topic, []).append((each.partition, partition.owner))
            elif partition.known_to_checkpoint is None:
                partition.known_to_checkpoint = checkpoint_id
        return self.state_type(
            initial_discovery_finished=self._initial_finished,
            unassigned=tuple(unassigned),
            assigned={topic: tuple(of_topic) for topic, of_topic in assigned.items()},
            parallelism=self._context.current_parallelism if self._all_came or self._readers_stay else None,
            owners=owners,
        )

    def unassigned_event_time_ms(self) -> int | None:
        """Return MIN_WATERMARK_MS while there may be records for any reader of which nothing is known, else None.

        That is until this start's first discovery is over and all readers have registered once, with what they have:
        partitions that came while the query was down, or moved with a new parallelism, are then assigned. In a bounded
        read it is also while partitions are pending, for whoever asks first.

        A partition that waits for its owner, which failed, holds nobody: no other reader will ever have its rows, and
        the owner's own watermark waits until it is back and has the partition. What its checkpoint holds, and the
        enumerator does not know, is no different. Partitions that are found later are no reason to wait for ever.
        """
        is_known = self._discovered and self._all_came and not self._pool
        return None if is_known else MIN_WATERMARK_MS

    def unreported_splits(self) -> Collection[str]:
        """Return the partitions that are assigned by the restored state only."""
        return [
            each.split_id
            for each in self._partitions.values()
            if each.place is _Place.ASSIGNED and each.owner_is_stored
        ]

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        """Forget partitions that were read to their end: those of a deleted topic are new if they are there again."""
        for split_id in split_ids:
            partition = self._partitions.get(split_id)
            if partition is None or partition.place is not _Place.ASSIGNED:
                continue  # it was given back meanwhile, and is read again
            # Who read it stays its owner: a report of another reader, of an older checkpoint, means nothing.
            partition.move("finished")
        self._publish_known()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Drop what is known of finished partitions: no reader can come back with them any longer."""
        for partition in list(self._partitions.values()):
            known_to = partition.known_to_checkpoint
            if partition.place is _Place.FINISHED and known_to is not None and known_to <= checkpoint_id:
                del self._partitions[partition.split_id]

    def close(self) -> None:
        """Close the connections of discovery."""
        self._release()

    @classmethod
    def split_id(cls, partition: TopicPartition) -> str:
        """Return the id of the split of a whole partition."""
        return str(partition)

    # -- discovery --------------------------------------------------------------------------------------------------

    def _run_discovery(self) -> tuple[frozenset[TopicPartition], Sequence[SplitT]]:
        """Run on the discovery's thread: nothing but ``_known`` is read of the enumerator."""
        known, initial = self._known
        return known, self._discover(known, initial)

    def _on_discovered(
        self, found: tuple[frozenset[TopicPartition], Sequence[SplitT]] | None, error: Exception | None
    ) -> None:
        if error is not None:
            if not self._initial_finished and isinstance(error, SourceUnavailableError):
                raise _never_reached(error) from error
            is_tried_again = self._initial_finished and self._period_ms is not None
            if not (is_tried_again and isinstance(error, SourceUnavailableError)):
                raise error
            logger.warning("%s: discovery failed and is retried: %s", self.source, error)
            return
        assert found is not None
        known, splits = found
        came_back = self._known[0] - known  # with a reader, while discovery ran
        for split in splits:
            if split.topic_partition in came_back:
                continue
            partition = self._get(split)
            self._make_pending(partition, "discovered", split, f" at {split.position}")
        self._initial_finished = self._discovered = True
        self._may_find_more = self._period_ms is not None
        self._publish_known()
        self._assign()

    def _publish_known(self) -> None:
        known = frozenset(each.partition for each in self._partitions.values() if each.place is not _Place.FINISHED)
        self._known = (known, not self._initial_finished)

    # -- ownership --------------------------------------------------------------------------------------------------

    def _restore(self, state: StateT) -> None:
        """Take over a state, save for what the options no longer name."""
        dropped = []
        for split in state.unassigned:
            if not self._subscription.matches(split.topic_partition):
                dropped.append(split.topic_partition)
                continue
            partition = self._get(split)
            self._make_pending(partition, "discovered", split, f" before this start, pending at {split.position}")
            if self._readers_stay and not self._bounded:
                partition.owner = state.owners.get(split.split_id)
        for topic, of_topic in state.assigned.items():
            for number, reader in of_topic:
                each = TopicPartition(topic, number)
                if not self._subscription.matches(each):
                    dropped.append(each)
                    continue
                restored: _Partition[SplitT] = _Partition(
                    self.source, self.split_id(each), each, _Place.ASSIGNED, owner_is_stored=True
                )
                restored.owner = reader if self._readers_stay else None
                restored.history.append("assigned before this start")
                self._partitions[restored.split_id] = restored
        if dropped:
            logger.warning(
                "%s: these partitions are no longer read, since the options do not name them: %s. If the options name "
                "them again later, they are read from the earliest record.",
                self.source,
                ", ".join(map(str, sorted(dropped))),
            )

    def _get(self, split: SplitT) -> _Partition[SplitT]:
        """Return what is known of a split's partition; a new one is not kept before it has moved."""
        return self._partitions.get(split.split_id) or _Partition(self.source, split.split_id, split.topic_partition)

    def _take_reported(self, split: SplitT, subtask: int) -> None:
        if not self._subscription.matches(split.topic_partition):
            return  # named in the warning at the start
        partition = self._get(split)
        detail = f" by reader {subtask} at {split.position}"
        if partition.belongs_to_another(subtask):
            partition.history.append(f"reported{detail}, ignored")
            return
        if partition.place is _Place.PENDING:
            if not self._bounded and partition.owner is None and partition.reporter != subtask:
                raise partition.invalid("reported", detail)
            partition.move("reported", detail)
        else:
            self._make_pending(partition, "reported", split, detail)
            partition.reporter = subtask
        if not self._bounded and (self._readers_stay or self._all_came):
            partition.owner = subtask

    def _make_pending(self, partition: _Partition[SplitT], event: str, split: SplitT, detail: str) -> None:
        """Take a split in, with no owner."""
        partition.move(event, detail)
        partition.split, partition.owner_is_stored = split, False
        partition.owner = partition.reporter = partition.known_to_checkpoint = None
        self._partitions[split.split_id] = partition
        if self._bounded:
            heapq.heappush(self._pool, (-_size(split), split.topic_partition, split.split_id))

    def _forget_answers(self, subtask: int) -> None:
        """Note that a reader was replaced: the new one has made no request and received no answer."""
        self._ended.discard(subtask)
        self._waiting.pop(subtask, None)

    def _assign(self) -> None:
        """Hand out what can be, and end readers for which nothing can come."""
        if not self._all_came:
            everybody = set(range(self._context.current_parallelism))
            self._all_came = self._context.registered_readers.keys() >= everybody
        if self._bounded:
            self._answer_requests()
        elif self._all_came:
            self._push()

    def _answer_requests(self) -> None:
        """Give each reader that waits one partition, or notify it that there are no more splits."""
        for subtask in [each for each in self._waiting if each in self._context.registered_readers]:
            if self._pool:
                _, _, split_id = heapq.heappop(self._pool)
                partition = self._partitions[split_id]
                partition.owner = subtask
                self._context.assign_split(self._hand_out(partition), subtask)
            elif self._all_came and not self._may_find_more:
                self._context.signal_no_more_splits(subtask)
            else:
                return
            del self._waiting[subtask]

    def _push(self) -> None:
        """Hand pending splits to those of their owners that are there."""
        readers = self._context.registered_readers
        pending = sorted(
            (each for each in self._partitions.values() if each.split is not None), key=lambda each: each.partition
        )
        self._find_owners(pending, self._context.current_parallelism)
        assignment: dict[int, list[SplitT]] = {}
        for partition in pending:
            assert partition.owner is not None, partition
            if partition.owner in readers:
                assignment.setdefault(partition.owner, []).append(self._hand_out(partition))
        if assignment:
            self._context.assign_splits(assignment)
        if not self._may_find_more:
            for subtask in sorted(readers.keys() - self._ended):
                self._ended.add(subtask)
                self._context.signal_no_more_splits(subtask)

    def _hand_out(self, partition: _Partition[SplitT]) -> SplitT:
        """Note that a pending split goes to its owner, and return it."""
        split = partition.split
        assert split is not None, partition
        partition.move("assigned", f" to reader {partition.owner} at {split.position}")
        partition.split = partition.reporter = None
        return split

    def _find_owners(self, pending: Sequence[_Partition[SplitT]], parallelism: int) -> None:
        new = [(each.partition.topic, each.split_id) for each in pending if each.owner is None]
        if new:
            owners = {
                each.split_id: (each.partition.topic, each.owner)
                for each in self._partitions.values()
                if each.owner is not None and each.place is not _Place.FINISHED
            }
            for split_id, subtask in self._assigner.assign(new, owners, parallelism).items():
                self._partitions[split_id].owner = subtask


def _never_reached(error: SourceUnavailableError) -> SourceUnavailableError:
    """Return the error of a first discovery: probably the address is wrong, and nothing could be read meanwhile."""
    return SourceUnavailableError(
        f"{error.message} No broker has been reached since the start, so the query ends; once it has found its "
        "partitions, a query waits for the brokers.",
        **{**error.facts, "final": True},
    )


def _size(split: PartitionSplit) -> int:
    """Return how much is left of a split: in rows, or else in bytes: a source knows it of all splits, or of none."""
    left = split.remaining()
    return left.rows if left.rows is not None else left.bytes or 0
