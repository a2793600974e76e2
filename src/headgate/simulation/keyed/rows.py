"""Rows of the simulated pipelines, which subtask they belong to, and what is made of them: buffers.

Never: draw: a split's rows are the same whenever they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.protocol.channels import Buffer
from headgate.protocol.key_groups import subtask_of

ROW_BYTES, BUFFER_BYTES = 16, 4
"""What a row takes, and what a buffer takes beside its rows."""


class Row(NamedTuple):
    """One row.

    Parameters
    ----------
    split, number
        Which one it is: no other row has both.
    key, event_ms
        What it is grouped by.
    path
        Which channels of exchanges that keep no order it came through, numbered anew whenever the parallelism changes:
        rows of a split and key with the same path keep their order, rescales included.
    """

    split: int
    number: int
    key: int
    event_ms: int
    path: int

    def sent(self, way: int) -> Row:
        """Return the row as a producer sends it through a channel."""
        return Row(self.split, self.number, self.key, self.event_ms, (self.path << 16) | way)


class Recovered(tuple[Row, ...]):
    """Rows that were recovered from channel state, to tell them from new ones."""

    __slots__ = ()


class RecoveredUpstream(Recovered):
    """The same on the producer's side, which came through the channel."""

    __slots__ = ()


def buffer_of(rows: Sequence[Row], *, unfiltered: bool = False) -> Buffer:
    """Return rows as a buffer."""
    return Buffer(rows, len(rows), BUFFER_BYTES + ROW_BYTES * len(rows), unfiltered)


def key_group(key: int, salt: int, max_parallelism: int) -> int:
    """Return a key's group in an exchange."""
    return (key * (2 * salt + 1) + salt) % max_parallelism


class Routing:
    """Which subtask of an exchange gets which rows.

    Parameters
    ----------
    kind
        As `headgate.operators.exchange` has them.
    salt
        Other exchanges have other key groups.
    parallelism, max_parallelism
        Of the query.
    targets
        With ``rebalance``: how many subtasks get rows at most; None: all.
    """

    def __init__(self, kind: str, salt: int, parallelism: int, max_parallelism: int, targets: int | None) -> None:
        self.kind, self.salt = kind, salt
        self._parallelism, self._max_parallelism = parallelism, max_parallelism
        self._targets = min(targets or parallelism, parallelism)

    @property
    def keeps_order(self) -> bool:
        """Whether rows of one key go one way, whoever reads their split."""
        return self.kind != "rebalance"

    def owner(self, row: Row) -> int:
        """Return who gets a row, where the row decides."""
        if self.kind == "hash":
            group = key_group(row.key, self.salt, self._max_parallelism)
            return subtask_of(group, self._parallelism, self._max_parallelism)
        assert self.kind == "custom"
        return (row.key * 5 + row.split + self.salt) % self._parallelism

    def own(self, rows: Iterable[Row], consumer: int) -> list[Row]:
        """Return the rows that belong to a consumer."""
        return [row for row in rows if self.owner(row) == consumer]

    def split(self, rows: Sequence[Row], producer: int, turn: int) -> list[tuple[int, Sequence[Row]]]:
        """Return who gets which rows; ``turn`` counts the calls of a producer."""
        match self.kind:
            case "forward":
                return [(producer, rows)]
            case "rebalance":
                return [((producer + turn) % self._targets, rows)]
            case "broadcast":
                return [(consumer, rows) for consumer in range(self._parallelism)]
        parts: dict[int, list[Row]] = {}
        for row in rows:
            parts.setdefault(self.owner(row), []).append(row)
        return sorted(parts.items())
