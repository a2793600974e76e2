"""The channels between slots: in order, delayed, broken at times; a model of `headgate.transport.data_plane`.

Never: lose, repeat or reorder what passes a channel that is up.

A channel belongs to a generation: a consumer of an older one is refused, one of a newer one waits for its producer. The
end of a process breaks its channels, which the others notice sooner or later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headgate.protocol.channels import ChannelId, Element
from headgate.simulation.clockwork import Clockwork, Process
from headgate.transport.channel_ends import ConsumerEnd, ProducerEnd, broken

_SLOWEST_MS = 12
LINK_PATIENCE_MS = 5000
"""How long a consumer waits for its producer; so does, in production, a subtask whose link broke before it fails."""


class _End:
    """One end of a channel: what it is given comes in order."""

    def __init__(self, network: DataNetwork, process: Process, address: str, end: Any, generation: int) -> None:
        self.network = network
        self.process = process
        self.address = address
        self.end = end
        self.generation = generation
        self.peer: _End | None = None
        self.is_open = True
        self._coming: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def notify(self, what: Callable[..., None], *arguments: Any) -> None:
        """Let something arrive at this end, unless it is closed by then: together with what is on its way."""
        self._coming.append((what, arguments))
        if len(self._coming) > 1:
            return
        self.network.clock.after(self.network.delay_ms(), self.process, self._arrive)

    def _arrive(self) -> None:
        coming, self._coming = self._coming, []
        for what, arguments in coming:
            if self.is_open:
                what(*arguments)

    def send(self, element: Element) -> None:
        """Send an element to the consumer."""
        if self.is_open and self.peer is not None:
            self.peer.notify(self.peer.end.on_element, element)

    def grant(self, credits: int) -> None:
        """Send credit to the producer."""
        if self.is_open and self.peer is not None:
            self.peer.notify(self.peer.end.on_credit, credits)

    def close(self) -> None:
        """End the channel after what was sent."""
        self.is_open = False
        self.break_peer("its other end is closed")

    def break_peer(self, why: str) -> None:
        """Let the other end notice that this one is gone."""
        if self.peer is not None:
            self.peer.notify(self.peer.notice, why)

    def notice(self, why: str) -> None:
        """Notice that the channel is broken."""
        self.is_open = False
        self.end.on_broken(broken(ChannelId("channel", 0, 0), why, address=self.address))


class DataNetwork:
    """All channels of a cluster.

    Parameters
    ----------
    clock
        The cluster's.
    choose
        Decides delays.
    """

    def __init__(self, clock: Clockwork, choose: random.Random) -> None:
        self.clock = clock
        self.choose = choose
        self._offers: dict[tuple[str, ChannelId], _End] = {}
        self._waiting: dict[tuple[str, ChannelId], list[_End]] = {}
        self._ends: list[_End] = []
        self._slow_until_ms = 0
        self.slowest_ms = 1 + _SLOWEST_MS
        """How long anything was on its way at most."""

    def delay_ms(self) -> int:
        """Return how long what is sent now is on its way."""
        slowest_ms = _SLOWEST_MS * (10 if self.clock.now_ms < self._slow_until_ms else 1)
        return 1 + int(self.choose.random() * slowest_ms)

    def slow_down(self, ms: int) -> None:
        """Take longer for a while."""
        self._slow_until_ms = self.clock.now_ms + ms
        self.slowest_ms = 1 + 10 * _SLOWEST_MS

    def cut(self, pick: int, *, half: bool) -> bool:
        """Break a channel, of which one end or both hear sooner or later; return whether there was one."""
        whole = [end for end in self._ends if end.is_open and end.peer is not None and end.peer.is_open]
        if not whole:
            return False
        end = whole[pick % len(whole)]
        peer = end.peer
        assert peer is not None
        end.peer = peer.peer = None
        for each in (end,) if half else (end, peer):
            self.clock.after(self.choose.choice((1, 30, 300)), each.process, self._give_up, each)
        return True

    def _give_up(self, end: _End) -> None:
        if end.is_open:
            end.notice("it does not answer")

    def lose(self, process: Process) -> None:
        """Break the channels of a process that has ended."""
        for end in self._ends:
            if end.process is process and end.is_open:
                end.is_open = False
                if end.peer is not None:
                    delay_ms = self.choose.choice((1, 30, 300))
                    self.clock.after(delay_ms, end.peer.process, self._give_up, end.peer)
        self._ends = [end for end in self._ends if end.is_open]

    def offer(self, process: Process, address: str, channel: ChannelId, generation: int, end: ProducerEnd) -> _End:
        """Make the producer's end of a channel."""
        key = address, channel
        made = _End(self, process, address, end, generation)
        self._ends.append(made)
        before = self._offers.get(key)
        if before is not None and before.generation > generation:
            made.notify(made.notice, "a newer generation replaces it")
            return made
        if before is not None and before.is_open:
            before.notify(before.notice, "a newer generation replaces it")
            before.break_peer("a newer generation replaces it")
        self._offers[key] = made
        for consumer in self._waiting.pop(key, []):
            self._meet(key, consumer)
        return made

    def connect(
        self, process: Process, own: str, address: str, channel: ChannelId, generation: int, end: ConsumerEnd
    ) -> _End:
        """Make the consumer's end of a channel."""
        made = _End(self, process, own, end, generation)
        self._ends.append(made)
        self.clock.after(self.delay_ms(), process, self._meet, (address, channel), made)
        self.clock.after(LINK_PATIENCE_MS, process, self._lose_patience, made)
        return made

    def _meet(self, key: tuple[str, ChannelId], consumer: _End) -> None:
        """Give a consumer its producer, refuse it, or let it wait."""
        if not consumer.is_open:
            return
        producer = self._offers.get(key)
        if producer is None or producer.generation < consumer.generation:
            self._waiting.setdefault(key, []).append(consumer)
        elif producer.generation > consumer.generation or not producer.is_open or producer.peer is not None:
            consumer.notify(consumer.notice, "it is over")
        else:
            producer.peer, consumer.peer = consumer, producer
            producer.notify(producer.end.on_connected)
            consumer.notify(consumer.end.on_connected)

    def _lose_patience(self, consumer: _End) -> None:
        if consumer.is_open and consumer.peer is None:
            consumer.notice("it was not offered in time")


class Plane:
    """The ends of one slot's channels: takes the place of a `DataPlane`."""

    def __init__(self, network: DataNetwork, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self.address = address

    def offer(self, channel: ChannelId, generation: int, schema: Any, end: ProducerEnd) -> _End:
        """Make the producer's end of a channel."""
        return self._network.offer(self._process, self.address, channel, generation, end)

    def connect(self, address: str, channel: ChannelId, generation: int, schema: Any, end: ConsumerEnd) -> _End:
        """Make the consumer's end of a channel."""
        return self._network.connect(self._process, self.address, address, channel, generation, end)
