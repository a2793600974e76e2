"""Writes ``docs/machines.md``: the table and a diagram of each state machine. ``./run docs``.

Never: add a word about what a machine does: its module says that, where tests compare it with what it does.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import headgate
from headgate.machine import Machine, Row, steps_of, table_of

FOLDERS = ("checkpoint", "connectors", "coordinator", "microbatch", "readers", "runtime", "task")
DOCUMENT = Path(__file__).resolve().parents[1] / "docs/machines.md"

OPENING = """# The state machines

`./run docs` makes this page of the machines' modules: do not edit it. A test fails when it is out of date. What the
machines are for is explained in [architecture.md](architecture.md).

A machine has one entry point, `handle(event, now_ms) -> list[Action]`. A row says: in this state, on this event, the
next state is this, and these actions are ordered.

- A cell with several states stands for a row each; `same` is the state itself.
- An action with a question mark is ordered at times. Words after an event's name only distinguish rows.
- A pair of a state and an event without a row is an `InvalidTransitionError`, and leaves the machine as it was.
- A diagram shows what leads from one state to another.

The unit tests of each machine explore it breadth first and compare what it does with its table, both ways: no step
without a row, no row that never happens (`tests/machines.py`). The simulator counts which rows it has met.
"""


def machines() -> list[type[Machine]]:
    """Return all machines of the package, in the order of its folders."""
    for each in pkgutil.walk_packages(headgate.__path__, "headgate."):
        if each.name.split(".")[1] in (
            "checkpoint",
            "connectors",
            "coordinator",
            "microbatch",
            "readers",
            "runtime",
            "task",
        ):
            import_module(each.name)
    found = [each for each in _subclasses(Machine) if each.TRANSITIONS and each.__module__.startswith("headgate.")]
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


def document() -> str:
    """Return what docs/machines.md must be."""
    sections, written = [], set()
    for machine in machines():
        sections.append(_section(machine, of_module=machine.__module__ not in written))
        written.add(machine.__module__)
    return "\n".join([OPENING, *sections])


def _subclasses(of: type[Machine]) -> Iterator[type[Machine]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def _section(machine: type[Machine], *, of_module: bool) -> str:
    module = sys.modules[machine.__module__]
    path = f"src/{module.__name__.replace('.', '/')}.py"
    parts = [f"## {machine.__name__}", f"[`{path}`](../{path})"]
    if of_module:
        parts.append(_text(module.__doc__ or ""))
    # Since 3.13 Python itself takes away the indentation, but not that of the table, which is added later.
    own = inspect.cleandoc(machine.__doc__ or "")
    parts.append(_text(re.split(r"\n(?:Parameters\n|Examples\n|(?:    )?state )", own)[0]))
    parts += [f"```text\n{table_of(machine.TRANSITIONS)}\n```", f"```mermaid\n{_diagram(machine.TRANSITIONS)}\n```"]
    return "\n\n".join(parts) + "\n"


def _text(docstring: str) -> str:
    text = re.sub(r"``([^`]+)``", r"`\1`", docstring.strip())
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        begins = not inside and line.startswith("    ") and (not lines or not lines[-1])
        if begins or (inside and line and not line.startswith("    ")):
            if inside:
                lines.insert(len(lines) - 1, "```")  # before the empty line
            else:
                lines.append("```text")
            inside = not inside
        lines.append(line[4:] if inside else line)
    return "\n".join([*lines, "```"] if inside else lines)


def _diagram(rows: tuple[Row, ...]) -> str:
    """Return the states and what leads from one to another, for Mermaid."""
    edges: dict[tuple[str, str], list[str]] = {}
    states: dict[str, str] = {}
    for step in steps_of(rows):
        for state in (step.state, step.next):
            states.setdefault(state, re.sub(r"\W", "_", state))
        if step.state != step.next:
            events = edges.setdefault((step.state, step.next), [])
            if step.event not in events:
                events.append(step.event)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state}" as {name}' for state, name in states.items() if state != name]
    lines += [f"    {states[was]} --> {states[now]}: {', '.join(events)}" for (was, now), events in edges.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
