"""The base of the state machines: a table that is data, one entry point, a history, and errors that carry it.

Never: read a clock, start or wait for anything; nor may what is made of it.

A machine's `Machine.TRANSITIONS` say everything that it takes: a pair of a state and an event without a row is an
`InvalidTransitionError`, and leaves the machine as it was. From them are made which handler is called, the table in the
machine's docstring, and `docs/machines.md` with its diagrams (``./run docs``). Tests compare them with what the machine
does, both ways (``tests/machines.py``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec

from headgate.errors import InvalidTransitionError

SAME: Final = "same"
"""As the next state of a row: the state itself."""
_HISTORY = 64
_SHOWN = 10


class Maybe(msgspec.Struct, frozen=True):
    """An action that a row orders at times."""

    action: type


IGNORED: Final[tuple[type, ...]] = (type(None),)
"""As the actions of a row: nothing is done, and no handler is called."""


class Row(msgspec.Struct, frozen=True):
    """What happens in a state when an event comes. A pair may have several rows: the handler decides.

    Parameters
    ----------
    state
        The state, or several with commas between.
    event
        The event's type.
    next
        The state afterwards; `SAME`: it stays.
    actions
        The types of what is ordered: always, or `Maybe`. `IGNORED`: nothing, and nothing changes.
    why
        What makes this row different from others of its pair, or why it is so.
    when
        A word that distinguishes the rows of a pair.
    by
        The handler, where it is not ``_on_`` and the event's name.
    """

    state: str
    event: type
    next: str
    actions: Sequence[type | Maybe] = ()
    why: str = ""
    when: str = ""
    by: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it is a row of."""
        return tuple(each.strip() for each in self.state.split(","))

    @property
    def ordered(self) -> tuple[str, ...]:
        """The names of the actions as tables show them, with a question mark where they are left out at times."""
        if self.actions is IGNORED:
            return ()
        return tuple(f"{each.action.__name__}?" if isinstance(each, Maybe) else each.__name__ for each in self.actions)


class Step(msgspec.Struct, frozen=True):
    """A row for one of its states, by names.

    Parameters
    ----------
    state, event, next
        From where, by what, to where.
    actions
        What is ordered every time.
    optional
        What is ordered at times.
    """

    state: str
    event: str
    next: str
    actions: frozenset[str]
    optional: frozenset[str]


_Handler = Callable[[Any, Any, int], list[Any]]
_HOOKS = ("kind_of", "state_of", "content", "refused", "follow_up", "brief")


