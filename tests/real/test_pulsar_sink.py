"""The Pulsar sink of continuous queries on a real broker: what a crash at each step leaves, and each row once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from broker_sinks import Writers, complete, published, rows, snapshot

from headgate.connectors.pulsar.sink.rows import java_hash
from headgate.connectors.pulsar.sink.sink import make_pulsar_sink
from headgate.errors import CorruptStateError, SinkError, SinkUnavailableError
from local.kafka import Certificates
from local.pulsar import running_pulsar
from local.pulsar_topics import Broker, add_partitions, create_topic, grant, read_topic, terminate
from tests.shared_broker import PulsarAddresses

ROOT = Path(__file__).resolve().parents[2]


def values(broker: Broker, topic: str, token: str | None = None) -> list[str]:
    return sorted(message.data().decode() for message in read_topic(broker, topic, token))


def once(topic: str) -> str:
    """Return the name of a topic whose repeated messages are dropped."""
    return f"persistent://public/once/{topic}"


class Query(Writers):
    """The writers of one query into Pulsar."""

    def __init__(self, broker: Broker, topic: str, folder: Path) -> None:
        self.broker = broker
        addresses = {"service.url": broker.service_url, "admin.url": broker.admin_url}
        super().__init__(make_pulsar_sink, addresses | {"topic": topic}, folder)


@pytest.fixture
def query(pulsar: PulsarAddresses, topic_name: str, tmp_path: Path) -> Iterator[Query]:
    made = Query(pulsar, create_topic(pulsar, once(topic_name), 3), tmp_path)
    yield made
    made.close()


# At least once.


def test_rows_are_out_at_once_and_a_barrier_waits_for_them(query: Query) -> None:
    """No barrier is needed for them to be seen."""
    (writer,) = query.start(1, guarantee="at-least-once")
    writer.write(rows("a", "b"))
    while values(query.broker, query.topic) != ["a", "b"]:
        pass
    writer.write(rows(*[f"{n:05}" for n in range(20_000)]))
    assert snapshot([writer], 1) == []
    assert values(query.broker, query.topic) == [*[f"{n:05}" for n in range(20_000)], "a", "b"]


def test_all_parts_of_a_message_arrive(query: Query, pulsar: PulsarAddresses, topic_name: str) -> None:
    """Keys choose the partitions that Java's clients choose; a null value is a message without one."""
    create_topic(pulsar, f"{topic_name}-other")
    batch = pa.record_batch(
        {
            "ignored": [1, 2, 3],
            "value": pa.array([b"\xff\x00", None, b"x"]),
            "__key": pa.array([b"k1", "schlüssel".encode(), None]),
            "__topic": [once(topic_name), once(topic_name), f"{topic_name}-other"],
            "__eventTime": pa.array([1_700_000_000_123_456, None, 1_000], pa.timestamp("us", "UTC")),
            "__messageProperties": pa.array([[("a", "1"), ("b", "")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    (writer,) = query.start(1, schema=batch.schema, guarantee="at-least-once", topic=None)
    writer.write(batch)
    snapshot([writer], 1)
    first, second = sorted(read_topic(pulsar, once(topic_name)), key=lambda each: each.event_timestamp(), reverse=True)
    (third,) = read_topic(pulsar, f"{topic_name}-other")
    assert (first.data(), first.partition_key(), first.event_timestamp()) == (b"\xff\x00", "k1", 1_700_000_000_123)
    assert first.properties() == {"a": "1", "b": ""}
    assert (second.has_null_value(), second.partition_key(), second.event_timestamp()) == (True, "schlüssel", 0)
    assert (third.data(), third.partition_key(), third.event_timestamp(), third.properties()) == (b"x", "", 1, {})
    assert [int(each.topic_name().rpartition("-")[2]) for each in (first, second)] == [
        java_hash(key) % 3 for key in ("k1", "schlüssel")
    ]


def test_rows_that_are_large_and_small_arrive_and_one_that_is_too_large_is_an_error(query: Query) -> None:
    texts = [f"{n:03}" + "x" * (200_000 if n % 7 == 0 else 10) for n in range(100)]
    (writer,) = query.start(1, guarantee="at-least-once")
    writer.write(rows(*texts))
    snapshot([writer], 1)
    assert values(query.broker, query.topic) == sorted(texts)
    writer.write(rows("small", "x" * 6_000_000, "small"))
    with pytest.raises(SinkError, match="MessageTooBig"):
        snapshot([writer], 2)


def test_nobody_listens(query: Query) -> None:
    nobody = {"service.url": "pulsar://127.0.0.1:9", "pulsar.client.operationTimeoutMs": "1000"}
    (writer,) = query.start(1, guarantee="at-least-once", **nobody)
    writer.write(rows("a"))
    with pytest.raises(SinkUnavailableError, match=r"pulsar://127\.0\.0\.1:9 did not let .* look up the partitions"):
        snapshot([writer], 1)


# Exactly once.


def test_rows_are_published_when_their_checkpoint_is_complete(query: Query) -> None:
    writers = query.start(2)
    writers[0].write(rows("a", "b"))
    writers[1].write(rows("c"))
    items = snapshot(writers, 1)
    assert values(query.broker, query.topic) == []
    complete(writers, 1)
    assert len(items) == 2 and values(query.broker, query.topic) == ["a", "b", "c"]
    assert snapshot(writers, 2) == [], "what is published is in no state any more"


def test_what_was_published_is_dropped_when_it_is_published_again(query: Query) -> None:
    """The crash fell between the publication and the next checkpoint; subtasks are fewer then."""
    texts = [f"{n:05}" for n in range(9_000)]
    writers = query.start(3)
    for subtask, writer in enumerate(writers):
        writer.write(rows(*texts[subtask::3]))
    items = snapshot(writers, 1)
    kept = query.folder.parent / f"{query.folder.name}-kept"
    shutil.copytree(query.folder, kept)
    complete(writers, 1)
    for parallelism in (1, 2):
        shutil.copytree(kept, query.folder, dirs_exist_ok=True)
        for mark in query.folder.rglob("published.json"):
            mark.unlink()  # the crash was before it was there
        writers = query.start(parallelism, items)
        published(writers)
    assert values(query.broker, query.topic) == texts


def test_partitions_that_are_added_meanwhile_move_no_row(query: Query) -> None:
    """A row's partition is staged with it: its key would choose another one now, where nobody knows it."""
    schema = pa.schema({"value": pa.string(), "__key": pa.string()})
    texts = [f"{n:04}" for n in range(2_000)]
    (writer,) = query.start(1, schema=schema)
    writer.write(pa.record_batch({"value": texts, "__key": texts}, schema))
    items = snapshot([writer], 1)
    complete([writer], 1)
    for mark in query.folder.rglob("published.json"):
        mark.unlink()
    add_partitions(query.broker, query.topic, 7)
    published(query.start(1, items))
    assert values(query.broker, query.topic) == texts
    (writer,) = query.start(1, schema=schema)
    writer.write(pa.record_batch({"value": texts, "__key": texts}, schema))
    snapshot([writer], 1)
    complete([writer], 1)
    assert len({each.topic_name() for each in read_topic(query.broker, query.topic)}) == 7


def test_a_publication_that_was_cut_off_is_completed(query: Query, tmp_path: Path) -> None:
    """Another process is killed while it publishes; a restore sends all again, and each row is there once."""
    texts = [f"{n:06}" for n in range(60_000)]
    (writer,) = query.start(1)
    writer.write(rows(*texts))
    (item,) = snapshot([writer], 1)
    writer.close()
    (tmp_path / "item").write_bytes(item)
    program = f"""
        import os, signal, sys, pyarrow as pa
        from pathlib import Path
        from headgate.connectors.pulsar.sink.producer import MessageWriter
        from headgate.connectors.pulsar.sink.sink import make_pulsar_sink
        from headgate.protocol.operator_context import OperatorContext

        schema = pa.schema({{"value": pa.string()}})
        sink = make_pulsar_sink({{
            "service.url": {query.broker.service_url!r}, "admin.url": {query.broker.admin_url!r},
            "topic": {query.topic!r}, "guarantee": "exactly-once",
        }}, schema)
        context = OperatorContext(
            uid="sink", subtask=0, parallelism=1, run=2, execution=1, query_id="zombie",
            options={{"checkpointLocation": {str(query.folder)!r}}},
        )
        on_sent, left = MessageWriter._on_sent, int(sys.argv[1])

        def killed(*arguments):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            on_sent(*arguments)

        MessageWriter._on_sent = killed
        sink.create_writer(context, schema, [Path({str(tmp_path / "item")!r}).read_bytes()]).finish().result()
    """
    for acknowledgements in (1, 2, 7, 20):
        command = [sys.executable, "-c", textwrap.dedent(program), str(acknowledgements)]
        assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
        assert 0 < len(values(query.broker, query.topic)) < len(texts)
    published(query.start(1, [item]))
    assert values(query.broker, query.topic) == texts


@pytest.mark.parametrize("kills", [2, 10])
def test_a_broker_killed_in_the_publication_costs_no_row(tmp_path: Path, topic_name: str, kills: int) -> None:
    """What breaks it breaks `tests/real/test_pulsar_sink.py::test_a_publication_that_was_cut_off_is_completed` and
    `tests/unit/sink/test_publication_retries.py` too, or
    `tests/unit/connectors/pulsar/sink/test_pulsar_sink_options.py::test_only_what_no_other_attempt_changes_is_given_up`.
    """
    random = Random(kills)
    with running_pulsar(tmp_path / "broker", deduplication=True) as broker:
        query = Query(broker, create_topic(broker, topic_name, 2), tmp_path / "query")
        (writer,) = query.start(1)
        written = 0
        for checkpoint_id in range(1, kills + 1):
            texts = [f"{n:07}" for n in range(written, written + 30_000)]
            written += len(texts)
            writer.write(rows(*texts))
            snapshot([writer], checkpoint_id)
            writer.notify_checkpoint_complete(checkpoint_id)
            time.sleep(random.uniform(0.05, 0.4))
            broker.kill()
            broker.start()
            published([writer])
            assert writer.unpublished_ms() == 0
        assert values(broker, query.topic) == [f"{n:07}" for n in range(written)]
        query.close()


def test_a_broker_that_hangs_in_the_publication_costs_no_row(tmp_path: Path, topic_name: str) -> None:
    """What breaks it breaks `tests/unit/sink/test_publication_retries.py` too, or
    `tests/unit/connectors/pulsar/sink/test_pulsar_sink_options.py::test_only_what_no_other_attempt_changes_is_given_up`.
    """
    with running_pulsar(tmp_path / "broker", deduplication=True) as broker:
        query = Query(broker, create_topic(broker, topic_name, 2), tmp_path / "query")
        short = {"pulsar.client.operationTimeoutMs": "2000", "pulsar.producer.sendTimeoutMs": "2000"}
        (writer,) = query.start(1, **short)
        texts = [f"{n:06}" for n in range(40_000)]
        writer.write(rows(*texts))
        snapshot([writer], 1)
        writer.notify_checkpoint_complete(1)
        time.sleep(0.1)
        broker.freeze()
        time.sleep(3)
        broker.thaw()
        published([writer])
        assert values(broker, query.topic) == texts
        query.close()


def test_staged_rows_of_an_exactly_once_run_are_published_by_an_at_least_once_one(query: Query) -> None:
    (writer,) = query.start(1)
    writer.write(rows("a"))
    items = snapshot([writer], 1)
    writers = query.start(1, items, guarantee="at-least-once")
    published(writers)
    writers[0].write(rows("b"))
    assert snapshot(writers, 2) == []
    assert values(query.broker, query.topic) == ["a", "b"]


def test_large_staged_rows_are_files_that_are_deleted(query: Query) -> None:
    (writer,) = query.start(1)
    writer.write(rows(*[f"{n:06}" + "x" * 100 for n in range(150_000)]))
    items = snapshot([writer], 1)
    staged = list(query.folder.rglob("*.arrow"))
    complete([writer], 1)
    assert staged and list(query.folder.rglob("*.arrow")) == []
    published(query.start(2, items))  # they were published, which nobody knew when the state was taken
    assert len(values(query.broker, query.topic)) == 150_000
    (mark,) = query.folder.rglob("published.json")
    mark.unlink()
    with pytest.raises(CorruptStateError, match=r"are gone, and nobody knows that they were published"):
        published(query.start(1, items))


def test_two_that_publish_the_same_at_once_leave_each_row_once(query: Query) -> None:
    """A slot that was taken for dead goes on: brokers let one of them in after the other."""
    random = Random(1)
    texts = [f"{n:05}{random.randbytes(20).hex()}" for n in range(20_000)]  # they are in a file
    (writer,) = query.start(1)
    writer.write(rows(*texts))
    items = snapshot([writer], 1)
    writer.notify_checkpoint_complete(1)
    others = [query.start(1, items)[0] for _ in range(2)]
    published([writer, *others])
    assert values(query.broker, query.topic) == texts


# What is refused.


def test_a_topic_that_drops_nothing_is_refused_and_the_remedy_named(query: Query, topic_name: str) -> None:
    create_topic(query.broker, topic_name)
    (writer,) = query.start(1, topic=topic_name)
    writer.write(rows("a"))
    snapshot([writer], 1)
    writer.notify_checkpoint_complete(1)
    with pytest.raises(SinkError, match="set-deduplication --enable public/default") as caught:
        published([writer])
    assert not caught.value.retryable
    assert values(query.broker, topic_name) == []


def test_a_topic_that_is_missing_is_named_where_brokers_make_none(tmp_path: Path) -> None:
    with running_pulsar(deduplication=True, settings={"allowAutoTopicCreation": "false"}) as broker:
        query = Query(broker, "missing", tmp_path)
        for guarantee in ("at-least-once", "exactly-once"):
            (writer,) = query.start(1, guarantee=guarantee)
            writer.write(rows("a"))
            with pytest.raises(
                SinkError, match=r"public/default/missing.* Create the topic, or correct its name"
            ) as caught:
                snapshot([writer], 1)
            assert not caught.value.retryable
        query.close()


def test_a_terminated_topic_is_not_tried_again(query: Query) -> None:
    (writer,) = query.start(1)
    terminate(query.broker, query.topic)
    writer.write(rows("a"))
    snapshot([writer], 1)
    writer.notify_checkpoint_complete(1)
    with pytest.raises(SinkError, match="It takes no messages any more"):
        published([writer])


def test_a_token_that_may_not_produce_is_refused_and_not_shown(
    tmp_path: Path, certificates: Certificates, topic_name: str
) -> None:
    with running_pulsar(tmp_path / "broker", tokens=True, deduplication=True, certificates=certificates) as broker:
        create_topic(broker, topic_name, token=broker.token())
        login = {
            "service.url": broker.tls_service_url, "admin.url": broker.tls_admin_url,
            "pulsar.client.tlsTrustCertsFilePath": str(certificates.ca), "guarantee": "at-least-once",
            "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "pulsar.client.operationTimeoutMs": "5000",
        }  # fmt: skip
        query = Query(broker, topic_name, tmp_path)
        token = broker.token("writer")
        (writer,) = query.start(1, **login | {"pulsar.client.authParams": f"token:{token}"})
        writer.write(rows("a"))
        with pytest.raises(SinkError) as caught:
            snapshot([writer], 1)
        assert token not in str(caught.value)
        grant(broker, "public/default", "writer", "produce", token=broker.token())
        (writer,) = query.start(1, **login | {"pulsar.client.authParams": f"token:{token}"})
        writer.write(rows("b"))
        snapshot([writer], 1)
        assert values(broker, topic_name, broker.token()) == ["b"]
        once_too = login | {"pulsar.client.authParams": f"token:{token}", "guarantee": "exactly-once"}
        (writer,) = query.start(1, **once_too)
        writer.write(rows("c"))
        (item,) = snapshot([writer], 1)
        assert token.encode() not in item
        complete([writer], 1)
        assert values(broker, topic_name, broker.token()) == ["b", "c"]
        query.close()


@pytest.mark.parametrize("compression", ["none", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_compressions(query: Query, compression: str) -> None:
    (writer,) = query.start(1, guarantee="at-least-once", **{"pulsar.producer.compressionType": compression})
    writer.write(rows("x" * 1000))
    snapshot([writer], 1)
    assert values(query.broker, query.topic) == ["x" * 1000]
