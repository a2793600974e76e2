"""A query as the endpoint sees it, with documents of any size: what a driver of Spark would answer, recorded once."""

from __future__ import annotations

import math
import random
from typing import Any

from headgate.errors import HeadgateError, OptionError

BEGAN_MS = 1_764_100_000_000


class RecordedQuery:
    """A query whose documents depend on a clock only; it notes what was asked of it."""

    def __init__(self, name: str = "rides", splits: int = 12, slots: int = 3) -> None:
        self.id, self.runId, self.name = f"id-of-{name}", f"run-of-{name}", name
        self.state, self.now_ms, self.splits, self.slots = "running", BEGAN_MS + 120_000, splits, slots
        self.asked: list[tuple[Any, ...]] = []

    def checkpoint(self) -> int:
        if self.state != "running":
            raise HeadgateError("The query has ended.")
        self.asked.append(("checkpoint",))
        return 42

    def savepoint(self, location: str) -> int:
        self.asked.append(("savepoint", location))
        return 43

    def rescale(self, parallelism: int) -> None:
        if not 1 <= parallelism <= 128:
            raise OptionError("The parallelism is out of range.", option="parallelism", value=parallelism)
        self.asked.append(("rescale", parallelism))
        self.slots = parallelism

    def stop(self, savepoint: str | None = None, *, drain: bool = False) -> None:
        self.asked.append(("stop", savepoint, drain))
        self.state = "ended"

    def _watermark_ms(self, split: int, at_ms: int) -> int | None:
        if split % 9 == 7:
            return None
        pace = 1.0 if split != 3 else 0.35
        return int(BEGAN_MS - 40_000 + pace * (at_ms - BEGAN_MS) + 9000 * math.sin(split * 1.7 + at_ms / 21_000))

    def history(self) -> dict[str, Any]:
        points = [at for at in range(self.now_ms - 120_000, self.now_ms, 1000) if at >= BEGAN_MS]
        splits = range(min(self.splits, 64))
        marks = {f"rides-{n}": [self._watermark_ms(n, at) for at in points] for n in splits if n % 9 != 7}
        rates = [12_000 + 3000 * math.sin(at / 9000) for at in points]
        return {"points": points, "inputRowsPerSecond": rates, "watermarks": {"kafka-1": marks}, "busy": {}}

    def snapshot(self) -> dict[str, Any]:
        now_ms = self.now_ms
        marks = [self._watermark_ms(n, now_ms) for n in range(self.splits)]
        slowest = min(mark for mark in marks if mark is not None)
        chance = random.Random(self.splits)
        splits = [
            {
                "id": f"rides-{n}", "subtask": n % self.slots, "slot": n % self.slots,
                "position": {"offset": 1_000_000 + n * 977}, "lag": int(10 ** chance.uniform(0, 5.6)),
                "watermarkMs": mark, "driftMs": None if mark is None else mark - slowest, "idle": mark is None,
                "paused": mark is not None and mark - slowest > 60_000,
            }
            for n, mark in enumerate(marks)
        ]  # fmt: skip
        paused = sum(split["paused"] for split in splits)
        busy = [0.31, 0.97, 0.22]
        return {
            "id": self.id, "runId": self.runId, "name": self.name, "state": self.state,
            "timestamp": "2025-11-25T20:00:00.000Z", "startedMs": BEGAN_MS, "nowMs": now_ms, "sparkVersion": "4.3.0",
            "headgateVersion": "0.5.0", "parallelism": self.slots, "maxParallelism": 128,
            "why": [
                {"severity": "warning", "text": "Slot 2 is busy 97 % in parse; 12 splits wait for it.",
                 "about": {"kind": "operator"}},
                {"severity": "info", "text": f"The split rides-3 holds back {paused} others of the group rides.",
                 "about": {"kind": "split"}},
            ],
            "stages": [
                {"stage": 0, "name": "kafka, parse", "operators": ["parse", "filter"], "inputs": [],
                 "sources": ["kafka-1"], "sinks": [], "rowsInPerSecond": 12_345.6, "rowsOutPerSecond": 11_873.2,
                 "busy": busy[0], "backPressured": 0.62, "idle": 0.05},
                {"stage": 1, "name": "window aggregate", "operators": ["window", "aggregate"], "inputs": [0],
                 "sources": [], "sinks": [], "rowsInPerSecond": 11_873.2, "rowsOutPerSecond": 240.0,
                 "busy": busy[1], "backPressured": 0.0, "idle": 0.02},
                {"stage": 2, "name": "parquet", "operators": ["project"], "inputs": [1],
                 "sources": [], "sinks": ["sink"], "rowsInPerSecond": 240.0, "rowsOutPerSecond": 240.0,
                 "busy": busy[2], "backPressured": 0.0, "idle": 0.7},
            ],
            "operators": [{"uid": "parse", "name": "parse", "stage": 0, "busy": 0.97, "subtask": 2}],
            "subtasks": [
                {"stage": stage, "subtask": slot, "slot": slot, "state": "running", "execution": 1,
                 "busy": max(0.02, busy[stage] - 0.11 * ((slot + stage) % 3)),
                 "backPressured": 0.62 - 0.2 * slot if stage == 0 and slot < 3 else 0.0, "idle": 0.1, "paused": 0.0,
                 "rowsIn": 500_000, "rowsOut": 490_000, "rowsInPerSecond": 4100.0, "rowsOutPerSecond": 4000.0,
                 "queueBatches": 12, "queueBytes": 1 << 20, "bufferPoolUse": 0.4, "watermarkMs": slowest,
                 "operators": {}}
                for slot in range(self.slots) for stage in range(3)
            ],
            "slots": [
                {"slot": slot, "state": "running", "host": "10.8.0.7", "pid": 4100 + slot, "executor": "1",
                 "attempt": 0}
                for slot in range(self.slots)
            ],
            "sources": [
                {"uid": "kafka-1", "description": "headgate.kafka[kafka-1]", "state": "running",
                 "rowsRead": 1_482_113, "rowsPerSecond": 12_345.6 + (now_ms // 1000) % 60 * 17, "bytesRead": 10**9,
                 "bytesPerSecond": 3_400_000.0, "numSplits": self.splits,
                 "lag": {"rowsBehindLatest": sum(split["lag"] for split in splits)}, "troubles": [],
                 "alignmentGroup": "rides", "driftMs": 84_000, "pausedSplits": paused, "idleSplits": 1,
                 "metrics": {
                     "pendingRecords": {"value": 12_345, "kind": "gauge"},
                     "fetchLatencyMs": {"value": 12.0, "kind": "gauge"},
                     "rebalances": {"value": 2, "kind": "counter"}},
                 "splits": splits, "splitsLeftOut": 0},
            ],
            "alignmentGroups": [
                {"group": "rides", "sources": ["kafka-1"], "slowest": {"source": "kafka-1", "split": "rides-3"},
                 "watermarkMs": slowest, "driftMs": 84_000, "pausedSplits": paused, "numSplits": self.splits},
            ],
            "watermarkMs": slowest,
            "sinks": [
                {"uid": "sink", "description": "parquet", "rowsWritten": 88_120, "rowsPerSecond": 240.0,
                 "unpublishedMs": 400, "commits": 118, "lastCommitMs": 65, "commitShare": 0.065},
            ],
            "checkpoints": {
                "intervalMs": 1000, "pending": None, "completed": 118, "failed": 1,
                "last": {"id": 119, "durationMs": 180, "sizeBytes": 3_140_000, "completedMs": now_ms - 400,
                         "ageMs": 400},
                "recent": [
                    {"id": n, "status": "failed" if n == 95 else "completed",
                     "durationMs": 120 + int(90 * abs(math.sin(n))), "sizeBytes": 3_000_000 + n * 1000,
                     "completedMs": now_ms - (119 - n) * 1000 - 400,
                     "reason": "slot 1 was lost" if n == 95 else None}
                    for n in range(70, 120)
                ],
            },
            "recovery": [], "restore": [],
            "restarts": {"count": 1, "recent": [
                {"atMs": now_ms - 24_000, "cause": "the slot's process was killed (SIGKILL)", "stage": None,
                 "subtask": None, "slot": 1, "kind": "slot"}]},
            "skippedRecords": 0, "lateRows": 7, "helperJvm": None,
            "autoscaler": None,
        }  # fmt: skip
