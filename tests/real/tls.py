"""TLS for the tests of the planes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.transport.options import TlsOptions, transport_options

if TYPE_CHECKING:
    from local.kafka import Certificates


def tls_of(certificates: Certificates, *, other_ca: bool = False) -> TlsOptions:
    """Return the options of both ends; with the other CA no end is trusted."""
    tls = transport_options(
        {
            "transport.host": None,
            "transport.port": 0,
            "transport.tls.enabled": True,
            "transport.tls.cert": str(certificates.broker),
            "transport.tls.key": str(certificates.broker),
            "transport.tls.ca": str(certificates.other_ca if other_ca else certificates.ca),
        }
    ).tls
    assert tls is not None
    return tls
