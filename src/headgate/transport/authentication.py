"""The secret of a query: each call to one of its endpoints carries it, and without it no call gets any further.

Never: log or echo a secret, or reveal by the time of a comparison how much of one was right.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.flight as fl

logger = logging.getLogger(__name__)

_HEADER = "authorization"
_SCHEME = "Bearer "


def call_options(secret: str) -> fl.FlightCallOptions:
    """Return what a client passes with each call to an endpoint."""
    return fl.FlightCallOptions(headers=[(_HEADER.encode(), (_SCHEME + secret).encode())])


def refusal(secret: str, headers: Mapping[str, Sequence[str | bytes]]) -> str | None:
    """Return why a call with these headers is refused; None: it may go on.

    Examples
    --------
    >>> refusal("s3cret", {"authorization": ["Bearer s3cret"]})
    >>> refusal("s3cret", {})
    'its secret is missing'
    """
    given = [value for name, values in headers.items() if name.lower() == _HEADER for value in values]
    if not given:
        return "its secret is missing"
    expected = (_SCHEME + secret).encode()
    found = given[0].encode() if isinstance(given[0], str) else given[0]
    if len(given) > 1 or not hmac.compare_digest(found, expected):
        return "its secret is not that of this query"
    return None


class SecretCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call to an endpoint, of whatever kind, that does not carry the secret.

    ``address`` is in the log; it is set once the endpoint has one.
    """

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret
        self.address = "(not open yet)"

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        """Look at a call before anything else does, on a thread of gRPC's.

        Raises
        ------
        pyarrow.flight.FlightUnauthenticatedError
            The secret is missing or wrong.
        """
        why = refusal(self._secret, headers)
        if why is None:
            return
        # Logging asks for the current thread, and Python would list this one of gRPC's for ever (as "Dummy-1").
        note = (f"Refused a call to the endpoint at {self.address}: {why}.",)
        threading.Thread(target=logger.warning, args=note, name="headgate-refusal", daemon=True).start()
        raise fl.FlightUnauthenticatedError(f"refused: {why}")
