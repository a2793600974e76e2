"""Which machines a simulated cluster is made of: the production ones, unless a test plants a bug.

Never: wrap or copy a machine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields

from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner
from headgate.simulation.scripted_source import ScriptedEnumerator
from headgate.task.slot import SlotMachine
from headgate.task.subtask import SubtaskMachine


@dataclass(frozen=True)
class Parts:
    """The classes of a cluster; a test replaces one by a subclass with a bug."""

    job_master: type[JobMaster] = JobMaster
    runner: type[EnumeratorRunner] = EnumeratorRunner
    slot: type[SlotMachine] = SlotMachine
    subtask: type[SubtaskMachine] = SubtaskMachine
    enumerator: type[ScriptedEnumerator] = ScriptedEnumerator

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have production code that makes a machine make that with the bug, meanwhile."""
        bugs = {each.default: bug for each in fields(self) if (bug := getattr(self, each.name)) is not each.default}
        modules = [module for name, module in sys.modules.items() if bugs and name.startswith("headgate.")]
        places = [
            (module, name, found)
            for module in modules
            for name, found in vars(module).items()
            if isinstance(found, type) and found in bugs
        ]
        for module, name, found in places:
            setattr(module, name, bugs[found])
        try:
            yield
        finally:
            for module, name, found in places:
                setattr(module, name, found)
