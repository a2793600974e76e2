"""What an error of a call to an endpoint means."""

from __future__ import annotations

import pyarrow.flight as fl
import pytest

from headgate.transport.endpoint import transport_error

TO = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.77.0.12:41931: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TO + "tcp handshaker shutdown", "broken"),
        (TO + "Failed to connect to remote host: connect() (110): Connection timed out", "broken"),
        (TO + "Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "tls"),
        (TO + "Peer name 10.77.0.12 is not in peer certificate", "tls"),
    ],
)
def test_a_host_that_is_silent_is_not_taken_for_one_that_tls_refuses(text: str, reason: str) -> None:
    """The scheduler places slots elsewhere only where a connection broke."""
    assert transport_error(fl.FlightUnavailableError(text), "10.77.0.12:41931").facts["reason"] == reason
