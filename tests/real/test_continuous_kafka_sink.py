"""The Kafka sink of continuous queries on a real broker: what a crash at each step leaves, and each row once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from broker_sinks import VALUES, Writers, complete, published, rows, snapshot

from headgate.connectors.kafka import client_calls
from headgate.connectors.kafka.sink import transactions
from headgate.connectors.kafka.sink.sink import make_kafka_sink
from headgate.connectors.kafka.sink.staging import STAGED_SCHEMA
from headgate.connectors.kafka.sink.transactions import TransactionalWriter
from headgate.errors import CorruptStateError, HeadgateError, OptionError, SinkError, SinkUnavailableError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import SinkWriter
from headgate.sink import publisher as publisher_module
from headgate.sink.staging import RowsEncoder, StagingFolder, folder_of
from local.kafka import running_broker
from local.topics import create_topic, read_topic, wait_for_transactions

if TYPE_CHECKING:
    from local.kafka import Broker
    from local.kinesis import MotoServer


def values(kafka: Broker, topic: str, isolation: str = "read_committed", *, settled: bool = True) -> list[str]:
    """Return the values that a consumer sees, sorted; once all transactions have ended, if ``settled``."""
    if settled and isolation == "read_committed":
        wait_for_transactions(kafka.plain, topic)
    return sorted((each.value() or b"").decode() for each in read_topic(kafka.plain, topic, isolation))


class Query(Writers):
    """The writers of one query into Kafka."""

    def __init__(self, kafka: Broker, topic: str, folder: Path) -> None:
        self.broker = kafka
        super().__init__(make_kafka_sink, {"kafka.bootstrap.servers": kafka.plain, "topic": topic}, folder)


@pytest.fixture
def query(kafka: Broker, topic_name: str, tmp_path: Path) -> Iterator[Query]:
    made = Query(kafka, create_topic(kafka.plain, topic_name), tmp_path)
    yield made
    made.close()


# At least once.


def test_rows_are_out_at_once_and_a_barrier_waits_for_them(query: Query) -> None:
    """No barrier is needed for them to be seen."""
    (writer,) = query.start(1, guarantee="at-least-once")
    writer.write(rows("a", "b"))
    while values(query.broker, query.topic) != ["a", "b"]:
        pass
    writer.write(rows("c"))
    assert snapshot([writer], 1) == []
    assert values(query.broker, query.topic) == ["a", "b", "c"]


def test_a_full_producer_pushes_back_and_loses_nothing(query: Query) -> None:
    (writer,) = query.start(1, guarantee="at-least-once", **{"kafka.queue.buffering.max.messages": "500"})
    texts = [f"{n:06}" + "x" * 1000 for n in range(12_000)]
    waited = 0
    for start in range(0, len(texts), 500):
        if (room := writer.ready()) is not None:
            waited += 1
            room.result(60)
        writer.write(rows(*texts[start : start + 500]))
    assert snapshot([writer], 1) == []
    assert waited, "4 MiB may wait, and there were 12"
    assert values(query.broker, query.topic) == texts


def test_rows_that_are_not_delivered_are_an_error_of_the_next_call(query: Query) -> None:
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.delivery.timeout.ms": "300"}
    (writer,) = query.start(1, guarantee="at-least-once", **nobody)
    writer.write(rows("a"))
    with pytest.raises(SinkUnavailableError, match="did not answer in time"):
        while True:
            writer.ready()
    with pytest.raises(SinkUnavailableError):
        writer.prepare_commit(1, final=False)


def test_closing_does_not_wait_for_brokers_that_do_not_answer(query: Query) -> None:
    (writer,) = query.start(1, guarantee="at-least-once", **{"kafka.bootstrap.servers": "127.0.0.1:9"})
    writer.write(rows("a"))
    barrier = writer.prepare_commit(1, final=False)
    query.close_one(writer)
    with pytest.raises(HeadgateError):
        barrier.result(0)
    assert not [each for each in threading.enumerate() if each.name == "headgate-kafka-writer-0"]


# Exactly once.


def test_rows_come_with_their_checkpoint_and_leave_the_state(query: Query) -> None:
    (writer,) = query.start(1)
    writer.write(rows("a", "b"))
    assert len(snapshot([writer], 1)) == 1
    writer.write(rows("c"))
    complete([writer], 1)
    assert values(query.broker, query.topic, "read_uncommitted") == ["a", "b"]
    assert len(snapshot([writer], 2)) == 1
    complete([writer], 2)
    assert values(query.broker, query.topic) == ["a", "b", "c"]
    assert snapshot([writer], 3) == [], "what is published need not be kept"


def test_a_failed_checkpoint_s_rows_come_with_the_next_one(query: Query) -> None:
    (writer,) = query.start(1)
    writer.write(rows("a"))
    snapshot([writer], 1)
    writer.write(rows("b"))
    snapshot([writer], 2)
    writer.write(rows("c"))
    complete([writer], 2)
    assert values(query.broker, query.topic) == ["a", "b"]


def test_a_writer_that_dies_before_its_checkpoint_completes_leaves_nothing(query: Query) -> None:
    """The restore reads the rows again, and stages them anew."""
    first = query.start(1)
    first[0].write(rows("a"))
    snapshot(first, 1)
    second = query.start(1)
    second[0].write(rows("a"))
    snapshot(second, 1)
    complete(second, 1)
    assert values(query.broker, query.topic) == ["a"]


def test_a_crash_between_manifest_and_publication_is_made_good_once(query: Query) -> None:
    """A new run publishes what the first never did; a third one, from the same checkpoint, does not again."""
    first = query.start(1)
    first[0].write(rows("a", "b"))
    items = snapshot(first, 1)
    for _ in range(2):
        published(query.start(1, items))
    assert values(query.broker, query.topic) == ["a", "b"]


def test_a_crash_between_publication_and_the_next_checkpoint_repeats_nothing(query: Query) -> None:
    first = query.start(1)
    first[0].write(rows("a"))
    items = snapshot(first, 1)
    complete(first, 1)
    second = query.start(1, items)
    second[0].write(rows("b"))
    published(second)
    later = snapshot(second, 2)
    complete(second, 2)
    assert len(later) == 1, "the inherited item is gone, the own one is there"
    published(query.start(1, later))
    assert values(query.broker, query.topic) == ["a", "b"]


def test_what_was_published_in_part_is_completed(query: Query) -> None:
    """The first checkpoint was published, the second was not; the state of the second holds both."""
    first = query.start(1)
    first[0].write(rows("a"))
    snapshot(first, 1)
    first[0].write(rows("b"))
    items = snapshot(first, 2)
    complete(first, 1)
    assert values(query.broker, query.topic) == ["a"]
    published(query.start(1, items))
    assert values(query.broker, query.topic) == ["a", "b"]


def test_a_slot_killed_in_the_publication_is_made_good_once(query: Query) -> None:
    """Its transaction is open, with all rows in it, when SIGKILL comes; its state was in a complete checkpoint."""
    program = f"""
        import os, signal, sys
        import pyarrow as pa
        from headgate.connectors.kafka.sink.transactions import TransactionalWriter
        from headgate.operators.operator import OperatorContext
        from headgate.connectors.kafka.sink.sink import make_kafka_sink

        def die(writer, epoch):
            writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        TransactionalWriter.commit = die
        batch = pa.record_batch({{"value": ["a", "b"]}})
        options = {{"kafka.bootstrap.servers": {query.broker.plain!r}, "topic": {query.topic!r}}}
        sink = make_kafka_sink(options | {{"guarantee": "exactly-once"}}, batch.schema)
        context = OperatorContext(
            uid="sink", subtask=0, parallelism=1, run=0, execution=1, query_id={query.topic!r},
            options={{"checkpointLocation": {str(query.folder)!r}}},
        )
        writer = sink.create_writer(context, batch.schema, [])
        writer.write(batch)
        (item,) = writer.prepare_commit(1, final=False).result().items
        sys.stdout.buffer.write(item.data)
        sys.stdout.flush()
        writer.notify_checkpoint_complete(1)
        writer.finish().result()
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert values(query.broker, query.topic, "read_uncommitted") == ["a", "b"], "it was in the middle"
    assert values(query.broker, query.topic, settled=False) == []
    for _ in range(2):
        published(query.start(1, [died.stdout]))
    assert values(query.broker, query.topic) == ["a", "b"]


