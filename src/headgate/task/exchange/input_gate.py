"""Decides what a subtask downstream of exchanges processes next; composes the machines of its channels.

Never: look into rows, read a clock, block.

What may arrive on a channel is `gate_channel`'s to say, how far recovery is
`gate_recovery`'s, what belongs to a checkpoint `barrier_handler`'s, and the watermark of an
exchange `watermark_valve`'s. This one decides whose turn it is, and reports to each what concerns it:

- `Polled` takes turns among channels; a buffer that was put back is its channel's next one. `MorePolled` adds what is
  ready in channels of the same exchange, so that many small buffers are one batch for the operators; recovered ones
  come one by one. A credit is granted when a producer's buffer was processed to its end (the next poll says so), never
  for a recovered one.
- Events of producers wait after recovered buffers, so that no watermark comes before a recovered row; unaligned
  barriers are seen at once. The end of an exchange is followed by `EndInput`.
- Until a snapshot is taken, unaligned channels are read up to their barriers, and those without one as before. An
  unaligned snapshot waits for the end of phase 1 of recovery, in which rows are processed already. In phase 2 the state
  of a channel is its recovered buffers in memory, then the spilled ones, then what else precedes the barrier. An
  aligned barrier waits for all of them.
- A consumer takes no rows any more once a barrier that passes rows has stopped it (a rescale, a savepoint); so what an
  aligned channel holds before such a barrier is processed though there is no room for what becomes of it, which that
  checkpoint stores as output: a few buffers, and in recovery what is recovered (`waits_for_aligned`,
  `Polled.overdraft`).
- A barrier of an older checkpoint than the newest seen, or of an aborted one, is dropped, also where the newer one has
  passed it in its channel.

Follows FLIP-547, sections 2.1 and 4.3 to 4.6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from headgate.machine import SAME, Maybe, Row
from headgate.protocol.channels import CREDITS, Barrier, Buffer, ChannelId, Element, ProducerRecovered
from headgate.task.exchange.barrier_handler import (
    BarrierHandler,
    BarrierReached,
    BarrierSeen,
    ChannelsAligned,
    LateBarrierArrived,
    RowsFollowed,
    SpilledReplayed,
)
from headgate.task.exchange.barrier_handler import CheckpointGivenUp as CheckpointGivenUp
from headgate.task.exchange.barrier_handler import GateTimePassed as GateTimePassed
from headgate.task.exchange.barrier_handler import StoreChannels as StoreChannels
from headgate.task.exchange.barrier_handler import TakeSnapshot as TakeSnapshot
from headgate.task.exchange.buffer_machine import BufferMachine
from headgate.task.exchange.gate_channel import BufferProcessed, GateChannel, GateExchange
from headgate.task.exchange.gate_channel import ChannelConnected as ChannelConnected
from headgate.task.exchange.gate_channel import GrantCredit as GrantCredit
from headgate.task.exchange.gate_channel import Spilled as Spilled
from headgate.task.exchange.gate_recovery import GateRecovery, ProducerCaughtUp, RecoveredRowsProcessed
from headgate.task.exchange.gate_recovery import PhaseOneEnded as PhaseOneEnded
from headgate.task.exchange.gate_recovery import RecoveredProcessed as RecoveredProcessed
from headgate.task.exchange.gate_recovery import RecoveryEnded as RecoveryEnded
from headgate.task.exchange.gate_recovery import RowsRecovered as RowsRecovered
from headgate.task.exchange.gate_recovery import RowsSpilled as RowsSpilled
from headgate.task.exchange.watermark_valve import AdvanceWatermark as AdvanceWatermark
from headgate.task.exchange.watermark_valve import EndInput as EndInput
from headgate.task.exchange.watermark_valve import Idleness, ProducerEventReceived, WatermarkValve
from headgate.task.exchange.watermark_valve import MarkActive as MarkActive
from headgate.task.exchange.watermark_valve import MarkIdle as MarkIdle


class GateInput(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that a subtask consumes.

    Parameters
    ----------
    stage
        Of the producers.
    producers
        The producing subtasks: one channel each.
    supports_unaligned
        Whether barriers may pass its rows.
    idle_together
        Whether no producer stays idle unless all do, since all receive the same.
    relocated
        Whether what follows upon a recovered row may come through another channel:
        `headgate.checkpoint.channel_assignment.relocated_exchanges`.
    """

    stage: int
    producers: tuple[int, ...]
    supports_unaligned: bool
    idle_together: bool = False
    relocated: bool = False


