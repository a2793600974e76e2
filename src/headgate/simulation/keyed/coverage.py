"""Which machines of keyed pipelines have tables, and how to see the pairs of state and event that a simulation met.

Never: change what a machine does: its door is watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate.protocol.channels import Barrier
from headgate.simulation.coverage import Coverage, Excuse, Pair, Watched
from headgate.task import channel_recovery, input_gate, result_partition, watermark_valve


def _of_gate(machine: Any, event: Any) -> Iterable[Pair]:
    name = type(event).__name__
    if isinstance(event, input_gate.ElementArrived) and not isinstance(event.element, Barrier):
        return [(machine.recovery, name)]  # tells nothing of a checkpoint
    return [(machine.recovery, name), (machine.checkpoint, name)]


def _of_consumers(machine: Any, event: Any) -> Iterable[Pair]:
    about = [event.consumer] if hasattr(event, "consumer") else machine._queues
    return [(machine.state_of(consumer), type(event).__name__) for consumer in about]


def _of_valve(machine: Any, event: Any) -> Iterable[Pair]:
    return [(machine.state, type(event.event).__name__)]


def _of_recovery(machine: Any, event: Any) -> Iterable[Pair]:
    return [(machine.state, type(event).__name__)]


WATCHED = (
    Watched(input_gate.InputGate, input_gate.__doc__, _of_gate),
    Watched(watermark_valve.WatermarkValve, watermark_valve.__doc__, _of_valve),
    Watched(result_partition.ResultPartition, result_partition.__doc__, _of_consumers),
    Watched(channel_recovery.ChannelRecovery, channel_recovery.__doc__, _of_recovery),
)
# Rows that no pipeline makes: they stand in the table because the machine does not rely on what producers do.
_NOT_IN_A_PIPELINE: tuple[Excuse, ...] = (
    (
        "WatermarkValve",
        ("idle",),
        ("ProducerIdle", "WatermarkPassed"),
        "a producer is idle once, and says that it is active before it sends a watermark",
    ),
)


def keyed_coverage() -> Coverage:
    """Return a coverage of the machines of keyed pipelines that is empty."""
    return Coverage(WATCHED, _NOT_IN_A_PIPELINE)
