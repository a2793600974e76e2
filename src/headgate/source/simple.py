"""The source of twenty lines: what there is to read, and how to read it from a position on.

Never: call anything of this from two threads at once: each reader, and the discovery of splits, has an instance of
its own.

Follows FLIP-27 in small: `SimpleSource.splits` is an enumerator, `SimpleSource.read` a split reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headgate.source.options import OptionSpec


class SimpleSource(ABC):
    """A source for all three engines, in two methods.

    A subclass may define one method more, ``latest(self, split_id)``: the position after everything that is there
    now, equal to one that ``read`` yields; None when there is nothing. Structured Streaming then plans each
    micro-batch up to it, without reading. Without it the planner reads ahead to find a stop, so that everything is
    read twice.

    Parameters
    ----------
    options
        The user's options: names count without case, and values are texts, unless the class declares
        ``option_specs``.

    Examples
    --------
    >>> class Alphabet(SimpleSource):
    ...     name = "alphabet"
    ...     schema = "character string"
    ...
    ...     def splits(self):
    ...         return ["lower", "upper"]
    ...
    ...     def read(self, split_id, position):
    ...         characters = "abc" if split_id == "lower" else "ABC"
    ...         for index in range(position or 0, 3):
    ...             yield pa.record_batch({"character": [characters[index]]}), index + 1
    >>> [position for batch, position in Alphabet({}).read("upper", 1)]
    [2, 3]
    """

    name: ClassVar[str]
    """The format's name, for ``spark.read.format(name)`` after ``headgate.register``."""
    schema: ClassVar[str]
    """The columns, as Spark's DDL text."""
    finite_splits: ClassVar[bool] = False
    """Whether a split is done with when `read` is exhausted, also in an unbounded read; otherwise `read` is called
    again after the option ``pollInterval``."""
    option_specs: ClassVar[Sequence[OptionSpec] | None] = None
    """The options that the class has; others are then errors. None: any option is taken, as text."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Return the ids of all splits there are. May block.

        In an unbounded read it is called again after the option ``discovery.interval``, and new ids are read as
        well. An id names the same piece of work for ever.
        """

    @abstractmethod
    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Read one split from a position on, and return when there is nothing more for now. May block.

        Parameters
        ----------
        split_id
            One of `splits`.
        position
            What was yielded last, as JSON gives it back (a tuple is a list then); None at the beginning.

        Yields
        ------
        A batch with the columns of ``schema`` and the position to continue from after it: a different one for each
        batch, anything that JSON can hold except None. Reading from it must give the same following rows every time.
        """
