"""The recovery thread of a simulated subtask: the production `ChannelRecovery`, and models of storage, disk and memory.

Never: call the subtask: what is recovered goes into its mailbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.protocol.channels import Buffer, ChannelId
from headgate.protocol.state import RecoveredChannel
from headgate.simulation.keyed.rows import BUFFER_BYTES, ROW_BYTES, Recovered, Row, buffer_of
from headgate.task import channel_recovery as cr
from headgate.task import input_gate as ig

if TYPE_CHECKING:
    from headgate.simulation.keyed.subtask import KeyedSubtask


class RecoveryThread:
    """Recovers the channels of one subtask.

    Parameters
    ----------
    subtask
        Whose.
    recovered
        What it takes on, in order.
    """

    def __init__(self, subtask: KeyedSubtask, recovered: tuple[RecoveredChannel, ...]) -> None:
        self._subtask = subtask
        cluster, number = subtask.cluster, subtask.id.subtask
        self._stored = recovered
        self._rows: list[list[tuple[Row, ...]]] = [list(cluster.storage.get(each.state.handle)) for each in recovered]
        self.machine = cluster.parts.recovery(
            [
                cr.StoredChannel(ChannelId(each.state.exchange, each.channel, number), each.filtered)
                for each in recovered
            ],
            target_bytes=BUFFER_BYTES + ROW_BYTES * cluster.scenario.buffer_rows,
        )
        self._disk: dict[int, Buffer] = {}
        self._waits = False
        self._replayed = 0

    def start(self) -> None:
        """Begin to read."""
        self._tell(cr.Begun())

    def spilled(self, number: int) -> Buffer:
        """Return a buffer of the local disk."""
        return self._disk[number]

    def room_freed(self) -> None:
        """Go on if the thread waits for memory."""
        if self._waits:
            self._waits = False
            self._subtask.in_memory += 1
            self._later(0, cr.RoomFound())

    def _later(self, delay_ms: int, event: cr.Event) -> None:
        self._subtask.cluster.clock.after(delay_ms, self._subtask, self._tell, event)

    def _tell(self, event: cr.Event) -> None:
        subtask = self._subtask
        cluster = subtask.cluster
        cluster.note(subtask, event)
        actions = self.machine.handle(event, cluster.clock.now_ms)
        self.machine.check()
        for action in actions:
            if not subtask.alive:
                return
            cluster.note_action(subtask, action)
            self._carry_out(action)

    def _carry_out(self, action: cr.Action) -> None:
        subtask = self._subtask
        cluster = subtask.cluster
        match action:
            case cr.ReadNext(stored=stored):
                delay_ms = int(cluster.choose.random() * (cluster.scenario.read_state_ms + 1))
                self._later(delay_ms, self._read(stored))
            case cr.AskForRoom(wait=wait):
                if subtask.in_memory < cluster.scenario.room:
                    subtask.in_memory += 1
                    self._later(0, cr.RoomFound())
                elif wait:
                    self._waits = True
                else:
                    self._later(0, cr.RoomMissing())
            case cr.TakeIntoMemory(channel=channel, parts=parts):
                subtask.tell(subtask.to_gate, ig.RowsRecovered(channel, _joined(parts)))
            case cr.Spill(channel=channel, parts=parts, number=number):
                left = number - 1 - self._replayed  # what is replayed makes room on this disk
                if cluster.scenario.disk is not None and left >= cluster.scenario.disk:
                    self._later(0, cr.DiskFull())
                    return
                self._disk[number] = _joined(parts)
                cluster.spilled += 1
                subtask.tell(subtask.to_gate, ig.RowsSpilled(channel, number))
                self._later(0, cr.Spilled())
            case cr.Replay(channel=channel, number=number):
                self._replayed = number
                subtask.tell(subtask.to_gate, ig.RowsRecovered(channel, self._disk[number], number))
            case cr.EndPhaseOne():
                subtask.tell(self._end_phase_one)
            case cr.EndRecovery():
                subtask.tell(self._end)

    def _read(self, stored: int) -> cr.Event:
        """Return the answer to a `ReadNext`."""
        buffers, recovered = self._rows[stored], self._stored[stored]
        if not buffers:
            return cr.ChannelRead(stored)
        rows = list(buffers.pop(0))
        if recovered.filtered:
            subtask = self._subtask
            rows = subtask.deployment.routings[recovered.state.exchange].own(rows, subtask.id.subtask)
            subtask.cluster.filtered += 1
        return cr.BufferRead(stored, buffer_of(Recovered(rows)))

    def _end_phase_one(self) -> None:
        subtask = self._subtask
        subtask.phase_one_ended_ms = subtask.cluster.clock.now_ms
        subtask.to_gate(ig.PhaseOneEnded())

    def _end(self) -> None:
        self._subtask.recovery_ended = True
        self._subtask.to_gate(ig.RecoveryEnded())


def _joined(parts: tuple[Buffer, ...]) -> Buffer:
    return parts[0] if len(parts) == 1 else buffer_of(Recovered(row for part in parts for row in part.rows))
