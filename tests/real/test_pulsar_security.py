"""TLS, tokens and clients' certificates with headgate.pulsar: they work, errors are clear, and no secret is seen."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import ClientConfig
from headgate.errors import SourceError, SourceUnavailableError
from local.kafka import PASSWORD, USER, Certificates
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import Message, create_topic, grant, produce
from tests.real.pulsar_reads import numbers, read, source
from tests.spark_java import defaults

HERE = Path(__file__).parent
FIVE = [Message(b"%d" % number) for number in range(5)]
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.spark.name = org.apache.spark
logger.spark.level = info
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""
AUTHENTICATION = "org.apache.pulsar.client.impl.auth.Authentication"


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[PulsarBroker]:
    """Return a broker where everybody needs a token or a certificate."""
    with running_pulsar(certificates=certificates, tokens=True, deduplication=True) as broker:
        yield broker


@pytest.fixture
def topic(secured: PulsarBroker, topic_name: str) -> str:
    """Return a topic with five messages."""
    create_topic(secured, topic_name, token=secured.token())
    produce(secured, topic_name, FIVE, token=secured.token())
    return topic_name


@pytest.fixture
def by_tls(secured: PulsarBroker, certificates: Certificates) -> dict[str, str]:
    return tls_of(secured, certificates)


def tls_of(broker: PulsarBroker, certificates: Certificates) -> dict[str, str]:
    return {
        "service.url": broker.tls_service_url,
        "admin.url": broker.tls_admin_url,
        "pulsar.client.tlsTrustCertsFilePath": str(certificates.ca),
    }


def with_token(parameters: str) -> dict[str, str]:
    return {
        "pulsar.client.authPluginClassName": f"{AUTHENTICATION}Token",
        "pulsar.client.authParams": parameters,
    }


def with_certificate(certificates: Certificates) -> dict[str, str]:
    return {
        "pulsar.client.authPluginClassName": f"{AUTHENTICATION}Tls",
        "pulsar.client.authParams": f"tlsCertFile:{certificates.client},tlsKeyFile:{certificates.client_key}",
    }


def test_tokens_and_tls(secured: PulsarBroker, topic: str, by_tls: dict[str, str], tmp_path: Path) -> None:
    token = secured.token()
    assert numbers(read(source(secured, topic, **with_token(f"token:{token}")))) == list(range(5))
    held = tmp_path / "token"
    held.write_text(token + "\n")
    assert len(read(source(secured, topic, **with_token(f"file://{held}")))) == 5
    assert len(read(source(secured, topic, **by_tls, **with_token(f"token:{token}")))) == 5


def test_a_token_in_a_file_may_be_renewed(secured: PulsarBroker, topic: str, tmp_path: Path) -> None:
    held = tmp_path / "token"
    held.write_text("one\ntwo")
    admin = PulsarAdmin(ClientConfig.of(source(secured, topic, **with_token(f"file://{held}")).options))
    with pytest.raises(SourceError, match=r"has a line break") as raised:
        admin.partition_count(f"persistent://public/default/{topic}")
    assert "two" not in str(raised.value)
    held.write_text(secured.token())
    assert admin.partition_count(f"persistent://public/default/{topic}") == 0


def test_wrong_tokens_are_named_but_not_shown(secured: PulsarBroker, topic: str) -> None:
    wrong = secured.token(secret=b"another secret of thirty-two bytes!!")
    with pytest.raises(SourceError, match=r"Check pulsar.admin.authPluginClassName") as raised:
        read(source(secured, topic, **with_token(f"token:{wrong}")))
    assert wrong not in str(raised.value)


def test_certificates_of_clients(
    secured: PulsarBroker, certificates: Certificates, topic: str, by_tls: dict[str, str]
) -> None:
    grant(secured, "public/default", USER, "consume", token=secured.token())
    assert numbers(read(source(secured, topic, **by_tls, **with_certificate(certificates)))) == list(range(5))


@pytest.mark.parametrize("key", ["broker.pem", "nowhere.pem"])
def test_a_key_that_cannot_be_used_is_named(
    secured: PulsarBroker, certificates: Certificates, topic: str, by_tls: dict[str, str], key: str
) -> None:
    other = dataclasses.replace(certificates, client_key=certificates.ca.with_name(key))
    with pytest.raises(SourceError, match=rf"in .*client\.pem and .*{key} cannot be used") as raised:
        read(source(secured, topic, **by_tls, **with_certificate(other)))
    assert not raised.value.retryable


def test_brokers_that_want_a_certificate_of_everybody(certificates: Certificates, topic_name: str) -> None:
    everybody = {"tlsRequireTrustedClientCertOnConnect": "true"}
    with running_pulsar(certificates=certificates, settings=everybody) as broker:
        create_topic(broker, topic_name)
        produce(broker, topic_name, FIVE)
        shown = {
            "pulsar.client.tlsCertificateFilePath": str(certificates.client),
            "pulsar.client.tlsKeyFilePath": str(certificates.client_key),
        }
        tls = tls_of(broker, certificates)
        assert numbers(read(source(broker, topic_name, **tls, **shown))) == list(range(5))
        with pytest.raises(SourceUnavailableError, match=r"\(admin\.url\) does not answer: .*(?i:certificate)"):
            read(source(broker, topic_name, **tls))


class Issuer(ThreadingHTTPServer):
    """Gives tokens to a client that knows its secret, over HTTP on loopback."""

    def __init__(self, token: str) -> None:
        self.token, self.given = token, 0
        super().__init__(("127.0.0.1", 0), _OfIssuer)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Issuer:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _OfIssuer(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        assert self.path == "/.well-known/openid-configuration"
        self._answer(200, {"issuer": self.server.url, "token_endpoint": f"{self.server.url}/token"})

    def do_POST(self) -> None:
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        expected = {"grant_type": "client_credentials", "client_id": USER, "client_secret": PASSWORD, "audience": "us"}
        if form != expected:
            self._answer(401, {"error": "invalid_client", "error_description": f"not {form.get('client_secret')}"})
            return
        self.server.given += 1
        self._answer(200, {"access_token": self.server.token, "expires_in": 3600, "token_type": "Bearer"})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *of: object) -> None:
        """Print nothing."""


def with_oauth2(issuer: Issuer, **more: str) -> dict[str, str]:
    return {
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2",
        "pulsar.client.authParams": json.dumps({"issuerUrl": issuer.url, "audience": "us", **more}),
    }


@pytest.mark.parametrize("form", ["file", "data", "parameters"])
def test_oauth2(secured: PulsarBroker, topic: str, tmp_path: Path, form: str) -> None:
    """Both the brokers and `admin.url` are shown the issuer's token; that is asked for once, not for each request."""
    held = json.dumps({"type": "client_credentials", "client_id": USER, "client_secret": PASSWORD}).encode()
    (tmp_path / "key.json").write_bytes(held)
    key: dict[str, str] = {
        "file": {"privateKey": f"file://{tmp_path}/key.json"},
        "data": {"privateKey": f"data:application/json;base64,{base64.b64encode(held).decode()}"},
        "parameters": {"client_id": USER, "client_secret": PASSWORD},
    }[form]
    with Issuer(secured.token()) as issuer:
        assert numbers(read(source(secured, topic, **with_oauth2(issuer, **key)))) == list(range(5))
        assert 0 < issuer.given < 5


