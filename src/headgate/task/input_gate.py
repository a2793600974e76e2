"""Decides what a subtask behind exchanges processes next, and what of its channels belongs to a checkpoint.

Never: look into rows, read a clock, block.

A channel holds, in this order: recovered buffers, those that recovery spilled to disk, and what its producer sent.

- A barrier keeps its place in its channel. *Aligned*, the channel is not read past it until the snapshot is taken.
  *Unaligned*, it is seen the moment it arrives; what stands before it in the channel, and is not processed yet when the
  snapshot is taken, is the channel's state. Channels whose exchange does not support unaligned barriers, and all of
  them with an aligned one, are aligned. With a timeout an unaligned barrier is aligned until that is over, here or
  further up, since the first one arrived.
- `TakeSnapshot` is due when a barrier of the checkpoint has been seen and every aligned channel has its barrier at its
  head. Ended channels still deliver barriers, and are waited for. Until it is taken, unaligned channels are read up to
  their barriers, and those without one as before.
- Who comes behind takes no rows any more once a barrier that passes rows has stopped it (a rescale, a savepoint); so
  what an aligned channel holds before such a barrier is processed though there is no room for what becomes of it, which
  that checkpoint stores as output: a few buffers, and in recovery what is recovered (`waits_for_aligned`,
  `Polled.overdraft`).
- Unaligned channels whose barrier has not come when the snapshot is taken are read on; all that arrives on them until
  it comes is stored, too (a copy: it is processed all the same). `StoreChannels` follows when the last barrier is in,
  at once for an aligned checkpoint (empty).
- Phase 1 of recovery (rows are still read from the checkpoint): rows are processed already; an unaligned snapshot
  waits for its end (`PhaseOneEnded`). In phase 2 the state of a channel is its recovered buffers in memory, then the
  spilled ones, then what else stands before the barrier. An aligned barrier waits for all of them.
- Until `RecoveryEnded` no credit is granted, and events of producers wait behind recovered buffers (but unaligned
  barriers are seen at once), so that no new row and no watermark comes before a recovered one.
- Where recovered rows came through other channels than their successors do (`GateInput.relocated`: after a rescale),
  nothing that producers of the exchange send is processed, and no credit granted, before all that was recovered of it
  is processed: rows of a key stay in their order, and what a checkpoint stores of the exchange meanwhile is recovered
  rows only. Other exchanges are read on.
- A barrier of an older checkpoint than the newest seen, or of an aborted one, is dropped, also where the newer one has
  passed it in its channel; a newer one replaces an older, whose `StoreChannels` then never comes.
- The watermark of an exchange is that of `headgate.task.watermark_valve`; its end is followed by `EndInput`.
- `Polled` takes turns among channels; a buffer that was put back is its channel's next one. A credit is granted when a
  producer's buffer was processed to its end (the next poll tells), never for a recovered one.

Of recovery (*reading* is phase 1, *replaying* phase 2), with the actions that are not of checkpoints:

    state                        event              next       actions              why
    ---------------------------  -----------------  ---------  -------------------  -----------------------------------
    reading, replaying           ChannelConnected   same                            no new rows yet
    running                      ChannelConnected   same       GrantCredit?         held: relocated rows are left
    reading, replaying           ElementArrived     same                            an event
    running                      ElementArrived     same       GrantCredit?,        before a snapshot, what was polled
                                                               RecoveredProcessed?  is processed
    reading                      RowsRecovered      same                            P1 or P3
    replaying                    RowsRecovered      same                            P3
    reading                      RowsSpilled        same                            P2
    reading                      PhaseOneEnded      replaying
    replaying                    RecoveryEnded      running    GrantCredit?,        to those that are connected
                                                               RecoveredProcessed?
    reading                      Polled             same       ProcessRows?         only what was recovered
    replaying                    Polled             same       ProcessRows?,        and events, where nothing recovered
                                                               AdvanceWatermark?,   is left
                                                               MarkIdle?,
                                                               EndInput?
    running                      Polled             same       ProcessRows?,
                                                               GrantCredit?,
                                                               RecoveredProcessed?,
                                                               AdvanceWatermark?,
                                                               MarkIdle?,
                                                               MarkActive?,
                                                               EndInput?
    reading, replaying, running  RowsPutBack        same
    reading, replaying, running  CheckpointGivenUp  same
    reading, replaying           GateTimePassed     same
    running                      GateTimePassed     same       GrantCredit?         before a snapshot

Of the newest checkpoint (*aligning* until the snapshot is taken, *storing* until the last barrier is in), with its
actions. Steps without another state or action are left out of events that tell nothing of barriers:

    state           event                     next      actions         why
    --------------  ------------------------  --------  --------------  -----------------------------------------------
    none            ElementArrived barrier    same                      over, or behind what is not processed
    none            ElementArrived barrier    aligning                  the first one
    none            ElementArrived barrier    aligning  TakeSnapshot    the last one needed, and at the head of a
                                                                        channel was a newer one behind it
    none            ElementArrived barrier    storing   TakeSnapshot    it passes, and nothing is to be aligned
    aligning        ElementArrived barrier    same
    aligning        ElementArrived barrier    same      TakeSnapshot,   the last one, and a newer one was behind it
                                                        StoreChannels?
    aligning        ElementArrived barrier    none      TakeSnapshot,   the last one
                                                        StoreChannels
    aligning        ElementArrived barrier    storing   TakeSnapshot    all that is aligned is, others are to come
    storing         ElementArrived barrier    same                      over, or others are to come
    storing         ElementArrived barrier    none      StoreChannels   the last one
    storing         ElementArrived barrier    aligning                  a newer one
    none            Polled                    same
    none            Polled                    same      TakeSnapshot,   behind what was processed
                                                        StoreChannels
    none            Polled                    aligning                  behind what was processed
    none            Polled                    aligning  TakeSnapshot,   behind what was processed, and a newer one was
                                                        StoreChannels   behind it
    aligning        Polled                    same
    aligning        Polled                    same      TakeSnapshot,   a newer one was behind it
                                                        StoreChannels?
    aligning        Polled                    none      TakeSnapshot,
                                                        StoreChannels
    aligning        Polled                    storing   TakeSnapshot
    storing         Polled                    same
    storing         Polled                    aligning                  a newer one, behind what was processed
    none            PhaseOneEnded             same
    none            PhaseOneEnded             same      TakeSnapshot,   it is aligned, but for phase 1
                                                        StoreChannels
    none            PhaseOneEnded             aligning                  it was reached, but for phase 1
    aligning        PhaseOneEnded             same
    aligning        PhaseOneEnded             same      TakeSnapshot,
                                                        StoreChannels?
    aligning        PhaseOneEnded             none      TakeSnapshot,   it waited for that
                                                        StoreChannels
    aligning        PhaseOneEnded             storing   TakeSnapshot
    none, aligning  CheckpointGivenUp         same                      another one
    aligning        CheckpointGivenUp         none
    storing         CheckpointGivenUp         none
    none, storing   GateTimePassed            same
    aligning        GateTimePassed            same                      not over, or something is to be aligned yet
    aligning        GateTimePassed            same      TakeSnapshot    a newer one was behind it
    aligning        GateTimePassed            storing   TakeSnapshot    from now on they pass

Follows FLIP-547, sections 2.1 and 4.3 to 4.6; Flink's SingleCheckpointBarrierHandler;
FLINK-20645 and -37870.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import (
    Barrier,
    Buffer,
    ChannelId,
    Element,
    ProducerEnded,
    ProducerRecovered,
)
from headgate.task.history import told_before
from headgate.task.watermark_valve import AdvanceWatermark as AdvanceWatermark
from headgate.task.watermark_valve import EndInput as EndInput
from headgate.task.watermark_valve import MarkActive as MarkActive
from headgate.task.watermark_valve import MarkIdle as MarkIdle
from headgate.task.watermark_valve import ProducerTold, WatermarkValve

_HISTORY = 64


class GateInput(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that a subtask consumes.

    Parameters
    ----------
    producers
        The producing subtasks: one channel each.
    supports_unaligned
        Whether barriers may pass its rows.
    idle_together
        Whether no producer stays idle unless all do, since all are told the same.
    relocated
        Whether what follows upon a recovered row may come through another channel:
        `headgate.checkpoint.channel_assignment.relocated_exchanges`.
    """

    producers: tuple[int, ...]
    supports_unaligned: bool
    idle_together: bool = False
    relocated: bool = False


