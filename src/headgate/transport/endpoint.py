"""What the control plane is built on: a Flight server and clients for it, with the query's secret and TLS.

Never: let a foreign error out of here: `transport_error` makes ours of it. End a server before its streams ended, or
from one of its own threads.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from headgate.errors import TransportError
from headgate.transport.authentication import SecretCheck
from headgate.transport.options import TlsOptions
from headgate.transport.sockets import break_connections, parse_peer

logger = logging.getLogger(__name__)

Exchange = Callable[[str, bytes, fl.MetadataRecordBatchReader, fl.MetadataRecordBatchWriter], None]
"""Serves one stream, on a thread of gRPC's: its peer, what it asks for (its descriptor's command), what comes, where to
write. The stream ends when it returns."""

_CLIENT_OPTIONS = [
    # A connection of its own for each client: one that breaks, or waits before it tries again, is nobody else's.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy that the environment names is for the world outside.
    ("grpc.enable_http_proxy", 0),
    # The least time that a connection attempt may take is also the most that one to a silent host takes.
    ("grpc.min_reconnect_backoff_ms", 5000),
]


class Endpoint:
    """A Flight server that refuses calls without the secret.

    Parameters
    ----------
    secret
        The query's.
    host, port
        Where to listen. Port 0: any free one.
    tls
        With it, calls without TLS fail.
    exchange
        Serves a stream.

    Raises
    ------
    TransportError
        It cannot listen there, or not with that certificate.
    """

    def __init__(self, secret: str, host: str, port: int, tls: TlsOptions | None, exchange: Exchange) -> None:
        wanted = join_address(host, port)
        check = SecretCheck(secret)
        try:
            self._server = _FlightServer(
                _location(wanted, tls),
                exchange,
                tls_certificates=[(tls.certificate, tls.key)] if tls else None,
                middleware={"secret": check},
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise cannot_listen(wanted, tls, error) from error
        self.port: int = self._server.port
        self.address = check.address = join_address(host, self.port)

    def break_peer(self, peer: str) -> None:
        """Break the connection from a peer, which does not end it itself."""
        logger.warning("Breaking the connection from %s to %s: it does not end on its own.", peer, self.address)
        break_connections(self.port, parse_peer(peer))

    def break_all(self) -> None:
        """Break all connections."""
        break_connections(self.port)

    def close(self) -> None:
        """Listen no more. Blocks until all streams' handlers returned and their clients were notified."""
        self._server.shutdown()
        self._server.wait()


class _FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: fl.Location, exchange: Exchange, **options: Any) -> None:
        super().__init__(location, **options)
        self._exchange = exchange

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        self._exchange(context.peer(), descriptor.command or b"", reader, writer)


def connect(address: str, tls: TlsOptions | None) -> fl.FlightClient:
    """Return a client for an endpoint. Does not block: whether anybody is there shows at the first call."""
    return fl.FlightClient(
        _location(address, tls), tls_root_certs=tls.ca if tls else None, generic_options=_CLIENT_OPTIONS
    )


def close_quietly(*ends: Any) -> None:
    """Close streams and clients of which it is known, or does not matter, that they failed."""
    for end in ends:
        with contextlib.suppress(pa.ArrowException, OSError):
            end.close()


def transport_error(error: Exception, address: str) -> TransportError:
    """Return ours for an error that a call to an endpoint raised."""
    text = str(error)
    # A host that is silent is given up in gRPC's "tcp handshaker", with TLS or without.
    of_tls = text.lower().replace("tcp handshaker", "")
    if isinstance(error, fl.FlightUnauthenticatedError):
        message, reason = "it refused the secret: it is another query's, or another start's of this one", "refused"
    elif any(each in of_tls for each in ("certificate", "handshake", "ssl")):
        message, reason = "TLS failed; is its certificate made for this host, and by the CA in transport.tls.ca", "tls"
    elif isinstance(error, fl.FlightUnavailableError):
        message, reason = "nobody answers, the connection broke, or one side uses TLS and the other does not", "broken"
    else:
        message, reason = "the call failed", "failed"
    ours = TransportError(
        f"The endpoint at {address} cannot be used: {message} ({text.partition('. gRPC client debug')[0]}).",
        address=address,
        reason=reason,
    )
    ours.__cause__ = error
    return ours


def cannot_listen(address: str, tls: TlsOptions | None, error: Exception) -> TransportError:
    """Return the error of who wanted to listen there."""
    return TransportError(
        f"Cannot listen at {address}{' with TLS' if tls else ''}: {error}. Is the port taken, the host not of "
        "this machine, or are certificate and key not a pair? See transport.host, .port and .tls.*.",
        address=address, reason="listen",
    )  # fmt: skip


def join_address(host: str, port: int) -> str:
    """Return host and port as text.

    Examples
    --------
    >>> join_address("127.0.0.1", 80), join_address("::1", 80)
    ('127.0.0.1:80', '[::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host of an address.

    Examples
    --------
    >>> host_of("127.0.0.1:80"), host_of("[::1]:80")
    ('127.0.0.1', '::1')
    """
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """Return the port of an address."""
    return int(address.rpartition(":")[2])


def _location(address: str, tls: TlsOptions | None) -> fl.Location:
    return fl.Location(f"grpc{'+tls' if tls else '+tcp'}://{address}")
