"""Gets the tokens that requests to ``admin.url`` need, as Pulsar's client gets its own: by a client's id and secret.

Never: show the secret or a token, or ask for another one in the first half of the life of the last.

Follows RFC 6749, 4.4 "Client Credentials Grant", OpenID Connect Discovery 1.0, and Pulsar's clients for the parameters.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from headgate.errors import SourceError, SourceUnavailableError

_NAMES = {"issuerUrl": "issuer_url", "privateKey": "private_key", "clientId": "client_id",
          "clientSecret": "client_secret"}  # fmt: skip
"""Java's names of parameters, and those of the client for Python."""


def parameters_of(given: str) -> dict[str, str]:
    """Return the parameters of ``authParams`` by the names of Pulsar's client for Python.

    Raises
    ------
    ValueError
        They are no JSON object, or one is missing.
    """
    parsed = json.loads(given)
    if not isinstance(parsed, dict):
        raise ValueError("no object")
    found = {_NAMES.get(str(name), str(name)): str(value) for name, value in parsed.items()}
    if "issuer_url" not in found or not ("private_key" in found or {"client_id", "client_secret"} <= found.keys()):
        raise ValueError("issuerUrl or privateKey is missing")
    return found


def credentials(parameters: Mapping[str, str]) -> tuple[str, str]:
    """Return the client's id and secret, from the key file if that is where they are.

    Raises
    ------
    OSError, ValueError, KeyError
        The file cannot be read, or is not what it must be.
    """
    if "private_key" not in parameters:
        return parameters["client_id"], parameters["client_secret"]
    key = parameters["private_key"]
    if key.startswith("data:"):
        held: Any = json.loads(base64.b64decode(key.partition(",")[2]))
    else:
        with open(key.removeprefix("file://"), encoding="utf-8") as file:
            held = json.load(file)
    return str(held["client_id"]), str(held["client_secret"])


class ClientCredentials:
    """Tokens of one client; any thread may ask for them.

    Parameters
    ----------
    parameters
        As `parameters_of` returns them.
    opener
        Makes the requests.
    timeout_s
        The longest wait for the issuer, in seconds.
    """

    def __init__(self, parameters: Mapping[str, str], opener: urllib.request.OpenerDirector, timeout_s: float) -> None:
        self._parameters = parameters
        self._opener = opener
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token, self._end_s = "", 0.0  # guarded by _lock

    def token(self) -> str:
        """Return a token that has half of its life before it. May block.

        Raises
        ------
        SourceError
            The issuer refuses, or the key file cannot be used.
        SourceUnavailableError
            The issuer does not answer.
        """
        with self._lock:
            if time.monotonic() >= self._end_s:
                answer = self._granted()
                self._token = str(answer["access_token"])
                self._end_s = time.monotonic() + float(answer.get("expires_in", 0)) / 2
            return self._token

    def _granted(self) -> dict[str, Any]:
        issuer = self._parameters["issuer_url"].rstrip("/")
        try:
            client_id, secret = credentials(self._parameters)
        except (OSError, ValueError, KeyError) as error:
            raise SourceError(
                f"headgate.pulsar: the key file of OAuth 2 (privateKey) cannot be used: {type(error).__name__}. It "
                'must be JSON with "client_id" and "client_secret", on the driver and on all executors.',
                source="headgate.pulsar",
            ) from None  # fmt: skip
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        form |= {name: self._parameters[name] for name in ("audience", "scope") if name in self._parameters}
        try:
            found = self._asked(f"{issuer}/.well-known/openid-configuration")
            return self._asked(str(found["token_endpoint"]), urllib.parse.urlencode(form).encode())
        except urllib.error.HTTPError as error:
            raise SourceError(
                f"headgate.pulsar: the issuer {issuer} gives no token: it answers {error.code}. Check the client's id, "
                "secret, audience and scope in pulsar.client.authParams.",
                source="headgate.pulsar", address=issuer,
            ) from None  # fmt: skip
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise SourceUnavailableError(
                f"headgate.pulsar: the issuer {issuer} (issuerUrl) does not answer: {type(error).__name__}.",
                source="headgate.pulsar", address=issuer,
            ) from None  # fmt: skip

    def _asked(self, url: str, form: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(url, form, {"Accept": "application/json"})
        with self._opener.open(request, timeout=self._timeout_s) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found
