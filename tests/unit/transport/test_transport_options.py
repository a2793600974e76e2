"""TLS by options: all that it needs or none of it, and no key in any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.errors import OptionError
from headgate.graph.query_options import parse_query_options
from headgate.transport.options import TlsOptions, TransportOptions, transport_options

NOTHING: dict[str, Any] = {
    "transport.host": None, "transport.port": 0,
    "transport.tls.enabled": False, "transport.tls.cert": None, "transport.tls.key": None, "transport.tls.ca": None,
}  # fmt: skip


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """Return options with a file for each of the three; what they hold is not looked at here."""
    for name in ("cert", "key", "ca"):
        (tmp_path / f"{name}.pem").write_bytes(b"-----BEGIN " + name.encode())
    files = {f"transport.tls.{name}": str(tmp_path / f"{name}.pem") for name in ("cert", "key", "ca")}
    return {**NOTHING, "transport.tls.enabled": True, **files}


def test_nothing_set() -> None:
    assert transport_options(NOTHING) == TransportOptions(host=None, port=0, tls=None)


def test_everything_set(given: dict[str, Any]) -> None:
    tls = TlsOptions(certificate=b"-----BEGIN cert", key=b"-----BEGIN key", ca=b"-----BEGIN ca")
    options = {**given, "transport.host": "10.0.0.7", "transport.port": 7077}
    assert transport_options(options) == TransportOptions(host="10.0.0.7", port=7077, tls=tls)


def test_the_names_are_those_of_a_querys_options(given: dict[str, Any]) -> None:
    written = {name: str(value) for name, value in given.items() if value is not None}
    assert transport_options(parse_query_options(written, {})) == transport_options(given)


def test_without_a_ca_the_certificate_is_what_clients_trust(given: dict[str, Any]) -> None:
    tls = transport_options({**given, "transport.tls.ca": None}).tls
    assert tls is not None
    assert tls.ca == tls.certificate == b"-----BEGIN cert"


@pytest.mark.parametrize("missing", ["transport.tls.cert", "transport.tls.key"])
def test_what_is_missing_is_named(given: dict[str, Any], missing: str) -> None:
    with pytest.raises(OptionError, match=missing) as raised:
        transport_options({**given, missing: None})
    assert raised.value.option == missing


def test_a_file_that_is_not_there(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"'transport\.tls\.ca'.*cannot be read: No such file") as raised:
        transport_options({**given, "transport.tls.ca": "/nowhere/ca.pem"})
    assert raised.value.option == "transport.tls.ca"


def test_a_file_that_is_not_pem(given: dict[str, Any]) -> None:
    Path(given["transport.tls.key"]).write_bytes(b"\x30\x82 secret")
    with pytest.raises(OptionError, match="not a PEM file") as raised:
        transport_options(given)
    assert "secret" not in str(raised.value)


def test_no_text_shows_a_key() -> None:
    tls = TlsOptions(certificate=b"public", key=b"very private", ca=b"public")
    assert "private" not in f"{tls} {tls!r} {[tls]}"
