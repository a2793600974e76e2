"""What the endpoint answers: one request in, one response out.

Never: open a socket or start a thread; who serves does. An action waits for the query, on the thread of the request.

    path                                   answer
    -------------------------------------  ------------------------------------------------------------------
    GET  /, /assets/X                      the page
    GET  /api/queries                      which queries there are
    GET  /api/queries/Q                    the snapshot of one, by its id, its run's id or its name
    GET  /api/queries/Q/history            the series of the page's charts
    GET  /api/queries/Q/events             server-sent events: a snapshot each second
    GET  /metrics                          figures of all queries for Prometheus
    POST /api/queries/Q/checkpoint         an action; these four need the token
    POST /api/queries/Q/savepoint
    POST /api/queries/Q/rescale
    POST /api/queries/Q/stop
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from headgate.errors import HeadgateError, OptionError
from headgate.monitor.endpoint.registry import Registry, ServedEntry, ServedQuery

MAX_BODY = 64 << 10
"""No action says more than that."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Every response has them: nothing from elsewhere runs in the page, and nothing of it stays in a cache."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NO_METRICS = "The endpoint has no metrics for Prometheus: install what they need with pip install 'headgate[metrics]'."


class Request(msgspec.Struct, frozen=True):
    """A request: ``path`` without its query string, ``headers`` by their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Response(msgspec.Struct, frozen=True):
    """A response; the server adds `SECURITY_HEADERS`."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class Events(msgspec.Struct, frozen=True):
    """A response that goes on: a snapshot of this query each second."""

    entry: Any  # ServedEntry: msgspec has no type for it


class Site(msgspec.Struct, frozen=True):
    """What there is to be served.

    Parameters
    ----------
    registry
        The queries.
    token
        What permits actions.
    hosts
        Names by which the endpoint may be called, beside addresses.
    assets
        The page's files, by name.
    metrics
        Returns, for what an ``Accept`` header asks for, the text for Prometheus and its content type.
    """

    registry: Any  # Registry
    token: str
    hosts: frozenset[str]
    assets: Mapping[str, bytes]
    metrics: Callable[[str], tuple[bytes, str]]


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``checkpoint``."""


class Savepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``savepoint``: the folder to write into."""

    location: str


class Rescale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``rescale``: how many slots from now on."""

    parallelism: int


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``stop``, as `ContinuousQuery.stop` has it."""

    savepoint: str | None = None
    drain: bool = False


def _checkpoint(query: ServedQuery, body: Checkpoint) -> dict[str, Any]:
    return {"checkpointId": query.checkpoint()}


def _savepoint(query: ServedQuery, body: Savepoint) -> dict[str, Any]:
    return {"checkpointId": query.savepoint(_not_empty("location", body.location)), "location": body.location}


def _rescale(query: ServedQuery, body: Rescale) -> dict[str, Any]:
    query.rescale(body.parallelism)
    return {"parallelism": body.parallelism}


def _stop(query: ServedQuery, body: Stop) -> dict[str, Any]:
    if body.savepoint is not None and body.drain:
        raise _BadInput("'savepoint' and 'drain' exclude one another: a drained query has nothing to go on from.")
    if body.savepoint is not None:
        _not_empty("savepoint", body.savepoint)
    query.stop(body.savepoint, drain=body.drain)
    return {"stopped": True}


_CHECKPOINT_BODY = msgspec.json.Decoder(Checkpoint)
_SAVEPOINT_BODY = msgspec.json.Decoder(Savepoint)
_RESCALE_BODY = msgspec.json.Decoder(Rescale)
_STOP_BODY = msgspec.json.Decoder(Stop)
_ACTIONS: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[ServedQuery, Any], dict[str, Any]]]] = {
    "checkpoint": (_CHECKPOINT_BODY, _checkpoint),
    "savepoint": (_SAVEPOINT_BODY, _savepoint),
    "rescale": (_RESCALE_BODY, _rescale),
    "stop": (_STOP_BODY, _stop),
}
_READS = ("history", "events")


class _BadInput(Exception):
    """The request's body cannot be used: says why."""


def _not_empty(name: str, value: str) -> str:
    if not value.strip():
        raise _BadInput(f"{name!r} is empty: it must be a folder that the driver can write to.")
    return value


