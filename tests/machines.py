"""Explores a state machine breadth first and compares what it does with its table, both ways.

Usage, in ``tests/unit/<package>/test_<module>.py``::

    from tests.machines import Later, explore

    def events(machine: TurnstileMachine) -> Iterator[turnstile.Event | Later]:
        yield turnstile.CoinInserted()                 # what may happen next; look at the machine to name ids that fit
        yield Later(turnstile.TimePassed(), by_ms=500)  # the same, after some time

    def test_the_table_is_what_the_machine_does() -> None:
        explore(TurnstileMachine, events, depth=7)

What is asserted, after every step, with what led there in the message:

- the step has a row: state, event, next, and the names of the actions (order and number are for other tests);
- an `InvalidTransitionError` leaves no trace and has the history in its facts; any other error fails;
- `check()` holds.

And in the end: every row has been met, and every action with a question mark was both ordered and left out. An ordinary
run ends there, at the earliest after `ENOUGH` machines, the nearest ones; after those it goes on with what the rarest
steps led to, which finds rare rows soon (``depth`` counts the way on which a machine was found first). With
``--exhaustive`` all are visited that there are.

``steps``: the table, where it is not all of the machine's own. ``state``: how the state is called, where
``machine.state_of`` does not say it: a function of the machine and the event (None: this step is not for this table).
``name``: what the event is called in the table, a function of the same two. ``limit``: how many different machines are
visited at most. ``begin_with``: events one after the other to machines that are visited first, where what is rare
happens. ``ignore``: names of attributes that do not make a machine a different one (counters); ``_history``
always is.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.machine import Machine, Step, steps_of
from tests import search

M = TypeVar("M")
ENOUGH = 500
"""So many machines an ordinary run visits at least, the nearest ones."""
_OF_NO_TABLE = 100
"""How often a step happened that is not for this table: neither rare nor so frequent that it is forgotten."""
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
    whole_key: Any = None
    """Of all that the machine has, once it is known."""

    def trace(self) -> list[str]:
        """Return what led here, oldest first."""
        if self.before is None:
            return []
        return [*self.before.trace(), f"{self.now_ms} ms: {self.event!r}"]


def type_name(machine: Any, event: Any) -> str:
    """Return the name of the event's type."""
    return type(event).__name__


def _kind_name(machine: Any, event: Any) -> str:
    return str(machine.kind_of(event).__name__)


def own_state(machine: Any, event: Any) -> str:
    """Return what the machine says its state is."""
    state = machine.state
    return str(state.value) if isinstance(state, Enum) else str(state)


def explore(
    make: Callable[[], M],
    events: Callable[[M], Iterable[Any]],
    *,
    steps: Iterable[Step] | None = None,
    state: Callable[[M, Any], str | None] | None = None,
    name: Callable[[M, Any], str] | None = None,
    depth: int = 6,
    limit: int = 20_000,
    ignore: Collection[str] = (),
    now_ms: int = 0,
    begin_with: Iterable[Sequence[Any]] = (),
) -> int:
    """Visit all machines that are reachable, assert what the module says, and return how many there were."""
    made = make()
    if isinstance(made, Machine):
        state, name = state or type(made).state_of, name or _kind_name
        rows = list(steps_of(made.TRANSITIONS) if steps is None else steps)
    else:
        state, name, rows = state or own_state, name or type_name, list(steps or ())
    assert rows, "there is no table with the columns state, event, next, actions, why"
    pairs: dict[tuple[str, str, str], list[Step]] = {}
    for row in rows:
        pairs.setdefault((row.state, row.event, row.next), []).append(row)
    met: dict[Step, Counter[frozenset[str]]] = {}
    unmet = True
    ignored = {"_history", *ignore}
    first = _Node(made, now_ms, 0)
    seen = {key_of(first.machine, ignored)}
    queue = [(0, 0, first)]
    for beginning in begin_with:
        node = first
        for event in beginning:
            node = _Node(copy_of(node.machine), now_ms, node.depth + 1, node, event)
            _step(node, state, name, pairs, met)
        seen.add(key_of(node.machine, ignored))
        queue.append((0, len(queue), node))
    visited = 0
    while queue and (search.exhaustive or visited < ENOUGH or unmet):
        _, _, node = heapq.heappop(queue)
        visited += 1
        unused: Any = None
        for each in events(node.machine):
            event, by_ms = (each.event, each.by_ms) if isinstance(each, Later) else (each, 0)
            machine, unused = copy_of(node.machine) if unused is None else unused, None
            after = _Node(machine, node.now_ms + by_ms, node.depth + 1, node, event)
            times = _step(after, state, name, pairs, met)
            if not times:
                unused = machine
                continue
            if times == 1 and unmet:
                unmet = bool(_unmet(rows, met))
            if after.depth < depth and len(seen) < limit:
                known = len(seen)
                seen.add(key_of(after.machine, ignored))
                if len(seen) > known:
                    # What is rare goes first until the table is met; what is left is searched in breadth.
                    turn = times if unmet and known >= ENOUGH else 0
                    heapq.heappush(queue, (turn, known, after))
    left = _unmet(rows, met)
    assert not left, "\n  ".join(["the table says more than what happens:", *left])
    return visited


