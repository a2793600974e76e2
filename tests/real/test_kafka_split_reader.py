"""Partitions and ranges are read to their ends, once: whatever is missing in them, paused, or asked to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headgate.connectors.kafka import consumer_pool, split_reader
from headgate.connectors.kafka.columns import KafkaColumns
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.split_reader import KafkaSplitReader
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, SourceUnavailableError
from headgate.testing import SplitReaderHarness
from local.kafka import Broker
from local.topics import Message, create_topic, produce, wait_for_transactions
from tests.real.kafka_splits import client, fetch_until, numbered, offsets, reader, silence_begins, split
from tests.waiting import wait_until

# What other tests left open may be collected, and warned of, here.
pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def four(kafka: Broker) -> str:
    """A topic of four partitions with 10,000 records each."""
    topic = create_topic(kafka.plain, "split-reader-four", 4)
    produce(kafka.plain, topic, [each for number in range(4) for each in numbered(10_000, number)], linger_ms=50)
    return topic


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_partitions_are_read_to_their_stops(kafka: Broker, four: str, decoder: str) -> None:
    with reader(client(kafka.plain), decoder=decoder) as harness:
        harness.add_splits(split(four, 0, 0, 10_000), split(four, 1, 17, 4000), split(four, 2, 9999, 10_000))
        rows = harness.fetch_all()
    assert offsets(rows, 0) == list(range(10_000))
    assert offsets(rows, 1) == list(range(17, 4000))
    assert offsets(rows, 2) == [9999]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    assert {each.split.split_id: each.split.position for each in harness.fetched if each.finished} == {
        f"{four}-0@0": 10_000, f"{four}-1@17": 4000, f"{four}-2@9999": 10_000,
    }  # fmt: skip


def test_positions_are_after_the_rows(kafka: Broker, four: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(*(split(four, number, 0, 10_000) for number in range(4)))
        harness.fetch_all()
    for each in harness.fetched:
        if each.batch is not None:
            assert each.split.position == each.batch.column("offset")[-1].as_py() + 1


def test_pieces_of_a_partition_are_read_one_after_another(kafka: Broker, four: str) -> None:
    pieces = [split(four, 0, 6000, 10_000), split(four, 0, 0, 3000), split(four, 0, 3000, 6000)]
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(*pieces)
        rows = harness.fetch_all()
    assert offsets(rows) == [*range(6000, 10_000), *range(6000)]


def test_an_empty_range_finishes_without_rows(kafka: Broker, four: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0, 5, 5), split(four, 1, 10_000, 10_000))
        assert harness.fetch_all() == []


def test_a_split_without_a_stop_goes_on_with_what_comes(kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name)
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(topic_name))
        assert harness.fetch() == []
        produce(kafka.plain, topic_name, numbered(3))
        assert offsets(fetch_until(harness, 3)) == [0, 1, 2]
        produce(kafka.plain, topic_name, numbered(2))
        assert offsets(fetch_until(harness, 5)) == [0, 1, 2, 3, 4]
        assert harness.finished == []


# ---- ranges with gaps ----


@pytest.fixture(scope="module")
def transactions(kafka: Broker) -> str:
    """Offsets 0-4 committed, 6-10 aborted, 12-14 committed, 16-18 aborted; 5, 11, 15 and 19 are markers."""
    topic = create_topic(kafka.plain, "split-reader-transactions")
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for count, end in ((5, "commit"), (5, "abort"), (3, "commit"), (3, "abort")):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, b"in a transaction", partition=0)
        producer.flush(30)
        getattr(producer, f"{end}_transaction")(30)
    wait_for_transactions(kafka.plain, topic)
    return topic


COMMITTED = {*range(5), *range(12, 15)}
WRITTEN = COMMITTED | {*range(6, 11), *range(16, 19)}


@pytest.mark.parametrize(("isolation", "visible"), [("read_committed", COMMITTED), ("read_uncommitted", WRITTEN)])
def test_ranges_end_though_transactions_leave_gaps(
    kafka: Broker, transactions: str, isolation: str, visible: set[int]
) -> None:
    ranges = [
        (0, 20),
        (0, 5),
        (0, 6),
        (3, 13),
        (5, 6),
        (6, 11),
        (6, 12),
        (11, 12),
        (12, 20),
        (15, 20),
        (19, 20),
        (16, 19),
    ]
    for begin, stop in ranges:
        with reader(client(kafka.plain, isolation_level=isolation)) as harness:
            harness.add_splits(split(transactions, 0, begin, stop))
            assert offsets(harness.fetch_all()) == sorted(visible & set(range(begin, stop))), (begin, stop)
            assert harness.fetched[-1].split.position == stop


@pytest.mark.parametrize(
    ("isolation", "visible", "decoder"), [("read_committed", COMMITTED, "auto"), ("read_uncommitted", WRITTEN, "plain")]
)
def test_a_split_without_a_stop_is_at_the_end_wherever_markers_are(
    kafka: Broker, transactions: str, isolation: str, visible: set[int], decoder: str
) -> None:
    """Else its lag would never be 0, and what retention removes of markers would look like lost records."""
    config = client(kafka.plain, isolation_level=isolation)
    with reader(config, decoder=decoder) as harness:
        harness.add_splits(split(transactions, 0, 3))
        rows = fetch_until(harness, len(visible - {0, 1, 2}))
        wait_until(lambda: harness.fetch() is not None and harness.fetched[-1].split.position == 20)
        assert harness.fetched[-1].batch is None
        assert offsets(rows) == sorted(visible - {0, 1, 2})
        assert harness.finished == []
        count = len(harness.fetched)
        harness.fetch()
        assert len(harness.fetched) == count, "it is at the end once"


def test_an_open_transaction_is_waited_for(kafka: Broker, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(kafka.plain, topic_name)
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic_name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic_name, b"", partition=0)
    producer.flush(30)
    with reader(client(kafka.plain, isolation_level="read_committed")) as harness:
        harness.add_splits(split(topic_name, 0, 0, 3))
        assert harness.fetch() == []
        producer.commit_transaction(30)
        assert offsets(harness.fetch_all()) == [0, 1, 2]
    silence_begins(monkeypatch)
    with reader(client(kafka.plain, isolation_level="read_committed")) as harness:
        producer.begin_transaction()
        producer.produce(topic_name, b"", partition=0)
        producer.flush(30)
        harness.add_splits(split(topic_name, 0, 4, 5))
        with pytest.raises(SourceUnavailableError, match=r"from offset 4 on for 60000 ms.*transaction left open"):
            harness.fetch_all()
    producer.abort_transaction(30)


def test_ranges_end_though_their_tail_was_compacted_away(kafka: Broker, topic_name: str) -> None:
    create_topic(
        kafka.plain, topic_name, cleanup_policy="compact", segment_bytes="1048576", segment_ms="100",
        min_cleanable_dirty_ratio="0.001", min_compaction_lag_ms="0", max_compaction_lag_ms="100",
    )  # fmt: skip
    for number in range(10):
        produce(kafka.plain, topic_name, [Message(b"%d" % number, b"key", timestamp_ms=1_000_000 + 1000 * number)] * 5)
    left = wait_for_compaction(kafka, topic_name, 50)
    for begin, stop in [(0, 50), (0, 49), (0, 20), (3, 4), (10, 45)]:
        with reader(client(kafka.plain)) as harness:
            harness.add_splits(split(topic_name, 0, begin, stop))
            assert set(offsets(harness.fetch_all())) <= {each for each in left if begin <= each < stop}
            assert harness.fetched[-1].split.position == stop


def wait_for_compaction(kafka: Broker, topic: str, stop: int) -> list[int]:
    for _ in range(300):
        with reader(client(kafka.plain)) as harness:
            harness.add_splits(split(topic, 0, 0, stop))
            left = offsets(harness.fetch_all())
        if len(left) <= 10:
            return left
        time.sleep(0.2)
    raise AssertionError(f"the broker did not compact {topic}: {len(left)} of {stop} records are left")


# ---- positions of single rows ----


@pytest.mark.parametrize("decoder", ["auto", "plain"])
@pytest.mark.parametrize(("isolation", "visible"), [("read_committed", COMMITTED), ("read_uncommitted", WRITTEN)])
def test_whoever_stops_at_a_row_goes_on_with_it_whatever_offsets_are_missing(
    kafka: Broker, transactions: str, isolation: str, visible: set[int], decoder: str
) -> None:
    config = client(kafka.plain, isolation_level=isolation)
    with reader(config, decoder=decoder) as harness:
        harness.add_splits(split(transactions, 0, 3, 20))
        harness.fetch_all()
    stopped = [
        (each.position_at(row), each.batch.column("offset")[row].as_py())
        for each in harness.fetched
        if each.batch is not None and each.position_at is not None
        for row in range(each.batch.num_rows)
    ]
    assert [offset for _, offset in stopped] == sorted(each for each in visible if each >= 3), "a batch is without"
    for at, offset in stopped:
        with reader(config, decoder=decoder) as harness:
            harness.add_splits(at)
            assert offsets(harness.fetch_all()) == sorted(each for each in visible if each >= offset)
            assert harness.finished == [at.split_id]


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_positions_of_rows_pass_over_records_that_are_dropped(kafka: Broker, topic_name: str, decoder: str) -> None:
    create_topic(kafka.plain, topic_name)
    values = [b"bad", b'{"a":1}', b"bad", b"bad", None, b'{"a":2}', b'{"a":3}', b"bad", b'{"a":4}', b"bad"]
    produce(kafka.plain, topic_name, [Message(value) for value in values])
    raw = {"subscribe": topic_name, "kafka.bootstrap.servers": kafka.plain, "valueFormat": "json"}
    source = KafkaSource(raw | {"mode": "DROPMALFORMED"})
    columns = KafkaColumns(pa.schema([("a", pa.int64()), ("_offset", pa.int64())]), source.options, "UTC")
    with SplitReaderHarness(
        KafkaSplitReader(
            client(kafka.plain), columns, fail_on_data_loss=True, poll_timeout_ms=20_000, buffered_bytes=2**20,
            decoder=decoder,
        )
    ) as harness:  # fmt: skip
        harness.add_splits(split(topic_name, 0, 0, len(values)))
        assert [row["_offset"] for row in harness.fetch_all()] == [1, 4, 5, 6, 8]
    (fetched,) = [each for each in harness.fetched if each.batch is not None]
    assert fetched.position_at is not None
    assert [fetched.position_at(row).position for row in range(5)] == [1, 4, 5, 6, 8]
    assert fetched.split.position == len(values)


# ---- pausing, waking, using consumers again ----


class Assignments:
    """Notes what a reader's consumer is asked to read, and to read no longer."""

    def __init__(self, harness: SplitReaderHarness[KafkaSplit], monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.left: list[int] = []
        consumer = harness.split_reader._lease.consumer
        assign, unassign = consumer.assign, consumer.unassign

        def noting_assign(positions: Mapping[TopicPartition, int]) -> None:
            self.begun += [each.partition for each in positions]
            assign(positions)

        def noting_unassign(sources: Iterable[TopicPartition]) -> None:
            sources = list(sources)
            self.left += [each.partition for each in sources]
            unassign(sources)

        monkeypatch.setattr(consumer, "assign", noting_assign)
        monkeypatch.setattr(consumer, "unassign", noting_unassign)


def aside(harness: SplitReaderHarness[KafkaSplit]) -> dict[str, int]:
    """Return how many rows a reader has set aside, by split."""
    return {
        split_id: sum(each.batch.num_rows for each in fetched if each.batch is not None)
        for split_id, fetched in harness.split_reader._aside.items()
    }


def test_hundreds_of_short_pauses_leave_the_client_alone(
    kafka: Broker, four: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 100)
    ids = [f"{four}-{number}@0" for number in range(4)]
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(*(split(four, number, 0, 10_000) for number in range(4)))
        harness.fetch()
        assignments = Assignments(harness, monkeypatch)
        pauses = 0
        while harness.splits:
            chosen = [each for each in ids[pauses % 3 : pauses % 3 + 2] if each in harness.splits]
            harness.pause(*chosen)
            if pauses % 3:
                harness.fetch()  # what comes of those that are paused is kept
            harness.resume(*chosen)
            harness.fetch()
            pauses += 1
        assert pauses > 100
        assert assignments.begun == []
        assert sorted(assignments.left) == [0, 1, 2, 3], "each at its end, no other"
    for number in range(4):
        assert offsets(harness.rows(), number) == list(range(10_000))


def test_a_long_pause_fetches_a_share_of_a_batch_and_no_more(
    kafka: Broker, four: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 100)
    monkeypatch.setattr(split_reader, "MOST_BYTES", 4 * 5000)  # 10,000 for each of two: less than 400 of these rows
    paused = [f"{four}-{number}@0" for number in (1, 3)]
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(*(split(four, number, 0, 10_000) for number in range(4)))
        harness.fetch()
        assignments = Assignments(harness, monkeypatch)
        harness.pause(*paused)
        for _ in range(2000):
            harness.fetch()
            if harness.splits.keys() == set(paused) and len(assignments.left) == 4:
                break
        assert sorted(assignments.left) == [0, 1, 2, 3], "one real pause each, and two ends"
        held = aside(harness)
        assert held.keys() == set(paused) and all(0 < rows <= 500 for rows in held.values()), held
        for _ in range(10):
            harness.fetch()
        assert (aside(harness), assignments.begun) == (held, [])
        harness.resume(*paused)
        harness.fetch_all()
        assert sorted(assignments.begun) == [1, 3]
        assert aside(harness) == {}
    for number in range(4):
        assert offsets(harness.rows(), number) == list(range(10_000))


def test_a_split_that_ends_while_it_is_paused_finishes_when_it_is_resumed(
    kafka: Broker, four: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = f"{four}-0@9990", f"{four}-1@0"
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0, 9990, 10_000), split(four, 1, 0, 10_000))
        harness.pause(second)
        with monkeypatch.context() as small:  # however late the first comes, the second is not read to its end
            small.setattr(split_reader, "MOST_ROWS", 100)
            small.setattr(split_reader, "MOST_BYTES", 10_000)
            while first in harness.splits:
                harness.fetch()
            harness.resume(second)
            harness.add_splits(split(four, 0, 9980, 9990))
            harness.fetch()
        harness.pause(second)
        while not any(each.finished for each in harness.split_reader._aside.get(second, ())):
            harness.fetch()
        assert second in harness.splits
        harness.pause(second)  # known, though the client has nothing left to read of it
        harness.resume(second)
        harness.fetch_all()
    assert offsets(harness.rows(), 1) == list(range(10_000))
    assert offsets(harness.rows(), 0) == [*range(9990, 10_000), *range(9980, 9990)]