class Machine:
    """A state machine: `handle` takes what happened and returns what is to be done."""

    TRANSITIONS: ClassVar[tuple[Row, ...]] = ()
    """All that the machine takes."""
    _DISPATCH: ClassVar[dict[tuple[str, type], _Handler | None]] = {}
    state: str
    """One of the states of `TRANSITIONS`."""

    def __init_subclass__(cls) -> None:
        """Find the handler of each row, and show the table."""
        super().__init_subclass__()
        if getattr(cls, "handle") in (Machine.handle, Machine._handle_plainly):  # noqa: B009
            plain = all(getattr(cls, each) is getattr(Machine, each) for each in _HOOKS)
            setattr(cls, "handle", Machine._handle_plainly if plain else Machine.handle)  # noqa: B010
        if "TRANSITIONS" in cls.__dict__:
            cls._DISPATCH = dict(_dispatch_of(cls))
            cls.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n\n{table_of(cls.TRANSITIONS, indent='    ')}\n    "

    def __init__(self) -> None:
        self._history: deque[tuple[int, str, str, str]] = deque(maxlen=_HISTORY)

    def handle(self, event: Any, now_ms: int) -> list[Any]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The table has no row for it. Nothing has changed.
        """
        kind, was = self.kind_of(event), self.state_of(event)
        try:
            handler = self._DISPATCH[was, kind]
        except KeyError:
            raise self.invalid(event) from None
        refused = self.refused(event)
        if refused is not None:
            raise self.invalid(event, refused)
        actions = [] if handler is None else handler(self, self.content(event), now_ms)
        actions += self.follow_up(event, now_ms)
        state = self.state_of(event)
        if actions or state != was:
            self._history.append((now_ms, was, self.brief(event, kind), state))
        return actions

    def _handle_plainly(self, event: Any, now_ms: int) -> list[Any]:
        """Take note of an event as `handle` does, where no hook is overridden: batches come here."""
        kind, was = type(event), self.state
        try:
            handler = self._DISPATCH[was, kind]
        except KeyError:
            raise self.invalid(event) from None
        actions = [] if handler is None else handler(self, event, now_ms)
        if actions or self.state != was:
            self._history.append((now_ms, was, kind.__name__, self.state))
        return actions

    def kind_of(self, event: Any) -> type:
        """Return the type that stands for an event in the table."""
        return type(event)

    def state_of(self, event: Any) -> str:
        """Return the state of what an event is about."""
        return self.state

    def content(self, event: Any) -> Any:
        """Return what handlers are given of an event."""
        return event

    def refused(self, event: Any) -> str | None:
        """Return why an event for which there is a row cannot have happened all the same; None: it can."""
        return None

    def follow_up(self, event: Any, now_ms: int) -> list[Any]:
        """Return further actions, after those of the handler, from the state alone."""
        return []

    def brief(self, event: Any, kind: type) -> str:
        """Return an event of a kind as the history shows it; never with rows or state in it, which may be large."""
        return kind.__name__

    def check(self) -> None:
        """Assert what always holds."""

    def invalid(self, event: Any, why: str = "the table has no such row") -> InvalidTransitionError:
        """Return the error for an event that cannot have happened."""
        history, state = self.history(), self.state_of(event)
        shown = repr(event)[:1000]
        return InvalidTransitionError(
            f"{self} is {state} and cannot take {shown[:300]}: {why}. "
            f"Before: {', '.join(history[-_SHOWN:]) or 'nothing'}.",
            state=state, event=shown, history=history,
        )  # fmt: skip

    def history(self) -> tuple[str, ...]:
        """Return the latest events that changed something or led to an action, oldest first."""
        return tuple(f"{now_ms} ms: {was} {event} -> {state}" for now_ms, was, event, state in self._history)

    def __str__(self) -> str:
        return type(self).__name__


def steps_of(rows: Iterable[Row]) -> list[Step]:
    """Return the rows of a table for each of their states."""
    return [
        Step(
            state=state,
            event=row.event.__name__,
            next=state if row.next == SAME else row.next,
            actions=frozenset(name for name in row.ordered if not name.endswith("?")),
            optional=frozenset(name[:-1] for name in row.ordered if name.endswith("?")),
        )
        for row in rows
        for state in row.states
    ]


_COLUMNS = ("state", "event", "next", "actions", "why")
_WIDTH = 116


def table_of(rows: Sequence[Row], *, indent: str = "") -> str:
    """Return a table as text, as wide as a line of code at most."""
    cells = [
        (row.state, f"{row.event.__name__} {row.when}".rstrip(), row.next, ", ".join(row.ordered), row.why)
        for row in rows
    ]
    most = (21, 30, 12, 26, 0)
    widths = [
        min(limit, max(len(name), *(len(each[column]) for each in cells)))
        for column, (name, limit) in enumerate(zip(_COLUMNS[:-1], most))
    ]
    widths = [max(width, *(_longest_word(each[column]) for each in cells)) for column, width in enumerate(widths)]
    widths.append(max(20, _WIDTH - len(indent) - sum(widths) - 2 * len(widths)))
    lines = [_line(_COLUMNS, widths), _line(["-" * width for width in widths], widths)]
    for each in cells:
        wrapped = [_wrapped(text, width) for text, width in zip(each, widths)]
        height = max(map(len, wrapped))
        lines += [
            _line([part[number] if number < len(part) else "" for part in wrapped], widths) for number in range(height)
        ]
    return "\n".join(indent + line for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip()


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _dispatch_of(machine: type[Machine]) -> Iterator[tuple[tuple[str, type], _Handler | None]]:
    found: dict[tuple[str, type], str | None] = {}
    for row in machine.TRANSITIONS:
        name = None if row.actions is IGNORED else row.by or f"_on_{_snake(row.event.__name__)}"
        for state in row.states:
            if found.setdefault((state, row.event), name) != name:
                raise TypeError(f"{machine.__name__}: the rows of {state}, {row.event.__name__} have several handlers")
    for pair, handler in found.items():
        yield pair, None if handler is None else getattr(machine, handler)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