# What happened.


class ChannelConnected(msgspec.Struct, frozen=True):
    """The producer's end of a channel is there."""

    channel: ChannelId


class ElementArrived(msgspec.Struct, frozen=True):
    """The producer sent something."""

    channel: ChannelId
    element: Element


class RowsRecovered(msgspec.Struct, frozen=True):
    """A recovered (and filtered) buffer is in memory. ``spilled``: the number that it was spilled under, or None."""

    channel: ChannelId
    buffer: Buffer
    spilled: int | None = None


class RowsSpilled(msgspec.Struct, frozen=True):
    """A recovered buffer went to the local disk. ``number`` counts the spilled ones of this execution, from 1."""

    channel: ChannelId
    number: int


class PhaseOneEnded(msgspec.Struct, frozen=True):
    """All of the checkpoint's channel state was read: it is in memory or on the local disk."""


class RecoveryEnded(msgspec.Struct, frozen=True):
    """All of it is in memory, or processed."""


class RowsPutBack(msgspec.Struct, frozen=True):
    """The rest of the buffer that was polled last was not processed.

    Told before anything else is told: what was polled and not put back counts as processed when a snapshot is due.
    """

    buffer: Buffer


class Polled(msgspec.Struct, frozen=True):
    """The subtask can process something; what was polled before is done, snapshots included.

    ``overdraft``: there is no room for what becomes of rows, so that only those are wanted that the snapshot waits for.
    """

    overdraft: bool = False


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete."""

    checkpoint_id: int


class GateTimePassed(msgspec.Struct, frozen=True):
    """Time went on: `InputGate.next_time_ms` is over."""


Event = (
    ChannelConnected | ElementArrived | RowsRecovered | RowsSpilled | PhaseOneEnded | RecoveryEnded | RowsPutBack
    | Polled | CheckpointGivenUp | GateTimePassed
)  # fmt: skip

# What is to be done.


class ProcessRows(msgspec.Struct, frozen=True):
    """Process a buffer, or put its rest back. ``recovered``: it takes room of recovery's until it is processed."""

    channel: ChannelId
    buffer: Buffer
    recovered: bool = False


