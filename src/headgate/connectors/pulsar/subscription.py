"""Which topics are read: named ones, or those of a namespace that match a pattern.

Never: ask a broker; what there is, is an argument.

Follows Pulsar's ``TopicName``: ``persistent://tenant/namespace/name``; a bare name is one of ``public/default``.
"""

from __future__ import annotations

import re

import msgspec

from headgate.enumerators.partition import TopicPartition
from headgate.source.options import Options

_NAME = "a topic's name, like rides, public/default/rides or persistent://public/default/rides"


def full_name(value: str) -> str:
    """Return a topic's full name.

    Raises
    ------
    ValueError
        It is not a name, or of a topic that is not persistent: nothing of it could be read again.
    """
    domain, found, rest = value.strip().partition("://")
    if not found:
        domain, rest = "persistent", domain
    if domain == "non-persistent":
        raise ValueError("a persistent topic: of others nothing can be read again after a failure")
    parts = rest.split("/")
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain != "persistent" or len(parts) != 3 or not all(parts):
        raise ValueError(_NAME)
    return f"persistent://{'/'.join(parts)}"


def topic_pattern(value: str) -> tuple[str, str]:
    """Parse a pattern of names: return ``tenant/namespace``, and the pattern of what follows."""
    rest = value.strip().removeprefix("persistent://")
    parts = rest.split("/", 2)
    namespace, pattern = ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else ("public/default", rest)
    if len(parts) == 2 or not pattern:
        raise ValueError("a regular expression, or tenant/namespace/ and one")
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return namespace, pattern


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants to read: one of the two is set.

    Parameters
    ----------
    names
        Full names of topics.
    pattern
        A namespace, and what is to match the whole rest of a name in it.
    """

    names: tuple[str, ...] | None = None
    pattern: tuple[str, str] | None = None

    @classmethod
    def of(cls, options: Options) -> Subscription:
        """Return what the options name; they were checked by `options.check`."""
        if options["topic"] is not None:
            return cls(names=(options["topic"],))
        return cls(names=options["topics"], pattern=options["topicsPattern"])

    def matches(self, partition: TopicPartition) -> bool:
        """Return whether a partition is to be read, whether or not it exists."""
        return self.includes(partition.topic)

    def includes(self, topic: str) -> bool:
        """Return whether a topic is to be read: Pulsar's own, which begin with two underscores, only by name."""
        if self.names is not None:
            return topic in self.names
        assert self.pattern is not None
        namespace, pattern = self.pattern
        before = f"persistent://{namespace}/"
        name = topic.removeprefix(before)
        is_there = topic.startswith(before) and not name.startswith("__")
        return is_there and re.compile(pattern, re.ASCII).fullmatch(name) is not None
