"""The options of headgate.pulsar: names, errors that name the fix, and secrets that nobody sees."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.options import OPTION_SPECS, Start, ending_offsets, offsets, start_of
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.source import PulsarSource
from headgate.connectors.pulsar.subscription import Subscription, full_name, topic_pattern
from headgate.enumerators.partition import TopicPartition
from headgate.errors import OptionError
from headgate.source.options import Options

WHERE = {"service.url": "pulsar://broker:6650", "admin.url": "http://broker:8080", "topic": "rides"}
SECRET = "s3cret-of-the-ferry"
TOKEN = {
    "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "pulsar.client.authParams": f"token:{SECRET}",
}

OAUTH2 = {"pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": None}, r"'topic' is missing: set one of topic, topics and topicsPattern"),
        ({"topics": "a,b"}, r"cannot be set together with topics"),
        ({"topic": "a/b"}, r"a topic's name, like rides"),
        ({"topic": "non-persistent://public/default/a"}, r"nothing can be read again"),
        ({"topic": None, "topicsPattern": "rides[", }, r"a regular expression"),
        ({"service.url": None}, r"'service.url' must be set"),
        ({"admin.url": None}, r"'admin.url' must be set: the brokers' HTTP address"),
        ({"startingOffsets": "newest"}, r"must be earliest, latest, a time"),
        ({"startingOffsets": '{"rides": [1, 2]}'}, r"must be earliest, latest, a time"),
        ({"startingOffsets": '{"rides": [8, 256, 2, 16, 3]}'}, r"must be earliest, latest, a time"),
        ({"startingOffsets": '{"rides": [8, -129, 2, 16, 3]}'}, r"must be earliest, latest, a time"),
        ({"startingOffsets": "latest", "startingTime": "2026-01-01"}, r"cannot be set together with startingTime"),
        ({"pulsar.client.authPlugin": "x"}, r"Did you mean 'pulsar.client.authPluginClassName'"),
        ({"pulsar.client.operationTimeoutMs": "soon"}, r"must be a whole number above zero"),
        ({"pulsar.client.tlsAllowInsecureConnection": "maybe"}, r"must be true or false"),
        ({"pulsar.client.authPluginClassName": "org.me.Mine"}, r"must end with one of AuthenticationToken"),
        ({**TOKEN, "pulsar.client.authParams": "token:"}, r"must be 'token:' with the token"),
        ({**TOKEN, "pulsar.admin.authPluginClassName": "AuthenticationTls"}, r"admin.authParams' must be 'tlsCert"),
        ({**OAUTH2, "pulsar.client.authParams": f'{{"clientSecret": "{SECRET}"}}'}, r"must be {.issuerUrl.: …, .priv"),
        ({"pulsar.reader.queueSize": "1"}, r"These have: receiverQueueSize"),
        ({"pulsar.reader.receiverQueueSize": "1"}, r"a whole number from 2"),
        ({"pulsar.reader.defaultCryptoKeyReader": "data:;base64,x"}, r"must be the path of a file"),
        ({"pulsar.reader.readCompacted": "true"}, r"a range read again is not the same"),
        ({"subscriptionPrefix": "x"}, r"use 'predefinedSubscription'"),
    ],
)  # fmt: skip
def test_errors_name_the_option_and_the_fix(given: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in {**WHERE, **given}.items() if value is not None}
    with pytest.raises(OptionError, match=message) as raised:
        PulsarSource(options)
    assert SECRET not in str(raised.value)


def test_names_are_matched_as_spark_passes_them() -> None:
    source = PulsarSource({name.lower(): value for name, value in {**WHERE, **TOKEN}.items()})
    assert source.options["topic"] == "persistent://public/default/rides"


def test_json_options_need_json_values() -> None:
    with pytest.raises(OptionError, match="set valueFormat to json"):
        PulsarSource({**WHERE, "valueFormat": "binary", "mode": "FAILFAST"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Earliest", Start(word="earliest")),
        ("1767225600000", Start(time_ms=1_767_225_600_000)),
        ("2026-01-01T00:00:00Z", Start(time_ms=1_767_225_600_000)),
        ("2026-01-01", Start(time_ms=1_767_225_600_000)),
        ('{"a": [8, 9, 16, 3, 32, 2, 48, 5]}', {"persistent://public/default/a": Start(position=Position(9, 3, 1))}),
        # As Java has bytes, and as Python.
        ('{"a": [8, -84, 2, 16, 3]}', {"persistent://public/default/a": Start(position=Position(300, 2))}),
        ('{"a": [8, 172, 2, 16, 3]}', {"persistent://public/default/a": Start(position=Position(300, 2))}),
        (
            '{"t/n/a": "latest", "b-partition-0": 5}',
            {"persistent://t/n/a": Start(word="latest"), "persistent://public/default/b-partition-0": Start(time_ms=5)},
        ),
    ],
)
def test_where_to_start(value: str, expected: Any) -> None:
    assert offsets(value) == expected


def test_an_end_that_names_a_message_includes_it() -> None:
    found = ending_offsets('{"a": [8, 9, 16, 3, 32, 2, 48, 5]}')
    assert found == {"persistent://public/default/a": Start(position=Position(9, 3, 2))}


def test_a_batch_that_would_be_empty_is_an_error() -> None:
    options = Options.parse("headgate.pulsar", OPTION_SPECS, {**WHERE, "startingOffsets": '{"rides": "latest"}'})
    with pytest.raises(OptionError, match="a batch would be empty"):
        start_of(options, bounded=True)
    assert start_of(options, bounded=False) == {"persistent://public/default/rides": Start(word="latest")}


def test_names_of_topics() -> None:
    full = "persistent://public/default/rides"
    assert full_name("rides") == full_name(" public/default/rides ") == full_name(full) == full


def test_patterns_match_whole_names_in_their_namespace() -> None:
    assert topic_pattern("rides-.*") == ("public/default", "rides-.*")
    assert topic_pattern("persistent://t/n/a|b") == ("t/n", "a|b")
    chosen = Subscription(pattern=("t/n", "rides-.*"))
    names = ["t/n/rides-1", "t/n/old-rides-1", "t/n/rides", "t/other/rides-1", "t/n/__rides-1"]
    found = [name for name in names if chosen.matches(TopicPartition(f"persistent://{name}", 0))]
    assert found == ["t/n/rides-1"]


def test_secrets_are_nowhere() -> None:
    source = PulsarSource({**WHERE, **TOKEN})
    config = ClientConfig.of(source.options)
    assert SECRET not in repr(config)
    assert SECRET not in config.redact(f"the broker says {SECRET}: no")
    assert pickle.loads(pickle.dumps(config)) == config
    basic = {
        "pulsar.client.authPluginClassName": "AuthenticationBasic",
        "pulsar.client.authParams": json.dumps({"userId": "ferry", "password": SECRET}),
    }
    config = ClientConfig.of(PulsarSource({**WHERE, **basic}).options)
    assert SECRET not in repr(config)
    assert config.redact(f"wrong password {SECRET}") == "wrong password ***"
    key = base64.b64encode(json.dumps({"client_id": "ferry", "client_secret": SECRET}).encode()).decode()
    parameters = {"issuerUrl": "https://issuer", "privateKey": f"data:application/json;base64,{key}"}
    config = ClientConfig.of(
        PulsarSource({**WHERE, **OAUTH2, "pulsar.client.authParams": json.dumps(parameters)}).options
    )
    assert config.redact(f"no client {SECRET}") == "no client ***"


@pytest.fixture(scope="module")
def rows(repository: Path) -> list[list[str]]:
    lines = (repository / "docs/pulsar.md").read_text().splitlines()
    tables = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| `")]
    return [[cells[1].strip("`"), *cells[2:]] for cells in tables]


@pytest.mark.parametrize("spec", OPTION_SPECS, ids=lambda spec: spec.name)
def test_every_option_is_documented(rows: list[list[str]], spec: Any) -> None:
    cells = ["", *next(row for row in rows if row[0] == spec.name)]
    if spec.status == "supported":
        assert cells[3] == spec.meaning
    else:
        assert cells[2] == f"{'an error' if spec.status == 'rejected' else 'no effect'}: {spec.why}"
