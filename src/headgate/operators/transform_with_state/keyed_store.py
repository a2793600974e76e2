"""The state of the keys of one subtask: values, lists, maps and timers of each, and which of them changed.

Never: keep an object of the user's: what is stored is bytes, so that a value that is changed after it was stored, or
after it was read, changes nothing here. Look at a clock: `now_ms` is set by the operator.

A key is a `Cell`: a slot for each state variable, and its timers. What changed since the last snapshot is noted:

    kind    in a slot                                changes
    ------  ---------------------------------------  ------------------------------------------------------------------
    value   (bytes, expiry)                          the cell
    list    (bytes, expiry) of each item             whether it was cleared, and how many items are in snapshots already
    map     {bytes of the key: (bytes, expiry)}      whether it was cleared, and which keys changed
    timers  a set of times, or nothing               which ones changed

There may be millions of keys, so what stands for one is kept from the cyclic garbage collector, which would stop all
threads of the process while it looks at each: cells are untracked, and tuples of bytes and numbers it untracks
itself.

Beyond ``memory_bytes`` cells go to the local disk (`SpilledCells`), and come back when it is their turn. Those in
memory are of a few generations: one that is used is of the youngest. When what was stored in that, or came into it, is
a generation's part of the memory, the next one begins, and the cells of the oldest go; the changes of all are taken
before (`changed_rows`), and older ones have none. What is counted is never less than what is held. In memory stay the
times of timers and of what expires, with their keys.

An expiry is None without a time to live, else milliseconds since 1970-01-01 UTC: what is past it is there no more. It
is forgotten by `sweep`, which is not a change: in snapshots it stands with its expiry.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headgate.operators.transform_with_state.restored_rows import KeyRow, RestoredRows
from headgate.operators.transform_with_state.spilled_cells import SpilledCells
from headgate.operators.transform_with_state.state_rows import APPEND, CLEAR, REMOVE, SET, TIMERS, Kind, Rows

Stored = tuple[bytes, int | None]
"""Bytes of a value, and when it expires."""

_BUCKETS_PER_TTL = 8
_SHORTEST_BUCKET_MS = 1000
_SHORT_LIST = 16
_GENERATIONS = 4
CELL_BYTES = 300
"""About what a cell takes beside its values: it, its place, its tuple."""
ENTRY_BYTES = 150
"""About what a value takes beside its bytes."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, tuple[Any, ...], set[int] | None]).decode
KEYS_AT_ONCE = 1024
"""So many keys are fetched together."""
LAST_MS = 2**63 - 1
"""No timer is later."""


class StateVariable(msgspec.Struct, frozen=True, kw_only=True):
    """What a processor's ``init`` says of one of its states.

    Parameters
    ----------
    name
        Its name.
    kind
        Value, list or map.
    schema
        The columns of its values, as Spark's JSON.
    key_schema
        Of a map: the columns of its keys; else empty.
    ttl_ms
        How long a value lives after its last update, in milliseconds; None: for ever.
    """

    name: str
    kind: Kind
    schema: str
    key_schema: str = ""
    ttl_ms: int | None = None