# What happened, beside what the machines of channels, recovery and the checkpoint take.


class ElementArrived(msgspec.Struct, frozen=True):
    """The producer sent something."""

    channel: ChannelId
    element: Element


class RowsPutBack(msgspec.Struct, frozen=True):
    """The rest of the buffer that was polled last was not processed.

    It comes before any other event: what was polled and not put back counts as processed when a snapshot is due.
    """

    buffer: Buffer


class Polled(msgspec.Struct, frozen=True):
    """The subtask can process something; what was polled before is done, snapshots included.

    ``overdraft``: there is no room for what becomes of rows, so that only those are wanted that the snapshot waits for.
    """

    overdraft: bool = False


class MorePolled(msgspec.Struct, frozen=True):
    """The subtask can process more rows with those that were polled last: of the same exchange, in the same batch."""


Event = (
    ChannelConnected | ElementArrived | RowsRecovered | RowsSpilled | PhaseOneEnded | RecoveryEnded | RowsPutBack
    | Polled | MorePolled | CheckpointGivenUp | GateTimePassed
)  # fmt: skip

# What is to be done.


class ProcessRows(msgspec.Struct, frozen=True):
    """Process a buffer, or put its rest back. ``recovered``: it takes room of recovery's until it is processed."""

    channel: ChannelId
    buffer: Buffer
    recovered: bool = False


Action = (
    ProcessRows | AdvanceWatermark | MarkIdle | MarkActive | EndInput | GrantCredit | TakeSnapshot | StoreChannels
    | RecoveredProcessed
)  # fmt: skip

_STORED = (Maybe(TakeSnapshot), Maybe(StoreChannels))
_FINISHED = (Maybe(GrantCredit), Maybe(RecoveredProcessed))
_EVENT_TIME = (Maybe(AdvanceWatermark), Maybe(MarkIdle), Maybe(MarkActive), Maybe(EndInput))


