"""Which machines a simulated cluster is made of: the production ones, unless a test plants a bug.

Never: wrap or copy a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

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
