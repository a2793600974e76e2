"""The data plane of a slot: the ends of its channels, over Arrow Flight to other slots, by hand to its own.

Never: decide what is sent or when; hold back an event after rows that wait for credit (whoever sends, sends within
credit); copy a batch for the same slot. Call back while a lock is held.

One Flight stream per channel, opened by the consumer (``do_exchange``): rows with the schema of the exchange, events
and credits as metadata (`headgate.transport.data_server` has its protocol).

    consumer asks for       the channel's offer          what happens
    ----------------------  ---------------------------  ----------------------------------------------------------
    another run or version                               refused
    any generation          none yet                     waits for it
    an older generation     newer                        refused
    a newer generation      older                        waits for the newer one
    its generation          without a consumer           connected
    its generation          with a consumer, or ended    refused
                            replaced by a newer one      both of its ends learn that it is broken
                            older than one there was     its producer learns that it is broken

Follows docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref

import pyarrow as pa
import pyarrow.flight as fl

from headgate.errors import InternalError
from headgate.protocol.channels import ChannelId
from headgate.serial_executor import SerialExecutor
from headgate.transport.channel_ends import (
    ConsumerEnd,
    ConsumerLink,
    OfferedChannel,
    ProducerEnd,
    ProducerLink,
    Receiver,
    broken,
    refuse_dictionaries,
)
from headgate.transport.data_client import Clients, FlightConsumer
from headgate.transport.data_server import THREAD_NAME, ServedChannel, decode_request
from headgate.transport.endpoint import Endpoint
from headgate.transport.frames import REFUSED
from headgate.transport.local_link import LocalConsumer
from headgate.transport.options import TlsOptions

__all__ = ["ConsumerEnd", "ConsumerLink", "DataPlane", "ProducerEnd", "ProducerLink"]

_PATIENCE_S = 10.0
"""How long a consumer may take to end a stream that is over; then its connection is broken."""


class DataPlane:
    """The ends of a slot's channels.

    Parameters
    ----------
    run, secret, tls
        The query's.
    host, port
        Where to listen; port 0: any free one.
    goodbye_s
        How long consumers elsewhere may take to end their streams when it is closed, in seconds; then they are broken.
    certified
        The host that the certificate of all slots is made for: the coordinator's; None: each slot's own.

    Raises
    ------
    TransportError
        It cannot listen there.
    """

    def __init__(
        self,
        run: int,
        secret: str,
        host: str,
        port: int = 0,
        tls: TlsOptions | None = None,
        *,
        goodbye_s: float = 0.5,
        certified: str | None = None,
    ) -> None:
        self._run = run
        self._goodbye_s = goodbye_s
        self._numbers = itertools.count(1)
        self._clients = Clients(secret, tls, certified)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._closing = False
        self._offers: dict[ChannelId, OfferedChannel] = {}
        self._newest: dict[ChannelId, int] = {}  # the newest generation offered, also when that is over
        self._waiting: dict[ChannelId, list[Receiver]] = {}
        self._served: set[ServedChannel] = set()
        self._consumers: set[FlightConsumer] = set()
        self._endpoint = Endpoint(secret, host, port, tls, self._serve)
        self._executor = SerialExecutor(f"{THREAD_NAME}-executor")
        atexit.register(self.kill)

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``."""
        return self._endpoint.address

    def offer(self, channel: ChannelId, generation: int, schema: pa.Schema, end: ProducerEnd) -> ProducerLink:
        """Make the producer's end of a channel; its consumer connects when it does.

        A channel that was offered before is replaced: its ends learn that it is broken. One of an older generation
        than there was before is broken at once.

        Raises
        ------
        InternalError
            The schema has dictionaries.
        """
        offered = OfferedChannel(channel, generation, schema, end, self._forget_offer)
        replaced: OfferedChannel | None = None
        waiting: list[Receiver] = []
        with self._lock:
            newest = self._newest.get(channel, generation)
            late = self._closing or newest > generation
            if not late:
                self._newest[channel] = generation
                replaced = self._offers.get(channel)
                self._offers[channel] = offered
                waiting = self._waiting.pop(channel, [])
        if late:
            offered.replace(f"generation {generation} is over")
        if replaced is not None:
            replaced.replace(f"generation {generation} replaces it")
        for receiver in waiting:
            self._seek(receiver)
        return offered

    def connect(
        self, address: str, channel: ChannelId, generation: int, schema: pa.Schema, end: ConsumerEnd,
        timeout_s: float = 30,
    ) -> ConsumerLink:  # fmt: skip
        """Connect to the producer's end of a channel, which may not have been offered yet: that is waited for.

        Does not block: `ConsumerEnd.on_connected` or ``on_broken`` follows. A request of an older generation than the
        one offered is refused.

        Raises
        ------
        InternalError
            The schema has dictionaries.
        """
        refuse_dictionaries(channel, schema)
        link: LocalConsumer | FlightConsumer
        if address == self.address:
            link = LocalConsumer(channel, generation, schema, end, self._forget_waiting)
            self._seek(link)
        else:
            link = FlightConsumer(
                self.address, address, self._run, channel, generation, schema, end, self._clients, self._executor,
                self._forget_consumer, f"{THREAD_NAME}-client-{next(self._numbers)}",
            )  # fmt: skip
            with self._lock:
                late = self._closing
                if not late:
                    self._consumers.add(link)
                    link.thread.start()
            if late:
                end.on_broken(broken(channel, "the slot ends"))
        self._give_up_after(timeout_s, weakref.ref(link), address)
        return link

    def _give_up_after(self, timeout_s: float, link: weakref.ref[LocalConsumer | FlightConsumer], address: str) -> None:
        def give_up() -> None:
            waiting = link()
            if waiting is not None:
                waiting.give_up(f"{address} did not offer it within {timeout_s} s, or does not answer")

        self._executor.do_after(timeout_s, give_up)

    def close(self) -> None:
        """End all channels and listen no more. No thread is left then.

        Blocks, for ``goodbye_s`` where consumers hang. No end of this data plane is notified.

        Raises
        ------
        InternalError
            A call for an end that comes from another slot makes this call.
        """
        self._shut(self._goodbye_s)

    def kill(self) -> None:
        """Break all channels at once and listen no more, as the end of the process would. Raises like `close`."""
        self._shut(0)

    def _shut(self, goodbye_s: float) -> None:
        if threading.current_thread().name.startswith(THREAD_NAME):
            raise InternalError("A data plane cannot be closed from one of its threads: it would wait for that.")
        atexit.unregister(self.kill)
        deadline = time.monotonic() + goodbye_s
        with self._lock:
            if self._closing:
                return
            self._closing = True
            offers, served, consumers = list(self._offers.values()), list(self._served), list(self._consumers)
            waiting = [receiver for receivers in self._waiting.values() for receiver in receivers]
            self._waiting.clear()
        for consumer in consumers:
            consumer.close()
        for receiver in waiting:
            if isinstance(receiver, LocalConsumer):
                receiver.close()
            else:
                receiver.refuse("the slot ends")
        for offered in offers:
            offered.close()
        if not all(stream.closed.wait(max(0, deadline - time.monotonic())) for stream in served):
            self._endpoint.break_all()
        self._endpoint.close()
        for stream in served:
            if stream.thread is not None:
                stream.thread.join()
        for consumer in consumers:
            consumer.thread.join()
        self._executor.close()

    def _seek(self, receiver: Receiver) -> None:
        """Give a consumer its producer, refuse it, or let it wait."""
        why: str | None = None
        with self._lock:
            newest = self._newest.get(receiver.channel)
            offered = self._offers.get(receiver.channel)
            if self._closing:
                why = "the slot ends"
            elif newest is None or newest < receiver.generation:
                self._waiting.setdefault(receiver.channel, []).append(receiver)
                return
            elif newest > receiver.generation:
                why = f"generation {receiver.generation} is over, its producer is of {newest}"
            elif offered is None:
                why = "it has ended"
        if offered is not None and why is None:
            why = offered.attach(receiver)
        if why is not None:
            receiver.refuse(why)
            receiver.deliver()

    def _serve(
        self, peer: str, command: bytes, reader: fl.MetadataRecordBatchReader, writer: fl.MetadataRecordBatchWriter
    ) -> None:
        """Serve a stream until it ends. On a thread of gRPC's."""
        request = decode_request(command)
        if request is None or request.run != self._run:
            asked = "something else" if request is None else f"run {request.run}"
            writer.write_metadata(REFUSED + f"{self.address} is of run {self._run}, not of {asked}".encode())
            return
        stream = ServedChannel(peer, request, self._seek, self._await_end, self._forget_served)
        with self._lock:
            if self._closing:
                raise fl.FlightUnavailableError("the endpoint is being closed")
            known = any(each.peer == peer for each in self._served)
            self._served.add(stream)
        if not known:
            self._endpoint.notice_loss(peer)
        stream.serve(reader, writer, f"{THREAD_NAME}-server-{next(self._numbers)}")

    def _await_end(self, stream: ServedChannel) -> None:
        """See to it that a stream that is over ends."""

        def lose_patience() -> None:
            if not stream.closed.is_set():
                self._endpoint.break_peer(stream.peer)

        self._executor.do_after(_PATIENCE_S, lose_patience)

    def _forget_offer(self, offered: OfferedChannel) -> None:
        with self._lock:
            if self._offers.get(offered.channel) is offered:
                del self._offers[offered.channel]

    def _forget_waiting(self, receiver: Receiver) -> None:
        with self._lock:
            waiting = self._waiting.get(receiver.channel, [])
            if receiver in waiting:
                waiting.remove(receiver)
                if not waiting:
                    del self._waiting[receiver.channel]

    def _forget_served(self, stream: ServedChannel) -> None:
        self._forget_waiting(stream)
        with self._lock:
            self._served.discard(stream)

    def _forget_consumer(self, consumer: FlightConsumer) -> None:
        with self._lock:
            self._consumers.discard(consumer)
