"""The reader whose single fetcher reads all splits, for clients that serve many splits at once.

Never: start more than one thread.

Follows FLIP-27, "High-level Readers" (multi-split multiplexed).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from headgate.readers.base import SourceReaderBase
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)


class MultiplexedReader(SourceReaderBase[SplitT]):
    """Gives all splits to one split reader on one fetcher.

    An error of ``fetch`` is attributed to all splits that it may have been about, unless it names one by the fact
    ``split``.
    """

    def _fetcher_key(self, split: SplitT) -> Hashable:
        return "multiplexed"