class GrantCredit(msgspec.Struct, frozen=True):
    """Allow the producer so many buffers more."""

    channel: ChannelId
    credits: int


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Take the snapshot of the operators, and send the barrier on, before anything else is processed."""

    barrier: Barrier


class Spilled(msgspec.Struct, frozen=True):
    """Stands for a spilled buffer in `StoreChannels`: its number."""

    number: int


class StoreChannels(msgspec.Struct, frozen=True):
    """Store the input's channel state of a checkpoint, all of it; channels without any are left out.

    A spilled buffer is named by its number only while it was not replayed: then it is there itself. Of ``relocated``
    exchanges, rows that follow upon those of one channel may come through another.
    """

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer | Spilled, ...]]
    relocated: frozenset[str] = frozenset()


class RecoveredProcessed(msgspec.Struct, frozen=True):
    """Everything recovered has been processed, that of the producers' side (`ProducerRecovered`) included.

    Told once, if there was anything to recover.
    """


Action = (
    ProcessRows | AdvanceWatermark | MarkIdle | MarkActive | EndInput | GrantCredit | TakeSnapshot | StoreChannels
    | RecoveredProcessed
)  # fmt: skip


class _Exchange:
    """What was recovered of an exchange, where the rows that follow may come through other channels."""

    def __init__(self, producers: tuple[int, ...], *, relocated: bool, producers_recover: bool) -> None:
        self.relocated = relocated
        self.left = 0  # recovered buffers that are not processed to their end
        self.recovering = set(producers if producers_recover else ())  # whose `ProducerRecovered` is not reached

    @property
    def is_held(self) -> bool:
        """Whether no channel is read, but for what was recovered on this side."""
        return self.relocated and self.left > 0

    def holds(self, producer: int) -> bool:
        """Return whether what a producer sent next waits for what was recovered, here or by other producers."""
        if not self.relocated:
            return False
        return self.left > 0 or (bool(self.recovering) and producer not in self.recovering)


class _Channel:
    """One channel: recovered buffers, then those that recovery spilled, then what its producer sent."""

    def __init__(self, channel: ChannelId, *, supports_unaligned: bool, producer_recovers: bool) -> None:
        self.id = channel
        self.supports_unaligned = supports_unaligned
        self.recovered: deque[Buffer] = deque()
        self.spilled: deque[int] = deque()
        self.sent: deque[Element] = deque()
        self.connected = False
        self.credits = 0  # how many buffers more the producer may send
        self.recovers = producer_recovers  # whether its `ProducerRecovered` is yet to come
        self.ended = False  # whether its `ProducerEnded` has come
        self.last_barrier = 0


class _Checkpoint:
    """The newest checkpoint that a barrier told of."""

    def __init__(self, barrier: Barrier) -> None:
        self.id = barrier.checkpoint_id
        self.barrier = barrier  # as it is sent on
        self.passing = False  # whether its barriers pass rows, where they may
        self.deadline_ms: int | None = None
        self.arrived: set[ChannelId] = set()  # where an unaligned barrier is in the queue
        self.at_head: set[ChannelId] = set()  # where nothing stands before it
        self.missing: set[ChannelId] | None = None  # None: the snapshot is not taken; else what is read on
        self.stored: dict[ChannelId, list[Buffer | Spilled]] = {}
        self.relocated: frozenset[str] = frozenset()  # of which exchanges something recovered is stored


class InputGate:
    """The channels that a subtask consumes.

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
    The driver carries out all actions of an event before it tells the next. What it polled it has processed, or put the
    rest back, before it tells anything else, so that nothing is half done when a barrier arrives.
    """

    def __init__(
        self,
        consumer: int,
        inputs: Mapping[str, GateInput],
        *,
        recovering: bool = False,
        producers_recover: bool = False,
        credits: int = 4,
    ) -> None:
        self._channels: dict[ChannelId, _Channel] = {}
        self._exchanges: dict[str, _Exchange] = {}
        self._valves: dict[str, WatermarkValve] = {}
        for exchange, each in inputs.items():
            self._exchanges[exchange] = _Exchange(
                each.producers, relocated=each.relocated, producers_recover=producers_recover
            )
            self._valves[exchange] = WatermarkValve(exchange, each.producers, idle_together=each.idle_together)
            for producer in each.producers:
                channel = ChannelId(exchange, producer, consumer)
                self._channels[channel] = _Channel(
                    channel, supports_unaligned=each.supports_unaligned, producer_recovers=producers_recover
                )
        self._always_aligned = frozenset(each.id for each in self._channels.values() if not each.supports_unaligned)
        self._credits = credits
        self._ready: dict[ChannelId, None] = {}  # those with something to process, in the order of their turns
        self._polled: tuple[_Channel, bool] | None = None  # what is being processed, and whether it was recovered
        self._recovery = "reading" if recovering else "running"
        self._spilled = self._replayed = 0  # the last numbers
        self._recovered_left = 0  # buffers that are not processed to their end
        self._producers_left = (
            len(self._channels) if producers_recover else 0
        )  # whose `ProducerRecovered` is not reached
        self._recovery_told = not (recovering or producers_recover)
        self._newest = 0  # the newest checkpoint that was begun
        self._given_up: set[int] = set()  # newer ones that will not complete
        self._checkpoint: _Checkpoint | None = None
        self._history: deque[tuple[int | None, Event]] = deque(maxlen=_HISTORY)

    @property
    def recovery(self) -> str:
        """How far recovery is, as in the module's first table."""
        return self._recovery

    @property
    def checkpoint(self) -> str:
        """How far the newest checkpoint is, as in the module's second table."""
        if self._checkpoint is None:
            return "none"
        return "aligning" if self._checkpoint.missing is None else "storing"

    @property
    def waits_for_aligned(self) -> bool:
        """Whether a barrier passes rows that has not come through those of channels that are always aligned."""
        checkpoint = self._checkpoint
        if checkpoint is None or not checkpoint.passing or checkpoint.missing is not None:
            return False
        return not self._always_aligned <= checkpoint.at_head

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        `Polled` returns one element's worth of actions; an empty list: there is nothing to do now.

        Raises
        ------
        InvalidTransitionError
            It cannot have happened.
        """
        actions: list[Action] = self._HANDLERS[type(event)](self, event, now_ms)
        if actions or type(event) is not Polled:
            self._history.append((now_ms, _without_rows(event)))
        return actions

    def next_time_ms(self) -> int | None:
        """Return when `GateTimePassed` is due, in milliseconds; None: not by itself."""
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.passing or checkpoint.missing is not None:
            return None
        return checkpoint.deadline_ms

    def check(self) -> None:
        """Assert what always holds."""
        left = producers_left = 0
        for channel in self._channels.values():
            assert (channel.id in self._ready) == self._is_ready(channel)
            polled = self._polled is not None and self._polled[0] is channel
            left += len(channel.recovered) + len(channel.spilled)
            producers_left += channel.recovers or any(type(each) is ProducerRecovered for each in channel.sent)
            waiting = sum(type(each) is Buffer for each in channel.sent)
            assert channel.credits >= 0
            if self._recovery != "running" or not channel.connected or self._is_held(channel):
                assert channel.credits == waiting == 0, "new rows came before recovered ones"
            elif not channel.ended:
                waiting += polled and self._polled is not None and not self._polled[1]
                assert channel.credits + waiting == self._credits
            if channel.spilled:
                assert self._recovery != "running"
                assert list(channel.spilled) == sorted(channel.spilled)
                assert self._replayed < channel.spilled[0] <= channel.spilled[-1] <= self._spilled
        left += self._polled is not None and self._polled[1]
        assert left == self._recovered_left == sum(each.left for each in self._exchanges.values())
        assert producers_left == self._producers_left
        assert self._recovery_told == (self._recovery == "running" and not left and not producers_left)
        for valve in self._valves.values():
            valve.check()
        assert all(each > self._newest for each in self._given_up)
        if self._checkpoint is not None:
            self._check_checkpoint(self._checkpoint)

    def _check_checkpoint(self, checkpoint: _Checkpoint) -> None:
        assert checkpoint.id == self._newest
        assert checkpoint.id == checkpoint.barrier.checkpoint_id
        if checkpoint.missing is None:
            assert not self._is_due(), "a snapshot that is due was not taken"
            assert not checkpoint.stored
            for channel in checkpoint.at_head:
                head = self._channels[channel].sent[0]
                assert isinstance(head, Barrier)
                assert head.checkpoint_id == checkpoint.id
        else:
            assert checkpoint.missing, "the last barrier is in"
            assert not checkpoint.missing & self._always_aligned
        for stored in checkpoint.stored.values():
            assert not any(isinstance(each, Buffer) and each.unfiltered for each in stored), (
                "rows that others keep as well are about to be stored"
            )

    # Channels and what comes on them.

    def _on_connected(self, event: ChannelConnected, now_ms: int) -> list[Action]:
        channel = self._known(event)
        if channel.connected:
            raise self._invalid(event, "it is connected already")
        channel.connected = True
        return self._grant_all(channel)

    def _grant_all(self, channel: _Channel) -> list[Action]:
        """Grant a channel its first credits, if it may have them by now."""
        if self._recovery != "running" or self._is_held(channel) or not channel.connected or channel.ended:
            return []
        channel.credits = self._credits
        return [GrantCredit(channel.id, self._credits)]

    def _on_element(self, event: ElementArrived, now_ms: int) -> list[Action]:
        channel, element = self._known(event), event.element
        if not channel.connected:
            raise self._invalid(event, "it is not connected")
        if isinstance(element, Barrier):
            if element.checkpoint_id == channel.last_barrier:
                raise self._invalid(event, "the channel has had this barrier")
            if element.checkpoint_id < channel.last_barrier:
                return []  # a newer one has passed it on the producer's side
            return self._on_barrier(channel, element, now_ms)
        if channel.ended:
            raise self._invalid(event, "the producer has ended")
        if isinstance(element, Buffer):
            if not channel.credits:
                raise self._invalid(event, "the producer had no credit")
            channel.credits -= 1
            checkpoint = self._checkpoint
            if checkpoint is not None and checkpoint.missing and channel.id in checkpoint.missing:
                checkpoint.stored[channel.id].append(element)
        elif isinstance(element, ProducerRecovered):
            if not channel.recovers:
                raise self._invalid(event, "the producer does not recover, or has done so")
            channel.recovers = False
        elif isinstance(element, ProducerEnded):
            channel.ended = True
        channel.sent.append(element)
        self._set_ready(channel)
        return []

    def _on_barrier(self, channel: _Channel, barrier: Barrier, now_ms: int) -> list[Action]:
        channel.last_barrier = barrier.checkpoint_id
        checkpoint = self._checkpoint
        if self._is_over(barrier):
            return []
        if checkpoint is not None and checkpoint.id == barrier.checkpoint_id and checkpoint.missing is not None:
            checkpoint.missing.remove(channel.id)
            return [*self._complete(), *self._proceed()]
        channel.sent.append(barrier)
        if barrier.unaligned:
            self._see(channel, barrier, now_ms)
        return self._proceed()

    def _see(self, channel: _Channel, barrier: Barrier, now_ms: int) -> None:
        """Take note of an unaligned barrier, which is known before it is reached."""
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.id < barrier.checkpoint_id:
            checkpoint = self._begin(barrier)
        checkpoint.arrived.add(channel.id)
        if not barrier.alignment_timeout_ms:
            self._let_pass(checkpoint)
        elif checkpoint.deadline_ms is None:
            checkpoint.deadline_ms = now_ms + barrier.alignment_timeout_ms

    def _let_pass(self, checkpoint: _Checkpoint) -> None:
        """Let barriers pass rows from now on, here and further on."""
        checkpoint.passing = True
        checkpoint.barrier = msgspec.structs.replace(checkpoint.barrier, alignment_timeout_ms=0)

    def _on_time_passed(self, event: GateTimePassed, now_ms: int) -> list[Action]:
        due_ms = self.next_time_ms()
        if self._checkpoint is None or due_ms is None or now_ms < due_ms:
            return []
        self._let_pass(self._checkpoint)
        return self._proceed()

    # Processing.

    def _on_polled(self, event: Polled, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if self._polled is not None:
            channel = self._polled[0]
            actions = [*self._finish_polled(), *self._proceed_behind(channel)]
        asked: list[Action] = []
        while not asked and not (actions and type(actions[-1]) in (TakeSnapshot, StoreChannels)):
            next_one = self._next_channel(overdraft=event.overdraft)
            if next_one is None:
                break
            asked = self._process(next_one, now_ms)
        return [*actions, *asked]

    def _next_channel(self, *, overdraft: bool) -> _Channel | None:
        """Return the channel whose turn it is; with ``overdraft`` of those that the snapshot waits for."""
        # During recovery it waits for all: aligned channels get no row before that is over.
        if overdraft and not self.waits_for_aligned:
            return None
        if overdraft and self._recovery == "running":
            return next((self._channels[each] for each in self._ready if each in self._always_aligned), None)
        return next((self._channels[each] for each in self._ready), None)

    def _process(self, channel: _Channel, now_ms: int) -> list[Action]:
        """Take the next element of a channel that has one."""
        del self._ready[channel.id]
        if channel.recovered:
            return self._hand_out(channel, channel.recovered.popleft(), recovered=True)
        element = channel.sent.popleft()
        assert not isinstance(element, Barrier)
        if isinstance(element, Buffer):
            return self._hand_out(channel, element, recovered=False)
        if isinstance(element, ProducerRecovered):
            self._producers_left -= 1
            self._exchanges[channel.id.exchange].recovering.discard(channel.id.producer)
            self._read_on(channel.id.exchange)
            actions = self._tell_recovery()
        else:
            valve = self._valves[channel.id.exchange]
            actions = [*valve.handle(ProducerTold(channel.id.producer, element), now_ms)]
        return [*actions, *self._proceed_behind(channel)]

    def _hand_out(self, channel: _Channel, buffer: Buffer, *, recovered: bool) -> list[Action]:
        self._polled = (channel, recovered)
        self._set_ready(channel)
        return [ProcessRows(channel.id, buffer, recovered)]

    def _on_put_back(self, event: RowsPutBack, now_ms: int) -> list[Action]:
        if self._polled is None:
            raise self._invalid(event, "nothing is being processed")
        (channel, recovered), self._polled = self._polled, None
        if recovered:
            channel.recovered.appendleft(event.buffer)
        else:
            channel.sent.appendleft(event.buffer)
        self._set_ready(channel)
        return []

    def _finish_polled(self) -> list[Action]:
        """Take note that what was polled is processed to its end."""
        if self._polled is None:
            return []
        (channel, recovered), self._polled = self._polled, None
        if recovered:
            return self._finish_recovered(channel.id.exchange)
        if channel.ended:
            return []  # it has no use for it
        channel.credits += 1
        return [GrantCredit(channel.id, 1)]

    def _finish_recovered(self, uid: str) -> list[Action]:
        """Take note that a recovered buffer of an exchange is processed; after the last one, read what waits for it."""
        exchange = self._exchanges[uid]
        exchange.left -= 1
        self._recovered_left -= 1
        if not exchange.relocated or exchange.left:
            return self._tell_recovery()
        grants = [grant for channel in self._read_on(uid) for grant in self._grant_all(channel)]
        return [*grants, *self._tell_recovery()]

    def _read_on(self, uid: str) -> list[_Channel]:
        """Let the channels of an exchange have their turns, if nothing holds them any longer; return them."""
        channels = [each for each in self._channels.values() if each.id.exchange == uid]
        for channel in channels:
            self._set_ready(channel)
        return channels

    def _is_held(self, channel: _Channel) -> bool:
        return self._exchanges[channel.id.exchange].is_held

    def _is_ready(self, channel: _Channel) -> bool:
        if channel.recovered:
            return True
        if channel.spilled or self._recovery == "reading" or not channel.sent:
            return False
        if self._exchanges[channel.id.exchange].holds(channel.id.producer):
            return False
        return type(channel.sent[0]) is not Barrier

    def _set_ready(self, channel: _Channel) -> None:
        if self._is_ready(channel):
            self._ready.setdefault(channel.id)
        else:
            self._ready.pop(channel.id, None)

    # Recovery.

    def _on_rows_recovered(self, event: RowsRecovered, now_ms: int) -> list[Action]:
        channel = self._known(event)
        if event.spilled is None:
            if self._recovery != "reading" or channel.spilled:
                raise self._invalid(event, "all of the checkpoint is read, or spilled ones come first")
            self._recovered_left += 1
            self._exchanges[event.channel.exchange].left += 1
        elif not channel.spilled or channel.spilled[0] != event.spilled or event.spilled != self._replayed + 1:
            raise self._invalid(event, "it was not spilled, or is not the oldest one")
        else:
            self._replayed = channel.spilled.popleft()
            stored = None if self._checkpoint is None else self._checkpoint.stored.get(channel.id)
            if stored is not None:
                stored[stored.index(Spilled(event.spilled))] = event.buffer
        channel.recovered.append(event.buffer)
        self._set_ready(channel)
        return []

    def _on_rows_spilled(self, event: RowsSpilled, now_ms: int) -> list[Action]:
        channel = self._known(event)
        if self._recovery != "reading" or event.number != self._spilled + 1:
            raise self._invalid(event, "all of the checkpoint is read, or one before it is missing")
        self._spilled = event.number
        channel.spilled.append(event.number)
        self._recovered_left += 1
        self._exchanges[event.channel.exchange].left += 1
        return []

    def _on_phase_one_ended(self, event: PhaseOneEnded, now_ms: int) -> list[Action]:
        if self._recovery != "reading":
            raise self._invalid(event, "phase 1 is not on")
        self._recovery = "replaying"
        return self._proceed()

    def _on_recovery_ended(self, event: RecoveryEnded, now_ms: int) -> list[Action]:
        if self._recovery != "replaying" or self._replayed != self._spilled:
            raise self._invalid(event, "phase 2 is not on, or spilled buffers are left")
        self._recovery = "running"
        grants = [grant for channel in self._channels.values() for grant in self._grant_all(channel)]
        return [*grants, *self._tell_recovery()]

    def _tell_recovery(self) -> list[Action]:
        if self._recovery_told or self._recovery != "running" or self._recovered_left or self._producers_left:
            return []
        self._recovery_told = True
        return [RecoveredProcessed()]

    # Checkpoints.

    def _on_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        if event.checkpoint_id > self._newest:
            self._given_up.add(event.checkpoint_id)
        if self._checkpoint is None or self._checkpoint.id != event.checkpoint_id:
            return []
        self._checkpoint = None
        return self._proceed()

    def _is_over(self, barrier: Barrier) -> bool:
        """Return whether nobody wants the barrier: an older one, of a given up checkpoint, or behind its snapshot."""
        number, checkpoint = barrier.checkpoint_id, self._checkpoint
        return number < self._newest or (number == self._newest and checkpoint is None) or number in self._given_up

    def _begin(self, barrier: Barrier) -> _Checkpoint:
        """Let a newer checkpoint replace the one before."""
        self._newest = barrier.checkpoint_id
        self._given_up = {each for each in self._given_up if each > self._newest}
        self._checkpoint = _Checkpoint(barrier)
        return self._checkpoint

    def _proceed_behind(self, channel: _Channel) -> list[Action]:
        """Look at what comes next in one channel, and at the others if that changes anything for them."""
        before = self._checkpoint
        self._look(channel)
        return self._proceed() if before is not self._checkpoint or self._is_due() else []

    def _proceed(self) -> list[Action]:
        """Look at what comes next in each channel, and take the snapshots that are due."""
        actions: list[Action] = []
        while True:
            before = self._newest
            for channel in self._channels.values():
                self._look(channel)
            if self._newest != before:
                continue  # those that were looked at first may wait for a barrier that is older now
            if not self._is_due():
                return actions
            actions += self._take_snapshot()

    def _look(self, channel: _Channel) -> None:
        """Drop barriers that are over from a channel's head, and note the one that is not."""
        polled = self._polled is not None and self._polled[0] is channel  # its rest may be put back
        if not (polled or channel.recovered or channel.spilled or self._recovery == "reading"):
            while channel.sent and isinstance(barrier := channel.sent[0], Barrier):
                checkpoint = self._checkpoint
                if self._is_over(barrier):
                    channel.sent.popleft()
                elif checkpoint is None or checkpoint.id < barrier.checkpoint_id:
                    self._begin(barrier)
                elif checkpoint.missing is not None:
                    channel.sent.popleft()  # it has done its work
                else:
                    checkpoint.at_head.add(channel.id)
                    break
        self._set_ready(channel)

    def _is_due(self) -> bool:
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.missing is not None:
            return False
        if checkpoint.passing:
            return self._recovery != "reading" and self._always_aligned <= checkpoint.at_head
        return len(checkpoint.at_head) == len(self._channels)

    def _take_snapshot(self) -> list[Action]:
        checkpoint = self._checkpoint
        assert checkpoint is not None
        actions = self._finish_polled()
        checkpoint.missing = set()
        checkpoint.relocated = frozenset(uid for uid, each in self._exchanges.items() if each.is_held)
        if checkpoint.passing:
            for channel in self._channels.values():
                if channel.supports_unaligned:
                    checkpoint.stored[channel.id] = _standing_before(channel, checkpoint.id)
                    if channel.id not in checkpoint.arrived:
                        checkpoint.missing.add(channel.id)
        return [*actions, TakeSnapshot(checkpoint.barrier), *self._complete()]

    def _complete(self) -> list[Action]:
        """End a checkpoint whose last barrier is in."""
        checkpoint = self._checkpoint
        assert checkpoint is not None
        if checkpoint.missing:
            return []
        self._checkpoint = None
        stored = {each: tuple(rows) for each, rows in checkpoint.stored.items() if rows}
        return [StoreChannels(checkpoint.id, stored, checkpoint.relocated & {each.exchange for each in stored})]

    def _known(self, event: ChannelConnected | ElementArrived | RowsRecovered | RowsSpilled) -> _Channel:
        channel = self._channels.get(event.channel)
        if channel is None:
            raise self._invalid(event, "there is no such channel")
        return channel

    def _invalid(self, event: Event, why: str) -> InvalidTransitionError:
        told = _without_rows(event)
        history = told_before(self._history, told)
        return InvalidTransitionError(
            f"The input gate cannot take {told!r}: {why}. Before: {', '.join(history[-10:]) or 'nothing'}.",
            state=f"{self.recovery}, checkpoint {self.checkpoint}",
            event=repr(told),
            history=history,
        )

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, int], list[Action]]]] = {
        ChannelConnected: _on_connected,
        ElementArrived: _on_element,
        RowsRecovered: _on_rows_recovered,
        RowsSpilled: _on_rows_spilled,
        PhaseOneEnded: _on_phase_one_ended,
        RecoveryEnded: _on_recovery_ended,
        RowsPutBack: _on_put_back,
        Polled: _on_polled,
        CheckpointGivenUp: _on_given_up,
        GateTimePassed: _on_time_passed,
    }


def _standing_before(channel: _Channel, checkpoint_id: int) -> list[Buffer | Spilled]:
    """Return the buffers of a channel up to a checkpoint's barrier, or all if that has not come."""
    waiting: list[Buffer | Spilled] = [*channel.recovered, *map(Spilled, channel.spilled)]
    for element in channel.sent:
        if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
            break
        if isinstance(element, Buffer):
            waiting.append(element)
    return waiting


def _without_rows(event: Event) -> Event:
    """Return what a history may keep: rows would pin their memory."""
    match event:
        case ElementArrived(channel, Buffer() as buffer):
            return ElementArrived(channel, msgspec.structs.replace(buffer, rows=None))
        case RowsRecovered() | RowsPutBack():
            return msgspec.structs.replace(event, buffer=msgspec.structs.replace(event.buffer, rows=None))
        case _:
            return event
