"""Which machines of keyed pipelines have tables, and how to see the pairs of state and event that a simulation met.

Never: change what a machine does: its door is watched.
"""

from __future__ import annotations

from headgate.simulation.coverage import Coverage, Excuse, Watched
from headgate.task import (
    channel_recovery,
    consumer_queue,
    gate_channel,
    gate_checkpoint,
    gate_recovery,
    input_gate,
    result_partition,
    watermark_valve,
)

WATCHED = (
    Watched.of(input_gate.InputGate),
    Watched.of(gate_channel.GateChannel),
    Watched.of(gate_recovery.GateRecovery),
    Watched.of(gate_checkpoint.GateCheckpoint),
    Watched.of(watermark_valve.WatermarkValve),
    Watched.of(result_partition.ResultPartition),
    Watched.of(consumer_queue.ConsumerQueue),
    Watched.of(channel_recovery.ChannelRecovery),
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
