"""Which columns the state of an operator has, and whether state of before can be taken on as state of now.

Never: know an operator, or a value.

    change                                                      taken on
    ----------------------------------------------------------  ------------------------------------------------------
    another window, a key more or less                          no
    windows and aggregates where there were rows                yes: rows on their way can still be aggregated
    aggregates more                                             yes, over the rows since; not of ``first`` and ``last``
                                                                that count nulls
    aggregates less                                             yes
    both at once                                                no: one may have become another
    integers, floating point numbers of more bits;              yes, of keys and of what is aggregated; not where
    decimals of more digits and the same scale                  Spark's own code aggregates

Types are Arrow's, as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_WIDTHS = (("int8", "int16", "int32", "int64"), ("halffloat", "float", "double"))
_DECIMAL = re.compile(r"decimal\d+\((\d+), (\d+)\)")


class StateColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A key, or an aggregate.

    Parameters
    ----------
    name
        What it is: the same as before if it is the same.
    kind
        The type of the key, or of what is aggregated; empty: there is none.
    can_widen
        Whether its type may become a wider one.
    can_be_added
        Whether groups of before may get it.
    """

    name: str
    kind: str
    can_widen: bool = True
    can_be_added: bool = True


class StateSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What the state of an operator is of.

    Parameters
    ----------
    window
        The windows.
    keys
        What rows are grouped by, in order.
    aggregates
        What is kept of each group.
    """

    window: str
    keys: tuple[StateColumn, ...]
    aggregates: tuple[StateColumn, ...]

    def takes_on(self, before: StateSchema) -> bool:
        """Return whether state of another schema can be taken on."""
        if len(self.keys) != len(before.keys) or not all(map(_takes_on, self.keys, before.keys)):
            return False
        if not before.window and not before.aggregates:  # rows
            return True
        if self.window != before.window:
            return False
        places = places_of(before.aggregates, self.aggregates)
        taken = [place for place in places if place is not None]
        if len(taken) < min(len(before.aggregates), len(self.aggregates)):
            return False
        return all(
            each.can_be_added if place is None else _takes_on(each, before.aggregates[place])
            for each, place in zip(self.aggregates, places, strict=True)
        )


def places_of(before: Sequence[StateColumn], now: Sequence[StateColumn]) -> list[int | None]:
    """Return where each aggregate of now was before; None: nowhere."""
    left: dict[str, list[int]] = {}
    for place, each in enumerate(before):
        left.setdefault(each.name, []).append(place)
    return [left[each.name].pop(0) if left.get(each.name) else None for each in now]


def _takes_on(now: StateColumn, before: StateColumn) -> bool:
    return now.name == before.name and (now.kind == before.kind or (now.can_widen and widens(before.kind, now.kind)))


def widens(before: str, now: str) -> bool:
    """Return whether each value of a type is one of another, which keeps its place among the keys' hashes."""
    for widths in _WIDTHS:
        if before in widths and now in widths:
            return widths.index(before) <= widths.index(now)
    was, becomes = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    if was is None or becomes is None:
        return before == now
    return int(was[1]) <= int(becomes[1]) and was[2] == becomes[2]