def _step(
    after: _Node,
    state: Callable[[Any, Any], str | None],
    name: Callable[[Any, Any], str],
    pairs: dict[tuple[str, str, str], list[Step]],
    met: dict[Step, Counter[frozenset[str]]],
) -> int:
    """Take one step; return how often there was one like it. 0: the event was refused, the machine is as it was."""
    machine, event, before = after.machine, after.event, after.before
    assert before is not None
    was, called = state(machine, event), name(machine, event)
    try:
        actions = machine.handle(event, after.now_ms)
    except InvalidTransitionError as error:
        if before.whole_key is None:
            before.whole_key = key_of(before.machine, set())
        assert key_of(machine, set()) == before.whole_key, f"a rejected event left a trace: {_trace_of(after)}"
        assert "history" in error.facts, f"the error has no history: {_trace_of(after)}"
        return 0
    except Exception as error:
        error.add_note(_trace_of(after))
        raise
    try:
        machine.check()
    except AssertionError as error:
        error.add_note(_trace_of(after))
        raise
    if was is None:
        return _OF_NO_TABLE
    now = state(machine, event)
    ordered = frozenset(type(action).__name__ for action in actions)
    rows = pairs.get((was, called, str(now)), ())
    fitting = [row for row in rows if row.actions <= ordered <= row.actions | row.optional]
    assert fitting, f"no row for: {was} | {called} | {now} | {', '.join(sorted(ordered))}{_trace_of(after)}"
    for row in fitting:
        met.setdefault(row, Counter())[ordered] += 1
    return min(met[row][ordered] for row in fitting)


def _unmet(rows: list[Step], met: dict[Step, Counter[frozenset[str]]]) -> list[str]:
    """Return what the table says that has not happened."""
    unmet: list[str] = []
    for row in rows:
        step = f"{row.state} | {row.event} | {row.next}"
        if row not in met:
            unmet.append(f"{step} | {', '.join(sorted(row.actions | row.optional))}: never happened")
            continue
        for action in row.optional:
            times = {action in ordered for ordered in met[row]}
            if len(times) < 2:
                unmet.append(f"{step}: {action} was {'always' if True in times else 'never'} ordered")
    return unmet


def _trace_of(node: _Node) -> str:
    return "\n" + "\n".join(node.trace())


_Copier = Callable[[Any, dict[int, Any]], Any]
_Keyer = Callable[[Any, set[str]], Any]


def copy_of(value: Any) -> Any:
    """Return a deep copy that shares what cannot change: many times as fast as `copy.deepcopy` on machines."""
    copier = _COPIERS[type(value)]
    return value if copier is None else copier(value, {})


def key_of(value: Any, ignored: set[str]) -> Any:
    """Return something hashable that is equal for equal contents."""
    keyer = _KEYERS[type(value)]
    return value if keyer is None else keyer(value, ignored)


def _is_frozen(of: type) -> bool:
    return issubclass(of, msgspec.Struct) and of.__struct_config__.frozen


