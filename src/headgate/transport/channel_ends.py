"""The two ends of a channel: what they learn, what they can do, and how calls to them stay in order.

Never: make a call while a lock is held, or two calls of one end at a time.

Follows docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from headgate.errors import InternalError, TransportError
from headgate.protocol.channels import Buffer, ChannelId, Element

logger = logging.getLogger(__name__)


class ProducerEnd(Protocol):
    """What a producer learns of one channel; called by any thread, must not block."""

    def on_connected(self) -> None:
        """The consumer is there. May come before `DataPlane.offer` returns."""

    def on_credit(self, credits: int) -> None:
        """It has room for so many buffers more."""

    def on_broken(self, error: TransportError) -> None:
        """The connection is gone, and this end did not close it. The last call."""


class ConsumerEnd(Protocol):
    """What a consumer learns of one channel; called by any thread, must not block."""

    def on_connected(self) -> None:
        """The producer is there. May come before `DataPlane.connect` returns."""

    def on_element(self, element: Element) -> None:
        """It sent this."""

    def on_broken(self, error: TransportError) -> None:
        """The connection is gone, and this end did not close it. The last call."""


class ProducerLink(Protocol):
    """A producer's handle of a channel."""

    def send(self, element: Element) -> None:
        """Queue an element. Does not block; lost when the connection is gone.

        Raises
        ------
        InternalError
            Its rows have another schema than the channel.
        """

    def close(self) -> None:
        """End the channel after what was sent. Does not block.

        No call of `ProducerEnd` follows, but one that another thread makes now may still be under way.
        """


class ConsumerLink(Protocol):
    """A consumer's handle of a channel."""

    def grant(self, credits: int) -> None:
        """Announce to the producer that there is room for so many buffers more. Does not block."""

    def close(self) -> None:
        """End the channel. Does not block.

        No call of `ConsumerEnd` follows, but one that another thread makes now may still be under way.
        """


class OrderedCalls:
    """Calls to one end of a channel: one at a time and in order, by whichever thread has one to make.

    Parameters
    ----------
    on_failed
        A call raised this, which is logged already. Those after it are dropped.
    """

    def __init__(self, on_failed: Callable[[Exception], None]) -> None:
        self._on_failed = on_failed
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._making = False
        self._over = False

    def queue(self, function: Callable[..., None], *arguments: object, last: bool = False) -> None:
        """Queue a call after the others; `make` makes it. After the last one, and after `stop`, it is dropped."""
        with self._lock:
            if not self._over:
                self._waiting.append((function, arguments))
                self._over = last

    def make(self) -> None:
        """Make what calls wait. If another call is being made, by this thread or another, its maker makes them."""
        while True:
            with self._lock:
                if self._making or not self._waiting:
                    return
                self._making = True
                function, arguments = self._waiting.popleft()
            failed: Exception | None = None
            try:
                function(*arguments)
            except Exception as error:
                logger.exception("Handling what came on a channel failed; closing it.")
                failed = error
            with self._lock:
                self._making = False
            if failed is not None:
                self.stop()
                self._on_failed(failed)
                return

    def stop(self) -> None:
        """Make no further call."""
        with self._lock:
            self._over = True
            self._waiting.clear()


class Receiver(Protocol):
    """A consumer as the producer's end of its channel sees it, near or far."""

    channel: ChannelId
    generation: int
    schema: pa.Schema

    def welcome(self, offered: OfferedChannel) -> None:
        """It has its producer. Only queues; the first call, unless it is refused."""

    def pack(self, element: Element) -> Any:
        """Return an element as it goes there: work that needs no lock."""

    def put(self, packed: Any) -> None:
        """Only queue an element, which is packed."""

    def finish(self, why: str) -> None:
        """Only queue that nothing follows. The last call."""

    def refuse(self, why: str) -> None:
        """Only queue that it gets no producer. The only call."""

    def deliver(self) -> None:
        """What is queued may be handed to the consumer, on this thread, which holds no lock; follows all of these."""


