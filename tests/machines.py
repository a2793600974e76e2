"""Explores a state machine breadth first and compares what it does with the table in its docstring, both ways.

Usage, in ``tests/unit/<package>/test_<module>.py``::

    from tests.machines import Later, explore

    def events(machine: DoorMachine) -> Iterator[door.Event | Later]:
        yield door.KnobTurned()                    # what may happen next; look at the machine to name ids that fit
        yield Later(door.TimePassed(), by_ms=500)  # the same, after some time

    def test_the_table_is_what_the_machine_does() -> None:
        explore(DoorMachine, events, table=door.__doc__, depth=7)

What is asserted, after every step, with the shortest trace in the message:

- the step has a row: state, event, next, and the names of the actions (order and number are for other tests);
- an `InvalidTransitionError` leaves no trace and has the history in its facts; any other error fails;
- `check()` holds.

And in the end: every row has been met, and every action with a question mark was both ordered and left out.

``state``: how the state is called, where ``machine.state`` (text, or an enum of texts) does not say it: a function of
the machine and the event, so that a machine of many things can give that of the thing that the event is about (or None:
this step is not for this table). ``name``: what the event is called in the table, a function of the same two; by
default its type. ``limit``: how many different machines are visited at most. ``ignore``: names of attributes that do
not make a machine a different one (a history, counters); ``_history`` always is.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.simulation.tables import Row, rows_of

M = TypeVar("M")
_ATOMS = (str, int, float, bytes, bool, type(None), frozenset, Enum, type, FunctionType)


class Later(msgspec.Struct, frozen=True):
    """An event that comes after some time, in milliseconds."""

    event: Any
    by_ms: int


class _Node(msgspec.Struct):
    machine: Any
    now_ms: int
    depth: int
    before: _Node | None = None
    event: Any = None

    def trace(self) -> list[str]:
        """Return what led here, oldest first."""
        if self.before is None:
            return []
        return [*self.before.trace(), f"{self.now_ms} ms: {self.event!r}"]


def type_name(machine: Any, event: Any) -> str:
    """Return the name of the event's type."""
    return type(event).__name__


def own_state(machine: Any, event: Any) -> str:
    """Return what the machine says its state is."""
    state = machine.state
    return str(state.value) if isinstance(state, Enum) else str(state)


def explore(
    make: Callable[[], M],
    events: Callable[[M], Iterable[Any]],
    *,
    table: str | None,
    state: Callable[[M, Any], str | None] = own_state,
    name: Callable[[M, Any], str] = type_name,
    depth: int = 6,
    limit: int = 20_000,
    ignore: Collection[str] = (),
    now_ms: int = 0,
) -> int:
    """Visit all machines that are reachable, assert what the module says, and return how many there were."""
    assert table is not None
    rows = rows_of(table)
    assert rows, "there is no table with the columns state, event, next, actions, why"
    pairs: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        pairs.setdefault((row.state, row.event, row.next), []).append(row)
    met: dict[Row, list[frozenset[str]]] = {}
    ignored = {"_history", *ignore}
    first = _Node(make(), now_ms, 0)
    seen = {_key(first.machine, ignored)}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        for each in events(node.machine):
            event, by_ms = (each.event, each.by_ms) if isinstance(each, Later) else (each, 0)
            after = _Node(_clone(node.machine, {}), node.now_ms + by_ms, node.depth + 1, node, event)
            if not _step(after, state, name, pairs, met, ignored) or after.depth >= depth or len(seen) >= limit:
                continue
            key = _key(after.machine, ignored)
            if key not in seen:
                seen.add(key)
                queue.append(after)
    _assert_all_met(rows, met)
    return len(seen)


def _step(
    after: _Node,
    state: Callable[[Any, Any], str | None],
    name: Callable[[Any, Any], str],
    pairs: dict[tuple[str, str, str], list[Row]],
    met: dict[Row, list[frozenset[str]]],
    ignored: set[str],
) -> bool:
    """Take one step; return whether the event was accepted."""
    machine, event = after.machine, after.event
    was, called = state(machine, event), name(machine, event)
    before = _key(machine, set())
    try:
        actions = machine.handle(event, after.now_ms)
    except InvalidTransitionError as error:
        assert _key(machine, set()) == before, f"a rejected event left a trace: {_told(after)}"
        assert "history" in error.facts, f"the error has no history: {_told(after)}"
        return False
    except Exception as error:
        error.add_note(_told(after))
        raise
    try:
        machine.check()
    except AssertionError as error:
        error.add_note(_told(after))
        raise
    if was is None:
        return True
    now = state(machine, event)
    ordered = frozenset(type(action).__name__ for action in actions)
    fitting = [row for row in pairs.get((was, called, str(now)), ()) if row.allows(ordered)]
    assert fitting, f"no row for: {was} | {called} | {now} | {', '.join(sorted(ordered))}{_told(after)}"
    for row in fitting:
        met.setdefault(row, []).append(ordered)
    return True


def _assert_all_met(rows: list[Row], met: dict[Row, list[frozenset[str]]]) -> None:
    never = [row for row in rows if row not in met]
    assert not never, "never happened:\n" + "\n".join(
        f"  {row.state} | {row.event} | {row.next} | {', '.join(sorted(row.actions | row.optional))}" for row in never
    )
    for row in rows:
        for action in row.optional:
            times = [action in ordered for ordered in met[row]]
            assert any(times), f"{row.state} | {row.event} | {row.next}: {action} was never ordered"
            assert not all(times), f"{row.state} | {row.event} | {row.next}: {action} was always ordered"


def _told(node: _Node) -> str:
    return "\n" + "\n".join(node.trace())


def _clone(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy that shares what cannot change: ten times as fast as `copy.deepcopy` on machines."""
    if isinstance(value, _ATOMS) or (isinstance(value, msgspec.Struct) and value.__struct_config__.frozen):
        return value
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if type(value) is deque:
        made = memo[id(value)] = deque((_clone(each, memo) for each in value), value.maxlen)
    elif type(value) in (list, set):
        made = memo[id(value)] = type(value)(_clone(each, memo) for each in value)
    elif type(value) is tuple:
        made = tuple(_clone(each, memo) for each in value)
    elif type(value) is dict:
        made = memo[id(value)] = {key: _clone(each, memo) for key, each in value.items()}
    elif hasattr(value, "__dict__") and not isinstance(value, random.Random) and not callable(value):
        made = memo[id(value)] = object.__new__(type(value))
        for key, each in value.__dict__.items():
            made.__dict__[key] = _clone(each, memo)
    else:
        made = copy.deepcopy(value, memo)
    return made


def _key(value: Any, ignored: set[str]) -> Any:
    """Return something hashable that is equal for equal contents."""
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, *(_key(getattr(value, field), ignored) for field in value.__struct_fields__)
    if isinstance(value, list | tuple | deque):
        return tuple(_key(each, ignored) for each in value)
    if isinstance(value, set):
        return frozenset(_key(each, ignored) for each in value)
    if isinstance(value, dict):
        return frozenset((key, _key(each, ignored)) for key, each in value.items())
    if isinstance(value, random.Random):
        return value.getstate()
    if callable(value):
        return id(value)
    return type(value).__name__, *(
        (key, _key(each, ignored)) for key, each in sorted(vars(value).items()) if key not in ignored
    )
