"""A subtask around an input gate, and the producers before it: what it processed, stored and ordered.

Rows are texts. Asserted with every step: `InputGate.check`; each channel's rows are processed once and in order; for
each checkpoint, what was processed before its snapshot and what is stored is together what precedes its barrier,
in order; no watermark and no end is ordered before what was recovered is processed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element
from headgate.task.exchange.input_gate import (
    Action,
    AdvanceWatermark,
    ChannelConnected,
    CheckpointGivenUp,
    ElementArrived,
    EndInput,
    Event,
    GateInput,
    GateTimePassed,
    GrantCredit,
    InputGate,
    MarkActive,
    MarkIdle,
    MorePolled,
    PhaseOneEnded,
    Polled,
    ProcessRows,
    RecoveredProcessed,
    RecoveryEnded,
    RowsPutBack,
    RowsRecovered,
    RowsSpilled,
    Spilled,
    StoreChannels,
    TakeSnapshot,
)

CONSUMER = 7


def channel(producer: int, exchange: str = "x") -> ChannelId:
    return ChannelId(exchange, producer, CONSUMER)


def rows(*names: str, unfiltered: bool = False) -> Buffer:
    return Buffer(list(names), len(names), 10 * len(names), unfiltered)


class World:
    """An input gate and what is around it.

    ``aligned``: producers of a second exchange, ``y``, which does not support unaligned barriers.
    """

    def __init__(
        self,
        producers: int = 2,
        *,
        aligned: int = 0,
        recovering: bool = False,
        producers_recover: bool = False,
        credits: int = 4,
        connect: bool = True,
        relocated: bool = False,
    ) -> None:
        unaligned = GateInput(stage=0, producers=tuple(range(producers)), supports_unaligned=True, relocated=relocated)
        inputs = {"x": unaligned} if producers else {}
        if aligned:
            inputs["y"] = GateInput(stage=1, producers=tuple(range(aligned)), supports_unaligned=False)
        self.channels = [channel(each, name) for name, given in inputs.items() for each in given.producers]
        self.gate = InputGate(
            CONSUMER, inputs, recovering=recovering, producers_recover=producers_recover, credits=credits
        )
        self.most_credits = credits
        self.now_ms = 0
        self.recovered: dict[ChannelId, list[str]] = {each: [] for each in self.channels}
        self.sent: dict[ChannelId, list[str]] = {each: [] for each in self.channels}
        self.done: dict[ChannelId, list[str]] = {each: [] for each in self.channels}
        self.credits = dict.fromkeys(self.channels, 0)
        self.disk: dict[int, tuple[ChannelId, Buffer]] = {}
        self.spilled = 0
        self.before: dict[int, dict[ChannelId, int]] = {}  # by checkpoint: rows sent before its barrier
        self.snapshots: dict[int, dict[ChannelId, int]] = {}  # rows processed before it
        self.stored: dict[int, dict[ChannelId, list[str]]] = {}
        self.relocated: dict[int, frozenset[str]] = {}  # by checkpoint: of which exchanges what is stored is
        self.barriers: list[Barrier] = []  # as they were sent on
        self.given_up: set[int] = set()
        self.ordered: list[Action] = []  # watermarks, idleness, ends, the end of recovery
        self.polled: tuple[ChannelId, Buffer] | None = None
        if connect:
            for each in self.channels:
                self.notify(ChannelConnected(each))

    def notify(self, event: Event) -> list[Action]:
        """Hand the gate an event and carry out what it orders."""
        actions = self.gate.handle(event, self.now_ms)
        self.gate.check()
        for action in actions:
            self._carry_out(action)
        return actions

    # What others do.

    def arrive(self, where: ChannelId, *elements: Element) -> list[Action]:
        """Let elements arrive on a channel; return what the last one led to."""
        self.polled = None
        actions: list[Action] = []
        for element in elements:
            if isinstance(element, Buffer):
                self.credits[where] -= 1
                self.sent[where] += element.rows
            elif isinstance(element, Barrier):
                self.before.setdefault(element.checkpoint_id, {})[where] = len(self.sent[where])
            actions = self.notify(ElementArrived(where, element))
        return actions

    def recover(self, where: ChannelId, *names: str) -> list[Action]:
        """Recover a buffer into memory."""
        self.polled = None
        self.recovered[where] += names
        return self.notify(RowsRecovered(where, rows(*names)))

    def spill(self, where: ChannelId, *names: str) -> list[Action]:
        """Recover a buffer onto the disk."""
        self.polled = None
        self.recovered[where] += names
        self.spilled += 1
        self.disk[self.spilled] = where, rows(*names)
        return self.notify(RowsSpilled(where, self.spilled))

    def replay(self) -> list[Action]:
        """Bring the oldest buffer of the disk into memory."""
        self.polled = None
        number = min(self.disk)
        where, buffer = self.disk.pop(number)
        return self.notify(RowsRecovered(where, buffer, number))

    def end_phase_one(self) -> list[Action]:
        self.polled = None
        return self.notify(PhaseOneEnded())

    def end_recovery(self) -> list[Action]:
        self.polled = None
        return self.notify(RecoveryEnded())

    def give_up(self, checkpoint_id: int) -> list[Action]:
        self.polled = None
        self.given_up.add(checkpoint_id)
        return self.notify(CheckpointGivenUp(checkpoint_id))

    def pass_time(self, until_ms: int) -> list[Action]:
        self.polled = None
        self.now_ms = until_ms
        return self.notify(GateTimePassed())

    def poll(self, put_back: int = 0, *, more: int = 0, overdraft: bool = False) -> list[Action]:
        """Process what is next, with so many buffers more, and put so many rows of the last one back."""
        self.polled = None
        actions = self.notify(Polled(overdraft))
        while more and self.polled is not None:
            exchange, self.polled = self.polled[0].exchange, None
            gathered = self.notify(MorePolled())
            assert all(isinstance(each, ProcessRows) and each.channel.exchange == exchange for each in gathered)
            actions += gathered
            more -= 1
        if put_back and self.polled is not None:
            where, buffer = self.polled
            rest = buffer.rows[-put_back:]
            del self.done[where][-len(rest) :]
            self.polled = None
            assert self.notify(RowsPutBack(rows(*rest))) == []
        return actions

    def poll_all(self) -> list[Action]:
        """Process all there is; return what was ordered besides rows and credits."""
        ordered: list[Action] = []
        while actions := self.poll():
            ordered += [each for each in actions if not isinstance(each, ProcessRows | GrantCredit)]
        return ordered

    def send(self, where: ChannelId, *names: str) -> None:
        """Let rows arrive, a buffer for each name."""
        for name in names:
            self.arrive(where, rows(name))

    # What must hold.

    def expected(self, where: ChannelId) -> list[str]:
        return self.recovered[where] + self.sent[where]

    def _carry_out(self, action: Action) -> None:
        match action:
            case ProcessRows(where, buffer):
                assert self.polled is None, "two buffers at a time"
                self.polled = where, buffer
                self.done[where] += buffer.rows
                expected = self.expected(where)
                assert self.done[where] == expected[: len(self.done[where])], "lost, doubled or out of order"
            case GrantCredit(where, credits):
                self.credits[where] += credits
                assert self.credits[where] <= self.most_credits
            case TakeSnapshot(barrier):
                assert self.polled is None, "a snapshot amid a buffer"
                assert barrier.checkpoint_id not in self.snapshots
                assert barrier.checkpoint_id not in self.given_up
                self.snapshots[barrier.checkpoint_id] = {each: len(self.done[each]) for each in self.channels}
                self.barriers.append(barrier)
            case StoreChannels(checkpoint_id, channels, relocated):
                self._store(checkpoint_id, channels)
                self.relocated[checkpoint_id] = relocated
            case AdvanceWatermark(exchange) | EndInput(exchange):
                for each in self.channels:
                    if each.exchange == exchange:
                        assert self.done[each][: len(self.recovered[each])] == self.recovered[each]
                        assert not isinstance(action, EndInput) or self.done[each] == self.expected(each)
                self.ordered.append(action)
            case RecoveredProcessed():
                assert action not in self.ordered
                for each in self.channels:
                    assert self.done[each][: len(self.recovered[each])] == self.recovered[each]
                self.ordered.append(action)
            case MarkIdle() | MarkActive():
                self.ordered.append(action)

    def _store(self, checkpoint_id: int, channels: dict[ChannelId, tuple[Buffer | Spilled, ...]]) -> None:
        assert checkpoint_id not in self.stored
        assert self.barriers[-1].checkpoint_id == checkpoint_id
        assert all(channels.values())
        stored: dict[ChannelId, list[str]] = {}
        for where, buffers in channels.items():
            assert where.exchange == "x", "a channel that is always aligned has no state"
            stored[where] = []
            for each in buffers:
                stored[where] += self.disk[each.number][1].rows if isinstance(each, Spilled) else each.rows
        for each in self.channels:
            before = self.recovered[each] + self.sent[each][: self.before[checkpoint_id][each]]
            processed = self.done[each][: self.snapshots[checkpoint_id][each]]
            assert processed + stored.get(each, []) == before, f"checkpoint {checkpoint_id}, {each}"
        self.stored[checkpoint_id] = stored


def forget_history(gate: InputGate) -> None:
    """Forget what led to a gate: it would be copied with every step of those who go through all of them."""
    for each in (gate, gate._recovery, gate._checkpoint, *gate._channels.values()):
        each._history.clear()
    for valve in gate._valves.values():
        valve._history.clear()


def barriers(world: World, barrier: Barrier, where: Sequence[ChannelId] | None = None) -> list[Action]:
    """Let a barrier arrive on channels, all by default; return what the last one led to."""
    actions: list[Action] = []
    for each in where or world.channels:
        actions = world.arrive(each, barrier)
    return actions
