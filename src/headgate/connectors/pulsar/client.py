"""What Pulsar clients are made of: ``pulsar.client.*`` options, Java's names, as arguments of `pulsar.Client`.

Never: show a secret (in a ``repr``, an error, a log), or connect when it is made.

Follows StreamNative's Spark connector, whose ``pulsar.client.*`` and ``pulsar.admin.*`` are the Java clients' settings.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.connectors.pulsar.oauth2 import credentials, parameters_of
from headgate.errors import (
    DataLossError,
    DeploymentError,
    HeadgateError,
    OptionError,
    SourceError,
    SourceUnavailableError,
)
from headgate.source.options import Options

if TYPE_CHECKING:
    import pulsar

NAME = "headgate.pulsar"

DEFAULT_TIMEOUT_MS = 30_000
"""Java's: ``operationTimeoutMs``."""

_AUTHENTICATIONS = {
    "AuthenticationToken": "token",
    "AuthenticationTls": "tls",
    "AuthenticationBasic": "basic",
    "AuthenticationOAuth2": "oauth2",
}
_WITHOUT_EFFECT = frozenset(
    ("useTls", "statsIntervalSeconds", "enableTcpNoDelay", "useTcpNoDelay", "keepAliveIntervalSeconds")
)
_CLIENT = {
    "authPluginClassName": "how to log in: AuthenticationToken, …Tls, …Basic or …OAuth2",
    "authParams": "its parameters",
    "operationTimeoutMs": "longest wait for an answer",
    "connectionTimeoutMs": "longest wait for a connection",
    "numIoThreads": "threads of a client",
    "concurrentLookupRequest": "lookups at a time",
    "listenerName": "which of the brokers' advertised listeners to use",
    "tlsTrustCertsFilePath": "certificates that brokers' are checked with",
    "tlsAllowInsecureConnection": "do not check them",
    "tlsHostnameVerificationEnable": "check the brokers' names",
    "tlsCertificateFilePath": "this client's certificate",
    "tlsKeyFilePath": "its key",
}
"""The properties of ``pulsar.client.*`` that have an effect, and what they mean."""
_ADMIN = ("authPluginClassName", "authParams", "tlsTrustCertsFilePath", "tlsAllowInsecureConnection",
          "tlsHostnameVerificationEnable", "tlsCertificateFilePath", "tlsKeyFilePath")  # fmt: skip
_NUMBERS = frozenset(("operationTimeoutMs", "connectionTimeoutMs", "numIoThreads", "concurrentLookupRequest"))
_BOOLEANS = frozenset(("tlsAllowInsecureConnection", "tlsHostnameVerificationEnable"))


