"""What the options ``transport.*`` of a continuous query mean: where its endpoint listens, and with what certificates.

Never: open a socket, or show a key in a text. The driver reads the files once: slots get what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headgate.errors import OptionError


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What both ends need for TLS: contents of files in PEM. All slots and the driver have the same.

    Parameters
    ----------
    certificate, key
        With which an endpoint proves who it is. The certificate names the hosts that it is good for.
    ca
        What a client trusts.
    """

    certificate: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:
        return "TlsOptions(...)"


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options.

    Parameters
    ----------
    host
        Where to listen; None: the caller decides.
    port
        0: any free one.
    tls
        None: no TLS.
    """

    host: str | None = None
    port: int = 0
    tls: TlsOptions | None = None


def transport_options(options: Mapping[str, Any]) -> TransportOptions:
    """Return what the parsed options of a query say; reads the files that they name.

    Without ``transport.tls.ca`` the certificate itself is what clients trust.

    Raises
    ------
    OptionError
        TLS is on, and certificate or key is not named, or a file cannot be read or is not PEM.
    """
    tls = None
    if options["transport.tls.enabled"]:
        certificate = _pem("transport.tls.cert", options)
        key = _pem("transport.tls.key", options)
        ca = certificate if options["transport.tls.ca"] is None else _pem("transport.tls.ca", options)
        tls = TlsOptions(certificate=certificate, key=key, ca=ca)
    return TransportOptions(host=options["transport.host"], port=options["transport.port"], tls=tls)


def _pem(option: str, options: Mapping[str, Any]) -> bytes:
    path = options[option]
    if path is None:
        raise OptionError(f"TLS needs the option {option!r}: a PEM file.", option=option, value=None)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"The option {option!r} names the file {path!r}, which cannot be read: {error.strerror}.",
            option=option, value=path,
        ) from error  # fmt: skip
    if b"-----BEGIN " not in content:
        raise OptionError(f"The option {option!r} names {path!r}, which is not a PEM file.", option=option, value=path)
    return content
