"""Finds the endpoints of running queries by their secret files, and asks them.

Never: send a token to an address that its file does not name, or take a file for one of a process that is gone.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from headgate.cli.app import RefusedError, UnreachableError
from headgate.errors import HeadgateError, OptionError

_QUICK_S, _SLOW_S = 10.0, 900.0
"""How long an answer is waited for: of what is only looked at, and of what a query has to do, in seconds."""


@dataclass(frozen=True)
class Endpoint:
    """A driver process that serves queries."""

    url: str
    token: str
    pid: int

    def get(self, path: str) -> Any:
        """Return what a path shows, as JSON."""
        return self._ask("GET", path, None, _QUICK_S)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask for something to be done, and return the answer once it is."""
        return self._ask("POST", path, body, _SLOW_S)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            request = urllib.request.Request(f"{self.url.rstrip('/')}{path}", method=method)
            if body is not None:
                request.add_header("Authorization", f"Bearer {self.token}")
                request.add_header("Content-Type", "application/json")
                request.data = json.dumps(body).encode()
            with opener.open(request, timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refused(error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # another program may have its port by now
            raise UnreachableError(
                f"The driver process {self.pid} does not answer at {self.url}: {error}. Is it on this host, and alive?",
                address=self.url,
            ) from error


@dataclass(frozen=True)
class RunningQuery:
    """A query at an endpoint."""

    endpoint: Endpoint
    listed: dict[str, Any]

    @property
    def is_live(self) -> bool:
        """Whether it has not ended: for a while an endpoint also shows queries that have."""
        return self.listed.get("state") not in ("ended", "failed")

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/api/queries/{quote(str(self.listed['id']), safe='')}"


def home() -> Path:
    """Return the folder in which drivers leave their addresses and tokens."""
    return Path(os.environ.get("HEADGATE_HOME") or Path.home() / ".headgate") / "endpoints"


def endpoints() -> list[Endpoint]:
    """Return the endpoints of the processes of this user that live, and delete the files of those that do not."""
    found = []
    for path in sorted(home().glob("*.json")):
        try:
            fields = json.loads(path.read_text())
            endpoint = Endpoint(url=str(fields["url"]), token=str(fields["token"]), pid=int(fields["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # one that is being written, or deleted
        if _lives(endpoint.pid):
            found.append(endpoint)
        else:
            path.unlink(missing_ok=True)
    return found


def queries() -> list[RunningQuery]:
    """Return all running queries; a driver process that does not answer is named on standard error.

    Raises
    ------
    UnreachableError
        No driver process has an endpoint, or none of them answers.
    """
    all_endpoints = endpoints()
    found, errors = [], []
    for endpoint in all_endpoints:
        try:
            found += [RunningQuery(endpoint, each) for each in endpoint.get("/api/queries")]
        except UnreachableError as error:
            errors.append(error)
    if not all_endpoints:
        raise UnreachableError(
            f"No driver process has an endpoint: {home()} names none that lives. Run this as the user and on the host "
            "of the driver; the query's option 'dashboard.enabled' must not be false.",
            address=str(home()),
        )
    if errors and not found:
        raise errors[0]
    for each in errors:
        typer.echo(f"warning: {each.message}", err=True)
    return found


def query(wanted: str | None) -> RunningQuery:
    """Return the query of an id, the beginning of one, or a name; None: the only one there is.

    Raises
    ------
    OptionError
        There is none, or there are several.
    UnreachableError
        As `queries`.
    """
    found = queries()
    names = [f"{each.listed['id']} ({each.listed.get('name') or 'without a name'})" for each in found]
    matching = found
    if wanted is not None:
        matching = [each for each in found if wanted in (each.listed["id"], each.listed.get("name"))]
        matching = matching or [each for each in found if str(each.listed["id"]).startswith(wanted)]
    live = [each for each in matching if each.is_live]
    matching = live if len(live) == 1 else matching
    if len(matching) == 1 or (matching and not live and len({each.listed["id"] for each in matching}) == 1):
        return matching[0]  # of several starts of one query the endpoint lists the newest first
    what = "no query runs" if not found else f"the queries are {', '.join(names)}"
    which = "Which query?" if wanted is None else f"The query {wanted!r} is not one:"
    raise OptionError(
        f"{which} {what[0].upper() if wanted is None else what[0]}{what[1:]}.", option="QUERY", value=wanted
    )


def _refused(error: urllib.error.HTTPError) -> HeadgateError:
    try:
        text = str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        text = f"The endpoint answered {error.code} {error.reason}."
    if error.code == 409:
        return RefusedError(text, status=error.code)
    return OptionError(text, option="QUERY", value=error.code)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
