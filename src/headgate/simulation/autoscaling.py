"""The autoscaler of a simulated query: the production machine, the figures that subtasks report, and rescales.

Never: look at more than a driver sees: what a subtask last reported may be a while ago.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from headgate.coordinator.autoscaler.autoscaler import (
    Autoscaler,
    Decision,
    Event,
    Rescale,
    RescaleFailed,
    RescaleFinished,
    RescaleYielded,
    ShowDecision,
)
from headgate.coordinator.autoscaler.figures import FiguresObserved, SubtaskBusy, busy_of_threads
from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.protocol.messages import CheckpointKind, SubtaskId, SubtaskProgress
from headgate.simulation.clockwork import Process
from headgate.simulation.world import World

_LOOK_MS = 200


class SimulatedAutoscaler(Process):
    """Rescales the query of a cluster.

    Parameters
    ----------
    cluster
        The cluster.
    options
        The autoscaler's.
    """

    def __init__(self, cluster: World, options: AutoscalerOptions) -> None:
        super().__init__("autoscaler")
        self.machine = Autoscaler(options)
        self.decisions: list[Decision] = []
        """What was decided, in order."""
        self.parallelism: list[tuple[int, int]] = []
        """When each run began, and its parallelism."""
        self._cluster = cluster
        self._ordered: Rescale | None = None  # as long as the run before it goes on
        self._known: dict[SubtaskId, SubtaskProgress] = {}
        self._before: dict[SubtaskId, tuple[int, int]] = {}  # by subtask: its execution, and how long it was busy
        self._looked_ms = 0
        self._rows_read = 0
        self._failures = 0

    def start(self) -> None:
        """Begin to look."""
        self._cluster.clock.after(_LOOK_MS, self, self._look)

    def run_began(self, parallelism: int) -> None:
        """Take note that a run begins, whoever wanted it."""
        self.parallelism.append((self._cluster.clock.now_ms, parallelism))
        self._known.clear()
        self._before.clear()
        ordered, self._ordered = self._ordered, None
        if ordered is not None:
            self._handle(RescaleFinished() if ordered.parallelism == parallelism else RescaleYielded())

    def refused(self) -> None:
        """Take note that a run goes on that was to end with a checkpoint."""
        if self._ordered is not None:
            self._ordered = None
            self._handle(RescaleFailed("the checkpoint failed"))

    def take(self, subtask: int, progress: SubtaskProgress) -> None:
        """Take note of what a subtask reports."""
        key = SubtaskId(progress.stage, subtask)
        known = self._known.get(key)
        if known is None or known.execution < progress.execution:
            self._failures += known is not None
            known = SubtaskProgress(stage=progress.stage, execution=progress.execution)
        elif known.execution > progress.execution:
            return
        self._rows_read += max(0, sum(progress.rows_in.values()) - sum(known.rows_in.values()))
        if not progress.splits:
            progress = msgspec.structs.replace(progress, splits=known.splits, positions=known.positions)
        self._known[key] = progress

    def _look(self) -> None:
        driver, now_ms = self._cluster.driver, self._cluster.clock.now_ms
        if self._cluster.calm:
            return
        recovers = any(each.recovery is not None for each in self._known.values())
        runs = driver is not None and driver.alive and driver.master.status().state == "running"
        figures = FiguresObserved(
            parallelism=self.parallelism[-1][1],
            is_settled=runs and not recovers,
            restarts=self._failures,
            rows_read=self._rows_read,
            lag_rows=self._lag_rows(),
            busy=self._busy(now_ms - self._looked_ms),
        )
        self._looked_ms = now_ms
        self._handle(figures)
        self._cluster.clock.after(_LOOK_MS, self, self._look)

    def _handle(self, event: Event) -> None:
        cluster = self._cluster
        cluster.note(self, event)
        actions = self.machine.handle(event, cluster.clock.now_ms)
        cluster.check(self.machine)
        for action in actions:
            cluster.note_action(self, action)
            match action:
                case ShowDecision(decision=decision):
                    self.decisions.append(decision)
                case Rescale(parallelism=parallelism):
                    driver: Any = cluster.driver
                    if driver is None or not driver.alive or driver.over or driver.suspension is not None:
                        self._handle(RescaleYielded())  # somebody else ends this run
                        return
                    self._ordered, cluster.next_parallelism = action, parallelism
                    cluster.request(driver, CheckpointKind.SUSPEND)
                case _:
                    assert_never(action)

    def _lag_rows(self) -> int | None:
        lags = [
            self._cluster.topics[uid].rows(split_id) - self._cluster.sources[uid].position(data)
            for progress in self._known.values()
            for uid, positions in progress.positions.items()
            for split_id, data in positions.items()
        ]
        return sum(lags) if lags else None

    def _busy(self, elapsed_ms: int) -> tuple[SubtaskBusy, ...]:
        """Return how busy the subtasks were since the last look."""
        busy = []
        for key, progress in sorted(self._known.items()):
            busy_ms = sum(progress.busy_ms.values())
            execution, before_ms = self._before.get(key, (progress.execution, busy_ms))
            self._before[key] = progress.execution, busy_ms
            if execution == progress.execution:
                share = min(1.0, (busy_ms - before_ms) / max(1, elapsed_ms))
                busy.append((key.stage, key.subtask, share))
        threads = self._cluster.definition.graph.threads
        return busy_of_threads(busy, [(stages, f"stages {stages}") for stages in threads])
