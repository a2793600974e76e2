"""Every promise of the contract, by the kit that connector authors use, over moto's server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from headgate.connectors.kinesis.source import KinesisSource
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits
from headgate.source import Boundedness
from headgate.testing import SourceHarness, assert_same_rows
from headgate.testing.conformance import conformance_test
from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, FaultyProxy, MotoServer, Stream
from tests.waiting import wait_until

SCHEMA = pa.schema({"shardId": pa.string(), "data": pa.binary()})
WITH_TIMES = SCHEMA.append(pa.field("approximateArrivalTimestamp", pa.timestamp("us", "UTC")))


class SmallCalls(KinesisSource):
    """Gets few records a call, so that there are many places to restore at; moto has no quota to be kept."""

    records_per_call = 3
    call_interval_ms = 0
    idle_interval_ms = 20


def options(server: MotoServer, name: str) -> dict[str, str]:
    return {
        "streamName": name,
        "region": REGION,
        "endpointUrl": server.url,
        "awsAccessKey": ACCESS_KEY,
        "awsSecretKey": SECRET_KEY,
    }


@pytest.fixture(scope="module")
def resharded(aws: MotoServer) -> Stream:
    """Return a stream of 30 records whose first shard was split, and one half merged with the second."""
    return resharded_stream(aws, "kit-resharded")


@pytest.fixture(scope="module")
def growing(aws: MotoServer) -> Stream:
    """Return another one, to which records are added."""
    return resharded_stream(aws, "kit-growing")


def resharded_stream(aws: MotoServer, name: str) -> Stream:
    stream = Stream(aws, name, 2)
    stream.put(range(12))
    stream.split(0)
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second)  # records are dated in seconds
    stream.put(range(12, 20))
    stream.merge(3, 1)
    stream.put(range(20, 30))
    return stream


test_kinesis_keeps = conformance_test(
    lambda aws, growing: SmallCalls({**options(aws, growing.name), "startingPosition": "earliest"}),
    schema=WITH_TIMES,
    add_rows=lambda growing: growing.put(range(30, 35)),
)


@pytest.fixture(scope="module")
def open_shards(aws: MotoServer) -> Stream:
    """Return a stream whose shards do not end."""
    stream = Stream(aws, "kit-open", 2)
    stream.put(range(10))
    return stream


test_open_shards_keep = conformance_test(
    lambda aws, open_shards: SmallCalls({**options(aws, open_shards.name), "startingPosition": "earliest"}),
    schema=WITH_TIMES,
    only=["silent-splits-become-idle", "fetch-keeps-its-time-out", "fetch-returns-when-woken", "idle-readers-sleep"],
)


@pytest.fixture
def proxy(aws: MotoServer) -> Iterator[FaultyProxy]:
    made = FaultyProxy(aws)
    yield made
    made.close()


@contextmanager
def faulty(proxy: FaultyProxy, fault: str) -> Iterator[None]:
    """Let every call fail, or hang."""
    for operation in ("ListShards", "GetShardIterator", "GetRecords", "DescribeStreamSummary"):
        if fault == "drops":
            proxy.drop(operation, 10_000)
        else:
            proxy.slow(operation, 3, 10_000)
    try:
        yield
    finally:
        proxy.forgive()


test_kinesis_keeps_while_it_does_not_answer = pytest.mark.parametrize("fault", ["drops", "hangs"])(
    conformance_test(
        lambda aws, resharded, proxy: SmallCalls({**options(aws, resharded.name), "endpointUrl": proxy.url}),
        schema=SCHEMA,
        unavailable=lambda proxy, fault: faulty(proxy, fault),
        only=["enumerator-does-not-block", "unavailability-loses-nothing"],
    )
)


def test_all_of_a_resharded_stream_is_read(aws: MotoServer, resharded: Stream) -> None:
    with SourceHarness(SmallCalls(options(aws, resharded.name)), schema=SCHEMA, parallelism=2) as harness:
        harness.run_to_end()
        assert sorted(int(row["data"]) for row in harness.rows()) == list(range(30))


def test_bounded_means_up_to_now(aws: MotoServer, topic_name: str) -> None:
    """What is put once a batch is planned is not part of it."""
    stream = Stream(aws, topic_name, 2)
    stream.put(range(10))
    source = SmallCalls(options(aws, topic_name))
    splits = plan_batch(source, SCHEMA, 0)
    stream.put(range(10, 20))
    found = [value.as_py() for batch in read_splits(source, SCHEMA, splits, 0, "UTC") for value in batch["data"]]
    assert sorted(map(int, found)) == list(range(10))


def test_unbounded_readers_get_children_when_the_parents_are_read(aws: MotoServer, resharded: Stream) -> None:
    """Also when they are restored in between, with one reader more or fewer."""
    unbounded = {"schema": SCHEMA, "boundedness": Boundedness.CONTINUOUS_UNBOUNDED}
    chosen = {**options(aws, resharded.name), "startingPosition": "earliest"}
    with SourceHarness(SmallCalls(chosen), **unbounded) as harness:  # type: ignore[arg-type]
        while len(harness.readers[0].finished) < 3:
            harness.step()
            harness.snapshot()  # which reports to the enumerator what is finished
        harness.run_until_rows(30)
        order = [split_id for split_id, _ in harness.readers[0].batches]
        whole = harness.rows()
    first, last = {each: order.index(each) for each in order}, {each: i for i, each in enumerate(order)}
    for child, parents in {2: [0], 3: [0], 4: [3, 1]}.items():
        name = f"shardId-{child:012}"
        assert all(last.get(f"shardId-{parent:012}", -1) < first.get(name, 1 << 30) for parent in parents)

    rows: list[dict[str, object]] = []
    snapshot = None
    for parallelism in (1, 2, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1):
        with SourceHarness(SmallCalls(chosen), parallelism=parallelism, snapshot=snapshot, **unbounded) as harness:  # type: ignore[arg-type]
            finished = 0
            while harness.row_count < 3 and len(rows) + harness.row_count < 30:
                harness.step()
                if finished != (finished := sum(len(reader.finished) for reader in harness.readers)):
                    harness.snapshot()
            snapshot = harness.snapshot()
            rows += harness.rows()
    assert_same_rows(rows, whole)
