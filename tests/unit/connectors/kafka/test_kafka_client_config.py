"""kafka.* options as settings of librdkafka: what passes, what is translated, what is refused; no secret is shown."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.client_properties import is_secret
from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.errors import OptionError
from headgate.source.options import Options

SECRET = "dont-t3ll"
JAAS = "org.apache.kafka.common.security.{}.{}LoginModule required {};"


def config(given: dict[str, str] | None = None, **options: str) -> ClientConfig:
    raw = {"kafka.bootstrap.servers": "a:9092"} | {f"kafka.{name}": value for name, value in (given or {}).items()}
    return ClientConfig.of(Options.parse("headgate.kafka", OPTION_SPECS, raw | options))


def plain_login(options: str) -> dict[str, str]:
    return {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS.format("plain", "Plain", options)}


def test_without_addresses() -> None:
    with pytest.raises(OptionError, match=r"'kafka.bootstrap.servers' must be set"):
        ClientConfig.of(Options.parse("headgate.kafka", OPTION_SPECS, {"kafka.client.id": "x"}))


def test_a_consumer_reads_what_spark_reads_and_commits_nothing() -> None:
    settings = config().consumer()
    expected = {
        "isolation.level": "read_uncommitted", "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "allow.auto.create.topics": False, "enable.partition.eof": True,
    }  # fmt: skip
    assert settings.items() >= expected.items()
    assert config({"isolation.level": "READ_COMMITTED"}).consumer()["isolation.level"] == "read_committed"


def test_groups_are_unique_unless_named() -> None:
    first, second = config().consumer()["group.id"], config().consumer()["group.id"]
    assert first != second
    assert str(first).startswith("spark-kafka-source-")
    assert str(config(groupIdPrefix="mine").consumer()["group.id"]).startswith("mine-")
    assert config({"group.id": "ours"}, groupIdPrefix="mine").consumer()["group.id"] == "ours"


def test_equal_settings_are_equal_and_travel() -> None:
    one, other = config({"client.id": "x", "fetch.min.bytes": "3"}), config({"fetch.min.bytes": "3", "client.id": "x"})
    assert one == other and hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != config({"client.id": "y", "fetch.min.bytes": "3"})


def test_each_client_has_its_own_settings() -> None:
    made = config({"fetch.min.bytes": "3", "linger.ms": "7", "client.id": "x"})
    assert made.consumer().keys() >= {"fetch.min.bytes", "client.id"} and "linger.ms" not in made.consumer()
    assert made.admin() == {"bootstrap.servers": "a:9092", "client.id": "x", "reconnect.backoff.max.ms": 1000}
    assert made.producer() == made.admin() | {"linger.ms": "7", "partitioner": "murmur2_random"}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"request.timeout.ms": "5"}, {"socket.timeout.ms": "5"}),
        ({"fetch.max.wait.ms": "5"}, {"fetch.wait.max.ms": "5"}),
        ({"max.partition.fetch.bytes": "5"}, {"max.partition.fetch.bytes": "5"}),
        ({"receive.buffer.bytes": "-1"}, {"socket.receive.buffer.bytes": "0"}),
        ({"receive.buffer.bytes": "65536"}, {"socket.receive.buffer.bytes": "65536"}),
        ({"security.protocol": "SASL_SSL"}, {"security.protocol": "sasl_ssl"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"max.poll.records": "5", "partition.assignment.strategy": "org.x.Y"}, {}),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem", "ssl.truststore.password": "x"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "ca"}, {"ssl.ca.pem": "ca"}),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "x"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "x"},
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "chain", "ssl.keystore.key": "key"},
            {"ssl.certificate.pem": "chain", "ssl.key.pem": "key"},
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.store", "ssl.keystore.password": "x"},
            {"ssl.keystore.location": "/me.store", "ssl.keystore.password": "x"},
        ),
        ({"ssl.keystore.location": "/me.p12"}, {"ssl.keystore.location": "/me.p12"}),
        (
            plain_login('username="me" password="a;b \\"c\\""'),
            {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": 'a;b "c"'},
        ),
        (
            {"sasl.jaas.config": plain_login("username=me\n password='x y' ")["sasl.jaas.config"]},
            {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "x y"},
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": JAAS.format("scram", "Scram", 'username="me" password="x"'),
            },
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": "x"},
        ),
    ],
)
def test_translation(given: dict[str, str], settings: dict[str, str]) -> None:
    assert dict(config(given).settings) == settings | {"bootstrap.servers": "a:9092"}


@pytest.mark.parametrize(
    ("given", "about", "advice"),
    [
        ({"fetch.min.byte": "3"}, "fetch.min.byte", "Did you mean 'kafka.fetch.min.bytes'"),
        ({"zzz": "3"}, "zzz", "docs/kafka.md"),
        ({"isolation.level": "any"}, "isolation.level", "read_committed or read_uncommitted"),
        ({"default.api.timeout.ms": "1 s"}, "default.api.timeout.ms", "whole number"),
        ({"buffer.memory": "1k"}, "buffer.memory", "whole number of bytes"),
        ({"ssl.truststore.location": "/x.jks"}, "ssl.truststore.location", "keytool -exportcert"),
        (
            {"ssl.truststore.location": "/x", "ssl.truststore.type": "PKCS12"},
            "ssl.truststore.location",
            "kafka.ssl.truststore.type PEM",
        ),
        ({"ssl.keystore.location": "/x.jks"}, "ssl.keystore.location", "-deststoretype PKCS12"),
        (
            {"ssl.keystore.location": "/x.p12", "ssl.keystore.type": "JKS"},
            "ssl.keystore.location",
            "-deststoretype PKCS12",
        ),
        ({"sasl.jaas.config": SECRET}, "sasl.jaas.config", "kafka.sasl.password instead"),
        (plain_login(f'password="{SECRET}"'), "sasl.jaas.config", "no username"),
        (plain_login("username=x password=y") | {"sasl.username": "x"}, "sasl.jaas.config", "together"),
        (plain_login("username=x password=y") | {"sasl.mechanism": "SCRAM-SHA-256"}, "sasl.mechanism", "PLAIN"),
        ({"sasl.jaas.config": JAAS.format("scram", "Scram", "username=x password=y")}, "sasl.mechanism", "SCRAM"),
        ({"sasl.jaas.config": JAAS.format("x", "OAuthBearer", "")}, "sasl.jaas.config", "oidc"),
        ({"sasl.jaas.config": JAAS.format("x", "Krb5", "")}, "sasl.jaas.config", "kerberos.principal"),
        ({"sasl.jaas.config": JAAS.format("x", "My", f'password="{SECRET}"')}, "sasl.jaas.config", "Java code"),
    ],
)
def test_refused_with_advice(given: dict[str, str], about: str, advice: str) -> None:
    with pytest.raises(OptionError) as raised:
        config(given)
    assert raised.value.option == f"kafka.{about}"
    assert advice in str(raised.value)
    assert SECRET not in repr(raised.value.facts) + str(raised.value)


@pytest.mark.parametrize("name", ["ssl.engine.factory.class", "sasl.login.class", "enable.partition.eof"])
def test_what_needs_java_or_is_ours_is_refused(name: str) -> None:
    # A sink has other specs than the source, so that this is not left to them.
    with pytest.raises(OptionError, match=f"'kafka.{name}' is not supported"):
        ClientConfig.of(
            Options.parse("headgate.kafka", OPTION_SPECS[:1], {"kafka.bootstrap.servers": "a", f"kafka.{name}": "x"})
        )


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.password": SECRET},
        {"ssl.key.password": SECRET},
        {"ssl.key.pem": SECRET},
        {"ssl.keystore.password": SECRET},
        {"ssl.keystore.type": "PEM", "ssl.keystore.key": SECRET},
        {"ssl.truststore.password": SECRET},
        {"sasl.oauthbearer.client.secret": SECRET},
        {"sasl.oauthbearer.config": SECRET},
        {"sasl.oauthbearer.assertion.private.key.passphrase": SECRET},
        plain_login(f'username="me" password="{SECRET}"'),
    ],
)
def test_secrets_are_not_shown(given: dict[str, str]) -> None:
    made = config(given)
    assert SECRET not in repr(made) + str(made)
    error = made.option_error(f'Invalid value for configuration property "linger.ms", not {SECRET}')
    if dict(made.settings).keys() & {name for name, _ in made.settings if is_secret(name)}:
        assert SECRET not in str(error)
    assert error.option == "kafka.linger.ms"


def test_times_and_retries() -> None:
    made = config({"default.api.timeout.ms": "700"}, **{"fetchOffset.numRetries": "5"})
    assert (made.timeout_ms, made.retries, made.retry_interval_ms) == (700, 5, 1000)
    assert config().timeout_ms == 60_000


@given(user=st.text(min_size=1), password=st.text(min_size=1))
def test_any_user_and_password_survive_the_login_module(user: str, password: str) -> None:
    def quoted(word: str) -> str:
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'

    made = config(plain_login(f"username={quoted(user)} password={quoted(password)}"))
    settings = dict(made.settings)
    assert (settings["sasl.username"], settings["sasl.password"]) == (user, password)
