"""Metrics of this process's queries for Prometheus at a port of its own, and for OpenTelemetry.

Never: let a query fail because a port is taken, or import a library that nobody asked for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from headgate.errors import HeadgateError, OptionError, TransportError
from headgate.monitor.endpoint.routes import Request, Response, metrics_only
from headgate.monitor.endpoint.server import Server
from headgate.source.options import Options
from headgate.spark.continuous.live_queries import live_queries

_log = logging.getLogger(__name__)

PORT = "metrics.prometheus.port"
OPENTELEMETRY = "metrics.opentelemetry.enabled"
_ALL_ADDRESSES = "0.0.0.0"

_lock = threading.Lock()
# Guarded by _lock:
_servers: dict[int, Server] = {}
_users: dict[int, int] = {}  # how many queries asked for each port
_exports = False  # whether OpenTelemetry has the instruments


def begin(options: Options, query: str) -> None:
    """Export what a query's options ask for; `end` follows when it has ended.

    Raises
    ------
    OptionError
        The library that it needs is not installed.
    """
    global _exports
    port = options[PORT]
    with _lock:
        if options[OPENTELEMETRY] and not _exports:
            try:
                from headgate.monitor.opentelemetry import export
            except ImportError as missing:
                raise _not_installed(OPENTELEMETRY, True) from missing
            export(_snapshots)
            _exports = True
        if port is None:
            return
        try:
            from headgate.monitor.prometheus import QueryCollector, exposition
        except ImportError as missing:
            raise _not_installed(PORT, port) from missing
        collector = QueryCollector(_snapshots)

        def answer(request: Request) -> Response:
            return metrics_only(request, lambda accept: exposition(collector, accept))

        if port not in _servers:
            try:
                _servers[port] = Server(_ALL_ADDRESSES, port, answer)
            except TransportError as failed:
                _log.warning("query %s: there are no metrics at %s %d: %s", query, PORT, port, failed.__cause__)
                return
        _users[port] = _users.get(port, 0) + 1


def end(options: Options) -> None:
    """Close the port when no query is left that asked for it."""
    port = options[PORT]
    with _lock:
        if port not in _users:
            return
        _users[port] -= 1
        if _users[port]:
            return
        del _users[port]
        server = _servers.pop(port)
    server.close()


def _snapshots() -> Iterator[dict[str, Any]]:
    for query in live_queries():
        with suppress(HeadgateError):  # it is just beginning
            yield query.snapshot()


def _not_installed(option: str, value: object) -> OptionError:
    return OptionError(
        f"{option} needs a library that is not installed: pip install 'headgate[metrics]'.", option=option, value=value
    )
