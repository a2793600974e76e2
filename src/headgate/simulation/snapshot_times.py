"""When snapshots are taken: none waits for rows that need not be processed first, and the first comes early.

Checked: invariant 6. From the first barrier of a checkpoint that may reach a subtask until that takes its snapshot no
more time passes than links, alignment time-outs and a slice take, whatever rows cost; and no more than that, and the
sink's room for what was begun, from the order to a subtask that reads sources. A restored query begins its first
checkpoint when it is to. Not checked: how long it takes until what was stored is safe, and aligned checkpoints.

Never: look into a machine for what it decided; how far channels are may be looked at.
"""

from __future__ import annotations

from typing import Any

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg
from headgate.runtime.chain_slices import FIRST_ROWS
from headgate.simulation.subtask_process import SubtaskProcess
from headgate.simulation.world import World

_MESSAGE_MS = 20
"""What the turns of those who take part add, in milliseconds."""
_ROOM_MS = 200
"""How long the rows of one slice may wait for room in the sink, which comes within 100 ms each time."""


class SnapshotTimes:
    """The checks of one cluster."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster
        self._passing: set[tuple[int, int]] = set()  # by run and number: checkpoints whose barriers pass rows
        self._ordered: dict[tuple[SubtaskProcess, int], int] = {}  # when who was ordered to take which snapshot
        self._taken: dict[tuple[int, int, int], dict[tuple[int, int], int]] = {}
        """By run, generation and checkpoint: when each subtask of a stage took its snapshot."""
        self._deployed: dict[tuple[int, int], tuple[int, int]] = {}  # by stage and slot: attempt and execution
        self._running: set[tuple[int, int]] = set()
        self._has_failed = False  # an enumerator, since checkpoints last began: its readers report again first
        self._since_ms: int | None = None  # since when the first checkpoint of a deployment could have begun

    def on_barrier(self, process: SubtaskProcess, order: msg.TriggerCheckpoint) -> None:
        """Note that a subtask that reads sources is ordered to send a barrier."""
        if order.unaligned and order.kind is msg.CheckpointKind.CHECKPOINT:
            self._passing.add((process.run, order.checkpoint_id))
        if self._cluster.scenario.unaligned and order.kind is not msg.CheckpointKind.DRAIN:
            self._ordered = {key: at_ms for key, at_ms in self._ordered.items() if key[0] is not process}
            self._ordered[process, order.checkpoint_id] = self._cluster.clock.now_ms

    def on_snapshot(self, process: SubtaskProcess, checkpoint_id: int) -> None:
        """Check that a snapshot did not wait for rows."""
        cluster, run = self._cluster, process.run
        now_ms, definition = cluster.clock.now_ms, cluster.definition
        taken = self._taken.setdefault((run, process.generation, checkpoint_id), {})
        taken.setdefault((process.stage, process.slot), now_ms)
        if process.stage == 0:
            self._check_source(process, checkpoint_id)
        if process.stage == 0 or (run, checkpoint_id) not in self._passing:
            return
        stages = {
            definition.graph.stage_of(uid)
            for uid, exchange in definition.graph.stages[process.stage].inputs.items()
            if exchange.supports_unaligned
        }
        began_ms = min((at_ms for (stage, _), at_ms in taken.items() if stage in stages), default=now_ms)
        ready_ms = process.passable_ms(checkpoint_id)
        if ready_ms is None or cluster.excused_until_ms >= began_ms:
            return
        # Each side of a channel may wait for the time-out; rows that the chain has taken, and what it does upstream.
        waits_ms = 2 * cluster.scenario.alignment_timeout_ms + 3 * cluster.longest_turn_ms
        first_ms = FIRST_ROWS * cluster.scenario.row_ms  # what the first slice takes
        if process.execution is not None and began_ms - (process.execution.worked_ms or began_ms) < first_ms:
            waits_ms += first_ms
        took_ms = now_ms - max(began_ms, ready_ms)
        most_ms = waits_ms + cluster.data.slowest_ms + _MESSAGE_MS
        assert took_ms <= most_ms, (
            f"slow: subtask {process.slot} of stage {process.stage} takes its snapshot of checkpoint {checkpoint_id} "
            f"{took_ms} ms after it could, not {most_ms} ms"
        )

    def _check_source(self, process: SubtaskProcess, checkpoint_id: int) -> None:
        """Check that a snapshot of a subtask that reads sources did not wait for what a reader emitted."""
        cluster = self._cluster
        began_ms = self._ordered.pop((process, checkpoint_id), None)
        if began_ms is None or cluster.excused_until_ms >= began_ms:
            return
        took_ms = cluster.clock.now_ms - began_ms
        # The slice that was begun, and what is processed at once; what operators emit before the barrier.
        most_ms = cluster.scenario.alignment_timeout_ms + 3 * cluster.longest_turn_ms + _ROOM_MS + _MESSAGE_MS
        assert took_ms <= most_ms, (
            f"slow: subtask {process.slot}, which reads sources, takes its snapshot of checkpoint {checkpoint_id} "
            f"{took_ms} ms after it was ordered, not {most_ms} ms"
        )

    # The first checkpoint of a deployment of all subtasks.

    def on_event(self, event: Any) -> None:
        """Note that a subtask runs, and what a checkpoint waits for."""
        match event:
            case jm.SlotMessageReceived(
                connection=connection,
                envelope=msg.Envelope(
                    slot=slot, attempt=attempt, message=msg.SubtaskRunning(stage=stage, execution=execution)
                ),
            ):
                subtask, driver = (stage, slot), self._cluster.driver
                if subtask in self._running or self._deployed.get(subtask) != (attempt, execution):
                    return
                if driver is None or driver.master._slots.key_of(connection) != (slot, attempt):
                    return  # late, on a connection that another one has replaced: it comes again on that
                self._running.add(subtask)
                plan = self._cluster.plan
                if plan is not None and len(self._running) == len(plan.stages) * plan.parallelism:
                    self._since_ms = None if self._has_failed else self._cluster.clock.now_ms
            case jm.FromSource(event=src.EnumeratorFailed()):  # checkpoints are put off
                self._has_failed, self._since_ms = True, None
            case cp.Committed() | cp.CommitFailed() if self._since_ms is not None:
                self._since_ms = self._cluster.clock.now_ms

    def on_action(self, action: Any) -> None:
        """Check that the first checkpoint comes early."""
        match action:
            case jm.Transmit(
                envelope=msg.Envelope(slot=slot, attempt=attempt, message=msg.Deploy(stage=stage, execution=execution))
            ):
                self._forget()
                self._deployed[stage, slot] = attempt, execution
            case jm.Transmit(envelope=msg.Envelope(message=msg.CancelSubtask())):
                self._forget()
            case jm.ForSource(action=src.CallEnumerator(call=src.SnapshotEnumerator())):
                since_ms, self._since_ms, self._has_failed = self._since_ms, None, False
                cluster = self._cluster
                if since_ms is not None and cluster.scenario.is_keyed and cluster.excused_until_ms < since_ms:
                    took_ms = cluster.clock.now_ms - since_ms
                    assert took_ms <= cluster.scenario.first_checkpoint_ms, (
                        f"sources ran for {took_ms} ms before the first checkpoint of a deployment"
                    )

    def _forget(self) -> None:
        self._running.clear()
        self._since_ms = None
