"""The consumer's end of a channel whose producer is in the same slot: elements are delivered as they are.

Never: copy rows, or queue what can be delivered at once: calls are made on the thread of who sends.

Follows docs/architecture.md, "Stages and exchanges" (batches for one's own slot).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from headgate.protocol.channels import ChannelId, Element
from headgate.transport.channel_ends import ConsumerEnd, OfferedChannel, OrderedCalls, broken


class LocalConsumer:
    """A `Receiver`, and the consumer's `ConsumerLink`.

    Parameters
    ----------
    on_over
        Called when it is over, at least once.
    """

    def __init__(
        self,
        channel: ChannelId,
        generation: int,
        schema: pa.Schema,
        end: ConsumerEnd,
        on_over: Callable[[LocalConsumer], None],
    ) -> None:
        self.channel, self.generation, self.schema = channel, generation, schema
        self._end = end
        self._on_over = on_over
        self._calls = OrderedCalls(lambda error: self._leave(f"its consumer failed ({type(error).__name__}: {error})"))
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._offered: OfferedChannel | None = None
        self._early = 0  # credits granted before there is a producer
        self._left: str | None = None  # why

    def grant(self, credits: int) -> None:
        """As in `ConsumerLink`."""
        with self._lock:
            offered = self._offered
            if offered is None:
                self._early += credits
                return
        offered.queue_credit(credits)
        offered.make_calls()

    def close(self) -> None:
        """As in `ConsumerLink`."""
        self._calls.stop()
        self._leave("its consumer closed it")

    def give_up(self, why: str) -> None:
        """Stop waiting for the producer; nothing if it is there."""
        with self._lock:
            if self._offered is not None or self._left is not None:
                return
            self._left = why
        self._on_over(self)
        self._calls.queue(self._end.on_broken, broken(self.channel, why, reason="silent"), last=True)
        self._calls.make()

    def welcome(self, offered: OfferedChannel) -> None:
        """As in `Receiver`."""
        with self._lock:
            self._offered = offered
            self._calls.queue(self._end.on_connected)
            if self._early:
                offered.queue_credit(self._early)

    def pack(self, element: Element) -> Element:
        """As in `Receiver`: as it is."""
        return element

    def put(self, element: Element) -> None:
        """As in `Receiver`."""
        self._calls.queue(self._end.on_element, element)

    def finish(self, why: str) -> None:
        """As in `Receiver`."""
        self._calls.queue(self._end.on_broken, broken(self.channel, why), last=True)

    def refuse(self, why: str) -> None:
        """As in `Receiver`."""
        self._calls.queue(self._end.on_broken, broken(self.channel, why, reason="refused"), last=True)

    def deliver(self) -> None:
        """As in `Receiver`."""
        self._calls.make()
        with self._lock:
            offered, left = self._offered, self._left
        if offered is not None and left is not None:
            offered.consumer_gone(left)  # it left while it got its producer

    def _leave(self, why: str) -> None:
        with self._lock:
            self._left = why
            offered = self._offered
        self._on_over(self)
        if offered is not None:
            offered.consumer_gone(why)
