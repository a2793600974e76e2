"""Which machines a simulated pipeline is made of: the production ones, unless a test plants a bug.

Never: wrap or copy a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.checkpoint.channel_assignment import assign_channels, relocated_exchanges
from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.simulation.keyed.subtask import KeyedSubtask
from headgate.task.channel_recovery import ChannelRecovery
from headgate.task.input_gate import InputGate
from headgate.task.result_partition import ResultPartition
from headgate.task.watermark_flow import WatermarkFlow


@dataclass(frozen=True)
class KeyedParts:
    """The classes of a pipeline; a test replaces one by a subclass with a bug."""

    gate: type[InputGate] = InputGate
    partition: type[ResultPartition] = ResultPartition
    recovery: type[ChannelRecovery] = ChannelRecovery
    coordinator: type[CheckpointCoordinator] = CheckpointCoordinator
    flow: type[WatermarkFlow] = WatermarkFlow
    assign: Callable[..., dict[Any, Any]] = assign_channels
    relocated: Callable[..., frozenset[str]] = relocated_exchanges
    subtask: type[KeyedSubtask] = KeyedSubtask
