"""Plans end before an event time, and always go on: next records, the broker's index, and where it is blind."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import time
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Named
from confluent_kafka.admin import AdminClient

from headgate.connectors.kafka import consumer_pool, event_times
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.errors import DataLossError, SourceError, SourceUnavailableError
from headgate.microbatch.planner import PlannerContext
from headgate.source import Boundedness, PlanLimits, SupportsEventTimeSeek
from headgate.source.watermark import MAX_WATERMARK_MS
from local.kafka import PASSWORD, USER, Broker
from local.ports import free_ports
from local.topics import Message, create_topic, delete_topic, produce, wait_for_transactions

CLOCK_MS = itertools.count(0, 10_000)
"""Each plan asks the brokers anew."""


def source_of(address: str, topic: str, **options: str) -> KafkaSource:
    named = {"kafka.bootstrap.servers": address, "subscribe": topic, "eventTimeColumn": "timestamp"}
    return KafkaSource(named | options)


COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture
def sources(kafka: Broker, topic_name: str) -> Iterator[list[KafkaSource]]:
    """Sources that are disconnected at the end."""
    made: list[KafkaSource] = []
    yield made
    for each in made:
        each._disconnect()


def split(topic: str, partition: int = 0, position: int = 0, stop: int | None = None) -> KafkaSplit:
    return KafkaSplit(split_id=f"{topic}-{partition}", topic=topic, partition=partition, position=position, stop=stop)


def at(*times_ms: int, partition: int = 0) -> list[Message]:
    return [Message(b"x" * 50, partition=partition, timestamp_ms=each) for each in times_ms]


def times(source: KafkaSource, *splits: KafkaSplit) -> dict[str, int | None]:
    """Return the times of the next records, by partition."""
    found = source.next_event_times(splits)
    assert found is not None
    return {name.rpartition("-")[2]: time_ms for name, time_ms in found.items()}


def stops(
    source: KafkaSource, splits: Sequence[KafkaSplit], before_ms: int, max_rows: int | None = None
) -> dict[int, int]:
    """Return where the ranges of a plan end, by partition."""
    limits = PlanLimits(before_event_time_ms=before_ms, max_rows=max_rows)
    ranges = source.plan_ranges(splits, limits, next(CLOCK_MS))
    found = {}
    for each in ranges:
        assert each.split.stop is not None and (each.rest is None or each.rest.position == each.split.stop)
        found[each.split.partition] = each.split.stop
    return found


def test_the_next_record_s_time_and_no_range_beyond_the_bound(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name, 4)
    produce(kafka.plain, topic_name, at(*range(1000, 1100)))
    produce(kafka.plain, topic_name, at(*range(1050, 1060), partition=1))
    produce(kafka.plain, topic_name, at(5000, partition=2))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    assert isinstance(source, SupportsEventTimeSeek)
    splits = [split(topic_name, 0, 7), *(split(topic_name, number) for number in (1, 2, 3))]
    assert times(source, *splits) == {"0": 1007, "1": 1050, "2": 5000}, "partition 3 is empty"
    assert stops(source, splits, 1050) == {0: 50}
    assert stops(source, splits, 1051) == {0: 51, 1: 1}
    assert stops(source, splits, 1200) == {0: 100, 1: 10}
    assert stops(source, splits, 5000) == {0: 100, 1: 10}
    assert stops(source, splits, 5001) == {0: 100, 1: 10, 2: 1}
    assert stops(source, splits, MAX_WATERMARK_MS) == {0: 100, 1: 10, 2: 1}
    assert stops(source, splits, 1007) == {}
    assert stops(source, splits, -5) == {}
    assert stops(source, splits, 1051, max_rows=5) == {0: 11, 1: 1}
    # A split that ends keeps its end, and is finished there.
    ended = [split(topic_name, 0, 7, 40)]
    (planned,) = source.plan_ranges(ended, PlanLimits(before_event_time_ms=1050), next(CLOCK_MS))
    assert (planned.split.stop, planned.rest) == (40, None)
    assert times(source, split(topic_name, 0, 40, 40)) == {}


@pytest.mark.parametrize(
    ("options", "seeks"),
    [
        ({"eventTimeColumn": "timestamp"}, True),
        ({"eventTimeColumn": "TimeStamp"}, True),
        ({"eventTimeColumn": "at"}, False),
        ({"eventTimeColumn": "_timestamp"}, False),
        ({"eventTimeColumn": "_timestamp", "valueFormat": "json"}, True),
    ],
)
def test_of_kafka_s_own_columns_only_the_time_stamp_is_an_event_time(
    kafka: Broker, topic_name: str, sources: list[KafkaSource], options: dict[str, str], seeks: bool
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(1000, 2000))
    source = source_of(kafka.plain, topic_name, **options)
    sources.append(source)
    assert source.next_event_times([split(topic_name)]) == ({f"{topic_name}-0": 1000} if seeks else None)


def parsing(address: str, topic: str, sources: list[KafkaSource], **options: str) -> KafkaSource:
    """Return a source whose event time is the field ``At`` of the values, as a planner has it."""
    source = source_of(address, topic, valueFormat="json", **{"eventTimeColumn": "at", **options})
    schema = pa.schema([("n", pa.int64()), ("At", pa.timestamp("us", "UTC"))])
    source.create_enumerator(PlannerContext(source.name, Boundedness.CONTINUOUS_UNBOUNDED, schema, 0))
    sources.append(source)
    return source


def values(*lines: str | None, partition: int = 0) -> list[Message]:
    """Return records of these values, whose time stamps go backwards: they are not to be looked at."""
    return [
        Message(None if each is None else each.encode(), partition=partition, timestamp_ms=10**6 - number)
        for number, each in enumerate(lines)
    ]


def field(*times_ms: int, partition: int = 0) -> list[Message]:
    return values(
        *(json.dumps({"At": f"1970-01-01T00:00:{each / 1000:06.3f}Z"}) for each in times_ms), partition=partition
    )


def test_an_event_time_that_is_a_field_of_the_values(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name, 3)
    produce(kafka.plain, topic_name, field(*range(1000, 1100)))
    produce(kafka.plain, topic_name, field(1050, 2000, 1051, 1052, partition=1))
    source = parsing(kafka.plain, topic_name, sources)
    splits = [split(topic_name, 0, 7), split(topic_name, 1), split(topic_name, 2)]
    assert source.next_event_times(()) == {}
    assert times(source, *splits) == {"0": 1007, "1": 1050}
    assert stops(source, splits, 1050) == {0: 50}
    assert stops(source, splits, 1051) == {0: 51, 1: 1}
    assert stops(source, splits, 1051, max_rows=5) == {0: 11, 1: 1}
    assert stops(source, [split(topic_name, 1, 2)], 1500) == {1: 4}, "after an outlier that was read"
    assert stops(source, splits, 5000) == {0: 100, 1: 4}
    assert stops(source, splits, MAX_WATERMARK_MS) == {0: 100, 1: 4}
    assert stops(source, splits, 1007) == {}
    copy = pickle.loads(pickle.dumps(source))
    assert copy.options == source.options, "tasks get a copy, which parses no event times"


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST", "DROPMALFORMED"])
def test_values_without_event_time_are_passed_over_and_hold_nobody(
    kafka: Broker, topic_name: str, sources: list[KafkaSource], mode: str
) -> None:
    """A bad value is reported by the task that reads it, as ``mode`` says."""
    create_topic(kafka.plain, topic_name, 2)
    without = values(None, "", "{", '{"n": 1}', '{"At": null}', '{"At": "then"}', "[1]", "\xff")
    produce(kafka.plain, topic_name, [*without, *field(1000), *without, *field(3000, 1001)])
    produce(kafka.plain, topic_name, values(*['{"n": 1}'] * 1500, partition=1))
    source = parsing(kafka.plain, topic_name, sources, mode=mode)
    assert times(source, split(topic_name)) == {"0": 1000}
    assert stops(source, [split(topic_name)], 1000) == {}
    assert stops(source, [split(topic_name)], 1001) == {0: 17}, "all before the first that is too late"
    assert times(source, split(topic_name, 0, 9)) == {"0": 3000}
    assert stops(source, [split(topic_name, 0, 9)], 5000) == {0: 19}
    assert times(source, split(topic_name, 1)) == {}, "none has an event time"
    position = 0
    while (found := stops(source, [split(topic_name, 1, position)], 1)) != {}:
        assert found[1] > position
        position = found[1]
    assert position == 1500


def test_an_outlier_that_was_read_does_not_hide_where_to_stop(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    """The index knows the first record of a time only: here it lies before the position for ever."""
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(1000, 99_000, 1001, 1002, 1500, 1003, 1501))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    assert stops(source, [split(topic_name)], 1400) == {0: 1}
    assert times(source, split(topic_name, 0, 1)) == {"0": 99_000}
    assert stops(source, [split(topic_name, 0, 1)], 1400) == {}, "its next record is not before the bound"
    assert stops(source, [split(topic_name, 0, 1)], 99_500) == {0: 7}
    after = split(topic_name, 0, 2)
    assert times(source, after) == {"0": 1001}
    assert stops(source, [after], 1400) == {0: 4}
    assert stops(source, [after], 1400, max_rows=1) == {0: 3}
    assert stops(source, [after], 1600) == {0: 7}


def test_what_only_looking_shows_is_looked_at_in_portions(
    kafka: Broker, topic_name: str, sources: list[KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.connectors.kafka import source as module

    monkeypatch.setattr(module, "_LOOKED_AT", 300)
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(10**6, *range(1000, 6000)))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    position, plans = 1, 0
    while (found := stops(source, [split(topic_name, 0, position)], 4000)) != {}:
        assert position < found[0] <= 3001
        position, plans = found[0], plans + 1
    assert position == 3001, "before the record of the time 4000"
    assert plans <= 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plans_within_a_drift_reach_the_end_whatever_the_disorder(
    kafka: Broker, topic_name: str, sources: list[KafkaSource], seed: int
) -> None:
    numbers = random.Random(seed)
    create_topic(kafka.plain, topic_name, 3)
    written = {
        number: [max(1, 1000 * number + 10 * row + numbers.randint(-400, 400)) for row in range(300)]
        for number in range(3)
    }
    for number, stamps in written.items():
        produce(kafka.plain, topic_name, at(*stamps, partition=number))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    drift_ms = 150
    positions = dict.fromkeys(range(3), 0)
    for _ in range(1000):
        splits = [split(topic_name, number, position) for number, position in positions.items()]
        following = source.next_event_times(splits)
        assert following is not None
        assert following == {
            f"{topic_name}-{number}": written[number][position]
            for number, position in positions.items()
            if position < 300
        }
        if not following:
            break
        bound_ms = min(each for each in following.values() if each is not None) + drift_ms
        found = stops(source, splits, bound_ms, max_rows=numbers.choice([None, 7, 100]))
        assert found, "a plan that does not progress"
        for number, stop in found.items():
            assert stop > positions[number]
            assert all(each < bound_ms for each in written[number][positions[number] : stop])
            positions[number] = stop
    assert positions == dict.fromkeys(range(3), 300)


def test_the_broker_s_own_time_stamps(kafka: Broker, topic_name: str, sources: list[KafkaSource]) -> None:
    create_topic(kafka.plain, topic_name, message_timestamp_type="LogAppendTime")
    for _ in range(3):
        produce(kafka.plain, topic_name, at(1, 2))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    appended = [times(source, split(topic_name, 0, offset))["0"] for offset in (0, 2, 4)]
    assert None not in appended and sorted(set(appended)) == appended and len(appended) == 3
    assert min(each for each in appended if each is not None) > 10**12, "not the producer's"
    for index, offset in ((1, 2), (2, 4)):
        before_ms = appended[index]
        assert before_ms is not None
        assert stops(source, [split(topic_name)], before_ms) == {0: offset}


def transaction(kafka: Broker, topic: str, stamps: Sequence[int], end: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for each in stamps:
        producer.produce(topic, b"x", partition=0, timestamp=each)
    producer.flush(30)
    getattr(producer, f"{end}_transaction")(30)
    wait_for_transactions(kafka.plain, topic)


def test_only_what_readers_see_counts_and_markers_do_not_stop_a_plan(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name)
    # 0 and 1 aborted, 2 their marker; 3 to 5 committed, 6 their marker; 7 aborted, 8 its marker.
    for stamps, end in (((5000, 900), "abort"), ((1000, 1001, 5000), "commit"), ((1002,), "abort")):
        transaction(kafka, topic_name, stamps, end)
    committed = source_of(kafka.plain, topic_name, **COMMITTED)
    everything = source_of(kafka.plain, topic_name)
    sources += [committed, everything]
    assert times(everything, split(topic_name)) == {"0": 5000}
    assert times(everything, split(topic_name, 0, 1)) == {"0": 900}
    for position in range(4):
        assert times(committed, split(topic_name, 0, position)) == {"0": 1000}
        # The index says 0, the aborted record; the first that a reader sees is 5.
        assert stops(committed, [split(topic_name, 0, position)], 2000) == {0: 5}
        assert stops(committed, [split(topic_name, 0, position)], 1000) == {}
    for source, nothing in ((committed, (6, 7, 8)), (everything, (8,))):
        for position in nothing:
            assert times(source, split(topic_name, 0, position)) == {}
            assert stops(source, [split(topic_name, 0, position)], 500) == {0: 9}, "nobody has to wait for markers"
        # A split that ends there is finished.
        (planned,) = source.plan_ranges(
            [split(topic_name, 0, 8, 9)], PlanLimits(before_event_time_ms=500), next(CLOCK_MS)
        )
        assert planned.rest is None
    # That there is nothing is true up to where it was looked.
    produce(kafka.plain, topic_name, at(700))
    for source in (committed, everything):
        source._available = msgspec.structs.replace(source._available, latest={})
        assert times(source, split(topic_name, 0, 8)) == {"0": 700}
        assert stops(source, [split(topic_name, 0, 8)], 500) == {}


def test_a_split_ends_before_a_record_after_its_stop_whatever_that_one_s_time(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    """A target of AvailableNow in front of a marker: were the split held there, the query would never end."""
    create_topic(kafka.plain, topic_name)
    transaction(kafka, topic_name, (1000,), "commit")  # 1 is the marker
    produce(kafka.plain, topic_name, at(9000))
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    for ask_before in (False, True):
        if ask_before:
            assert times(source, split(topic_name, 0, 1)) == {"0": 9000}
        assert times(source, split(topic_name, 0, 1, 2)) == {}
        (planned,) = source.plan_ranges(
            [split(topic_name, 0, 1, 2)], PlanLimits(before_event_time_ms=500), next(CLOCK_MS)
        )
        assert (planned.split.stop, planned.rest) == (2, None)
    assert times(source, split(topic_name, 0, 1)) == {"0": 9000}


def test_records_of_open_transactions_are_nobody_s_next(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(3000))
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic_name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"x", partition=0, timestamp=1000)
    producer.flush(30)
    committed = source_of(kafka.plain, topic_name, **COMMITTED)
    sources.append(committed)
    assert times(committed, split(topic_name)) == {"0": 3000}
    assert times(committed, split(topic_name, 0, 1)) == {}
    assert stops(committed, [split(topic_name)], 5000) == {0: 1}
    producer.abort_transaction(30)


def test_compacted_records_are_passed_over(kafka: Broker, topic_name: str, sources: list[KafkaSource]) -> None:
    """A position may lie in a gap: the next record there is counts."""
    create_topic(
        kafka.plain, topic_name, cleanup_policy="compact", segment_bytes="1048576", segment_ms="100",
        min_cleanable_dirty_ratio="0.001", min_compaction_lag_ms="0", max_compaction_lag_ms="100",
    )  # fmt: skip
    for number in range(8):
        produce(kafka.plain, topic_name, [Message(b"x", b"key", timestamp_ms=1000 + 1000 * number)] * 5)
    source = source_of(kafka.plain, topic_name)
    sources.append(source)

    def first_record() -> int:
        source._record_times = event_times.RecordTimes(source._client, event_times.TimeStamps())  # forgets all
        (found,) = times(source, split(topic_name)).values()
        assert found is not None
        return found

    answers: tuple[object, ...] = ()
    for _ in range(300):
        first = first_record()
        answers = (
            times(source, split(topic_name, 0, 1)),
            stops(source, [split(topic_name)], first),
            stops(source, [split(topic_name)], first + 1).get(0, 0) > 1,
        )
        if first > 1000 and first_record() == first:  # else more was compacted meanwhile
            break
        time.sleep(0.2)
    assert first > 1000
    assert answers == ({"0": first}, {}, True)


def test_each_record_is_looked_at_once_and_all_partitions_together(
    kafka: Broker, topic_name: str, sources: list[KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(kafka.plain, topic_name, 50)
    for number in range(50):
        produce(kafka.plain, topic_name, at(*range(1000 + number, 1400), partition=number))
    asked: list[int] = []
    look = event_times.RecordTimes._look

    def noting(self: event_times.RecordTimes, begins: dict[object, int], *others: object) -> object:
        if begins:
            asked.append(len(begins))
        return look(self, begins, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(event_times.RecordTimes, "_look", noting)
    source = source_of(kafka.plain, topic_name)
    sources.append(source)
    splits = [split(topic_name, number) for number in range(50)]
    for _ in range(3):
        assert times(source, *splits) == {str(number): 1000 + number for number in range(50)}
        assert stops(source, splits, 1010) == {number: 10 - number for number in range(10)}
    moved = [split(topic_name, number, 10 - number if number < 10 else 0) for number in range(50)]
    assert times(source, *moved) == {str(number): max(1010, 1000 + number) for number in range(50)}
    assert asked == [50, 10]
    # What was seen does not travel to readers.
    assert pickle.loads(pickle.dumps(source))._record_times._known == {}


def test_lost_records_are_an_error_or_passed_over_as_without_alignment(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(*range(1000, 1010)))
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    strict, lax = source_of(kafka.plain, topic_name), source_of(kafka.plain, topic_name, failOnDataLoss="false")
    sources += [strict, lax]
    for source in (strict, lax):
        assert times(source, split(topic_name, 0, 2)) == {"0": 1002}
    (deleted,) = admin.delete_records([Named(topic_name, 0, 6)]).values()
    deleted.result(240)
    for source in (strict, lax):
        source._available = msgspec.structs.replace(source._available, latest={})
        assert times(source, split(topic_name, 0, 2)) == {"0": 1006}
    with pytest.raises(DataLossError, match="from 2"):
        stops(strict, [split(topic_name, 0, 2)], 1008)
    (planned,) = lax.plan_ranges([split(topic_name, 0, 2)], PlanLimits(before_event_time_ms=1008), next(CLOCK_MS))
    assert (planned.split.position, planned.split.stop) == (6, 8)


def test_records_that_vanish_between_two_questions_are_asked_for_again(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name, 2)
    produce(kafka.plain, topic_name, at(*range(1000, 1010)))
    produce(kafka.plain, topic_name, at(1500, partition=1))
    source = source_of(kafka.plain, topic_name, failOnDataLoss="false")
    sources.append(source)
    splits = [split(topic_name, number) for number in range(2)]
    now_ms = next(CLOCK_MS)
    known = source._look(splits, now_ms)
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    (deleted,) = admin.delete_records([Named(topic_name, 0, 6)]).values()
    deleted.result(240)
    assert source._available == known
    ranges = source.plan_ranges(splits, PlanLimits(before_event_time_ms=1008), now_ms)
    assert [(each.split.partition, each.split.position, each.split.stop) for each in ranges] == [(0, 6, 8)]


def test_a_topic_deleted_between_two_questions_is_the_data_loss_that_it_is(
    kafka: Broker, topic_name: str, sources: list[KafkaSource]
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, at(1000))
    source = source_of(kafka.plain, topic_name, **{"kafka.topic.metadata.propagation.max.ms": "300"})
    sources.append(source)
    now_ms = next(CLOCK_MS)
    source._look([split(topic_name)], now_ms)
    delete_topic(kafka.plain, topic_name)
    with pytest.raises(DataLossError, match="does not exist any longer"):
        source.plan_ranges([split(topic_name)], PlanLimits(before_event_time_ms=2000), now_ms)


def test_brokers_that_send_no_records_are_an_error_in_time(sources: list[KafkaSource]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    source = source_of(address, "any", **{"kafka.default.api.timeout.ms": "500"})
    at_end = {split("any").topic_partition: 5}
    with pytest.raises(
        SourceUnavailableError, match=rf"{address} sent nothing of any-0 from offset 0 on within 500 ms"
    ):
        source._record_times.next_records([split("any")], at_end)
    assert not any(key[0] == source._client for key, _, _ in consumer_pool._of_this_process().idle)


def test_brokers_that_refuse_are_named_and_no_password_is(kafka: Broker) -> None:
    wrong = f"{PASSWORD}-not"
    source = source_of(
        kafka.sasl, "any", **{
            "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": USER,
            "kafka.sasl.password": wrong,
        },
    )  # fmt: skip
    with pytest.raises(SourceError, match=r"kafka\.sasl\.password") as caught:
        source._record_times.next_records([split("any")], {split("any").topic_partition: 5})
    assert not isinstance(caught.value, SourceUnavailableError)
    assert wrong not in str(caught.value) + repr(caught.value.facts)
