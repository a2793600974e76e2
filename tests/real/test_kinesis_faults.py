"""What goes wrong on the way to Kinesis: expired iterators, throttling, silence, lost records, wrong addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kinesis import scout
from headgate.connectors.kinesis.api import KinesisApi
from headgate.connectors.kinesis.cursor import ShardCursor
from headgate.connectors.kinesis.source import KinesisSource
from headgate.connectors.kinesis.split import TRIM_HORIZON, KinesisSplit, ShardPosition, after, at
from headgate.errors import DataLossError, OptionError, SourceError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.testing import ReaderHarness, SourceHarness, VirtualClock
from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, FaultyProxy, MotoServer, Stream
from local.ports import free_ports

SCHEMA = pa.schema({"data": pa.binary()})
SHARD = "shardId-000000000000"

MakeSource = Callable[..., KinesisSource]


class SmallCalls(KinesisSource):
    """Gets few records a call, without minding a quota that moto does not have."""

    records_per_call = 5
    call_interval_ms = 0
    idle_interval_ms = 20


@pytest.fixture
def stream(aws: MotoServer, topic_name: str) -> Stream:
    return Stream(aws, topic_name)


@pytest.fixture
def source(faulty: FaultyProxy, topic_name: str) -> MakeSource:
    """Return a function that makes the source of the test's stream, by way of the proxy."""

    def make(**options: str) -> KinesisSource:
        return SmallCalls({
            "streamName": topic_name, "region": REGION, "endpointUrl": faulty.url, "awsAccessKey": ACCESS_KEY,
            "awsSecretKey": SECRET_KEY, **options,
        })  # fmt: skip

    return make


def read_all(source: KinesisSource) -> list[int]:
    with SourceHarness(source, schema=SCHEMA) as harness:
        harness.run_to_end()
        return [int(row["data"]) for row in harness.rows()]


def read_split(source: KinesisSource, split: KinesisSplit) -> list[int]:
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as harness:
        harness.add_splits(split)
        return [int(row["data"]) for row in harness.run_to_end()]


def test_expired_iterators_are_renewed_where_they_were(stream: Stream, source: MakeSource, faulty: FaultyProxy) -> None:
    stream.put(range(20))
    split = KinesisSplit(split_id=SHARD, position=at("3"), stop="18", rows=16)
    assert read_split(source(), split) == list(range(2, 18))
    assert faulty.calls["GetShardIterator"] == 1
    with ReaderHarness(source().create_reader, source().split_serializer, SCHEMA) as harness:
        faulty.let_pass("GetRecords")
        faulty.answer_with("GetRecords", "ExpiredIteratorException", times=2)
        harness.add_splits(split)
        assert [int(row["data"]) for row in harness.run_to_end()] == list(range(2, 18))
    assert faulty.calls["GetShardIterator"] == 4  # once more at first, and for each that expired


def test_being_throttled_delays_and_no_more(stream: Stream, source: MakeSource, faulty: FaultyProxy) -> None:
    """However long the time is for which Kinesis may be silent: it is not."""
    stream.put(range(7))
    faulty.answer_with("ListShards", "LimitExceededException", times=2)
    faulty.answer_with("GetShardIterator", "ProvisionedThroughputExceededException", times=2)
    faulty.answer_with("GetRecords", "ProvisionedThroughputExceededException", times=3)
    faulty.answer_with("GetRecords", "KMSThrottlingException")
    assert read_all(source(requestTimeout="0 seconds")) == list(range(7))
    assert faulty.faults_left == 0


def test_a_reader_counts_what_was_throttled_and_knows_how_old_what_it_read_is(
    stream: Stream, source: MakeSource, faulty: FaultyProxy
) -> None:
    stream.put(range(3))
    faulty.answer_with("GetRecords", "ProvisionedThroughputExceededException", times=3)
    split = KinesisSplit(split_id=SHARD, position=TRIM_HORIZON)
    with ReaderHarness(source().create_reader, source().split_serializer, SCHEMA) as harness:
        harness.add_splits(split)
        while len(harness.batches) < 1:
            harness.step()
        measured = harness.metrics()
    assert (measured["throttledRequests"], measured["millisBehindLatest"]) == (3, 0)
    assert measured["requests"] >= 4


