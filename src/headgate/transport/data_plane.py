"""The data plane of a slot: the ends of its channels, to other slots over one connection each, by hand to its own.

Never: decide what is sent or when; hold back an event after rows that wait for credit (whoever sends, sends within
credit); copy a batch for the same slot. Call back while a lock is held.

All channels between two slots share a connection (`headgate.transport.data_connection`), which the slot dials whose
consumer comes first; if both dial at once, that of the lower address. It stays when its channels end. One thread
(`headgate.transport.io_thread`) waits for all connections of a slot, and makes the calls that come from other slots.

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
import contextlib
import logging
import os
import socket
import threading
import time
import weakref

import pyarrow as pa

from headgate.errors import InternalError
from headgate.protocol.channels import ChannelId
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
from headgate.transport.data_connection import Connection
from headgate.transport.endpoint import cannot_listen, host_of, join_address, port_of
from headgate.transport.far_link import FarConsumer
from headgate.transport.framed_socket import FramedSocket
from headgate.transport.io_thread import IoThread
from headgate.transport.local_link import LocalConsumer
from headgate.transport.options import TlsOptions
from headgate.transport.sockets import LOST_AFTER_S
from headgate.transport.tls_contexts import TlsContexts

__all__ = ["ConsumerEnd", "ConsumerLink", "DataPlane", "ProducerEnd", "ProducerLink"]

logger = logging.getLogger(__name__)

_THREAD_NAME = "headgate-data"
_GREETING_S = LOST_AFTER_S
"""How long the other side may take to introduce itself, in seconds."""
_BACKLOG = 1024
_NO_MORE_FILES_S = 1.0
"""When to accept again after the process had no more files, in seconds."""


class DataPlane:
    """The ends of a slot's channels.

    Parameters
    ----------
    run, secret, tls
        The query's.
    host, port
        Where to listen; port 0: any free one.
    goodbye_s
        How long other slots may take to receive what was sent when it is closed, in seconds; then connections break.
    certified
        The host that the certificate of all slots is made for: the coordinator's; None: each slot's own.
    unread_s
        How long another slot may read nothing of what is sent to it, in seconds: some code holds Python's global lock
        there. Then its connection breaks.

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
        unread_s: float = LOST_AFTER_S,
    ) -> None:
        self.run, self.secret = run, secret
        self._unread_s = unread_s
        self._goodbye_s = goodbye_s
        self._listener, self._tls = _listen(host, port, tls, certified)
        self.address = join_address(host, self._listener.getsockname()[1])
        """Where it listens: ``host:port``."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._closing = False
        self._offers: dict[ChannelId, OfferedChannel] = {}
        self._newest: dict[ChannelId, int] = {}  # the newest generation offered, also when that is over
        self._waiting: dict[ChannelId, list[Receiver]] = {}
        self._connections: set[Connection] = set()
        self._peers: dict[str, Connection] = {}  # those to use for new channels, by the other slot's address
        self._moved: dict[str, list[FarConsumer]] = {}  # to the connection that a slot has dialed, which is on its way
        self._io = IoThread(_THREAD_NAME)
        self._io.do(self._accept_more)
        atexit.register(self.kill)

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
            self.seek(receiver)
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
        if address == self.address:
            link = LocalConsumer(channel, generation, schema, end, self.forget_waiting)
            self._give_up_after(timeout_s, link, address)
            self.seek(link)
            return link
        far = FarConsumer(address, channel, generation, schema, end)
        if self._open(far, address):
            self._give_up_after(timeout_s, far, address)
        else:
            end.on_broken(broken(channel, "the slot ends"))
        return far

    def _open(self, far: FarConsumer, address: str, over: Connection | None = None) -> bool:
        """Ask for a consumer's producer, on another connection than one that is over; return False when this closes."""
        with self._lock:
            if self._closing:
                return False
            if address in self._moved:
                self._moved[address].append(far)
                return True
            connection = self._peers.get(address) or self._dial_locked(address)
        if connection is over:
            self._io.do(far.lost, connection.error_for(far.channel))
        elif connection.open(far):
            connection.flush()
        else:
            return self._open(far, address, connection)
        return True

    def _give_up_after(self, timeout_s: float, link: LocalConsumer | FarConsumer, address: str) -> None:
        known = weakref.ref(link)

        def give_up() -> None:
            waiting = known()
            if waiting is not None:
                waiting.give_up(f"{address} did not offer it within {timeout_s} s, or does not answer")

        self._io.do_after(timeout_s, give_up)

    def _dial_locked(self, address: str) -> Connection:
        """Return a connection to another slot, which will be there, or over, soon."""
        assert self._lock.locked()
        stream = FramedSocket(self._io, self._unread_s)
        connection = self._peers[address] = Connection(self, stream, address, dialed=True)
        self._connections.add(connection)
        self._io.do(self._dial, connection, address)
        return connection

    def _dial(self, connection: Connection, address: str) -> None:
        host, tls = host_of(address), self._tls
        wrap = None if tls is None else lambda plain: tls.dialed(plain, host)
        self._io.do_after(_GREETING_S, connection.lose_patience)
        connection.stream.dial(connection, host, port_of(address), wrap)

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
        if os.getpid() != self._process:
            return  # of a fork of its process, which must leave its sockets alone
        if self._io.is_current:
            raise InternalError("A data plane cannot be closed from its own thread: it would wait for that.")
        atexit.unregister(self.kill)
        with self._lock:
            if self._closing:
                return
            self._closing = True
            offers, connections = list(self._offers.values()), list(self._connections)
            waiting = [receiver for receivers in self._waiting.values() for receiver in receivers]
            self._waiting.clear()
        for connection in connections:
            connection.close_consumers()
        for receiver in waiting:
            if isinstance(receiver, LocalConsumer):
                receiver.close()
            else:
                receiver.refuse("the slot ends")
        for offered in offers:
            offered.close()
        self._io.do(self._stop_listening)
        self._end(connections, goodbye_s)
        self._io.close()
        self._listener.close()

    def _end(self, connections: list[Connection], goodbye_s: float) -> None:
        """End the connections, after what is queued if there is time."""
        if goodbye_s:
            deadline = time.monotonic() + goodbye_s
            for connection in connections:
                self._io.do(connection.finish)
            for connection in connections:
                connection.stream.closed.wait(max(0, deadline - time.monotonic()))
        with self._lock:
            rest = list(self._connections)
        for connection in rest:
            self._io.do(connection.stream.abort)

    # Of all ends, and the connections' `Host`.

    def seek(self, receiver: Receiver) -> None:
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

    def forget_waiting(self, receiver: Receiver) -> None:
        """Wait no more for its producer."""
        with self._lock:
            waiting = self._waiting.get(receiver.channel, [])
            if receiver in waiting:
                waiting.remove(receiver)
                if not waiting:
                    del self._waiting[receiver.channel]

    def has_dialed_first(self, address: str) -> bool:
        """Return whether both dialed, and the connection that this slot dialed stays: its address is the lower one.

        Only where the other host has answered: hosts may reach one another in one direction only.
        """
        with self._lock:
            own = self._peers.get(address)
        return own is not None and own.dialed and own.stream.is_connected and self.address < address

    def on_twice(self, connection: Connection) -> None:
        """Let the channels of a connection that was refused use the other slot's, which is there or on its way."""
        address = connection.peer
        with self._lock:
            if self._peers.get(address) is connection:
                del self._peers[address]
                self._moved[address] = []
                self._io.do_after(_GREETING_S, lambda: self._open_moved(address))
        for consumer in connection.give_away():
            self._open(consumer, address)

    def on_accepted(self, connection: Connection) -> None:
        """Reach the slot that dialed through its connection, too. One that is not dialed yet will not be."""
        address = connection.peer
        with self._lock:
            own = self._peers.get(address)
            self._peers[address] = connection
        if own is not None and not own.stream.has_begun:
            for consumer in own.give_away():
                self._open(consumer, address)
            own.stream.abort()
            self.on_over(own)
        self._open_moved(address)

    def _open_moved(self, address: str) -> None:
        """Open what waits for another slot's connection: it has come, or does not come."""
        with self._lock:
            moved = self._moved.pop(address, [])
        for consumer in moved:
            self._open(consumer, address)

    def on_over(self, connection: Connection) -> None:
        """Forget a connection."""
        with self._lock:
            self._connections.discard(connection)
            if self._peers.get(connection.peer) is connection:
                del self._peers[connection.peer]

    def _forget_offer(self, offered: OfferedChannel) -> None:
        with self._lock:
            if self._offers.get(offered.channel) is offered:
                del self._offers[offered.channel]

    # On the I/O thread.

    def _accept_more(self) -> None:
        if not self._closing:
            self._io.when_readable(self._listener, self._accept)

    def _stop_listening(self) -> None:
        self._io.forget(self._listener)

    def _accept(self) -> None:
        """Accept who dials."""
        try:
            accepted, (host, port, *_) = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no more files: it would be readable all the time
            logger.warning("The data plane at %s cannot accept a connection: %s.", self.address, error)
            self._stop_listening()
            self._io.do_after(_NO_MORE_FILES_S, self._accept_more)
            return
        accepted.setblocking(False)
        stream = FramedSocket(self._io, self._unread_s)
        connection = Connection(self, stream, join_address(host, port), dialed=False)
        with self._lock:
            late = self._closing
            if not late:
                self._connections.add(connection)
        if late:
            accepted.close()
            return
        self._io.do_after(_GREETING_S, connection.lose_patience)
        stream.begin(connection, accepted, None if self._tls is None else self._tls.accepted)


def _listen(
    host: str, port: int, tls: TlsOptions | None, certified: str | None
) -> tuple[socket.socket, TlsContexts | None]:  # fmt: skip
    """Return a socket that listens, and what makes TLS of its connections."""
    try:
        contexts = None if tls is None else TlsContexts(tls, certified)
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            undo.pop_all()
    except (OSError, ValueError) as error:
        raise cannot_listen(join_address(host, port), tls, error) from error
    return listener, contexts
