"""The options of headgate.kinesis: every one of the known connectors is supported, a no-op, or refused with the fix."""

import pickle
import subprocess
import sys

import pytest

from headgate.connectors.kinesis.api import KinesisApi
from headgate.connectors.kinesis.options import OPTION_SPECS, StartingPosition, start_of, starting_position
from headgate.connectors.kinesis.source import KinesisSource
from headgate.errors import DeploymentError, OptionError
from headgate.source import Boundedness

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/rides"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", StartingPosition("latest")),
        ("TRIM_HORIZON", StartingPosition("trim_horizon")),
        ("earliest", StartingPosition("trim_horizon")),
        ("2026-01-01T00:00:00Z", StartingPosition("at_timestamp", 1_767_225_600_000)),
        ("2026-01-01T01:00:00.5+01:00", StartingPosition("at_timestamp", 1_767_225_600_500)),
        ("2026-01-01 00:00", StartingPosition("at_timestamp", 1_767_225_600_000)),
        ('{"at_timestamp": "2026-01-01T00:00:00Z"}', StartingPosition("at_timestamp", 1_767_225_600_000)),
        ('{"AtTimestamp": "2026-01-01"}', StartingPosition("at_timestamp", 1_767_225_600_000)),
    ],
)
def test_starting_positions(text, expected):
    assert starting_position(text) == expected


@pytest.mark.parametrize("text", ["newest", "", "{}", "[1]", '{"at": 1}', '{"at_timestamp": 17}', '{"a": 1, "b": 2}'])
def test_other_starting_positions_are_refused(text):
    with pytest.raises(OptionError, match="must be latest, trim_horizon, earliest, or a time"):
        KinesisSource({"streamName": "rides", "startingPosition": text})


def test_defaults_depend_on_how_the_stream_is_read():
    options = KinesisSource({"streamName": "rides"}).options
    assert start_of(options, Boundedness.BOUNDED).kind == "trim_horizon"
    assert start_of(options, Boundedness.CONTINUOUS_UNBOUNDED).kind == "latest"


def test_a_batch_cannot_start_at_latest():
    options = KinesisSource({"streamName": "rides", "startingPosition": "latest"}).options
    with pytest.raises(OptionError, match="a batch would be empty"):
        start_of(options, Boundedness.BOUNDED)


def test_the_arn_names_stream_and_region():
    address = KinesisSource({"streamARN": ARN})._address
    assert (address.name, address.region, address.arn) == ("rides", "eu-west-1", ARN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs one of the options 'streamName' and 'streamARN'"),
        ({"streamName": "rides", "streamARN": ARN}, "needs only one of"),
        ({"streamARN": "rides"}, "must be an ARN like"),
        ({"streamARN": ARN, "region": "us-east-1"}, "but 'streamARN' names 'eu-west-1'"),
        ({"streamName": "rides", "awsAccessKey": "A"}, "are set together"),
        ({"streamName": "rides", "awsSessionToken": "A"}, "are set together"),
        ({"streamName": "rides", "consumerType": "SubscribeToShard"}, "must be one of GetRecords"),
        ({"streamName": "rides", "initialPosition": "latest"}, "use 'startingPosition'"),
        ({"streamName": "rides", "roleArn": "arn"}, "by a profile"),
        ({"streamName": "rides", "startPosition": "latest"}, "Did you mean 'startingPosition'"),
        ({"streamName": "rides", "discoveryInterval": "often"}, "must be an interval"),
    ],
)
def test_mistakes_are_named_with_the_fix(options, message):
    with pytest.raises(OptionError, match=message):
        KinesisSource(options)


def test_options_of_other_connectors_that_do_nothing_here_are_accepted():
    no_ops = {spec.name: "1" for spec in OPTION_SPECS if spec.status == "no-op"}
    assert no_ops
    KinesisSource({"streamName": "rides", **no_ops})


def test_no_secret_is_shown():
    secrets = {"awsAccessKey": "AKIA-KEY", "awsSecretKey": "THE-SECRET", "awsSessionToken": "THE-TOKEN"}
    source = KinesisSource({"streamName": "rides", "region": "eu-west-1", **secrets})
    address = source._address
    shown = f"{address} {address!r} {[address]} {source.options.fixed}"
    assert not any(secret in shown for secret in secrets.values())
    assert "rides" in shown and "eu-west-1" in shown
    assert pickle.loads(pickle.dumps(source))._address == address


def test_secrets_and_addresses_may_change_on_a_restart():
    assert KinesisSource({"streamName": "rides"}).options.fixed == {"streamName": "rides", "streamARN": None}


def test_boto3_is_imported_when_it_is_used_and_named_when_it_is_missing(monkeypatch):
    program = "import sys, headgate.connectors.kinesis, pyspark_headgate_kinesis; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(DeploymentError, match=r"needs boto3.*pip install 'headgate\[kinesis\]'"):
        KinesisApi(KinesisSource({"streamName": "rides"})._address).list_shards()
