"""The reader with several fetchers: one for each split, or as many as the connector's rule names.

Never: share a split reader between fetchers.

Follows FLIP-27, "High-level Readers" (multi-split multi-threaded).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from headgate.readers.base import ReaderOptions, SourceReaderBase
from headgate.source.reader import SourceReaderContext
from headgate.source.split import Split
from headgate.source.split_reader import SplitReader

SplitT = TypeVar("SplitT", bound=Split)


class MultithreadedReader(SourceReaderBase[SplitT]):
    """Reads splits on several fetchers, all ahead into one queue.

    Parameters
    ----------
    split_reader_factory, context, options
        As for the other readers.
    fetcher_for
        Names the fetcher that reads a split by a number; the rule must give a split the same number at any
        position, and bounds the threads by the numbers it has. None: each split has a fetcher of its own, which
        ends with the split.
    """

    _lends = False

    def __init__(
        self,
        split_reader_factory: Callable[[], SplitReader[SplitT]],
        context: SourceReaderContext,
        options: ReaderOptions | None = None,
        *,
        fetcher_for: Callable[[SplitT], int] | None = None,
    ) -> None:
        super().__init__(split_reader_factory, context, options)
        self._fetcher_for = fetcher_for

    def _fetcher_key(self, split: SplitT) -> Hashable:
        return split.split_id if self._fetcher_for is None else self._fetcher_for(split)

    def _on_split_finished(self, split: SplitT) -> None:
        if self._fetcher_for is None:
            self._retire(split.split_id)