def test_a_paused_split_does_not_keep_its_partition_from_another(kafka: Broker, four: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0, 5000), split(four, 0, 0, 3000))
        harness.fetch()
        harness.pause(f"{four}-0@5000")
        while f"{four}-0@0" in harness.splits:
            harness.fetch()
        assert [each for each in offsets(harness.rows()) if each < 3000] == list(range(3000))
        harness.resume(f"{four}-0@5000")
        assert [each for each in offsets(fetch_until(harness, 8000)) if each >= 5000] == list(range(5000, 10_000))


def test_a_paused_split_fetches_at_most_once_more_in_all_while_all_are_paused(kafka: Broker, four: str) -> None:
    """Whoever drives the reader then calls it no more; if it is called, it holds what it may and brings nothing."""
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0), split(four, 1))
        harness.fetch()
        got = len(harness.rows())
        harness.pause(f"{four}-0@0", f"{four}-1@0")
        for _ in range(5):
            assert harness.fetch() == []
        harness.resume(f"{four}-0@0", f"{four}-1@0")
        assert got < 20_000
        rows = fetch_until(harness, 20_000)
    for number in range(2):
        assert offsets(rows, number) == list(range(10_000))


def test_a_paused_split_goes_on_where_it_was_left(kafka: Broker, four: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 700)  # many fetches, and much that the client has fetched ahead
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(*(split(four, number, 0, 10_000) for number in range(3)))
        harness.fetch()
        rounds = 0
        while harness.splits:
            rounds += 1
            for split_id in list(harness.splits)[rounds % 3 : rounds % 3 + 1] or list(harness.splits)[:1]:
                harness.pause(split_id)
                harness.fetch()
                harness.resume(split_id)
            harness.fetch()
        assert rounds > 5
    for number in range(3):
        assert offsets(harness.rows(), number) == list(range(10_000))