class InputGate(BufferMachine):
    """The channels that a subtask consumes. *Processing*: a buffer was polled, and its rest may be put back.

    Parameters
    ----------
    consumer
        The subtask.
    inputs
        By the uid of the exchange.
    recovering
        Whether there is channel state to recover: then `PhaseOneEnded` and `RecoveryEnded` follow.
    producers_recover
        Whether every producer sends `ProducerRecovered` first (``recover-output-on-downstream`` off, after a restore).
    credits
        How many buffers a producer may have under way or waiting here.

    Notes
    -----
    The driver carries out all actions of an event before the next event. What it polled it has processed, or put the
    rest back, before anything else happens, so that nothing is half done when a barrier arrives. `Polled` returns one
    element's worth of actions; an empty list: there is nothing to do now.
    """

    # fmt: off
    TRANSITIONS = (
        Row("waiting, processing", ChannelConnected, SAME, [Maybe(GrantCredit)], "none before recovered rows"),
        Row("waiting",    ElementArrived,    SAME, _STORED, "barriers: all that were waited for are there"),
        Row("processing", ElementArrived,    SAME, [Maybe(StoreChannels)], "the last barrier of a snapshot before"),
        Row("processing", ElementArrived,    "waiting", [TakeSnapshot, Maybe(StoreChannels), *_FINISHED],
            "what was polled is in the snapshot"),
        Row("waiting, processing", RowsRecovered, SAME),
        Row("waiting, processing", RowsSpilled,   SAME),
        Row("waiting",    PhaseOneEnded,     SAME, _STORED, "a snapshot that waited for it"),
        Row("processing", PhaseOneEnded,     SAME, [], "nothing waited for it, or the rest of what is processed"),
        Row("processing", PhaseOneEnded,     "waiting", [TakeSnapshot, Maybe(StoreChannels)]),
        Row("waiting",    RecoveryEnded,     SAME, _FINISHED),
        Row("processing", RecoveryEnded,     SAME, [Maybe(GrantCredit)], "what is processed was recovered"),
        Row("waiting",    Polled,            SAME, [*_STORED, *_EVENT_TIME, Maybe(RecoveredProcessed)],
            "nothing but events was there"),
        Row("waiting",    Polled,            "processing", [ProcessRows]),
        Row("processing", Polled,            "waiting", [*_STORED, *_FINISHED, *_EVENT_TIME],
            "that was all, or a snapshot is next"),
        Row("processing", Polled,            SAME, [ProcessRows, *_FINISHED]),
        Row("processing", MorePolled,        SAME, [Maybe(ProcessRows)], "unless those were recovered"),
        Row("processing", RowsPutBack,       "waiting"),
        Row("processing", RowsPutBack,       SAME, [], "others were polled with it"),
        Row("waiting, processing", CheckpointGivenUp, SAME, [], "nothing waits for it any longer"),
        Row("waiting",    GateTimePassed,    SAME, _STORED, "barriers may pass now"),
        Row("processing", GateTimePassed,    SAME),
        Row("processing", GateTimePassed,    "waiting", [TakeSnapshot, Maybe(StoreChannels), *_FINISHED]),
    )
    # fmt: on
    UNRECORDED = frozenset({ElementArrived, RowsPutBack, Polled, MorePolled})

    def __init__(
        self,
        consumer: int,
        inputs: Mapping[str, GateInput],
        *,
        recovering: bool = False,
        producers_recover: bool = False,
        credits: int = CREDITS,
    ) -> None:
        super().__init__()
        self.state = "waiting"
        self._consumer = consumer
        self._channels: dict[ChannelId, GateChannel] = {}
        self._valves: dict[str, WatermarkValve] = {}
        for uid, each in inputs.items():
            exchange = GateExchange(uid, each.producers if producers_recover else (), relocated=each.relocated)
            self._valves[uid] = WatermarkValve(uid, each.producers, idle_together=each.idle_together)
            for producer in each.producers:
                channel = ChannelId(uid, producer, consumer)
                self._channels[channel] = GateChannel(
                    channel, exchange, supports_unaligned=each.supports_unaligned, credits=credits
                )
        self._idleness = Idleness({uid: each.stage for uid, each in inputs.items()})
        self._recovery = GateRecovery(self._channels, recovering=recovering, producers_recover=producers_recover)
        self._always_aligned = frozenset(each.id for each in self._channels.values() if not each.supports_unaligned)
        self._checkpoint = BarrierHandler(len(self._channels), self._always_aligned)
        self._ready: dict[ChannelId, None] = {}  # those with something to process, in the order of their turns
        self._polled: list[GateChannel] = []  # whose buffers are being processed, one or several of the same exchange
        self._polled_recovered = False  # that one was recovered

    @property
    def recovery(self) -> str:
        """How far recovery is: a state of `gate_recovery.GateRecovery`."""
        return self._recovery.state

    @property
    def checkpoint(self) -> str:
        """How far the newest checkpoint is: a state of `barrier_handler.BarrierHandler`."""
        return self._checkpoint.state

    @property
    def waits_for_aligned(self) -> bool:
        """Whether a barrier passes rows that has not come through those of channels that are always aligned."""
        return self._checkpoint.state == "passing" and not self._checkpoint.is_aligned

    def next_time_ms(self) -> int | None:
        """Return when `GateTimePassed` is due, in milliseconds; None: nothing is due."""
        return self._checkpoint.deadline_ms

    def check(self) -> None:
        """Assert what always holds."""
        assert (self.state == "processing") == bool(self._polled)
        assert len({each.exchange.uid for each in self._polled}) <= 1
        polled = Counter() if self._polled_recovered else Counter(each.id for each in self._polled)
        for channel in self._channels.values():
            assert (channel.id in self._ready) == self._is_ready(channel)
            channel.check_credits(polled=polled[channel.id])
        self._recovery.check()
        for valve in self._valves.values():
            valve.check()
        self._checkpoint.check()
        assert not self._is_due(), "a snapshot that is due was not taken"
        for each in self._checkpoint.at_head:
            head = self._channels[each].sent[0]
            assert isinstance(head, Barrier) and head.checkpoint_id == self._checkpoint.newest

    def __str__(self) -> str:
        return f"The input gate of subtask {self._consumer}"

    # Channels and what comes on them.

    def _on_channel_connected(self, event: ChannelConnected, now_ms: int) -> list[Action]:
        self._known(event).handle(event, now_ms)
        return self._recovery.handle(event, now_ms)

    def _on_element_arrived(self, event: ElementArrived, now_ms: int) -> list[Action]:
        channel, element = self._known(event), event.element
        channel.handle(element, now_ms)
        if isinstance(element, Barrier):
            return self._on_barrier(channel, element, now_ms)
        if channel.id in self._checkpoint.missing and isinstance(element, Buffer):
            self._checkpoint.handle(RowsFollowed(channel.id, element), now_ms)
        self._set_ready(channel)
        return []

    def _on_barrier(self, channel: GateChannel, barrier: Barrier, now_ms: int) -> list[Action]:
        checkpoint, number = self._checkpoint, barrier.checkpoint_id
        if number != channel.last_barrier:
            return []  # a newer one has passed it on the producer's side
        actions: list[Action] = []
        was = checkpoint.newest, checkpoint.state
        if checkpoint.is_late(number):
            actions += checkpoint.handle(LateBarrierArrived(channel.id), now_ms)
        elif checkpoint.is_over(number):
            return []
        else:
            channel.sent.append(barrier)
            if barrier.unaligned:
                checkpoint.handle(BarrierSeen(channel.id, barrier), now_ms)
        if (checkpoint.newest, checkpoint.state) == was:  # as for all but the first and the last of a checkpoint
            return actions + self._proceed_after(channel, now_ms)
        return actions + self._proceed(now_ms)

    def _known(self, event: ChannelConnected | ElementArrived | RowsRecovered | RowsSpilled) -> GateChannel:
        channel = self._channels.get(event.channel)
        if channel is None:
            raise self.invalid(event, "there is no such channel")
        return channel

    # Processing.

    def _on_polled(self, event: Polled, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if self._polled:
            channels = dict.fromkeys(self._polled)
            actions = self._finish_polled(now_ms)
            for channel in channels:
                actions += self._proceed_after(channel, now_ms)
            if actions and type(actions[-1]) in (TakeSnapshot, StoreChannels):
                return actions
        asked: list[Action] = []
        while not asked:
            next_one = self._next_channel(overdraft=event.overdraft)
            if next_one is None:
                break
            asked = self._process(next_one, now_ms)
        return actions + asked

    def _next_channel(self, *, overdraft: bool) -> GateChannel | None:
        """Return the channel whose turn it is; with ``overdraft`` of those that the snapshot waits for."""
        ready = self._ready
        if overdraft:
            if not self.waits_for_aligned:
                return None
            # During recovery it waits for all: aligned channels get no row before that is over.
            if self._recovery.state in ("processing", "over"):
                return next((self._channels[each] for each in ready if each in self._always_aligned), None)
        return self._channels[next(iter(ready))] if ready else None

    def _process(self, channel: GateChannel, now_ms: int) -> list[Action]:
        """Take the next element of a channel that has one."""
        del self._ready[channel.id]
        recovered = bool(channel.recovered)
        element = channel.recovered.popleft() if recovered else channel.sent.popleft()
        if isinstance(element, Buffer):
            self._polled_recovered, self.state = recovered, "processing"
            self._polled.append(channel)
            self._set_ready(channel)
            return [ProcessRows(channel.id, element, recovered)]
        assert not isinstance(element, Barrier)
        actions: list[Action]
        if isinstance(element, ProducerRecovered):
            actions = self._recovery.handle(ProducerCaughtUp(channel.id), now_ms)
            self._read_on(channel.exchange)
        else:
            received = ProducerEventReceived(channel.id.producer, element)
            heard = self._idleness.notifications(channel.exchange.uid, received, self._valves)
            actions = [action for uid, event in heard for action in self._valves[uid].handle(event, now_ms)]
        return actions + self._proceed_after(channel, now_ms)

    def _on_more_polled(self, event: MorePolled, now_ms: int) -> list[Action]:
        if self._polled_recovered:
            return []
        exchange = self._polled[0].exchange
        for each in self._ready:
            channel = self._channels[each]
            if channel.exchange is exchange and not channel.recovered and type(channel.sent[0]) is Buffer:
                return self._process(channel, now_ms)
        return []

    def _on_rows_put_back(self, event: RowsPutBack, now_ms: int) -> list[Action]:
        channel = self._polled.pop()
        (channel.recovered if self._polled_recovered else channel.sent).appendleft(event.buffer)
        self._set_ready(channel)
        if not self._polled:
            self.state = "waiting"
        return []

    def _finish_polled(self, now_ms: int) -> list[Action]:
        """Take note that what was polled is processed to its end."""
        polled, self._polled, self.state = self._polled, [], "waiting"
        if not self._polled_recovered:
            buffers = Counter(polled)
            return [action for each, many in buffers.items() for action in each.handle(BufferProcessed(many), now_ms)]
        actions: list[Action] = []
        for channel in polled:
            actions += self._recovery.handle(RecoveredRowsProcessed(channel.id), now_ms)
            if channel.exchange.relocated and not channel.exchange.left:
                self._read_on(channel.exchange)
        return actions

    def _read_on(self, exchange: GateExchange) -> None:
        """Let the channels of an exchange have their turns, if nothing holds them any longer."""
        for channel in self._channels.values():
            if channel.exchange is exchange:
                self._set_ready(channel)

    def _is_ready(self, channel: GateChannel) -> bool:
        if channel.recovered:
            return True
        if not channel.sent or channel.spilled or self._recovery.state == "reading":
            return False
        if channel.exchange.relocated and channel.exchange.holds(channel.id.producer):
            return False
        return type(channel.sent[0]) is not Barrier

    def _set_ready(self, channel: GateChannel) -> None:
        if self._is_ready(channel):
            self._ready.setdefault(channel.id)
        else:
            self._ready.pop(channel.id, None)

    # Recovery.

    def _on_rows_recovered(self, event: RowsRecovered, now_ms: int) -> list[Action]:
        channel = self._known(event)
        self._recovery.handle(event, now_ms)
        if event.spilled is not None and self._checkpoint.state == "storing":
            self._checkpoint.handle(SpilledReplayed(channel.id, event.spilled, event.buffer), now_ms)
        self._set_ready(channel)
        return []

    def _on_rows_spilled(self, event: RowsSpilled, now_ms: int) -> list[Action]:
        self._known(event)
        return self._recovery.handle(event, now_ms)

    def _on_phase_one_ended(self, event: PhaseOneEnded, now_ms: int) -> list[Action]:
        self._recovery.handle(event, now_ms)
        return self._proceed(now_ms)

    def _on_recovery_ended(self, event: RecoveryEnded, now_ms: int) -> list[Action]:
        return self._recovery.handle(event, now_ms)

    # Checkpoints.

    def _on_checkpoint_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        was = self._checkpoint.state
        self._checkpoint.handle(event, now_ms)
        return self._proceed(now_ms) if self._checkpoint.state != was else []

    def _on_gate_time_passed(self, event: GateTimePassed, now_ms: int) -> list[Action]:
        was = self._checkpoint.state
        self._checkpoint.handle(event, now_ms)
        return self._proceed(now_ms) if self._checkpoint.state != was else []

    def _proceed_after(self, channel: GateChannel, now_ms: int) -> list[Action]:
        """Look at what comes next in one channel, and at the others if that changes anything for them."""
        newest = self._checkpoint.newest
        self._look(channel, now_ms)
        return self._proceed(now_ms) if newest != self._checkpoint.newest or self._is_due() else []

    def _proceed(self, now_ms: int) -> list[Action]:
        """Look at what comes next in each channel, and take the snapshots that are due."""
        actions: list[Action] = []
        while True:
            newest = self._checkpoint.newest
            for channel in self._channels.values():
                self._look(channel, now_ms)
            if self._checkpoint.newest != newest:
                continue  # those that were looked at first may wait for a barrier that is older now
            if not self._is_due():
                return actions
            actions += self._take_snapshot(now_ms)

    def _look(self, channel: GateChannel, now_ms: int) -> None:
        """Drop barriers that are over from a channel's head, and note the one that is not."""
        sent, checkpoint = channel.sent, self._checkpoint
        if sent and type(sent[0]) is Barrier and self._is_read_up_to_sent(channel):
            while sent and isinstance(barrier := sent[0], Barrier):
                if checkpoint.is_over(barrier.checkpoint_id):
                    sent.popleft()
                    continue
                if channel.id not in checkpoint.at_head or barrier.checkpoint_id > checkpoint.newest:
                    checkpoint.handle(BarrierReached(channel.id, barrier), now_ms)
                break
        self._set_ready(channel)

    def _is_read_up_to_sent(self, channel: GateChannel) -> bool:
        """Return whether nothing precedes what the producer sent; the rest of what is polled may be put back."""
        return not (
            channel in self._polled or channel.recovered or channel.spilled or self._recovery.state == "reading"
        )

    def _is_due(self) -> bool:
        checkpoint = self._checkpoint
        return checkpoint.state != "none" and checkpoint.is_aligned and self._recovery.state != "reading"

    def _take_snapshot(self, now_ms: int) -> list[Action]:
        actions = self._finish_polled(now_ms)
        standing: dict[ChannelId, list[Buffer | Spilled]] = {}
        if self._checkpoint.state == "passing":
            for channel in self._channels.values():
                if channel.supports_unaligned:
                    standing[channel.id] = channel.standing_before(self._checkpoint.newest)
        relocated = frozenset(each.exchange.uid for each in self._channels.values() if each.exchange.is_held)
        return actions + self._checkpoint.handle(ChannelsAligned(standing, relocated), now_ms)
