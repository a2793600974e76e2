"""Breaks connections of an endpoint from outside, because Flight has no call for it.

Never: touch a socket that listens, or that does not belong to the port. A process that hangs answers no goodbye, and
its connection would keep a thread of gRPC's, and with it the endpoint's shutdown, waiting for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
from urllib.parse import unquote


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
    broken = 0
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
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                continue
            host, remote_port = connection.getpeername()[:2]  # raises for one that listens
            if peer is None or peer == (_plain(host), remote_port):
                connection.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


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
