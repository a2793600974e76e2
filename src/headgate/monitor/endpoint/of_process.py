"""The one endpoint of this driver process: it opens with the first query, and closes some time after the last one.

Never: let a query fail because of it, or keep the process alive.
"""

from __future__ import annotations

import atexit
import errno
import ipaddress
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headgate.errors import TransportError
from headgate.event_log import describe
from headgate.monitor.endpoint.registry import Registry, ServedQuery
from headgate.monitor.endpoint.routes import Site, handle
from headgate.monitor.endpoint.server import Handle, Server
from headgate.private_files import make_private

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)


class EndpointFile(msgspec.Struct, frozen=True):
    """What ``~/.headgate/endpoints/PID-PORT.json`` holds: how programs of this user reach the endpoint.

    Parameters
    ----------
    url
        The address, without the token.
    token
        What permits actions.
    pid
        The driver's process: if there is none, the file was left by one that was killed.
    startedMs
        When the endpoint opened, in milliseconds since the epoch.
    """

    url: str
    token: str
    pid: int
    startedMs: int

    def __repr__(self) -> str:
        return f"EndpointFile(url={self.url!r}, pid={self.pid})"


def endpoints_folder() -> Path:
    """Return where the files of this user's endpoints are."""
    return Path(os.environ.get("HEADGATE_HOME") or Path.home() / ".headgate") / "endpoints"


class _Metrics:
    """The metrics of all queries that are served, for Prometheus; its library is imported when somebody asks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @cached_property
    def _collector(self) -> Collector:
        from headgate.monitor.prometheus import QueryCollector

        return QueryCollector(lambda: [entry.snapshot() for entry in self._registry.entries()])

    def __call__(self, accept: str) -> tuple[bytes, str]:
        from headgate.monitor.prometheus import exposition

        return exposition(self._collector, accept)


class Endpoint:
    """An endpoint, open from the construction until `close`. Any thread.

    Parameters
    ----------
    host, port
        Where to listen; a port that is taken is replaced by a free one, with a warning.

    Raises
    ------
    TransportError
        This machine has no such address.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.asked_port = host, port
        self.token = secrets.token_urlsafe(32)
        self.registry = Registry()
        name = _reachable(host)
        hosts = frozenset({host.lower(), name.lower(), socket.gethostname().lower()})
        site = Site(self.registry, self.token, hosts, _assets(), _Metrics(self.registry))
        self.closed = False
        self._server = _open(host, port, lambda request: handle(request, site), self._look)
        shown = f"[{name}]" if ":" in name else name
        self.url = f"http://{shown}:{self._server.port}/"
        self._file = _write_file(EndpointFile(self.url, self.token, os.getpid(), time.time_ns() // 1_000_000))

    def _look(self) -> None:
        """On the server's thread: close when nobody was served for a while."""
        if not self.registry.forget_old():
            _close_idle(self)

    def close(self) -> None:
        """Stop listening; forget everything."""
        self.closed = True
        self._server.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)


_lock = threading.Lock()
_endpoint: Endpoint | None = None  # guarded by _lock


def serve(query: ServedQuery, host: str, port: int, *, asked: bool = True) -> Endpoint | None:
    """Serve a query at this process's endpoint, and return that; None: it could not be opened.

    Parameters
    ----------
    query
        What to serve, until `leave`.
    host, port
        Where the endpoint listens. It is where the first query of the process asked for it.
    asked
        Whether the user named host or port: what is not heeded then is logged.
    """
    global _endpoint
    with _lock:
        if _endpoint is None:
            try:
                _endpoint = Endpoint(host, port)
            except (TransportError, OSError) as failed:
                _log.warning("there is no dashboard of the query %s: %s", query.name or query.id, failed)
                return None
        elif asked and (_endpoint.host, _endpoint.asked_port) != (host, port):
            _log.warning(
                "the dashboard of the query %s is at %s, where that of the process's first query is, not at %s:%d",
                query.name or query.id, _endpoint.url, host, port,
            )  # fmt: skip
        _endpoint.registry.enter(query)
        return _endpoint


def leave(query: ServedQuery) -> None:
    """Note that a query has ended."""
    endpoint = _endpoint
    if endpoint is None:
        return
    try:
        endpoint.registry.leave(query)
    except Exception as error:
        _log.warning("how the query %s ended cannot be shown: %s", query.name or query.id, describe(error))


def close() -> None:
    """Close the endpoint of this process, if there is one."""
    global _endpoint
    with _lock:
        endpoint, _endpoint = _endpoint, None
    if endpoint is not None:
        endpoint.close()


def _close_idle(idle: Endpoint) -> None:
    global _endpoint
    with _lock:
        if _endpoint is not idle or idle.registry.entries():
            return  # a query came meanwhile
        _endpoint = None
    # On a thread of its own: closing waits for the one that called this.
    threading.Thread(target=idle.close, name="headgate-dashboard-close", daemon=True).start()


def _at_exit(process: int) -> None:
    if os.getpid() == process:  # a fork has the list of what to do at exit, but not the endpoint
        close()


atexit.register(_at_exit, os.getpid())


def _open(host: str, port: int, answer: Handle, look: Callable[[], None]) -> Server:
    try:
        return Server(host, port, answer, look)
    except TransportError as failed:
        cause = failed.__cause__
        if port == 0 or not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
            raise
        server = Server(host, 0, answer, look)
        _log.warning(
            "another process listens at dashboard.port %d: the dashboard is at port %d instead", port, server.port
        )
        return server


def _reachable(host: str) -> str:
    """Return the name by which the endpoint is called: the machine's, if it listens at all addresses."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return socket.gethostname()
    return host


def _assets() -> dict[str, bytes]:
    folder = resources.files("headgate.monitor.endpoint") / "assets"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def _write_file(content: EndpointFile) -> Path | None:
    """Write the file by which this user's programs find the endpoint; None: it cannot be written, with a warning."""
    folder = endpoints_folder()
    path = folder / f"{content.pid}-{content.url.rstrip('/').rpartition(':')[2]}.json"
    part = path.with_suffix(".part")
    try:
        make_private(folder)
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(content))
        part.replace(path)
    except OSError as failed:
        _log.warning("the command headgate will not find the endpoint %s: %s", content.url, failed)
        return None
    return path