class _Copiers(dict[type, _Copier | None]):
    """How a thing of a type is copied; None: it is shared."""

    def __missing__(self, of: type) -> _Copier | None:
        self[of] = made = self._made(of)
        return made

    def _made(self, of: type) -> _Copier | None:
        if issubclass(of, _ATOMS) or _is_frozen(of):
            return None
        if of in (list, set):
            return _copied_list
        if of is deque:
            return _copied_deque
        if of is tuple:
            return _copied_tuple
        if of is dict:
            return _copied_dict
        if issubclass(of, msgspec.Struct):
            return _copied_struct
        if of.__dictoffset__ == 0 or issubclass(of, (random.Random, Callable)):  # type: ignore[arg-type]
            return copy.deepcopy
        return _copied_object


def _copied_list(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = type(value)(_copied_each(value, memo) if value else ())
    return made


def _copied_deque(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = deque(_copied_each(value, memo) if value else (), value.maxlen)
    return made


def _copied_tuple(value: Any, memo: dict[int, Any]) -> Any:
    return tuple(_copied_each(value, memo))


def _copied_each(values: Iterable[Any], memo: dict[int, Any]) -> list[Any]:
    copiers = _COPIERS
    return [each if (copier := copiers[type(each)]) is None else copier(each, memo) for each in values]


def _copied_dict(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = {}
    if value:  # most are empty
        copiers = _COPIERS
        for key, each in value.items():
            copier = copiers[type(each)]
            made[key] = each if copier is None else copier(each, memo)
    return made


def _copied_struct(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = copy.copy(value)
    for field in value.__struct_fields__:
        each = getattr(value, field)
        copier = _COPIERS[type(each)]
        if copier is not None:
            setattr(made, field, copier(each, memo))
    return made


def _copied_object(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    copiers = _COPIERS
    made = memo[id(value)] = object.__new__(type(value))
    attributes = made.__dict__
    for key, each in value.__dict__.items():
        copier = copiers[type(each)]
        attributes[key] = each if copier is None else copier(each, memo)
    return made


class _Keyers(dict[type, _Keyer | None]):
    """How a thing of a type becomes hashable; None: it is."""

    def __missing__(self, of: type) -> _Keyer | None:
        self[of] = made = self._made(of)
        return made

    def _made(self, of: type) -> _Keyer | None:
        if issubclass(of, _ATOMS):
            return None
        if _is_frozen(of):
            return _key_of_frozen
        if issubclass(of, msgspec.Struct):
            return _key_of_struct
        if issubclass(of, list | tuple | deque):
            return _key_of_list
        if issubclass(of, set):
            return lambda value, ignored: frozenset(_keys_of(value, ignored))
        if issubclass(of, dict):
            return lambda value, ignored: frozenset(zip(value, _keys_of(value.values(), ignored)))
        if issubclass(of, random.Random):
            return lambda value, ignored: value.getstate()
        if issubclass(of, Callable):  # type: ignore[arg-type]
            return lambda value, ignored: id(value)
        return _key_of_object


def _keys_of(values: Iterable[Any], ignored: set[str]) -> list[Any]:
    keyers = _KEYERS
    return [each if (keyer := keyers[type(each)]) is None else keyer(each, ignored) for each in values]


def _key_of_list(value: Any, ignored: set[str]) -> Any:
    return tuple(_keys_of(value, ignored))


def _key_of_frozen(value: Any, ignored: set[str]) -> Any:
    try:
        hash(value)
    except TypeError:  # it holds a list or a dictionary
        return _key_of_struct(value, ignored)
    return value


def _key_of_struct(value: Any, ignored: set[str]) -> Any:
    return type(value), *_keys_of([getattr(value, field) for field in value.__struct_fields__], ignored)


def _key_of_object(value: Any, ignored: set[str]) -> Any:
    attributes = {key: each for key, each in vars(value).items() if key not in ignored}
    return type(value), *attributes, *_keys_of(attributes.values(), ignored)


_COPIERS, _KEYERS = _Copiers(), _Keyers()