class Cell(msgspec.Struct, gc=False, eq=False):
    """The state of one key. Nothing in it refers to a cell."""

    key: bytes
    group: int
    slots: tuple[Any, ...]
    timers: set[int] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of the key."""
        return not self.timers and self.slots.count(None) == len(self.slots)

    def put(self, number: int, held: Any) -> None:
        """Store what is held of a state."""
        self.slots = (*self.slots[:number], held, *self.slots[number + 1 :])

    def append(self, number: int, items: list[Stored]) -> None:
        """Append items to a list."""
        held = self.slots[number]
        if isinstance(held, list):
            held.extend(items)
        else:
            self.put(number, _items((*(held or ()), *items)))


class _Changes(msgspec.Struct, gc=False, eq=False):
    """What changed in a list or a map since the last snapshot.

    Parameters
    ----------
    stored
        Of a list: so many of its first items are in snapshots.
    """

    stored: int
    cleared: bool = False
    keys: dict[bytes, None] | None = None


class KeyedStore:
    """The cells of a subtask, and the one whose turn it is.

    Parameters
    ----------
    variables
        The states, by their number.
    memory_bytes
        How much of them may be in memory; 0: any amount.
    spill_folder
        Where the rest goes.
    restored
        What snapshots hold; the store takes a key's part of it when it is the key's turn.
    """

    def __init__(
        self,
        variables: tuple[StateVariable, ...],
        *,
        memory_bytes: int = 0,
        spill_folder: str = "",
        restored: RestoredRows | None = None,
    ) -> None:
        self.variables = variables
        self._restored = RestoredRows() if restored is None else restored
        self._memory_bytes = memory_bytes if spill_folder else 0
        self._spill_folder = spill_folder
        self._spilled: SpilledCells | None = None
        self._held_bytes = 0
        self.cells: dict[bytes, Cell] = {}
        """The youngest generation."""
        self._older: deque[dict[bytes, Cell]] = deque()
        """The other ones, the oldest first."""
        self._unknown: set[bytes] = set()
        """Of the keys that were fetched last: those of which nothing is known."""
        self.cell: Cell | None = None
        """The cell whose turn it is; None: no key's."""
        self.now_ms = 0
        """The time by which values expire, in milliseconds since 1970-01-01 UTC."""
        self._as_held = [_AS_HELD[each.kind] for each in variables]
        self._nothing: tuple[Any, ...] = (None,) * len(variables)
        self._changes: list[dict[Cell, _Changes]] = [{} for _ in variables]
        self._timer_changes: dict[Cell, dict[int, None]] = {}
        self._timers: list[tuple[int, int, bytes, int]] = []
        """Time, a number, key and key group of each, as a heap; some are registered no more."""
        self._numbers = itertools.count()
        self._buckets: dict[tuple[int, int], dict[bytes, None]] = {}
        """By variable and the end of a span of time: the keys of which something expires in it."""

    # Whose turn it is.

    def turn_to(self, key: bytes, group: int) -> Cell:
        """Let it be a key's turn."""
        self.cell = self._cell_of(key, group)
        return self.cell

    def turn_over(self) -> None:
        """Let it be nobody's turn; a key of which nothing is known any more is forgotten."""
        cell, self.cell = self.cell, None
        if cell is not None and cell.is_empty:
            self._forget(cell.key)

    # Memory.

    @property
    def is_full(self) -> bool:
        """Whether `evict` is to be called, when it is nobody's turn."""
        return 0 < self._memory_bytes < self._held_bytes * _GENERATIONS

    def evict(self) -> None:
        """Let the cells that were not used for longest go to the local disk.

        `changed_rows` has been called since the last change.
        """
        assert self.cell is None and not self._timer_changes and not any(self._changes)
        self._older.append(self.cells)
        self.cells = {}
        self._held_bytes = 0
        if len(self._older) < _GENERATIONS:
            return
        if self._spilled is None:
            self._spilled = SpilledCells(self._spill_folder)
        oldest = self._older.popleft().items()
        self._spilled.put([(key, _pack((cell.group, cell.slots, cell.timers))) for key, cell in oldest])

    def _bytes_of(self, cell: Cell) -> int:
        """Return about how much a cell takes."""
        stored = [
            item
            for variable, held in zip(self.variables, cell.slots, strict=True)
            if held is not None
            for item in ((held,) if variable.kind == "value" else held.values() if variable.kind == "map" else held)
        ]
        values = sum([len(data) for data, _ in stored]) + ENTRY_BYTES * (len(stored) + len(cell.timers or ()))
        return CELL_BYTES + len(cell.key) + values

    def close(self) -> None:
        """Delete what is on the local disk."""
        if self._spilled is not None:
            self._spilled.close()

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Bring what is known of keys into memory, which costs less for many together than when it is their turn."""
        missing = list(dict.fromkeys([key for key in keys if key not in self.cells]))
        for older in self._older:
            if found := [key for key in missing if key in older]:
                for key in found:
                    cell = self.cells[key] = older.pop(key)
                    self._held_bytes += self._bytes_of(cell)
                missing = [key for key in missing if key not in self.cells]
        for key, rows in self._restored.take(missing).items():
            self._take_on(key, rows)
        if self._spilled is not None:
            for key, data in self._spilled.take(missing):
                self._unpack(key, data)
        self._unknown = {key for key in missing if key not in self.cells}

    def _find(self, key: bytes) -> Cell | None:
        """Return the cell of a key, from wherever it is; None: nothing is known of it."""
        if key not in self.cells and key not in self._unknown:
            unknown = self._unknown
            self.fetch((key,))
            self._unknown |= unknown
        return self.cells.get(key)

    def _unpack(self, key: bytes, data: bytes) -> None:
        """Take a cell from the local disk."""
        group, slots, timers = _unpack(data)
        held = tuple([slot and as_held(slot) for as_held, slot in zip(self._as_held, slots, strict=True)])
        self.cells[key] = Cell(key, group, held, timers)
        self._held_bytes += len(data) + CELL_BYTES

    def _cell_of(self, key: bytes, group: int) -> Cell:
        cell = self._find(key)
        if cell is None:
            cell = self.cells[key] = Cell(key, group, self._nothing)
            self._unknown.discard(key)
            self._held_bytes += len(key) + CELL_BYTES
        return cell

    def _forget(self, key: bytes) -> None:
        self.cells.pop(key, None)

    def slot(self, number: int) -> Any:
        """Return what is stored of a state for the current key, also what is expired."""
        assert self.cell is not None
        return self.cell.slots[number]

    # Changes of the current key.

    def expiry(self, number: int) -> int | None:
        """Return when a value that is stored now expires, and see to it that it is forgotten then."""
        ttl_ms = self.variables[number].ttl_ms
        if ttl_ms is None:
            return None
        assert self.cell is not None
        expiry = self.now_ms + ttl_ms
        self._expires(number, self.cell, expiry, ttl_ms)
        return expiry

    def set_value(self, number: int, data: bytes) -> None:
        """Store a value."""
        assert self.cell is not None
        self._held_bytes += len(data) + ENTRY_BYTES
        self.cell.put(number, (data, self.expiry(number)))
        self._changed(number)

    def clear(self, number: int) -> None:
        """Forget a state of the current key."""
        assert self.cell is not None
        if self.cell.slots[number] is None:
            return
        self.cell.put(number, None)
        changes = self._changed(number)
        changes.cleared = True
        changes.stored = 0
        changes.keys = None

    def append(self, number: int, items: list[bytes]) -> None:
        """Append items to a list."""
        assert self.cell is not None
        held = self.cell.slots[number] or ()
        self._changed(number, len(held))
        expiry = self.expiry(number)
        self._held_bytes += sum(map(len, items)) + ENTRY_BYTES * len(items)
        self.cell.append(number, [(data, expiry) for data in items])

    def put_entry(self, number: int, key: bytes, data: bytes) -> None:
        """Store an entry of a map."""
        assert self.cell is not None
        held = self.cell.slots[number]
        if held is None:
            held = {}
            self.cell.put(number, held)
        self._held_bytes += len(key) + len(data) + ENTRY_BYTES
        held[key] = (data, self.expiry(number))
        self._key_changed(number, key)

    def remove_entry(self, number: int, key: bytes) -> None:
        """Forget an entry of a map."""
        assert self.cell is not None
        held = self.cell.slots[number]
        if held is None or key not in held:
            return
        del held[key]
        if not held:
            self.cell.put(number, None)
        self._key_changed(number, key)

    def _changed(self, number: int, stored: int = 0) -> _Changes:
        assert self.cell is not None
        changes = self._changes[number].get(self.cell)
        if changes is None:
            changes = self._changes[number][self.cell] = _Changes(stored)
        return changes

    def _key_changed(self, number: int, key: bytes) -> None:
        changes = self._changed(number)
        if changes.keys is None:
            changes.keys = {}
        changes.keys[key] = None

    # Timers.

    def register_timer(self, at_ms: int) -> None:
        """Register a timer of the current key; one that is there already is the same."""
        assert self.cell is not None
        at_ms = min(at_ms, LAST_MS)
        if at_ms not in (self.cell.timers or ()):
            self._put_timer(self.cell, at_ms)
            self._timer_changes.setdefault(self.cell, {})[at_ms] = None

    def delete_timer(self, at_ms: int) -> None:
        """Forget a timer of the current key, if it is there."""
        assert self.cell is not None
        if self.cell.timers and at_ms in self.cell.timers:
            self.cell.timers.remove(at_ms)
            self.cell.timers = self.cell.timers or None
            self._timer_changes.setdefault(self.cell, {})[at_ms] = None

    def next_timer_ms(self) -> int | None:
        """Return the time of the first timer of all keys; None: there is none."""
        restored = self._restored.timers
        while True:
            is_restored = (first_ms := restored.next_ms()) is not None and (
                not self._timers or first_ms <= self._timers[0][0]
            )
            if not is_restored and not self._timers:
                return None
            at_ms, key = restored.first()[:2] if is_restored else (self._timers[0][0], self._timers[0][2])
            cell = self._find(key)
            if cell is not None and at_ms in (cell.timers or ()):
                return at_ms
            if is_restored:
                restored.skip()
            else:
                heapq.heappop(self._timers)

    def take_due(self, now_ms: int) -> list[tuple[int, bytes, int]]:
        """Return time, key and key group of the timers up to a time, the first one first.

        They stay registered until they are deleted; some of them may not be registered any more.
        """
        due = dict.fromkeys(self._restored.timers.take_until(now_ms))
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, _, key, group = heapq.heappop(self._timers)
            due[at_ms, key, group] = None
        return sorted(due, key=lambda timer: timer[0])

    def _put_timer(self, cell: Cell, at_ms: int) -> None:
        if cell.timers is None:
            cell.timers = set()
        cell.timers.add(at_ms)
        self._held_bytes += ENTRY_BYTES
        heapq.heappush(self._timers, (at_ms, next(self._numbers), cell.key, cell.group))

    # Time to live.

    def next_sweep_ms(self) -> int | None:
        """Return when something can be forgotten; None: nothing expires."""
        return min((end_ms for _, end_ms in self._buckets), default=None)

    def sweep(self) -> None:
        """Forget what is past its time to live."""
        for number, end_ms in [bucket for bucket in self._buckets if bucket[1] <= self.now_ms]:
            keys = list(self._buckets.pop((number, end_ms)))
            for begin in range(0, len(keys), KEYS_AT_ONCE):
                self.fetch(keys[begin : begin + KEYS_AT_ONCE])
                for key in keys[begin : begin + KEYS_AT_ONCE]:
                    if (cell := self.cells.get(key)) is not None:
                        self._sweep_cell(number, cell)

    def _expires(self, number: int, cell: Cell, expiry: int, ttl_ms: int) -> None:
        span_ms = max(_SHORTEST_BUCKET_MS, ttl_ms // _BUCKETS_PER_TTL)
        end_ms = (expiry // span_ms + 1) * span_ms
        self._buckets.setdefault((number, end_ms), {})[cell.key] = None

    def _sweep_cell(self, number: int, cell: Cell) -> None:
        held, kind = cell.slots[number], self.variables[number].kind
        if held is None:
            return
        if kind == "value":
            if self.is_expired(held):
                cell.put(number, None)
        elif kind == "list":
            expired = [self.is_expired(item) for item in held]
            changes = self._changes[number].get(cell)
            if changes is not None:
                changes.stored -= sum(expired[: changes.stored])
            left = [item for item, gone in zip(held, expired, strict=True) if not gone]
            cell.put(number, _items(left) if left else None)
        else:
            cell.put(number, {key: entry for key, entry in held.items() if not self.is_expired(entry)} or None)
        if cell.is_empty and cell is not self.cell:
            self._forget(cell.key)

    def is_expired(self, stored: Stored) -> bool:
        """Return whether a value is past its time to live."""
        return stored[1] is not None and stored[1] <= self.now_ms

    # Snapshots.

    def changed_rows(self) -> Rows:
        """Return what changed since this was called last, as rows of a snapshot."""
        rows = Rows()
        for number, changes in enumerate(self._changes):
            write = _WRITERS[self.variables[number].kind]
            for cell, change in changes.items():
                write(rows, number, cell, change)
            changes.clear()
        for cell, times in self._timer_changes.items():
            for at_ms in times:
                rows.add(
                    TIMERS, cell.group, cell.key, timer_key(at_ms), SET if at_ms in (cell.timers or ()) else REMOVE
                )
        self._timer_changes.clear()
        return rows

    def _take_on(self, key: bytes, rows: Sequence[KeyRow]) -> None:
        """Make a cell of the rows that snapshots hold of a key."""
        slots: list[Any] = list(self._nothing)
        timers: set[int] = set()
        for _, state, entry, op, data, expiry in rows:
            if state == TIMERS:
                assert entry is not None
                (timers.add if op == SET else timers.discard)(timer_of(entry))
            elif op == CLEAR:
                slots[state] = None
            elif op == REMOVE:
                (slots[state] or {}).pop(entry, None)
            else:
                assert data is not None
                slots[state] = _with_row(self.variables[state].kind, slots[state], entry, (data, expiry))
        cell = Cell(key, rows[0][0], self._nothing, timers or None)
        for state, held in enumerate(slots):
            if held:
                slots[state] = self._alive(state, cell, held)
        cell.slots = tuple(slots)
        if not cell.is_empty:
            self.cells[key] = cell
            self._held_bytes += CELL_BYTES + len(timers) * ENTRY_BYTES

    def _alive(self, number: int, cell: Cell, held: Any) -> Any:
        """Return what has not expired of what snapshots hold, and see to it that it is forgotten when it does."""
        variable = self.variables[number]
        stored = [held] if variable.kind == "value" else list(held.values() if variable.kind == "map" else held)
        for data, expiry in stored:
            self._held_bytes += len(data) + ENTRY_BYTES
            if expiry is not None and expiry > self.now_ms:
                self._expires(number, cell, expiry, variable.ttl_ms or 0)
        if variable.kind == "value":
            return None if self.is_expired(held) else held
        if variable.kind == "list":
            return _items([item for item in held if not self.is_expired(item)]) or None
        return {key: entry for key, entry in held.items() if not self.is_expired(entry)} or None


def _with_row(kind: Kind, held: Any, entry: bytes | None, stored: Stored) -> Any:
    """Return what is held of a state once a row of a snapshot was taken on."""
    if kind == "value":
        return stored
    if kind == "list":
        held = [] if held is None else held
        held.append(stored)
        return held
    held = {} if held is None else held
    held[entry] = stored
    return held


def _items(items: Sequence[Stored]) -> Sequence[Stored]:
    """Return the items of a list as they are held: short ones are untracked, long ones grow without being copied."""
    return tuple(items) if len(items) <= _SHORT_LIST else list(items)


_AS_HELD: dict[Kind, Callable[[Any], Any]] = {
    "value": tuple,
    "list": lambda items: _items([tuple(item) for item in items]),
    "map": lambda entries: {key: tuple(entry) for key, entry in entries.items()},
}
"""What a cell holds of a state that is there, of what came from the local disk."""


def timer_key(at_ms: int) -> bytes:
    """Return how a timer is stored in snapshots."""
    return at_ms.to_bytes(8, "big", signed=True)


def timer_of(key: bytes) -> int:
    """Return the time of a timer that is in a snapshot, in milliseconds."""
    return int.from_bytes(key, "big", signed=True)


def _write_value(rows: Rows, number: int, cell: Cell, change: _Changes) -> None:
    held = cell.slots[number]
    if held is None:
        rows.add(number, cell.group, cell.key, None, CLEAR)
    else:
        rows.add(number, cell.group, cell.key, None, SET, *held)


def _write_list(rows: Rows, number: int, cell: Cell, change: _Changes) -> None:
    if change.cleared:
        rows.add(number, cell.group, cell.key, None, CLEAR)
    for item in (cell.slots[number] or ())[change.stored :]:
        rows.add(number, cell.group, cell.key, None, APPEND, *item)


def _write_map(rows: Rows, number: int, cell: Cell, change: _Changes) -> None:
    held = cell.slots[number] or {}
    if change.cleared:
        rows.add(number, cell.group, cell.key, None, CLEAR)
    for key in change.keys or ():
        entry = held.get(key)
        if entry is None:
            rows.add(number, cell.group, cell.key, key, REMOVE)
        else:
            rows.add(number, cell.group, cell.key, key, SET, *entry)


_WRITERS: dict[Kind, Callable[[Rows, int, Cell, _Changes], None]] = {
    "value": _write_value,
    "list": _write_list,
    "map": _write_map,
}
