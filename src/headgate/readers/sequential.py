"""The reader that reads one split at a time, to its end: files, and whatever else ends.

Never: begin a split while another one is being read; only a paused one lets the next one start.

Follows FLIP-27, "High-level Readers" (sequential single split).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, TypeVar

from headgate.readers.base import SourceReaderBase
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)


class SequentialReader(SourceReaderBase[SplitT]):
    """Reads its splits one after another, in the order in which they were added, on one fetcher.

    The next split is begun while the task still works on the last batches of the one before. When none is left it
    asks the enumerator for one, once.
    """

    _one_split_at_a_time: ClassVar[bool] = True

    def _fetcher_key(self, split: SplitT) -> Hashable:
        return "sequential"
