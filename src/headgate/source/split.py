"""A split: a piece of work, and at the same time the state of reading it.

Never: hold anything that cannot be written as JSON (no clients, paths as objects, file handles), or be changed in
place; a reader that has read on makes a new value.

Follows FLIP-27, "Reader Interface and Threading Model": assigning a split and restoring one are the same call.
"""

from __future__ import annotations

import msgspec


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to read of a split, as far as it is known without reading. Used to balance and to limit.

    Parameters
    ----------
    rows
        Rows left, or None when unknown.
    bytes
        Bytes left in the system that is read from, or None when unknown.
    file
        For a split that is (a part of) a file: its path. Splits with the same path count as one file.
    """

    rows: int | None = None
    bytes: int | None = None
    file: str | None = None


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every connector's split. Subclass it with what a reader needs, the current position included.

    A split handed to a reader says where reading *continues*: its position is that of the next row, never of the
    last one read. A split with a stop is read up to there and is then finished; one without is read for ever.

    Parameters
    ----------
    split_id
        Names the split among all splits of its source, for ever: the same piece of work has the same id after
        any restart. It is the only key by which splits are stored.
    """

    split_id: str

    def remaining(self) -> Remaining:
        """What is left to read. The default knows nothing, which balances by the number of splits."""
        return Remaining()