def test_errors_of_kinesis_and_broken_connections_are_tried_again(
    stream: Stream, source: MakeSource, faulty: FaultyProxy
) -> None:
    stream.put(range(12))
    for operation in ("ListShards", "GetShardIterator", "GetRecords"):
        faulty.answer_with(operation, "InternalFailureException", status=500)
        faulty.drop(operation)
    faulty.answer_with("GetRecords", "ServiceUnavailable", status=503)
    assert read_all(source()) == list(range(12))
    assert faulty.faults_left == 0


@pytest.mark.parametrize("operation", ["ListShards", "GetShardIterator", "GetRecords"])
def test_silence_is_an_error_after_its_time(
    stream: Stream, source: MakeSource, faulty: FaultyProxy, operation: str
) -> None:
    stream.put(range(3))
    faulty.drop(operation, times=10_000)
    with pytest.raises(SourceUnavailableError, match="endpointUrl") as raised:
        read_all(source(requestTimeout="1 second"))
    # How often it asks in that time is the machine's business; that it asks again, and with pauses, is not.
    assert raised.value.retryable and raised.value.address == faulty.url and 2 <= faulty.calls[operation] < 1000


def test_silence_is_an_error_of_the_planner_too(
    stream: Stream, source: MakeSource, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several plans: each gives up looking after its time, but they count together."""
    stream.put(range(3))
    faulty.drop("GetRecords", times=10_000)
    planning, limits = source(requestTimeout="300 milliseconds"), PlanLimits(max_planning_ms=50)
    splits = [KinesisSplit(split_id=SHARD)]
    clock, plans = VirtualClock(1), 0  # the machine may stand still

    class Time:
        @staticmethod
        def sleep(seconds: float) -> None:
            clock.advance(round(seconds * 1000))

    monkeypatch.setattr(scout, "time", Time)
    open_cursor, new_scout = planning._open_cursor, planning._new_scout

    def open_cursor_on_clock(*arguments: Any, **named: Any) -> ShardCursor:
        cursor = open_cursor(*arguments, **named)
        cursor._clock_ms = clock
        return cursor

    def new_scout_on_clock() -> scout.Scout:
        made = new_scout()
        made._clock_ms = clock
        return made

    monkeypatch.setattr(planning, "_open_cursor", open_cursor_on_clock)
    monkeypatch.setattr(planning, "_new_scout", new_scout_on_clock)
    with pytest.raises(SourceUnavailableError):
        while True:
            assert planning.plan_ranges(splits, limits, clock()) == []
            clock.advance(50)
            plans += 1
    assert plans >= 3


def test_a_plan_does_not_wait_for_a_throttled_shard(
    aws: MotoServer, source: MakeSource, faulty: FaultyProxy, topic_name: str
) -> None:
    stream = Stream(aws, topic_name, 2)
    stream.put(range(100))
    planning = source(fetchThreads="2", requestTimeout="0 seconds")
    splits = [KinesisSplit(split_id=shard["ShardId"]) for shard in stream.shards()]
    faulty.answer_with("GetShardIterator", "LimitExceededException")
    while not (planned := planning.plan_ranges(splits, PlanLimits(max_planning_ms=1), 0)):
        pass  # the time was over before it asked
    (first,) = planned
    (throttled,) = [split for split in splits if split.split_id != first.split.split_id]
    assert first.rest is not None
    for now_ms in range(600):
        planned = planning.plan_ranges([first.rest, throttled], PlanLimits(max_planning_ms=100), now_ms)
        if throttled.split_id in {each.split.split_id for each in planned}:
            return
    raise AssertionError("the throttled shard was never planned")


def test_a_reader_closes_while_it_waits_for_an_answer(stream: Stream, source: MakeSource, faulty: FaultyProxy) -> None:
    stream.put(range(3))
    faulty.slow("GetRecords", seconds=30)
    with SourceHarness(
        source(startingPosition="earliest"), schema=SCHEMA, boundedness=Boundedness.CONTINUOUS_UNBOUNDED
    ) as harness:
        while not faulty.calls["GetRecords"]:
            harness.step()
        fetchers = list(harness.readers[0].reader._fetchers.values())  # type: ignore[attr-defined]
    assert any(each.alive for each in fetchers), "they wait for the answer, and closing did not wait for them"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDeniedException", "Allow kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords"),
        ("UnrecognizedClientException", "does not accept the credentials.*'awsSecretKey'"),
        ("ExpiredTokenException", "Temporary ones expire"),
        ("KMSDisabledException", "KMSDisabledException made by the proxy"),
    ],
)
def test_refusals_say_what_to_do(
    stream: Stream, source: MakeSource, faulty: FaultyProxy, code: str, message: str
) -> None:
    for operation in ("ListShards", "GetRecords"):
        stream.put(["1"])
        faulty.answer_with(operation, code)
        with pytest.raises(SourceError, match=message) as raised:
            read_all(source())
        assert not raised.value.retryable and stream.name in str(raised.value)
        assert SECRET_KEY not in f"{raised.value}{raised.value.facts}"


def test_a_stream_that_is_not_there(source: MakeSource, topic_name: str) -> None:
    with pytest.raises(SourceError, match=f"there is no stream '{topic_name}' at http.*'streamName'"):
        read_all(source())


def test_an_endpoint_that_nobody_serves(source: MakeSource) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SourceUnavailableError, match="Could not connect to the endpoint URL"):
        read_all(source(endpointUrl=url, requestTimeout="200 milliseconds"))
    with pytest.raises(OptionError, match="'endpointUrl'"):
        read_all(source(endpointUrl="nowhere"))


def test_no_credentials_and_no_region(monkeypatch: pytest.MonkeyPatch, topic_name: str, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(OptionError, match=r"no AWS credentials.*'awsAccessKey'"):
        read_all(KinesisSource({"streamName": topic_name, "region": REGION}))
    with pytest.raises(OptionError, match="Set the option 'region'"):
        read_all(KinesisSource({"streamName": topic_name}))


@pytest.mark.parametrize(
    ("position", "stop"),
    [(after("9"), None), (at("9"), None), (at("9"), "12"), (after("9"), "12"), (at("1"), "12")],
)
def test_records_that_are_gone_are_an_error_or_a_warning(
    stream: Stream, source: MakeSource, caplog: pytest.LogCaptureFixture, position: ShardPosition, stop: str | None
) -> None:
    """The stream was deleted and made again: what was seen is not there."""
    stream.put(range(12))
    split = KinesisSplit(split_id=SHARD, position=position, stop=stop, rows=4 if stop else None)
    stream.recreate()
    stream.put(["100", "101"])
    if stop is None:
        stream.split(0)  # so that the shard ends
    with pytest.raises(DataLossError, match=f"{SHARD} of stream .*is to be read from .*failOnDataLoss") as raised:
        read_split(source(), split)
    assert raised.value.split == SHARD and raised.value.stop == stop
    assert read_split(source(failOnDataLoss="false"), split) == [100, 101]
    assert "Going on without them" in caplog.text


def test_a_sequence_number_that_kinesis_does_not_know(stream: Stream, source: MakeSource, faulty: FaultyProxy) -> None:
    """What Kinesis says to one of a stream of the same name that was deleted; moto takes any."""
    stream.put(range(5))
    split = KinesisSplit(split_id=SHARD, position=after("2"), stop="4", rows=2)
    faulty.answer_with("GetShardIterator", "InvalidArgumentException", times=2)
    with pytest.raises(DataLossError, match="Kinesis does not know that record"):
        read_split(source(), split)
    assert read_split(source(failOnDataLoss="false"), split) == [0, 1, 2, 3]


def test_a_shard_that_is_gone(stream: Stream, source: MakeSource) -> None:
    split = KinesisSplit(split_id="shardId-000000000009", position=after("9"))
    with pytest.raises(DataLossError, match="the shard is gone"):
        read_split(source(), split)
    assert read_split(source(failOnDataLoss="false"), split) == []


def test_many_shards_share_few_threads(
    aws: MotoServer, source: MakeSource, faulty: FaultyProxy, topic_name: str
) -> None:
    stream = Stream(aws, topic_name, 40)
    stream.put(range(400))
    before = set(threading.enumerate())
    reading = source(fetchThreads="4")
    ranges = reading._discover(Boundedness.BOUNDED, frozenset(), True).splits
    assert len(ranges) == 40 and sum(split.rows or 0 for split in ranges) == 400
    with ReaderHarness(reading.create_reader, reading.split_serializer, SCHEMA) as harness:
        harness.add_splits(*ranges)
        fetchers = [each for each in set(threading.enumerate()) - before if "fetcher" in each.name]
        assert len(fetchers) == 4
        assert sorted(int(row["data"]) for row in harness.run_to_end()) == list(range(400))
    assert faulty.calls["GetShardIterator"] == 80  # the scout's and the reader's


def test_all_pages_of_a_listing_are_read(
    aws: MotoServer, source: MakeSource, faulty: FaultyProxy, topic_name: str
) -> None:
    Stream(aws, topic_name, 1001)
    faulty.answer_with("ListShards", "LimitExceededException")
    shards, _ = source()._list_shards(patient=True)
    assert len({shard.shard_id for shard in shards}) == 1001
    assert faulty.calls["ListShards"] == 3


def test_a_stream_by_its_arn(stream: Stream, source: MakeSource, faulty: FaultyProxy) -> None:
    stream.put(range(7))
    arn = f"arn:aws:kinesis:{REGION}:123456789012:stream/{stream.name}"
    of_arn = KinesisSource({
        "streamARN": arn, "endpointUrl": faulty.url, "awsAccessKey": ACCESS_KEY, "awsSecretKey": SECRET_KEY,
    })  # fmt: skip
    assert read_all(of_arn) == list(range(7))


def test_latest_is_resolved_to_the_last_record_and_stays_there(
    stream: Stream, source: MakeSource, faulty: FaultyProxy
) -> None:
    """Where that came in the second of the look; else there is none in that second, and the second itself will do."""
    while True:
        last = stream.put(range(3))[-1]
        (split,) = source()._discover(Boundedness.CONTINUOUS_UNBOUNDED, frozenset(), True).splits
        if split.position.kind == "AFTER_SEQUENCE_NUMBER":
            break
    assert split.position == after(last)


def test_latest_of_an_empty_shard_is_a_time_since_which_nothing_came(stream: Stream, source: MakeSource) -> None:
    (split,) = source()._discover(Boundedness.CONTINUOUS_UNBOUNDED, frozenset(), True).splits
    assert split.position.kind == "AT_TIMESTAMP"
    stream.put(range(3))
    stream.split(0)
    assert read_split(source(), split) == [0, 1, 2]


def test_a_start_in_the_future_is_refused(stream: Stream, source: MakeSource) -> None:
    with pytest.raises(OptionError, match="lies in the future"):
        read_all(source(startingPosition="2999-01-01"))


def test_a_start_at_a_time(stream: Stream, source: MakeSource) -> None:
    stream.put(range(3))
    api = KinesisApi(source()._address)
    first = api.get_records(SHARD, api.shard_iterator(SHARD, ShardPosition()), 10).records
    while True:  # until the clock of moto has moved on
        stream.put(["9"])
        got = api.get_records(SHARD, api.shard_iterator(SHARD, ShardPosition()), 1000).records
        if got[-1]["ApproximateArrivalTimestamp"] > first[-1]["ApproximateArrivalTimestamp"]:
            break
    moment = got[-1]["ApproximateArrivalTimestamp"]
    later = [int(each["Data"]) for each in got if each["ApproximateArrivalTimestamp"] >= moment]
    assert read_all(source(startingPosition=moment.isoformat())) == later
