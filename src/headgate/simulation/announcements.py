"""Checks what a driver announces to its alignment group after each of its steps: each reader knows the newest bound.

Never: ask a machine: it goes by the messages that came and went alone. With the few readers of the simulator nothing is
put off (`headgate.coordinator.alignment`): a minimum that moves is announced in the same step (FLINK-37399).

A message counts if it is the next one of its attempt, on a connection that the driver has accepted, from the execution
that it deployed last and did not cancel since.
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.job import job_events as jm
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkAlignment, saturated_ms


class _Announced(msgspec.Struct, frozen=True):
    """What was announced to an execution of a reader last; None: nothing since it registered."""

    attempt: int
    execution: int
    bound_ms: int | None
    others_ms: int | None


class Announcements:
    """The readers of one driver that are in the alignment group, as its messages show them.

    Parameters
    ----------
    aligned
        By the uid of the source; all of one group.
    parallelism
        How many readers each has.
    """

    def __init__(self, aligned: dict[str, WatermarkAlignment], parallelism: int) -> None:
        assert len({alignment.group for alignment in aligned.values()}) <= 1, "the model knows one group"
        self._drift_ms = {uid: alignment.max_drift_ms for uid, alignment in aligned.items()}
        self._awaited = {(uid, slot) for uid in aligned for slot in range(parallelism)}
        self._votes: dict[tuple[str, int], int | None] = {}
        self._others_ms: int | None = None
        self._announced: dict[tuple[str, int], _Announced] = {}
        self._received: dict[tuple[int, int], int] = {}  # by slot and attempt: the number of the last message
        self._sent: dict[tuple[int, int], int] = {}
        self._accepted: dict[int, tuple[int, int]] = {}  # by connection: slot and attempt
        self._deployed: dict[int, tuple[int, int]] = {}  # by slot: attempt and execution
        self._look = self._ending = False

    def on_event(self, event: jm.Event) -> None:
        """Note what the driver is about to hear."""
        match event:
            case jm.SlotMessageReceived(connection=connection, envelope=envelope):
                key = envelope.slot, envelope.attempt
                if self._accepted.get(connection) == key and self._is_next(self._received, envelope):
                    self._hear(envelope)
            case jm.ConnectionClosed(connection=connection):
                self._accepted.pop(connection, None)
            case jm.OthersMoved(watermark_ms=watermark_ms):
                self._others_ms, self._look = watermark_ms, True

    def on_action(self, action: jm.Action) -> None:
        """Note what the driver orders."""
        match action:
            case jm.Transmit(connection=connection, envelope=envelope):
                self._accepted[connection] = envelope.slot, envelope.attempt
                if self._is_next(self._sent, envelope):
                    self._notify(envelope)
            case jm.CloseConnection(connection=connection):
                self._accepted.pop(connection, None)
            case jm.ForSource(action=src.CallEnumerator(call=src.ForgetReader(subtask=subtask))):
                self._deployed.pop(subtask, None)
            case jm.ForSource(action=src.DropLog(before_segment=None)):  # everything is restored
                self._deployed.clear()

    def check(self) -> None:
        """Check, after a step, that every reader that is there knows how far it may read."""
        if not self._look or self._ending:
            return
        self._look = False
        minimum_ms = self._minimum_ms()
        here = {*self._accepted.values()}
        for (uid, slot), announced in self._announced.items():
            if (slot, announced.attempt) in here and self._deployed.get(slot) == (
                announced.attempt,
                announced.execution,
            ):
                bound_ms = MAX_WATERMARK_MS if minimum_ms is None else saturated_ms(minimum_ms + self._drift_ms[uid])
                assert announced.bound_ms == bound_ms, (
                    f"the reader of {uid} in slot {slot} was not notified: it may read on to {bound_ms}, "
                    f"and takes {announced.bound_ms} for it"
                )

    def _minimum_ms(self) -> int | None:
        votes = [vote for vote in self._votes.values() if vote is not None]
        if self._awaited:
            votes.append(MIN_WATERMARK_MS)
        if self._others_ms is not None:
            votes.append(self._others_ms)
        return min(votes, default=None)

    def _hear(self, envelope: msg.Envelope) -> None:
        message, slot = envelope.message, envelope.slot
        match message:
            case msg.SubtaskFailed(execution=execution) if self._is_deployed(envelope, execution):
                del self._deployed[slot]
            case msg.ReaderRegistered(source=uid, execution=execution) if uid in self._drift_ms:
                if self._is_deployed(envelope, execution):  # it may not have been open for what was announced before
                    self._announced[uid, slot], self._look = _Announced(envelope.attempt, execution, None, None), True
            case msg.WatermarkReported(source=uid, execution=execution) if self._is_deployed(envelope, execution):
                self._votes[uid, slot], self._look = message.watermark_ms, True
                self._awaited.discard((uid, slot))

    def _is_deployed(self, envelope: msg.Envelope, execution: int) -> bool:
        return self._deployed.get(envelope.slot) == (envelope.attempt, execution)

    def _notify(self, envelope: msg.Envelope) -> None:
        slot = envelope.slot
        match envelope.message:
            case msg.Deploy(execution=execution):
                self._deployed[slot] = envelope.attempt, execution
            case msg.CancelSubtask():
                self._deployed.pop(slot, None)
            case msg.ShutDownSlot():
                self._ending = True
            case msg.AlignmentAnnounced(source=uid, execution=execution) as message:
                announced = _Announced(envelope.attempt, execution, message.max_watermark_ms, message.others_ms)
                assert announced != self._announced.get((uid, slot)), (
                    f"the reader of {uid} in slot {slot} was notified of {announced} twice"
                )
                self._announced[uid, slot], self._look = announced, True

    @staticmethod
    def _is_next(numbers: dict[tuple[int, int], int], envelope: msg.Envelope) -> bool:
        """Return whether it is the next message, or uncounted; take note of it."""
        key = envelope.slot, envelope.attempt
        if envelope.number == 0:
            return True
        if envelope.number != numbers.get(key, 0) + 1:
            return False
        numbers[key] = envelope.number
        return True
