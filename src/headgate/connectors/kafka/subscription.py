"""Which partitions are read: named topics, named partitions, or topics whose names match a pattern.

Never: ask a broker; what there is, is an argument.

Follows Spark 4.2, ``ConsumerStrategy``. A pattern must match somewhere in a topic's name, not all of it, and the topics
that Kafka keeps for itself match none.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import cache

import msgspec

from headgate.enumerators.partition import TopicPartition
from headgate.source.options import Options

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which are read only when they are named."""


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern in Java's syntax as one of Python's.

    Raises
    ------
    ValueError
        Python has not the same syntax for it.
    """
    with warnings.catch_warnings():
        # [a-z&&[^b]] is an intersection in Java; Python only warns, and reads it as something else.
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(pattern, re.ASCII)  # \d and \w are ASCII in Java
        except (re.error, FutureWarning) as error:
            raise ValueError(
                f"a regular expression that Java and Python read alike ({error}); "
                "named groups, properties like \\p{Alpha} and set operations like && are not"
            ) from None


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic as the brokers describe it.

    Parameters
    ----------
    topic_id
        Kafka's own id of the topic: another one after it was deleted and made again. None: the broker reports none.
    partitions
        The numbers of its partitions, in order.
    """

    topic_id: str | None
    partitions: tuple[int, ...]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants to read. One of the three is set.

    Parameters
    ----------
    names
        Topics, all partitions of them.
    partitions
        Single partitions.
    pattern
        What is to be found in a topic's name.
    """

    names: frozenset[str] | None = None
    partitions: frozenset[TopicPartition] | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, options: Options) -> Subscription:
        """Return what the options name; they were checked by `options.check`."""
        if options["assign"] is not None:
            return cls(partitions=frozenset(options["assign"]))
        if options["subscribe"] is not None:
            return cls(names=frozenset(options["subscribe"]))
        return cls(pattern=options["subscribePattern"])

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that are named; None: all must be listed to see which match."""
        if self.partitions is not None:
            return frozenset(each.topic for each in self.partitions)
        return self.names

    def matches(self, partition: TopicPartition) -> bool:
        """Return whether a partition is to be read, whether or not it exists."""
        if self.partitions is not None:
            return partition in self.partitions
        if self.names is not None:
            return partition.topic in self.names
        assert self.pattern is not None
        return partition.topic not in INTERNAL_TOPICS and compiled(self.pattern).search(partition.topic) is not None

    def select(self, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        """Return the partitions to read of those that exist, sorted."""
        all_of_them = (TopicPartition(name, number) for name, info in topics.items() for number in info.partitions)
        return sorted(each for each in all_of_them if self.matches(each))

    def missing(self, topics: Mapping[str, TopicInfo]) -> list[str]:
        """Return what is named and does not exist, sorted: topics, and partitions as ``topic-3``."""
        absent = {name for name in self.topics or () if name not in topics}
        for each in self.partitions or ():
            if each.topic in topics and each.partition not in topics[each.topic].partitions:
                absent.add(str(each))
        return sorted(absent)