class OfferedChannel:
    """The producer's end of a channel. It is the producer's `ProducerLink`.

    Parameters
    ----------
    on_over
        Called when it is over, at least once.

    Raises
    ------
    InternalError
        The schema has dictionaries: all batches of a stream would share them.
    """

    def __init__(
        self,
        channel: ChannelId,
        generation: int,
        schema: pa.Schema,
        end: ProducerEnd,
        on_over: Callable[[OfferedChannel], None],
    ) -> None:
        refuse_dictionaries(channel, schema)
        self.channel, self.generation, self.schema = channel, generation, schema
        self._end = end
        self._on_over = on_over
        self._calls = OrderedCalls(self._on_failed)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._receiver: Receiver | None = None
        self._early: list[Element] = []
        self._over = False

    def send(self, element: Element) -> None:
        """As in `ProducerLink`."""
        if isinstance(element, Buffer) and not element.rows.schema.equals(self.schema):
            raise InternalError(
                f"Rows for {channel_name(self.channel)} have the schema {element.rows.schema}, not {self.schema}."
            )
        receiver = self._receiver
        packed = None if receiver is None else receiver.pack(element)
        with self._lock:
            if self._over:
                return
            if self._receiver is None:
                self._early.append(element)
                return
            if receiver is None:  # it came meanwhile
                receiver = self._receiver
                packed = receiver.pack(element)
            receiver.put(packed)
        receiver.deliver()

    def close(self) -> None:
        """As in `ProducerLink`."""
        self._calls.stop()
        self._finish("its producer closed it")

    def replace(self, why: str) -> None:
        """End the channel for both ends, with the reason."""
        self._finish(why)
        self._report_broken(broken(self.channel, why))

    def attach(self, receiver: Receiver) -> str | None:
        """Connect a consumer; return why that cannot be, or None."""
        if not receiver.schema.equals(self.schema):
            return f"its schema is {self.schema}, not {receiver.schema}"
        with self._lock:
            if self._over:
                return "it has ended"
            if self._receiver is not None:
                return "it has a consumer"
            self._receiver = receiver
            self._calls.queue(self._end.on_connected)  # before what the consumer answers
            receiver.welcome(self)
            for element in self._early:
                receiver.put(receiver.pack(element))
            self._early.clear()
        self._calls.make()
        receiver.deliver()
        return None

    def queue_credit(self, credits: int) -> None:
        """Queue for the producer what the consumer granted; `make_calls` delivers it."""
        self._calls.queue(self._end.on_credit, credits)

    def make_calls(self) -> None:
        """Make the calls that are queued for the producer, on this thread, which holds no lock."""
        self._calls.make()

    def consumer_gone(self, why: str) -> None:
        """End the channel for the producer, because its consumer is gone."""
        with self._lock:
            self._over = True
            self._receiver = None
        self._on_over(self)
        self._report_broken(broken(self.channel, why))

    def _finish(self, why: str) -> None:
        """End the channel for the consumer, after what was sent."""
        with self._lock:
            receiver, self._receiver = self._receiver, None
            self._over = True
            self._early.clear()
            if receiver is not None:
                receiver.finish(why)
        self._on_over(self)
        if receiver is not None:
            receiver.deliver()

    def _report_broken(self, error: TransportError) -> None:
        self._calls.queue(self._end.on_broken, error, last=True)
        self._calls.make()

    def _on_failed(self, error: Exception) -> None:
        self._finish(f"its producer failed ({type(error).__name__}: {error})")


def broken(channel: ChannelId, why: str, *, address: str | None = None, reason: str = "broken") -> TransportError:
    """Return the error for an end of a channel."""
    return TransportError(
        f"{channel_name(channel).capitalize()} cannot be used: {why}.",
        address=address, reason=reason, producer=channel.producer, consumer=channel.consumer,
    )  # fmt: skip


def channel_name(channel: ChannelId) -> str:
    """Return a channel in words.

    Examples
    --------
    >>> channel_name(ChannelId("key-by-1", 0, 3))
    "the channel of 'key-by-1' from subtask 0 to 3"
    """
    return f"the channel of {channel.exchange!r} from subtask {channel.producer} to {channel.consumer}"


def refuse_dictionaries(channel: ChannelId, schema: pa.Schema) -> None:
    """Raise `InternalError` where a schema has dictionaries: all batches of a stream would share them."""
    if any(_has_dictionary(field.type) for field in schema):
        raise InternalError(f"The schema of {channel_name(channel)} has dictionaries: {schema}.")


def _has_dictionary(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return True
    return any(_has_dictionary(type_.field(number).type) for number in range(type_.num_fields))
