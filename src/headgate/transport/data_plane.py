"""The data plane of a slot: the ends of its channels, over Arrow Flight to other slots, by hand to its own.

Never: decide what is sent or when; hold back an event behind rows that wait for credit (whoever sends, sends within
credit); copy a batch for the same slot. Call back while a lock is held.

One Flight stream per channel, opened by the consumer (``do_exchange``), rows with the schema of the exchange, events and
credits as metadata. A batch that came over Flight is copied out of its message if that is much larger (trap 23).

Follows design, "Data plane"; traps 19, 22 and 23.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headgate.errors import TransportError
from headgate.protocol.channels import ChannelId, Element
from headgate.transport.options import TlsOptions


class ProducerEnd(Protocol):
    """What a producer is told of one channel; called by any thread, must not block."""

    def on_connected(self) -> None:
        """The consumer is there."""

    def on_credit(self, credits: int) -> None:
        """It has room for so many buffers more."""

    def on_broken(self, error: TransportError) -> None:
        """The connection is gone, and nobody closed it. The last call."""


class ConsumerEnd(Protocol):
    """What a consumer is told of one channel; called by any thread, must not block."""

    def on_connected(self) -> None:
        """The producer is there."""

    def on_element(self, element: Element) -> None:
        """It sent this."""

    def on_broken(self, error: TransportError) -> None:
        """The connection is gone, and nobody closed it. The last call."""


class ProducerLink(Protocol):
    """A producer's handle of a channel."""

    def send(self, element: Element) -> None:
        """Queue an element. Does not block; lost when the connection is gone."""

    def close(self) -> None:
        """End the channel; no call of `ProducerEnd` follows. Does not block."""


class ConsumerLink(Protocol):
    """A consumer's handle of a channel."""

    def grant(self, credits: int) -> None:
        """Tell the producer that there is room for so many buffers more. Does not block."""

    def close(self) -> None:
        """End the channel; no call of `ConsumerEnd` follows. Does not block."""


class DataPlane:
    """The ends of a slot's channels.

    Parameters
    ----------
    run, secret, tls
        The query's.
    host, port
        Where to listen; port 0: any free one.
    """

    def __init__(self, run: int, secret: str, host: str, port: int = 0, tls: TlsOptions | None = None) -> None:
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``."""
        raise NotImplementedError

    def offer(self, channel: ChannelId, generation: int, schema: pa.Schema, end: ProducerEnd) -> ProducerLink:
        """Make the producer's end of a channel; its consumer connects when it does."""
        raise NotImplementedError

    def connect(
        self, address: str, channel: ChannelId, generation: int, schema: pa.Schema, end: ConsumerEnd,
        timeout_s: float = 30,
    ) -> ConsumerLink:  # fmt: skip
        """Connect to the producer's end of a channel, which may not have been offered yet: that is waited for.

        Does not block: `ConsumerEnd.on_connected` or ``on_broken`` follows. A request of an older generation than the
        one offered is refused.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all channels and listen no more. No thread is left then."""
        raise NotImplementedError
