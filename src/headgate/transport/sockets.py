"""What connections need of the system: to break, from outside or when a host is gone; and the address of this process.

Never: touch a socket that listens, or that does not belong to the port. A process that hangs answers no goodbye, and
its connection would keep a thread of gRPC's, and with it the endpoint's shutdown, waiting for ever.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from urllib.parse import unquote

from headgate.errors import OptionError, TransportError

NETWORK_OPTION = "transport.slots.network"
LOST_AFTER_S = 10
"""How long a host may be unreachable before a connection to it breaks, in seconds."""


def break_connections(port: int, peer: tuple[str, int] | None = None) -> int:
    """Break the connections that this process accepted at a port; return how many.

    Whoever reads or writes on one gets an error at once, on both sides.

    Parameters
    ----------
    port
        The port that the endpoint listens at.
    peer
        Only those from this address and port; None: all.
    """
    found = 0
    for number in _open_files():
        try:
            # A duplicate keeps the number from being given to another file between the questions and the deed.
            duplicate = os.dup(number)
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        with connection, contextlib.suppress(OSError):
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            host, remote_port = connection.getpeername()[:2]  # raises for one that listens
            if connection.getsockname()[1] == port and peer in (None, (_plain(host), remote_port)):
                connection.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def break_when_lost(connection: socket.socket, unread_s: float = LOST_AFTER_S) -> None:
    """Let a connection break some `LOST_AFTER_S` after the other host is gone without a word.

    TCP alone would wait for a quarter of an hour, and for ever where nothing is to be sent.

    Parameters
    ----------
    connection
        The connection.
    unread_s
        How long the other process may read nothing, in seconds. The system does not distinguish the two: where this is
        longer, hosts that are gone have as long.
    """
    options = {
        # macOS calls the second one differently, and lacks the last.
        (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): LOST_AFTER_S // 2,
        (socket.IPPROTO_TCP, "TCP_KEEPALIVE"): LOST_AFTER_S // 2,
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): 1,
        (socket.IPPROTO_TCP, "TCP_KEEPCNT"): LOST_AFTER_S - LOST_AFTER_S // 2,
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): int(1000 * max(unread_s, LOST_AFTER_S)),
    }
    for (level, name), value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)


def address_towards(host: str) -> str:
    """Return the address of this host from which packets leave for another: there, whoever that one knows reaches us.

    The name of this host would not do: others cannot resolve it between pods on Kubernetes, and resolve it to loopback
    where ``/etc/hosts`` says so. Nothing is sent.

    Raises
    ------
    TransportError
        The host's name cannot be resolved, or there is no way to it.

    Examples
    --------
    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: only looks up the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TransportError(
            f"{socket.gethostname()} has no route to {host}: {error}. See transport.host.",
            address=host, reason="broken",
        ) from error  # fmt: skip


def address_in(network: str) -> str:
    """Return the address that this host has in a network (CIDR, already checked).

    Raises
    ------
    OptionError
        It has none there.

    Examples
    --------
    >>> address_in("127.0.0.0/8")
    '127.0.0.1'
    """
    parsed = ipaddress.ip_network(network)
    found: str | None = None
    with contextlib.suppress(TransportError):  # the way to a network that this host belongs to begins in it
        found = address_towards(str(parsed.network_address + (parsed.num_addresses > 1)))
    if found is None or ipaddress.ip_address(found) not in parsed:
        raise OptionError(
            f"The option {NETWORK_OPTION!r} is {network!r}, but {socket.gethostname()} has no address in that network"
            + ("." if found is None else f": its way there begins at {found}."),
            option=NETWORK_OPTION, value=network,
        )  # fmt: skip
    return found


def parse_peer(peer: str) -> tuple[str, int]:
    """Return host and port of what gRPC calls a peer.

    Examples
    --------
    >>> parse_peer("ipv4:127.0.0.1:40112"), parse_peer("ipv6:%5B::1%5D:40112")
    (('127.0.0.1', 40112), ('::1', 40112))
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


def _open_files() -> list[int]:
    """Return the numbers of this process's open files. Linux and macOS have this folder."""
    return [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]