def test_an_issuer_that_refuses_is_named_and_no_secret_is_shown(secured: PulsarBroker, topic: str) -> None:
    wrong = {"client_id": USER, "client_secret": "open-sesame-1234"}
    with Issuer(secured.token()) as issuer:
        login = with_oauth2(issuer, **wrong)
        with pytest.raises(SourceError, match=rf"the issuer {issuer.url} gives no token: it answers 401") as raised:
            read(source(secured, topic, **login))
        assert "open-sesame" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(SourceUnavailableError, match=r"\(issuerUrl\) does not answer"):
        read(source(secured, topic, **login))


@pytest.mark.spark_since("stream-arrow-writer")
def test_no_secret_is_seen(
    imported: Path, secured: PulsarBroker, certificates: Certificates, topic_name: str, by_tls: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Not in offsets, progress, plans, errors, logs, or any page of the UI and its interface for programs."""
    out = tmp_path / "shown"
    out.mkdir()
    for topic in (topic_name, f"{topic_name}-copy"):
        create_topic(secured, topic, token=secured.token())
    grant(secured, "public/default", USER, "produce", "consume", token=secured.token())
    tokens = [secured.token(), secured.token(USER), *(secured.token(name, secret=b"x" * 40) for name in ("a", "b"))]
    files = [tmp_path / f"token-{number}" for number in range(4)]
    for token, file in zip(tokens, files, strict=True):
        file.write_text(token)
    basic = {
        "pulsar.client.authPluginClassName": f"{AUTHENTICATION}Basic",
        "pulsar.client.authParams": json.dumps({"userId": "ferry", "password": PASSWORD}),
    }
    quick = by_tls | {"pulsar.client.operationTimeoutMs": "2000", "pulsar.producer.sendTimeoutMs": "2000"}
    client = "pulsar.client"
    reading = ("authParams", f"{client}.authParam", f"{client}.authPluginClassName", f"{client}.operationTimeoutMs")
    misspelt = {name: ["a_read"] for name in reading} | {"pulsar.producer.authParams": ["a_write"]}
    given = {
        "folder": str(out),
        "topic": topic_name,
        "logins": {
            "token": by_tls | with_token(f"token:{tokens[0]}"),
            "file": by_tls | with_token(f"file://{files[1]}"),
            "certificate": by_tls | with_certificate(certificates),
        },
        "wrong": [
            (quick | with_token(f"token:{tokens[2]}"), ["a_read", "a_write", "micro_batches", "a_continuous_query"]),
            (quick | with_token(f"file:{files[3]}"), ["a_write"]),
            (quick | basic, ["a_read"]),
            *((by_tls | {name: f"token:{tokens[0]}"}, doings) for name, doings in misspelt.items()),
        ],
    }
    # A Java of its own: what that prints is looked at.
    (tmp_path / "log4j2.properties").write_text(LOGGING)
    settings = defaults()
    settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={tmp_path}/log4j2.properties"
    words = shlex.join(f"--conf={name}={value}" for name, value in settings.items())
    environment = {"PYSPARK_SUBMIT_ARGS": f"{words} pyspark-shell", "HEADGATE_HOME": str(out / "home")}
    done = subprocess.run(
        [sys.executable, str(HERE / "pulsar_secrets_program.py")], cwd=out, input=json.dumps(given).encode(),
        env=os.environ | environment, capture_output=True, timeout=400,
    )  # fmt: skip
    (out / "output").write_bytes(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:].decode()
    assert (out / "copied.txt").read_text() == "30"
    errors = {each.name: each.read_text() for each in out.glob("error-*")}
    assert len(errors) == 6 + len(misspelt)
    assert [name for name, text in errors.items() if "headgate.pulsar" not in text] == []
    assert "INFO MicroBatchExecution" in (out / "output").read_text()
    shown = [each for each in out.rglob("*") if each.is_file()]
    key = certificates.client_key.read_text().splitlines()[1]
    secrets = [*tokens, *(token.rpartition(".")[2] for token in tokens), PASSWORD, key, str(certificates.client_key)]
    leaks = {
        (str(each.relative_to(out)), secret)
        for each in shown
        for secret in secrets
        if secret.encode() in each.read_bytes()
    }
    assert leaks == set()
