"""The split of a `SimpleSource`, and the state of its enumerator.

Never: look into a position: only the author's class knows what it means. Two positions are the same if they are equal
as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Split


class SimpleSplit(Split, frozen=True, kw_only=True):
    """One split of a `SimpleSource`.

    Parameters
    ----------
    position
        What ``read`` yielded last; None: it is read from the beginning.
    has_stop
        Whether the split ends at ``stop``.
    stop
        The position after the last batch of the split; None, with ``has_stop``: the split is empty.
    finite
        Without a stop: whether the split is done with once ``read`` is exhausted.
    """

    position: Any = None
    has_stop: bool = False
    stop: Any = None
    finite: bool = False


class SimpleState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the enumerator of a `SimpleSource`.

    Parameters
    ----------
    known
        The ids that were discovered, assigned or not, and are not known to be finished.
    finished
        The ids that are finished and were still listed the last time; they are not read again.
    pending
        Splits that no reader has.
    listed
        Whether the splits were listed at least once; a bounded read lists them no more.
    """

    known: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    pending: tuple[SimpleSplit, ...] = ()
    listed: bool = False


SPLIT_SERIALIZER = VersionedSerializer(SimpleSplit, version=1, what="a split of a SimpleSource")
STATE_SERIALIZER = VersionedSerializer(SimpleState, version=1, what="the enumerator state of a SimpleSource")
