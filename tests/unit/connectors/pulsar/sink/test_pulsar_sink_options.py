"""The options of Pulsar's sink and the columns of its rows: what is refused, and what producers are given."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import result_error, sink_error
from headgate.errors import OptionError, SinkError, SinkUnavailableError

SCHEMA = pa.schema({"value": pa.string()})
ADDRESSES = {"service.url": "pulsar://127.0.0.1:9", "admin.url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("options", "schema", "error"),
    [
        ({}, SCHEMA, "Set the option 'topic', or add a column '__topic'"),
        ({"topic": "t"}, pa.schema({"id": pa.int64()}), r"no column 'value' \(id\).*to_json\(struct\(id\)\) AS value"),
        ({"topic": "t"}, pa.schema({"value": pa.int64()}), "'value' must be a string or binary, not int64"),
        ({"topic": "t", "guarantee": "exactly-once"}, SCHEMA, "'admin.url' must be set with guarantee exactly-once"),
        ({"topic": "non-persistent://public/default/t"}, SCHEMA, "a persistent topic"),
        ({"topic": "t", "pulsar.producer.sendTimeout": "1"}, SCHEMA, "These have: sendTimeoutMs, compressionType"),
        ({"topic": "t", "pulsar.producer.compressionType": "lz5"}, SCHEMA, "NONE, LZ4"),
        ({"topic": "t", "pulsar.producer.producerName": "me"}, SCHEMA, "each task has its own"),
    ],
)
def test_options_and_columns_are_checked(options: dict[str, str], schema: pa.Schema, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        PulsarSink.of({"service.url": "pulsar://127.0.0.1:9"} | options, schema)


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        *((each, SinkUnavailableError) for each in ("Timeout", "Disconnected", "ConnectError", "ProducerBusy")),
        *((each, SinkUnavailableError) for each in ("ServiceUnitNotReady", "UnknownError", "AlreadyClosed")),
        *((each, SinkError) for each in ("AuthenticationError", "TopicTerminated", "MessageTooBig", "TopicNotFound")),
    ],
)
def test_only_what_no_other_attempt_changes_is_given_up(result: str, kind: type[SinkError]) -> None:
    client = PulsarSink.of(ADDRESSES | {"topic": "t"}, SCHEMA).client
    assert type(result_error(SimpleNamespace(name=result), client)) is kind
    raised = type(result, (Exception,), {})("it says why")
    assert type(sink_error(raised, client, "send rows", "t")) is kind


def test_a_sink_pickles_and_shows_no_secret() -> None:
    """Spark passes names of options in lower case."""
    options = ADDRESSES | {
        "topic": "t", "guarantee": "exactly-once", "checkpointlocation": "/c", "pulsar.producer.sendtimeoutms": "5",
        "pulsar.producer.compressiontype": "zstd", "pulsar.producer.batchingenabled": "false",
        "pulsar.client.authpluginclassname": "AuthenticationToken", "pulsar.client.authparams": "token:s3cret",
    }  # fmt: skip
    sink = PulsarSink.of(options, SCHEMA)
    assert sink.topic == "persistent://public/default/t"
    assert sink.producer == (("compression_type", "ZSTD"), ("send_timeout_millis", 5))
    assert sink.checkpoint_location == "/c"
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert "s3cret" not in repr(sink)
