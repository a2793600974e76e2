"""Finds partitions, and resolves once where each is read from and, in a batch, up to where. Blocks.

Never: resolve the start of a partition that is known already, or take a topic for empty that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.event_times import position_at
from headgate.connectors.pulsar.ledgers import Ledgers
from headgate.connectors.pulsar.opening import PartitionReaders
from headgate.connectors.pulsar.options import Offsets, Start
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit, topic_name
from headgate.connectors.pulsar.subscription import Subscription
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, OptionError

logger = logging.getLogger(__name__)

_EARLIEST = Start(word="earliest")
_THREADS = 8


class Discovery:
    """Looks for partitions.

    Parameters
    ----------
    admin
        Knows what there is.
    readers
        Look for times of events.
    subscription
        What is to be read.
    starts
        Where partitions that are there at the start are read from; later ones from their beginning.
    ends
        Where a bounded read ends; None: it is an unbounded one.
    fail_on_data_loss
        Whether a start that is no longer there is an error.
    """

    def __init__(
        self, admin: PulsarAdmin, readers: PartitionReaders, subscription: Subscription, starts: Offsets,
        ends: Offsets | None, *, fail_on_data_loss: bool,
    ) -> None:  # fmt: skip
        self._admin = admin
        self._readers = readers
        self._subscription = subscription
        self._starts = starts
        self._ends = ends
        self._fail_on_data_loss = fail_on_data_loss
        self._missed: frozenset[str] = frozenset()

    def __call__(self, known: frozenset[TopicPartition], initial: bool) -> Sequence[PulsarSplit]:
        """Return the partitions that are not known yet, as splits at resolved positions.

        Raises
        ------
        OptionError
            A topic that the options name does not exist at the start.
        DataLossError
            Where it is to start, there is nothing any longer.
        SourceUnavailableError
            The brokers do not answer.
        """
        found: list[PulsarSplit] = []
        topics = self._topics(initial=initial)
        if initial:
            self._check_names(topics)
        for topic, count in sorted(topics.items()):
            numbers = range(count) if count else [NOT_PARTITIONED]
            new = [each for number in numbers if (each := TopicPartition(topic, number)) not in known]
            if new:
                found += self._splits(new, initial=initial)
        return found

    def _topics(self, *, initial: bool) -> dict[str, int]:
        """Return the topics to read, with how many partitions each has."""
        names = self._subscription.names
        if names is None:
            assert self._subscription.pattern is not None
            namespace = self._subscription.pattern[0]
            listed = self._admin.topics(namespace)
            if listed is None and initial:
                raise OptionError(
                    f"{NAME}: the namespace {namespace} does not exist. Create it, or correct 'topicsPattern'.",
                    source=NAME, option="topicsPattern", value=namespace,
                )  # fmt: skip
            names = tuple(each for each in listed or () if self._subscription.includes(each))
        counts = {name: self._admin.partition_count(name) for name in names}
        missing = frozenset(name for name, count in counts.items() if count is None)
        if initial and missing:
            raise OptionError(
                f"{NAME}: {', '.join(sorted(missing))} does not exist. Create it, or correct the option that names "
                "it; topics that come later are found by topicsPattern.",
                source=NAME, option="topic", value=sorted(missing),
            )  # fmt: skip
        for name in sorted(missing - self._missed):
            logger.warning("%s: %s does not exist (any longer)", NAME, name)
        self._missed = missing
        return {name: count for name, count in counts.items() if count is not None}

    def _check_names(self, topics: Mapping[str, int]) -> None:
        """Raise for offsets of what is not read: probably a typing error, which would read all or nothing."""
        ids = [topic_name(TopicPartition(topic, n)) for topic, count in topics.items() for n in range(count)]
        twice = sorted(set(ids) & {topic for topic, count in topics.items() if not count})
        if twice:
            raise OptionError(
                f"{NAME}: {', '.join(twice)} would be read twice, with its topic and by its own name. Leave one.",
                source=NAME, option="topics", value=twice,
            )  # fmt: skip
        for option, given in (("startingOffsets", self._starts), ("endingOffsets", self._ends)):
            if isinstance(given, dict):
                there = set(topics)
                for topic, count in topics.items():
                    there |= {topic_name(TopicPartition(topic, number)) for number in range(count)}
                strange = sorted(set(given) - there)
                if strange:
                    raise OptionError(
                        f"{NAME}: the option {option!r} names {', '.join(strange)}, which is not read.",
                        source=NAME, option=option, value=strange,
                    )  # fmt: skip

    def _splits(self, partitions: Sequence[TopicPartition], *, initial: bool) -> list[PulsarSplit]:
        ledgers = self._ledgers(partitions)

        def split(partition: TopicPartition) -> PulsarSplit | None:
            of = ledgers.get(partition.partition, Ledgers(()))
            position = self._resolved(partition, self._starts if initial else _EARLIEST, of, "startingOffsets")
            if self._ends is None:
                return _split(partition, position)
            end = self._resolved(partition, self._ends, of, "endingOffsets", is_end=True)
            stop = None if end is None else of.last_entry(end)
            if (
                stop is not None
                and (visible := self._admin.before_open_transactions(topic_name(partition))) is not None
            ):
                stop = of.last_entry(min(stop, visible))  # a read that is repeated reads the same
            if stop is not None and (position is None or position < stop) and of.has_entries_after(position):
                return _split(partition, position, stop, of.bytes_between(position, stop))
            return None

        with ThreadPoolExecutor(_THREADS) as pool:  # times are looked up by the brokers, one partition each
            return [found for found in pool.map(split, partitions) if found is not None]

    def _ledgers(self, partitions: Sequence[TopicPartition]) -> dict[int, Ledgers]:
        topic = partitions[0].topic
        if partitions[0].partition != NOT_PARTITIONED:
            return self._admin.ledgers_of_partitions(topic, [each.partition for each in partitions])
        of = self._admin.ledgers(topic)
        return {} if of is None else {NOT_PARTITIONED: of}

    def _resolved(
        self, partition: TopicPartition, offsets: Offsets, ledgers: Ledgers, option: str, *, is_end: bool = False
    ) -> Position | None:
        name = topic_name(partition)
        other = Start(word="latest") if is_end else _EARLIEST
        start = offsets.get(name, offsets.get(partition.topic, other)) if isinstance(offsets, dict) else offsets
        if start.word == "latest":
            return ledgers.end
        if start.word == "earliest" or ledgers.end is None:
            return ledgers.beginning
        if start.time_ms is not None:
            return self._admin.position_at(name, start.time_ms)
        if start.event_time_ms is not None:
            return position_at(self._readers, _split(partition, None), ledgers, start.event_time_ms)
        assert start.position is not None
        if start.position.ledger not in ledgers:
            if self._fail_on_data_loss and not is_end:
                raise DataLossError(
                    f"{NAME}: the message of {option} for {name}, at {start.position}, is not there any longer. Start "
                    "at 'earliest', or set failOnDataLoss to false to start with the first message that is there.",
                    source=NAME, path=name, wanted=str(start.position), available=str(ledgers.beginning),
                )  # fmt: skip
            return start.position if is_end else ledgers.beginning
        return start.position


def _split(
    partition: TopicPartition, position: Position | None, stop: Position | None = None, size: int | None = None
) -> PulsarSplit:
    return PulsarSplit(
        split_id=topic_name(partition),
        topic=partition.topic,
        partition=partition.partition,
        position=position,
        stop=stop,
        backlog_bytes=size,
    )