def handle(request: Request, site: Site) -> Response | Events:
    """Return what a request is answered.

    Raises
    ------
    Exception
        A query failed in a way that is not a `HeadgateError`: the server answers 500.
    """
    host = request.headers.get("host", "")
    if not is_known_host(host, site.hosts):
        return error(
            403,
            f"The request is for the host {host!r}, which is not this endpoint's: use its address, localhost, or the "
            "host that the option dashboard.host names.",
        )
    path = request.path
    if path == "/api/queries" or path.startswith("/api/queries/"):
        return _api(request, site)
    if path == "/metrics":
        answer = _metrics(request, site)
    elif path == "/" or path.startswith("/assets/"):
        answer = _asset("index.html" if path == "/" else path.removeprefix("/assets/"), site.assets)
    else:
        answer = error(404, f"There is nothing at {path}.")
    return answer if answer.status == 404 or request.method in ("GET", "HEAD") else _not_allowed(request, "GET")


def is_known_host(header: str, names: frozenset[str]) -> bool:
    """Return whether a request's ``Host`` is this endpoint: else a foreign site's name was made to point here.

    Examples
    --------
    >>> is_known_host("127.0.0.1:4051", frozenset())
    True
    >>> is_known_host("rebound.example:4051", frozenset({"driver.example"}))
    False
    """
    name, _, port = header.strip().lower().rpartition(":")
    if not name or not port.isdecimal():
        name = header.strip().lower()
    name = name.removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response that says what is wrong."""
    return Response(status, msgspec.json.encode({"error": sentence}), headers=headers or {})


def _asset(name: str, assets: Mapping[str, bytes]) -> Response:
    if name not in assets:
        return error(404, f"There is no file {name!r}.")
    return Response(200, assets[name], _TYPES[name.rpartition(".")[2]])


def metrics_only(request: Request, metrics: Callable[[str], tuple[bytes, str]]) -> Response:
    """Return what a port answers that has ``/metrics`` only, for a Prometheus that may call it by any name."""
    if request.path != "/metrics":
        return error(404, f"There is nothing at {request.path}: this port has /metrics only.")
    if request.method not in ("GET", "HEAD"):
        return _not_allowed(request, "GET")
    return Response(200, *metrics(request.headers.get("accept", "")))


def _metrics(request: Request, site: Site) -> Response:
    try:
        text, content_type = site.metrics(request.headers.get("accept", ""))
    except ModuleNotFoundError:
        return error(501, _NO_METRICS)
    return Response(200, text, content_type)


def _not_allowed(request: Request, allowed: str) -> Response:
    return error(405, f"{request.path} has {allowed} only, not {request.method}.", {"Allow": allowed})


def _api(request: Request, site: Site) -> Response | Events:
    registry: Registry = site.registry
    parts = [unquote(part) for part in request.path.removeprefix("/api/queries").strip("/").split("/")]
    if parts == [""]:
        if request.method not in ("GET", "HEAD"):
            return _not_allowed(request, "GET")
        return Response(200, msgspec.json.encode([_summary(entry) for entry in registry.entries()]))
    entry = registry.find(parts[0])
    if entry is None:
        return error(404, f"There is no query {parts[0]!r} in this driver; /api/queries lists those that there are.")
    of_it = "/".join(parts[1:])
    if of_it in _ACTIONS:
        if request.method != "POST":
            return _not_allowed(request, "POST")
        return _act(of_it, entry, request, site.token)
    if of_it and of_it not in _READS:
        return error(404, f"A query has no {of_it!r}.")
    if request.method not in ("GET", "HEAD"):
        return _not_allowed(request, "GET")
    match of_it:
        case "history":
            return Response(200, entry.history_bytes())
        case "events":
            return Events(entry)
        case _:
            return Response(200, entry.snapshot_bytes())


def _summary(entry: ServedEntry) -> dict[str, Any]:
    snapshot = entry.snapshot()
    return {
        "id": entry.id,
        "runId": entry.run_id,
        "name": entry.name,
        "state": snapshot.get("state"),
        "startedMs": snapshot.get("startedMs"),
    }


def _act(action: str, entry: ServedEntry, request: Request, token: str) -> Response:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        return error(
            401,
            "An action needs the token: send 'Authorization: Bearer TOKEN'. query.dashboard() has it, after '#token='.",
            {"WWW-Authenticate": "Bearer"},
        )
    if not hmac.compare_digest(given.strip().encode(), token.encode()):
        return error(403, "The token is not this driver's. query.dashboard() has the right one, after '#token='.")
    query = entry.query
    if query is None:
        return error(409, f"The query {entry.name or entry.id!r} has ended.")
    decoder, act = _ACTIONS[action]
    try:
        return Response(200, msgspec.json.encode(act(query, decoder.decode(request.body or b"{}"))))
    except (msgspec.DecodeError, _BadInput) as bad:
        return error(400, f"The body of {action!r} cannot be used: {bad}")
    except OptionError as refused:
        return error(400, str(refused))
    except HeadgateError as refused:
        return error(409, str(refused))
