"""What tests of a task's output share: rows with event times, a downstream that remembers, and time that passes."""

from __future__ import annotations

import pyarrow as pa

from headgate.task import StreamingOutput

_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def schema(unit: str = "us") -> pa.Schema:
    return pa.schema([("n", pa.int64()), ("at", pa.timestamp(unit, "UTC"))])


def batch(*at_ms: int | None, unit: str = "us") -> pa.RecordBatch:
    at = [None if each is None else each * _PER_S[unit] // 1000 for each in at_ms]
    return pa.record_batch([range(len(at)), at], schema=schema(unit))


class Log:
    """A downstream that remembers."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        self.events.append((split_id, batch.num_rows))

    def on_watermark(self, timestamp_ms: int) -> None:
        self.events.append(timestamp_ms)

    def on_idle(self) -> None:
        self.events.append("idle")

    def on_active(self) -> None:
        self.events.append("active")


def let_pass(output: StreamingOutput, to_ms: int) -> None:
    """Let time pass as the task does: the output gets the time at least as often as it wants."""
    for at_ms in range(output._now_ms + 250, to_ms, 250):
        output.advance_time(at_ms)
    output.advance_time(to_ms)