def test_pausing_what_is_not_there_is_no_error(kafka: Broker, four: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0, 0, 10), split(four, 1, 0, 10))
        first = [*harness.splits.values()]
        harness.split_reader.pause_or_resume_splits([split("unknown")], [split("another")])
        harness.fetch_all()
        harness.split_reader.pause_or_resume_splits(first, [])  # crossed with their ends
        harness.split_reader.pause_or_resume_splits([], first)
        harness.add_splits(split(four, 0, 0, 20))  # the same id again
        assert offsets(harness.fetch_all()) == list(range(20))


def test_all_paused_brings_nothing(kafka: Broker, four: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(four, 0, 0, 10))
        harness.pause(f"{four}-0@0")
        assert harness.fetch() == []
        harness.resume(f"{four}-0@0")
        assert offsets(harness.fetch_all()) == list(range(10))


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_a_fetch_that_blocks_is_woken_up(kafka: Broker, topic_name: str, decoder: str) -> None:
    create_topic(kafka.plain, topic_name)
    with reader(client(kafka.plain), decoder=decoder) as harness:
        harness.add_splits(split(topic_name))
        harness.fetch()
        harness.timeout_ms = 10**6  # longer than the test may take
        waking = threading.Event()  # set before it wakes: a fetch that begins later would be woken by nobody

        def wake() -> None:
            waking.set()
            harness.split_reader.wake_up()

        waker = threading.Timer(0.2, wake)
        waker.start()
        while not waking.is_set():
            assert harness.fetch() == []
        waker.join()
        harness.split_reader.wake_up()  # before it blocks
        assert harness.fetch() == []


def test_a_consumer_used_again_shows_nothing_of_before(kafka: Broker, four: str) -> None:
    config = client(kafka.plain, client_id="used-again")
    used = set()
    for position in (0, 5000, 100, 9000, 50):
        with reader(config) as harness:
            harness.add_splits(split(four, 0, position), split(four, 1, position))
            rows = fetch_until(harness, 700)
            used.add(id(harness.split_reader._lease.consumer))
        for number in (0, 1):
            found = offsets(rows, number)
            assert found == list(range(position, position + len(found)))
    assert len(used) == 1


def test_a_consumer_that_failed_is_not_used_again(kafka: Broker, four: str) -> None:
    config = client(kafka.plain, client_id="failed")
    with reader(config) as harness:
        harness.add_splits(split(four, 0, 10**6, 10**6 + 1))
        with pytest.raises(DataLossError):
            harness.fetch_all()
    assert not any(key[0] == config for key, _, _ in consumer_pool._of_this_process().idle)
