"""The three ready-made readers: each makes a non-blocking `SourceReader` of a connector's blocking `SplitReader`.

Never: import a connector or a runtime.

    reader               splits at a time   threads                       for
    -------------------  -----------------  ----------------------------  -----------------------------------------
    `SequentialReader`   one                one                           files: read to the end, then the next
    `MultiplexedReader`  all                one                           clients that read many splits at once
    `MultithreadedReader`  all              one a split, or by a rule     clients that read one split each

Follows FLIP-27, "High-level Readers".
"""

from headgate.readers.asking import AskedInVain
from headgate.readers.base import ReaderOptions, SourceReaderBase
from headgate.readers.element_queue import ElementQueue
from headgate.readers.multiplexed import MultiplexedReader
from headgate.readers.multithreaded import MultithreadedReader
from headgate.readers.sequential import SequentialReader

__all__ = [
    "AskedInVain",
    "ElementQueue",
    "MultiplexedReader",
    "MultithreadedReader",
    "ReaderOptions",
    "SequentialReader",
    "SourceReaderBase",
]
