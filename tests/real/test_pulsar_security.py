"""TLS, tokens and clients' certificates with headgate.pulsar: they work, errors are clear, and no secret is seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import ClientConfig
from headgate.errors import SourceError, SourceUnavailableError
from local.kafka import USER, Certificates
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import Message, create_topic, grant, produce
from tests.real.pulsar_reads import numbers, read, source

FIVE = [Message(b"%d" % number) for number in range(5)]
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
