"""Asks the brokers' HTTP API (``admin.url``) what Pulsar's client for Python cannot ask.

Never: wait longer than the client's time-out, or follow a redirection to anything but HTTP.

Follows Pulsar 4.0, "Admin REST API" (``/admin/v2``).
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from headgate.connectors.pulsar.client import (
    NAME,
    ClientConfig,
    certificate_of,
    oauth2_parameters,
    token_of,
    user_and_password,
)
from headgate.connectors.pulsar.entries import Holds, holds
from headgate.connectors.pulsar.jobs import Parallel
from headgate.connectors.pulsar.ledgers import Ledger, Ledgers
from headgate.connectors.pulsar.oauth2 import ClientCredentials
from headgate.connectors.pulsar.position import Position
from headgate.errors import DataLossError, SourceError, SourceUnavailableError

_MOST_REDIRECTIONS = 5
_ENTRIES_AT_ONCE = 8
_PASSING = (408, 409, 412, 429)
"""Answers that are others a moment later: a topic is being loaded, unloaded or made."""


class PulsarAdmin:
    """A client of the HTTP API; each call is a request of its own, on any thread.

    Parameters
    ----------
    config
        Where it is, and as whom it is asked.

    Attributes
    ----------
    config
        The same.
    """

    def __init__(self, config: ClientConfig) -> None:
        assert config.admin_url is not None
        self.config = config
        self._urls = addresses(config.admin_url)  # the one that answered last is the first
        properties = dict(config.admin)
        self._opener = urllib.request.build_opener(
            _NoRedirection(), urllib.request.HTTPSHandler(context=_tls(properties))
        )
        self._properties = properties
        self._entries = Parallel(_ENTRIES_AT_ONCE)
        self._has_transactions = True  # until the brokers say that they have none
        oauth2 = oauth2_parameters(properties)
        self._grant = oauth2 and ClientCredentials(oauth2, self._opener, config.timeout_ms / 1000)

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions a topic has; 0: it exists and has none; None: it does not exist."""
        found = self._ask("GET", f"/{_path(topic)}/partitions?checkAllowAutoCreation=false")
        count = int(found["partitions"]) if found is not None else 0
        if count:
            return count
        return None if self.ledgers(topic) is None else 0

    def topics(self, namespace: str) -> list[str] | None:
        """Return the persistent topics of ``tenant/namespace``, partitions as topics of their own; None: no such."""
        partitioned = self._ask("GET", f"/persistent/{namespace}/partitioned")
        others = self._ask("GET", f"/persistent/{namespace}")
        if partitioned is None or others is None:
            return None
        return [*partitioned, *(each for each in others if not _is_partition(each, partitioned))]

    def ledgers(self, topic: str) -> Ledgers | None:
        """Return the ledgers of a topic without partitions, or of one partition; None: it does not exist."""
        found = self._ask("GET", f"/{_path(topic)}/internalStats")
        return None if found is None else _ledgers(found)

    def ledgers_of_partitions(self, topic: str, numbers: Collection[int]) -> dict[int, Ledgers]:
        """Return the ledgers of these partitions of a topic, by their number; without those that do not exist."""
        found = self._ask("GET", f"/{_path(topic)}/partitioned-internalStats")
        of = {} if found is None else found.get("partitions", {})
        ledgers = {int(name.rpartition("-")[2]): _ledgers(stats) for name, stats in of.items()}
        # A partition that another broker is just taking over is left out without a word.
        for number in set(numbers) - ledgers.keys():
            alone = self.ledgers(f"{topic}-partition-{number}")
            if alone is not None:
                ledgers[number] = alone
        return ledgers

    def before_open_transactions(self, topic: str) -> Position | None:
        """Return the position up to which readers are given entries, while transactions are open; None: none is."""
        if not self._has_transactions:
            return None
        where = _path(topic).partition("/")[2]
        try:
            found = self._ask("GET", f"/transactions/transactionBufferStats/{where}", version="v3")
        except SourceUnavailableError as error:
            if "transactionCoordinatorEnabled" not in str(error):
                raise
            self._has_transactions = False
            return None
        if found is None or not found.get("ongoingTxnSize"):
            return None
        ledger, _, entry = found["maxReadPosition"].partition(":")
        return Position(int(ledger), int(entry))

    def position_at(self, topic: str, time_ms: int) -> Position:
        """Return the position before the first message that was published at a time or later.

        Raises
        ------
        DataLossError
            The topic does not exist any longer.
        """
        found = self._ask("GET", f"/{_path(topic)}/messageid/{time_ms}")
        if found is None:
            raise DataLossError(f"{NAME}: {topic} does not exist any longer.", source=NAME, path=topic)
        return Position(found["ledgerId"], found["entryId"] - 1)

    def schema(self, topic: str, version: int | None = None) -> dict[str, Any] | None:
        """Return a schema of a topic, the newest without a version: ``type`` and ``data``; None: it has none."""
        which = "schema" if version is None else f"schema/{version}"
        found: dict[str, Any] | None = self._ask("GET", f"/schemas/{_path(topic).partition('/')[2]}/{which}")
        return found

    def deduplication(self, topic: str) -> str | None:
        """Return whether a topic without partitions, or one partition, drops what producers repeat: ``Enabled``."""
        found = self._ask("GET", f"/{_path(topic)}/stats")
        return None if found is None else str(found.get("deduplicationStatus"))

    def move_subscription(self, topic: str, subscription: str, position: Position) -> None:
        """Make a durable subscription, or move one, so that the entry of ``position`` is the first one it holds."""
        name = urllib.parse.quote(subscription, safe="")
        place = {"ledgerId": position.ledger, "entryId": max(0, position.entry)}
        try:
            self._ask("PUT", f"/{_path(topic)}/subscription/{name}", place, conflict_ok=True)
        finally:
            self._ask("POST", f"/{_path(topic)}/subscription/{name}/resetcursor", place)

    def entries(self, topic: str, wanted: Sequence[tuple[int, int]]) -> list[Holds | None]:
        """Return what entries of a topic without partitions, or of one partition, hold; None: one is not there.

        Parameters
        ----------
        topic
            Whose.
        wanted
            Numbers of ledgers and of entries in them; a few are asked for at once.
        """

        def ask(ledger: int, entry: int) -> Holds | None:
            found: Holds | None = self._ask("GET", f"/{_path(topic)}/ledger/{ledger}/entry/{entry}", read=_held)
            return found

        return self._entries.results([partial(ask, *each) for each in wanted])

    def _ask(
        self, method: str, path: str, body: Any = None, *, conflict_ok: bool = False, version: str = "v2",
        read: Callable[[http.client.HTTPResponse], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return the answer, or None where there is no such thing; of several addresses, of the first that answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers()
        silent: list[str] = []
        for base in self._urls:
            try:
                where = f"/admin/{version}{path}"
                return self._ask_at(base, method, where, data, headers, conflict_ok, read or _parsed)
            except (OSError, http.client.HTTPException, ValueError) as error:
                silent.append(f"{base} (admin.url) does not answer: {self.config.redact(str(error))}")
                if base == self._urls[0]:
                    self._urls = (*self._urls[1:], base)
        raise SourceUnavailableError(f"{NAME}: {'; '.join(silent)}.", source=NAME, address=self.config.admin_url)

    def _ask_at(
        self, base: str, method: str, path: str, data: bytes | None, headers: dict[str, str], conflict_ok: bool,
        read: Callable[[http.client.HTTPResponse], Any],
    ) -> Any:  # fmt: skip
        url = f"{base}{path}"
        for _ in range(_MOST_REDIRECTIONS):
            request = urllib.request.Request(url, data=data, method=method, headers=headers)
            try:
                with self._opener.open(request, timeout=self.config.timeout_ms / 1000) as answer:
                    return read(answer)
            except urllib.error.HTTPError as error:
                target = error.headers.get("Location", "")
                allowed = ("https://",) if url.startswith("https://") else ("http://", "https://")
                if error.code in (301, 302, 307, 308) and target.startswith(allowed):
                    url = target
                    continue
                if error.code == 404:
                    return None
                if conflict_ok and error.code == 409:
                    return {}
                raise self._failed(base, error.code, _body(error)) from None
        raise self._failed(base, 508, b"redirected again and again")

    def _headers(self) -> dict[str, str]:
        """Return the headers of a request; a token in a file may have been renewed since the last one."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        token = self._grant.token() if self._grant else token_of(self._properties)
        named = user_and_password(self._properties)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        elif named is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(named).encode()).decode()
        return headers

    def _failed(self, base: str, code: int, answer: bytes) -> SourceError:
        try:
            parsed = json.loads(answer)
            reason = str(parsed.get("reason") or parsed["message"])  # Pulsar's own, or that of its web server
        except (ValueError, KeyError, TypeError, AttributeError):
            reason = answer[:200].decode("utf-8", "replace").strip() or http.client.responses.get(code, "")
        what = f"{NAME}: {base} (admin.url) answers {code}: {self.config.redact(reason)}."
        if code in (401, 403):
            return SourceError(
                f"{what} Check pulsar.admin.authPluginClassName and pulsar.admin.authParams (else those of "
                "pulsar.client are used), and what they may do.",
                source=NAME, address=base,
            )  # fmt: skip
        if code >= 500 or code in _PASSING:
            return SourceUnavailableError(what, source=NAME, address=base)
        return SourceError(what, source=NAME, address=base)


def addresses(admin_url: str) -> tuple[str, ...]:
    """Return the addresses that one of several hosts stands for, as Java's clients have it: http://a:8080,b:8080/path."""
    scheme, found, rest = admin_url.strip().rstrip("/").partition("://")
    hosts, slash, path = rest.replace(f"{scheme}{found}", "").partition("/")
    return tuple(f"{scheme}{found}{host.strip()}{slash}{path}" for host in hosts.split(","))


def _parsed(answer: http.client.HTTPResponse) -> Any:
    text = answer.read()
    return json.loads(text) if text else {}


def _held(answer: http.client.HTTPResponse) -> Holds:
    """Return what an entry holds. Its bytes, which may be many, are left on the way."""
    return holds(answer.headers)


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read()
    except (OSError, http.client.HTTPException):
        return b""


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Leaves redirections to `PulsarAdmin`, as urllib repeats no request that has a body."""

    def redirect_request(self, *of: Any, **more: Any) -> None:
        """Follow none."""


def _tls(properties: dict[str, str]) -> ssl.SSLContext:
    """Return how to connect with TLS.

    Raises
    ------
    SourceError
        A file cannot be read, or is not what it must be.
    """
    files = [properties.get("tlsTrustCertsFilePath")]
    try:
        context = ssl.create_default_context(cafile=files[0])
        context.check_hostname = properties.get("tlsHostnameVerificationEnable") == "true"
        if properties.get("tlsAllowInsecureConnection") == "true":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        own = certificate_of(properties)
        if own is not None:
            files = [*own]
            context.load_cert_chain(*own)
    except OSError as error:
        raise SourceError(
            f"{NAME}: the certificates for TLS in {' and '.join(filter(None, files))} cannot be used: {error}. There "
            "must be files in PEM on the driver and on all executors; a key must be that of its certificate.",
            source=NAME, path=files[0],
        ) from error  # fmt: skip
    return context


def _path(topic: str) -> str:
    """Return ``persistent://tenant/namespace/name`` as a part of an address."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return "/".join((domain, tenant, namespace, urllib.parse.quote(name, safe="")))


def _is_partition(topic: str, partitioned: list[str]) -> bool:
    name, found, number = topic.rpartition("-partition-")
    return bool(found) and number.isdecimal() and name in partitioned


def _ledgers(stats: dict[str, Any]) -> Ledgers:
    """Return what ``internalStats`` says; of the ledger that is written to, its list of ledgers knows no sizes."""
    listed = [Ledger(each["ledgerId"], each["entries"], each["size"]) for each in stats["ledgers"]]
    ledger, _, entry = str(stats.get("lastConfirmedEntry", "")).partition(":")
    if listed and entry and int(ledger) == listed[-1].id:
        open_bytes = int(stats.get("currentLedgerSize", 0))
        listed[-1] = Ledger(listed[-1].id, int(entry) + 1, max(open_bytes, listed[-1].bytes))
    return Ledgers(tuple(listed))