@dataclass(frozen=True, repr=False)
class ClientConfig:
    """The settings of all clients of one source or sink. Pickles to tasks; its text shows no secret.

    Parameters
    ----------
    service_url
        Where the brokers are (``service.url``).
    client, admin
        The properties of ``pulsar.client.*``, and those of ``pulsar.admin.*`` over them, sorted by name.
    admin_url
        Where their HTTP API is (``admin.url``); None for a sink that does not need it.
    """

    service_url: str
    client: tuple[tuple[str, str], ...]
    admin_url: str | None = None
    admin: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: Options) -> ClientConfig:
        """Return the settings that the options of a source or a sink stand for.

        Raises
        ------
        OptionError
            ``service.url`` is missing or none; a property is unknown (near ones are named), or has a bad value.
        """
        service_url = options["service.url"]
        if not service_url:
            raise options.error("service.url", "must be set: the brokers' address, like 'pulsar://broker1:6650'.")
        client = _properties(options, "pulsar.client.*", tuple(_CLIENT))
        admin = client | _properties(options, "pulsar.admin.*", _ADMIN)
        _check_parameters(options, "pulsar.admin.*", admin)
        return cls(
            service_url.strip(), tuple(sorted(client.items())), options.get("admin.url"), tuple(sorted(admin.items()))
        )

    def __repr__(self) -> str:
        return f"ClientConfig({self.service_url}, {self.admin_url}, {', '.join(name for name, _ in self.client)})"

    @property
    def timeout_ms(self) -> int:
        """The longest wait for an answer of the brokers, in milliseconds."""
        return int(dict(self.client).get("operationTimeoutMs", DEFAULT_TIMEOUT_MS))

    def connect(self) -> pulsar.Client:
        """Return the client of this process for these settings; it connects when it is first used, and prints nothing.

        It is closed when the process ends: closing one may wait for the brokers, and clients share connections.

        Raises
        ------
        DeploymentError
            pulsar-client is not installed here.
        OptionError
            The client refuses the settings.
        """
        require_client_library()
        with _lock:
            key = (os.getpid(), self)
            if key not in _clients:
                if not _clients:
                    atexit.register(_close_all)
                _clients[key] = self.new_client()
            return _clients[key]

    def new_client(self) -> pulsar.Client:
        """Return a client of its own, which whoever asked for it closes; it connects when it is first used.

        Raises
        ------
        DeploymentError, OptionError
            As `connect`.
        """
        require_client_library()
        import pulsar

        given = dict(self.client)
        arguments: dict[str, Any] = {
            "operation_timeout_seconds": max(1, self.timeout_ms // 1000),
            "connection_timeout_ms": int(given.get("connectionTimeoutMs", 10_000)),
            "io_threads": int(given.get("numIoThreads", 1)),
            "tls_allow_insecure_connection": given.get("tlsAllowInsecureConnection") == "true",
            "tls_validate_hostname": given.get("tlsHostnameVerificationEnable") == "true",
            "stats_interval_in_seconds": 0,
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        }
        for name, argument in (
            ("concurrentLookupRequest", "concurrent_lookup_requests"),
            ("listenerName", "listener_name"),
            ("tlsTrustCertsFilePath", "tls_trust_certs_file_path"),
            ("tlsCertificateFilePath", "tls_certificate_file_path"),
            ("tlsKeyFilePath", "tls_private_key_file_path"),
        ):
            if name in given:
                arguments[argument] = int(given[name]) if name in _NUMBERS else given[name]
        try:
            return pulsar.Client(self.service_url, authentication=_authentication(given), **arguments)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            raise OptionError(
                f"{NAME}: Pulsar's client refuses 'service.url' or an option of 'pulsar.client.*': "
                f"{self.redact(str(error))}. Correct it.",
                source=NAME, option="service.url", value=self.service_url,
            ) from None  # fmt: skip

    def redact(self, message: str) -> str:
        """Return ``message`` without the secrets, should it hold any."""
        for properties in (self.client, self.admin):
            for secret in _secrets(dict(properties)):
                message = message.replace(secret, "***")
        return message

    def error(self, error: Exception, doing: str, **facts: Any) -> HeadgateError:
        """Return the error to raise for one of Pulsar's client.

        Parameters
        ----------
        error
            What the client raised.
        doing
            What it was to do: "to open the topic t".
        """
        import pulsar

        facts = {"source": NAME, "address": self.service_url, **facts}
        what = f"{NAME}: {self.service_url} did not let this client {doing}: {self.redact(str(error))}."
        if isinstance(error, (pulsar.AuthenticationError, pulsar.AuthorizationError)):
            return SourceError(
                f"{what} Check pulsar.client.authPluginClassName and pulsar.client.authParams, and what they may do.",
                **facts,
            )
        if isinstance(error, pulsar.TopicNotFound):
            return DataLossError(f"{what} The topic was deleted.", **facts)
        refused = (
            pulsar.InvalidConfiguration,
            pulsar.InvalidUrl,
            pulsar.InvalidTopicName,
            pulsar.UnsupportedVersionError,
        )
        if isinstance(error, refused):
            return SourceError(what, **facts)
        return SourceUnavailableError(what, **facts)


_lock = threading.Lock()
_clients: dict[tuple[int, ClientConfig], pulsar.Client] = {}
"""Clients by process and settings: a fork cannot use those of its parent."""

_CLOSE_S = 2.0


def _close_all() -> None:
    """Close this process' clients: their threads must not outlive the interpreter. Does not wait long for brokers."""
    closing = [
        threading.Thread(target=client.close, daemon=True)
        for (pid, _), client in _clients.items()
        if pid == os.getpid()
    ]
    for each in closing:
        each.start()
    for each in closing:
        each.join(_CLOSE_S)


def require_client_library() -> None:
    """Raise `DeploymentError` if pulsar-client is not installed here.

    Called before the first client is made, so that Spark finds the format, and other formats, without it.
    """
    try:
        import pulsar  # noqa: F401
    except ImportError as error:
        raise DeploymentError(
            f"{NAME} needs pulsar-client, which cannot be imported on {socket.gethostname()} ({error}). "
            "Install it on driver and executors: pip install 'headgate[pulsar]'.",
            source=NAME,
        ) from error


def token_of(properties: Mapping[str, str]) -> str | None:
    """Return the token of properties that name one, read from its file if it is in one; else None."""
    if _kind(properties) != "token":
        return None
    given = properties.get("authParams", "")
    for before in ("file://", "file:"):
        if given.startswith(before):
            path = given.removeprefix(before)
            try:
                with open(path, encoding="utf-8") as file:
                    return _one_line(file.read().strip())
            except OSError as error:
                raise SourceError(f"{NAME}: the token's file {path} cannot be read: {error}.", source=NAME) from error
    return _one_line(given.removeprefix("token:"))


def _one_line(token: str) -> str:
    if not token.isprintable():
        raise SourceError(f"{NAME}: the token has a line break or another control character in it.", source=NAME)
    return token


def user_and_password(properties: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the user and the password of properties that name them; else None."""
    if _kind(properties) != "basic":
        return None
    given = json.loads(properties.get("authParams", "{}"))
    return str(given["userId"]), str(given["password"])


def certificate_of(properties: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Return the files of this client's certificate and of its key (None: they are one); None: it shows none.

    That of a login wins, as in Java's clients.
    """
    if _kind(properties) == "tls":
        parts = dict(part.partition(":")[::2] for part in properties["authParams"].split(","))
        return parts["tlsCertFile"], parts["tlsKeyFile"]
    if "tlsCertificateFilePath" in properties:
        return properties["tlsCertificateFilePath"], properties.get("tlsKeyFilePath")
    return None


def oauth2_parameters(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the parameters of OAuth 2, as `oauth2.parameters_of` does; None: the login is another one."""
    return parameters_of(properties["authParams"]) if _kind(properties) == "oauth2" else None


def _kind(properties: Mapping[str, str]) -> str | None:
    name = properties.get("authPluginClassName", "").rpartition(".")[2]
    return _AUTHENTICATIONS.get(name)


def _authentication(properties: Mapping[str, str]) -> pulsar.Authentication | None:
    import pulsar

    given = properties.get("authParams", "")
    match _kind(properties):
        case "token":
            # A token in a file is read at each connection: it may be renewed meanwhile.
            if given.startswith("file:"):
                return pulsar.AuthenticationToken(lambda: token_of(properties))
            return pulsar.AuthenticationToken(token_of(properties))
        case "basic":
            named = user_and_password(properties)
            assert named is not None
            return pulsar.AuthenticationBasic(*named)
        case "tls":
            return pulsar.AuthenticationTLS(*certificate_of(properties) or ())
        case "oauth2":
            return pulsar.AuthenticationOauth2(json.dumps(parameters_of(given)))
    return None


def _secrets(properties: Mapping[str, str]) -> list[str]:
    """Return the texts that nobody may see, the longest first."""
    given = properties.get("authParams", "")
    found = {given, given.removeprefix("token:")} if _kind(properties) != "tls" else set()
    if given.startswith("file:"):
        with contextlib.suppress(SourceError):
            found = {token_of(properties) or ""}
    try:
        parsed = json.loads(given) if given.startswith("{") else {}
    except ValueError:
        parsed = {}
    found.update(str(value) for name, value in parsed.items() if name in ("password", "client_secret", "clientSecret"))
    if _kind(properties) == "oauth2":
        with contextlib.suppress(OSError, ValueError, KeyError):
            found.add(credentials(parameters_of(given))[1])
    return sorted((each for each in found if len(each) > 3), key=len, reverse=True)


def _properties(options: Options, pattern: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return properties by their names as Java has them; Spark passes them in lower case."""
    by_lower = {name.lower(): name for name in (*known, *_WITHOUT_EFFECT)}
    found: dict[str, str] = {}
    for given, value in options.matching(pattern).items():
        option = pattern.replace("*", given)
        name = by_lower.get(given.lower())
        if name is None:
            near = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
            hint = (
                "Did you mean " + " or ".join(f"'{pattern.replace('*', by_lower[each])}'" for each in near) + "?"
                if near
                else f"These are: {', '.join(sorted(known))}."
            )
            raise _error(options, option, f"is not a property that Pulsar's client for Python has. {hint}")
        if name not in _WITHOUT_EFFECT:
            found[name] = _checked(options, option, name, value.strip())
    if "authPluginClassName" in found and _kind(found) is None:
        raise _error(
            options, pattern.replace("*", "authPluginClassName"), f"must end with one of {', '.join(_AUTHENTICATIONS)}."
        )
    _check_parameters(options, pattern, found)
    return found


def _checked(options: Options, option: str, name: str, value: str) -> str:
    if name in _NUMBERS and not (value.isdecimal() and int(value) > 0):
        raise _error(options, option, "must be a whole number above zero.")
    if name in _BOOLEANS:
        if value.lower() not in ("true", "false"):
            raise _error(options, option, "must be true or false.")
        return value.lower()
    return value


def _check_parameters(options: Options, pattern: str, found: Mapping[str, str]) -> None:
    given, option = found.get("authParams", ""), pattern.replace("*", "authParams")
    match _kind(found):
        case "token" if not given.removeprefix("token:"):
            raise _error(options, option, "must be 'token:' with the token, or 'file:' with the path of a file of it.")
        case "basic" | "oauth2" as kind:
            try:
                names = set(json.loads(given))
            except (ValueError, TypeError):
                names = set()
            if kind == "basic" and not names >= {"userId", "password"}:
                raise _error(options, option, 'must be {"userId": …, "password": …}.')
            if kind == "oauth2":
                try:
                    parameters_of(given)
                except ValueError:
                    raise _error(
                        options, option, 'must be {"issuerUrl": …, "privateKey": "file:///…", "audience": …}.'
                    ) from None
        case "tls":
            if not {"tlsCertFile", "tlsKeyFile"} <= {part.partition(":")[0] for part in given.split(",")}:
                raise _error(options, option, "must be 'tlsCertFile:PATH,tlsKeyFile:PATH'.")


def _error(options: Options, option: str, message: str) -> OptionError:
    """Return an error that does not carry the option's value, unlike `Options.error`: it may be a secret."""
    return OptionError(
        f"{options.source}: the option {option!r} {message}", source=options.source, option=option, value=None
    )
