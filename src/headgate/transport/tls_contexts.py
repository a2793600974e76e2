"""What `ssl` makes of a query's certificates, for connections of its own.

Never: leave a key in a file. `ssl` reads certificate and key from files only: they are in a private folder while it
does.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
from pathlib import Path

from headgate.transport.options import TlsOptions


class TlsContexts:
    """Both sides of TLS.

    Parameters
    ----------
    tls
        The query's.
    certified
        The host that certificates must be made for; None: that of the address.

    Raises
    ------
    OSError
        Certificate and key are not a pair, or not readable (`ssl.SSLError`).
    """

    def __init__(self, tls: TlsOptions, certified: str | None) -> None:
        self._certified = certified
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory(prefix="headgate-tls-") as folder:  # only this user can enter it
            certificate, key = Path(folder, "certificate"), Path(folder, "key")
            certificate.write_bytes(tls.certificate)
            key.write_bytes(tls.key)
            self._server.load_cert_chain(certificate, key)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.load_verify_locations(cadata=tls.ca.decode("ascii", "replace"))
        # The certificate itself may be what clients trust, also where another one signed it.
        self._client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN

    def accepted(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the TLS side of a connection that was accepted; its handshake is still to come."""
        return self._server.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def dialed(self, connection: socket.socket, host: str) -> ssl.SSLSocket:
        """Return that of one to a host."""
        name = self._certified or host
        return self._client.wrap_socket(connection, server_hostname=name, do_handshake_on_connect=False)
