"""Writes ``docs/machines.md`` from the docstrings of the state machines: ``python -m tests.machines_doc``.

Never: add a word about what a machine does: that stands in its module, where tests compare it with what it does.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from headgate.checkpoint import coordinator as checkpoint_coordinator
from headgate.coordinator import alignment as group_alignment
from headgate.coordinator import scheduler, slots, source_coordinator
from headgate.operators.sinks import publication
from headgate.spark.alignment import rendezvous
from headgate.task import (
    alignment,
    channel_recovery,
    input_gate,
    result_partition,
    slot,
    subtask,
    watchdog,
    watermark_valve,
    watermarks,
)

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/machines.md"

MACHINES: dict[str, ModuleType] = {
    "Slots": slots,
    "Scheduler": scheduler,
    "SourceCoordinator": source_coordinator,
    "CheckpointCoordinator": checkpoint_coordinator,
    "AlignmentGroup": group_alignment,
    "SlotMachine": slot,
    "SubtaskMachine": subtask,
    "SplitWatermarks": watermarks,
    "SplitAlignment": alignment,
    "ChannelRecovery": channel_recovery,
    "InputGate": input_gate,
    "WatermarkValve": watermark_valve,
    "ResultPartition": result_partition,
    "ProgressMachine": watchdog,
    "PublicationMachine": publication,
    "Rendezvous": rendezvous,
}
"""The machines in the order of the driver, then of the slots, then of micro-batches.

Each stands in the module whose docstring shows it.
"""

OPENING = """# The state machines

This page is made of the docstrings of the machines' modules: do not edit it. `python -m tests.machines_doc` writes it
again, and `tests/unit/test_machines_doc.py` fails when it is out of date. What the machines are for stands in
[architecture.md](architecture.md). The last one is of micro-batches.

A machine has one door, `handle(event, now_ms) -> list[Action]`. A row says: in this state, on this event, the next
state is this, and these actions are ordered.

- A cell with several states stands for a row each; `same` is the state itself.
- An action with a question mark is ordered at times. Words behind an event's name only tell rows apart.
- A pair of a state and an event without a row is an `InvalidTransitionError`, and leaves the machine as it was.

The unit tests of each machine explore it breadth first and compare what it does with its table, both ways: no step
without a row, no row that never happens (`tests/machines.py`). The simulator counts which rows it has met.
"""


def document() -> str:
    """Return what docs/machines.md must be."""
    return "\n".join([OPENING, *(_section(name, module) for name, module in MACHINES.items())])


def _section(name: str, module: ModuleType) -> str:
    assert module.__doc__ is not None
    assert hasattr(module, name), f"{module.__name__} has no {name}"
    path = f"src/{module.__name__.replace('.', '/')}.py"
    text = re.sub(r"``([^`]+)``", r"`\1`", module.__doc__.strip())
    return f"## {name}\n\n[`{path}`](../{path})\n\n{_fenced(text)}\n"


def _fenced(text: str) -> str:
    """Return a text whose indented blocks, tables mostly, are fenced."""
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


if __name__ == "__main__":
    DOCUMENT.write_text(document())