def test_a_zombie_that_publishes_late_does_not_repeat_rows(query: Query) -> None:
    """It wakes up after its successor published its rows, and is refused."""
    (zombie,) = query.start(1)
    zombie.write(rows("a"))
    items = snapshot([zombie], 1)
    published(query.start(1, items))
    with pytest.raises(SinkError, match="newer attempt"):
        complete([zombie], 1)
    with pytest.raises(SinkError, match="newer attempt"):
        zombie.ready()
    assert values(query.broker, query.topic) == ["a"]


def test_a_zombie_is_shut_out_in_the_middle_of_its_transaction(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its rows are at the broker when its successor comes."""
    in_the_middle, go_on = threading.Event(), threading.Event()
    commit = TransactionalWriter.commit

    def slow(writer: TransactionalWriter, epoch: int) -> None:
        if not in_the_middle.is_set():
            writer.flush()
            in_the_middle.set()
            go_on.wait(60)
        commit(writer, epoch)

    monkeypatch.setattr(TransactionalWriter, "commit", slow)
    (zombie,) = query.start(1)
    zombie.write(rows("a"))
    items = snapshot([zombie], 1)
    zombie.notify_checkpoint_complete(1)
    assert in_the_middle.wait(60)
    published(query.start(1, items))
    go_on.set()
    with pytest.raises(SinkError, match="newer attempt"):
        published([zombie])
    assert values(query.broker, query.topic) == ["a"]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_staged_rows_survive_a_rescale(query: Query, before: int, after: int) -> None:
    """Each subtask has two checkpoints staged, one of them published by the first."""
    old = query.start(before)
    for checkpoint_id in (1, 2):
        for subtask, writer in enumerate(old):
            writer.write(rows(f"{subtask}-{checkpoint_id}"))
        items = snapshot(old, checkpoint_id)
    complete(old[:1], 1)
    new = query.start(after, items)
    for subtask, writer in enumerate(new):
        writer.write(rows(f"new {subtask}"))
    published(new)
    later = snapshot(new, 3)
    complete(new, 3)
    assert len(later) == after
    published(query.start(before, later))
    expected = [f"{subtask}-{checkpoint_id}" for subtask in range(before) for checkpoint_id in (1, 2)]
    assert values(query.broker, query.topic) == sorted([*expected, *(f"new {subtask}" for subtask in range(after))])


def test_many_rows_are_staged_in_files_which_go_when_they_are_published(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.sink.staging._PIECE_BYTES", 2000)
    monkeypatch.setattr("headgate.sink.broker_sink._INLINE_BYTES", 500)
    first = query.start(1)
    texts = [f"{n:05}" for n in range(3000)]
    for start in range(0, 3000, 100):
        first[0].write(rows(*texts[start : start + 100]))
    items = snapshot(first, 1)
    files = sorted(query.folder.rglob("*.*"))
    assert len(files) > 5
    assert {each.suffix for each in files} == {".arrow"}
    second = query.start(1, items)
    published(second)
    assert values(query.broker, query.topic) == texts
    assert not list((query.folder / "staged").iterdir())
    published(query.start(1, items))
    assert values(query.broker, query.topic) == texts, "a published file is not missed"


@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_staged_rows_that_cannot_be_read_are_an_error(
    query: Query, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("headgate.sink.broker_sink._INLINE_BYTES", 0)
    first = query.start(1)
    first[0].write(rows("a"))
    items = snapshot(first, 1)
    (file,) = query.folder.rglob("*.arrow")
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptStateError, match=file.name):
        published(query.start(1, items))
    assert values(query.broker, query.topic) == []


def test_rows_that_no_restore_could_publish_are_refused_before_they_are_staged(query: Query) -> None:
    (writer,) = query.start(1, schema=pa.schema({"value": pa.string(), "topic": pa.string()}), topic=None)
    with pytest.raises(SinkError, match="topic is null"):
        writer.write(pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())}))
        snapshot([writer], 1)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_records_have_all_that_the_rows_say(query: Query, guarantee: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "topic": [query.topic] * 2,
            "partition": pa.array([0, None], pa.int32()),
            "key": ["ü", None],
            "value": pa.array([b"\xff", None], pa.binary()),
            "headers": pa.array([[{"key": "k", "value": b"v"}, {"key": "", "value": None}], None], headers),
        }
    )
    (writer,) = query.start(1, schema=batch.schema, guarantee=guarantee, topic=None)
    writer.write(batch)
    snapshot([writer], 1)
    writer.notify_checkpoint_complete(1)
    query.close_one(writer)
    consumer = Consumer({"bootstrap.servers": query.broker.plain, "group.id": "reads-nothing-else"})
    consumer.assign([TopicPartition(query.topic, 0, 0)])
    messages = consumer.consume(2, 60)
    consumer.close()
    assert [(each.key(), each.value(), each.headers()) for each in messages] == [
        ("ü".encode(), b"\xff", [("k", b"v"), ("", None)]),
        (None, None, None),
    ]


def test_files_of_a_checkpoint_that_failed_are_deleted(query: Query) -> None:
    """Nobody answers who could publish them, so they are in no checkpoint."""
    times = {"kafka.delivery.timeout.ms": "300", "kafka.default.api.timeout.ms": "500"}
    (writer,) = query.start(1, **times, **{"kafka.bootstrap.servers": "127.0.0.1:9"})
    random = Random(1)
    writer.write(rows(*[random.randbytes(50_000).hex() for _ in range(4)]))
    with pytest.raises(SinkError):
        snapshot([writer], 1)
    query.close_one(writer)
    assert list(query.folder.rglob("*.arrow")) == []


def test_staged_rows_are_published_when_the_guarantee_is_changed(query: Query) -> None:
    first = query.start(1)
    first[0].write(rows("a"))
    items = snapshot(first, 1)
    second = query.start(1, items, guarantee="at-least-once")
    published(second)
    assert snapshot(second, 2) == []
    assert values(query.broker, query.topic) == ["a"]


@pytest.mark.parametrize("seed", [0, 1])
def test_any_story_of_crashes_zombies_and_rescales_gives_each_row_once(
    query: Query, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A small model of a query: a restore goes on from what is complete; the dead are notified late, or never."""
    monkeypatch.setattr("headgate.sink.staging._PIECE_BYTES", 800)
    monkeypatch.setattr("headgate.sink.broker_sink._INLINE_BYTES", 400)
    random = Random(seed)
    complete_id, position, complete_position, items = 0, 0, 0, list[bytes]()
    writers, dead = query.start(2), list[tuple[int, list[SinkWriter]]]()
    for checkpoint_id in range(1, 16):
        for _ in range(random.randrange(4)):
            count = random.choice((1, 30))
            random.choice(writers).write(rows(*(f"{n:06}" for n in range(position, position + count))))
            position += count
        story = random.choice(("all is well", "it fails", "crash before it completes", "crash after it", "crash late"))
        if story != "crash before it completes":
            staged = snapshot(writers, checkpoint_id)
        if story in ("all is well", "crash after it", "crash late"):
            complete_id, complete_position, items = checkpoint_id, position, staged
        if story in ("all is well", "crash late"):
            for each in writers:
                each.notify_checkpoint_complete(complete_id)
        if story.startswith("crash"):
            dead.append((complete_id, writers))
            writers, position = query.start(random.randrange(1, 4), random.sample(items, len(items))), complete_position
        if dead and random.random() < 0.5:
            checkpoint_id, zombies = random.choice(dead)
            for each in zombies:
                each.notify_checkpoint_complete(checkpoint_id)
        published(writers)
    snapshot(writers, 16, final=True)
    complete(writers, 16)
    assert values(query.broker, query.topic) == [f"{n:06}" for n in range(position)]


@pytest.mark.parametrize("hangs", ["before the commit", "after the commit", "as it starts"])
def test_a_client_that_hangs_is_given_up_and_a_new_one_publishes_each_row_once(
    query: Query, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """librdkafka's calls hang at times when a broker was killed; here one of the writer's does, at a known moment."""
    made = transactions.call_within
    never = threading.Event()
    hung: list[str] = []

    def call(timeout_s: float, call: Callable[[], object]) -> object:
        code = getattr(call, "func", call).__code__
        is_commit = "commit_transaction" in code.co_names
        if hung or not (is_commit if hangs != "as it starts" else "init_transactions" in code.co_names):
            return made(timeout_s, call)
        hung.append(hangs)
        monkeypatch.setattr(client_calls, "GRACE_S", 0.01)
        try:
            if hangs == "after the commit":
                made(60, call)
            return made(0.01, never.wait)
        finally:
            monkeypatch.setattr(client_calls, "GRACE_S", 5.0)

    monkeypatch.setattr(transactions, "call_within", call)
    (writer,) = query.start(1)
    writer.write(rows("a", "b"))
    items = snapshot([writer], 1)
    complete([writer], 1)
    assert hung
    writer.write(rows("c"))
    snapshot([writer], 2)
    complete([writer], 2)
    assert writer.unpublished_ms() == 0
    published(query.start(1, items))
    assert values(query.broker, query.topic) == ["a", "b", "c"]
    never.set()


@pytest.mark.parametrize("kills", [2, 10])
def test_a_broker_killed_in_the_publication_costs_no_row(
    tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """librdkafka hangs in a call after such a kill, whatever time-out it was given: a new producer goes on.

    What breaks it breaks
    `tests/real/test_continuous_kafka_sink.py::test_a_client_that_hangs_is_given_up_and_a_new_one_publishes_each_row_once`
    and `tests/unit/sink/test_publication_retries.py` too.
    """
    if kills == 2:  # a call that is slow on a busy machine costs an attempt, and the wait for one that hangs is short
        monkeypatch.setattr(client_calls, "GRACE_S", 1.0)
        monkeypatch.setattr(publisher_module, "_PATIENCE_S", 2.0)
    random = Random(kills)
    with running_broker(tmp_path / "broker") as broker:
        query = Query(broker, create_topic(broker.plain, topic_name), tmp_path / "query")
        (writer,) = query.start(1)
        written, checkpoint_id, killed = 0, 0, 0
        while killed < kills:
            stop_s = time.monotonic() + random.uniform(0.05, 0.4)
            for _ in range(100):  # what is not published by then is after the restart
                if time.monotonic() > stop_s:
                    break
                checkpoint_id += 1
                writer.write(rows(*(f"{n:06}" for n in range(written, written + 20))))
                written += 20
                snapshot([writer], checkpoint_id)
                writer.notify_checkpoint_complete(checkpoint_id)
            time.sleep(max(0.0, stop_s - time.monotonic()))
            broker.kill()
            killed += 1
            broker.start()
            complete([writer], checkpoint_id)
            assert writer.unpublished_ms() == 0
        assert values(broker, query.topic) == [f"{n:06}" for n in range(written)]
        query.close()


def test_rows_are_staged_on_an_object_store(aws: MotoServer) -> None:
    from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY

    bucket = f"staged-{uuid.uuid4().hex[:8]}"
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=bucket)
    folder = StagingFolder(
        f"s3://{ACCESS_KEY}:{SECRET_KEY}@{bucket}/checkpoints/rides?region={REGION}&endpoint_override={aws.url}",
        "headgate.kafka",
    )
    encoder = RowsEncoder(STAGED_SCHEMA)
    file = folder.write(f"{folder_of('n')}/0.arrow", encoder.take())
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [
        "checkpoints/rides/staged/n/0.arrow"
    ]
    assert folder.read(file).read_all().num_rows == 0
    folder.delete(file)
    folder.delete_folder(folder_of("n"))
    with pytest.raises(CorruptStateError, match="are gone"):
        folder.read(file)


def test_the_last_checkpoint_is_published_when_a_writer_is_closed(query: Query) -> None:
    others = set(threading.enumerate())  # calls that never return among them, of tests that kill brokers
    (writer,) = query.start(1)
    writer.write(rows("a"))
    snapshot([writer], 1, final=True)
    writer.notify_checkpoint_complete(1)
    query.close_one(writer)
    assert values(query.broker, query.topic) == ["a"]
    own = set(threading.enumerate()) - others
    assert not [each for each in own if each.name.startswith("headgate-kafka-")]


def test_exactly_once_needs_a_place_for_staged_rows(query: Query) -> None:
    sink = make_kafka_sink(
        {"kafka.bootstrap.servers": query.broker.plain, "topic": "t", "guarantee": "exactly-once"}, VALUES
    )
    with pytest.raises(OptionError, match="set the option 'checkpointLocation'"):
        sink.create_writer(OperatorContext(uid="sink", subtask=0, parallelism=1), VALUES, [])
