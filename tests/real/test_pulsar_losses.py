"""What headgate.pulsar does where messages, ledgers or topics are gone, and where nothing was lost though they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headgate.connectors.pulsar import split_reader
from headgate.connectors.pulsar.ledgers import Ledgers, remembered
from headgate.connectors.pulsar.position import after_message
from headgate.connectors.pulsar.source import PulsarSource
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import DataLossError
from headgate.source import Boundedness, PlanLimits
from headgate.testing import ReaderHarness, SourceHarness
from local.pulsar_topics import (
    Message,
    ask,
    compact,
    create_namespace,
    create_topic,
    delete_topic,
    ledgers,
    produce,
    read_topic,
    trim,
    unload,
)
from tests.real.pulsar_reads import SCHEMA, Plans, by_topic, messages, numbers, read, source
from tests.shared_broker import PulsarAddresses


def in_the_middle(broker: Any, topic: str, **more: str) -> tuple[PulsarSource, Any]:
    """Return a source whose first ledger was read, but for a message, and its snapshot."""
    create_topic(broker, topic)
    produce(broker, topic, messages(6), batch=1)
    each = source(broker, topic, startingOffsets="earliest", **more)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, most_rows=1) as harness:
        harness.run_until_rows(5)
        assert harness.row_count == 5
        return each, harness.snapshot()


def trimmed(broker: Any, topic: str) -> None:
    trim(broker, topic)
    produce(broker, topic, messages(3, 6), batch=1)


def made_again(broker: Any, topic: str) -> None:
    delete_topic(broker, topic)
    create_topic(broker, topic)
    produce(broker, topic, messages(3, 6), batch=1)


def compacted(broker: Any, topic: str) -> None:
    compact(broker, topic)
    trimmed(broker, topic)


GONE = pytest.mark.parametrize("lose", [trimmed, made_again, compacted])


def test_of_a_compacted_topic_each_message_is_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, [Message(b"%d" % number, key="one") for number in range(6)], batch=1)
    compact(pulsar, topic_name)
    assert numbers(read(source(pulsar, topic_name))) == list(range(6))


@GONE
def test_messages_that_are_gone_are_an_error(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None]
) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name)
    lose(pulsar, topic_name)
    with (
        pytest.raises(DataLossError, match=r"after \d+:4 are gone, or may be.*predefinedSubscription") as raised,
        SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness,
    ):
        harness.run_until_rows(1)
    assert raised.value.split == f"persistent://public/default/{topic_name}"  # type: ignore[attr-defined]


@GONE
def test_or_a_warning_and_reading_goes_on(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name, failOnDataLoss="false")
    lose(pulsar, topic_name)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(3)
        assert numbers(harness.rows()) == [6, 7, 8]
    assert "are gone, or may be" in caplog.text


def test_a_topic_that_was_deleted_is_an_error(pulsar: PulsarAddresses, topic_name: str) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name)
    delete_topic(pulsar, topic_name)
    with (
        pytest.raises(DataLossError, match=r"was deleted, and what was not read of it"),
        SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness,
    ):
        harness.run_until_rows(1)


@GONE
def test_messages_that_go_while_it_reads_are_an_error(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None]
) -> None:
    """The queue of the client is full: the brokers move its cursor on without a word."""
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(6), batch=1)
    each = source(pulsar, topic_name, startingOffsets="earliest", **{"pulsar.reader.receiverQueueSize": "2"})
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, most_rows=1) as harness:
        harness.run_until_rows(2)
        lose(pulsar, topic_name)
        with pytest.raises(DataLossError, match=r"are gone, or may be"):
            harness.run_until_rows(9)


@contextmanager
def slow_admin(admin_url: str) -> Iterator[tuple[str, threading.Event]]:
    """Return an address that redirects requests to the brokers, as any of them may, and what it waits for before."""
    answering = threading.Event()
    answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answering.wait()
            self.send_response(307)
            self.send_header("Location", f"{admin_url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answering
    finally:
        answering.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_who_waits_for_the_brokers_holds_up_no_other(pulsar: PulsarAddresses, topic_name: str) -> None:
    """After a ledger's end they are asked whether anything is gone; what came meanwhile is kept in its order."""
    create_topic(pulsar, topic_name, 2)
    produce(pulsar, topic_name, [*messages(3, partition=0), *messages(3, 3, partition=1)], batch=1)
    with slow_admin(pulsar.admin_url) as (admin_url, answering):
        each = source(
            pulsar, topic_name, startingOffsets="earliest",
            # Pulsar leaves a lookup unanswered at times: it is asked again after this.
            **{"admin.url": admin_url, "pulsar.client.operationTimeoutMs": "120000"},
        )  # fmt: skip
        with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
            harness.run_until_rows(6)
            unload(pulsar, f"{topic_name}-partition-0")
            answering.clear()
            produce(pulsar, topic_name, messages(3, 6, partition=0), batch=1)
            for number in range(9, 12):
                produce(pulsar, topic_name, messages(1, number, partition=1))
                harness.run_until_rows(number - 2)
            assert numbers(harness.rows()) == [*range(6), *range(9, 12)]
            produce(pulsar, topic_name, messages(3, 12, partition=0), batch=1)
            answering.set()
            harness.run_until_rows(15)
            of_first = [
                int(row["value"])
                for row in harness.rows()
                if int(row["value"]) in (*range(3), *range(6, 9), 12, 13, 14)
            ]
            assert of_first == [*range(3), *range(6, 9), 12, 13, 14]


def test_a_start_that_is_gone_is_an_error(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(6), batch=1)
    trimmed(pulsar, topic_name)
    starts = by_topic(topic_name, list(ids[2].serialize()))
    with pytest.raises(DataLossError, match=r"startingOffsets for .* is not there any longer"):
        read(source(pulsar, topic_name, startingOffsets=starts))
    assert numbers(read(source(pulsar, topic_name, startingOffsets=starts, failOnDataLoss="false"))) == [6, 7, 8]


def unloaded(broker: Any, topic: str) -> None:
    """Let the broker load a topic anew, whereby it discards a ledger that has no entries."""
    for _ in range(2):
        unload(broker, topic)
        read_topic(broker, topic)


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("first", [0, 4], ids=["empty", "not empty"])
def test_nothing_is_lost_with_a_ledger_that_had_no_entries(
    pulsar: PulsarAddresses, topic_name: str, start: str, first: int
) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(first), batch=1)
    unloaded(pulsar, topic_name)
    each = source(pulsar, topic_name, startingOffsets=start)
    there = first if start == "earliest" else 0
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.enumerator.run_due_calls()
        harness.run_until_rows(there)
        snapshot = harness.snapshot()
    unloaded(pulsar, topic_name)
    produce(pulsar, topic_name, messages(3, first), batch=1)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(3)
        assert numbers(harness.rows()) == list(range(first, first + 3))


def test_a_plan_knows_that_a_ledger_that_is_gone_was_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    """Tasks do not: so their range begins in the ledger that follows."""
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(4), batch=1)
    each = source(pulsar, topic_name)
    name = f"persistent://public/default/{topic_name}"
    at = PulsarSplit(split_id=name, topic=name, partition=-1, position=after_message(ids[-1].serialize()))
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, messages(1, 4), batch=1)
    ((first),) = each.plan_ranges([at], PlanLimits(), 0)
    assert first.rest is not None
    produce(pulsar, topic_name, messages(1, 5), batch=1)
    ask(pulsar, "PUT", f"persistent/public/default/{topic_name}/subscription/ferry", place_of(first.rest))
    where = f"persistent/public/default/{topic_name}"
    ask(pulsar, "POST", f"{where}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    deadline = time.monotonic() + 60
    while first.rest.position.ledger != ledgers(pulsar, topic_name)[0]:
        assert time.monotonic() < deadline, ledgers(pulsar, topic_name)
        ask(pulsar, "POST", f"{where}/trim")
        time.sleep(0.05)
    (again,) = each.plan_ranges([at], PlanLimits(), 1000)
    assert read_range(pulsar, topic_name, again.split) == [4, 5]


def held_topic(broker: Any, topic: str, partitions: int = 0) -> str:
    """Return a topic of which only a subscription keeps anything."""
    namespace = create_namespace(broker, "unkept")
    ask(broker, "POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    name = create_topic(broker, f"persistent://{namespace}/{topic}", partitions)
    where = f"{name.replace('://', '/')}{'-partition-0' if partitions else ''}"
    ask(broker, "PUT", f"{where}/subscription/ferry", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    return name


def let_go(broker: Any, topic: str) -> None:
    """Delete the subscription, and with it all but the ledger that is written to."""
    where = topic.replace("://", "/")
    ask(broker, "DELETE", f"{where}/subscription/ferry?force=true")
    deadline = time.monotonic() + 60
    while len(there := ledgers(broker, topic)) > 1:
        assert time.monotonic() < deadline, there
        ask(broker, "POST", f"{where}/trim")
        time.sleep(0.05)


def test_plans_of_what_is_idle_until_all_of_it_is_trimmed(pulsar: PulsarAddresses, topic_name: str) -> None:
    """What it was is remembered from plan to plan, though some plans are of others only, as under alignment."""
    topic = held_topic(pulsar, topic_name, 2)
    produce(pulsar, topic, [*messages(4, partition=0), *messages(4, 4, partition=1)], batch=1)
    plans = Plans(pulsar, topic)
    assert sorted(plans.rows(PlanLimits())) == list(range(8))
    idle, other = sorted(plans.splits, key=lambda each: each.split_id)
    unload(pulsar, idle.split_id)
    assert plans.source.plan_ranges([idle, other], PlanLimits(), 1000) == []
    assert plans.source.plan_ranges([other], PlanLimits(), 2000) == []
    let_go(pulsar, idle.split_id)
    for now_ms in (3000, 4000, 5000):
        assert plans.source.plan_ranges([idle, other], PlanLimits(), now_ms) == []
    produce(pulsar, topic, messages(2, 8, partition=0), batch=1)
    assert plans.rows(PlanLimits()) == [8, 9]


def test_what_is_idle_until_all_of_it_is_trimmed_has_lost_nothing(
    pulsar: PulsarAddresses, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "_IDLE_LOOK_MS", 20)
    looks: list[tuple[int, ...]] = []

    def noted(known: Ledgers, now: Ledgers, position: Any) -> Ledgers:
        looks.append(tuple(each.id for each in now.ledgers))
        return remembered(known, now, position)

    monkeypatch.setattr(split_reader, "remembered", noted)
    topic = held_topic(pulsar, topic_name)
    produce(pulsar, topic, messages(4), batch=1)
    each = source(pulsar, topic, startingOffsets="earliest")
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.run_until_rows(4)
        unload(pulsar, topic)

        def look(count: int) -> None:
            deadline = time.monotonic() + 60
            while not looks or len(looks[-1]) != count:
                assert time.monotonic() < deadline, looks
                harness.step()

        look(2)
        let_go(pulsar, topic)
        look(1)
        produce(pulsar, topic, messages(3, 4), batch=1)
        harness.run_until_rows(7)
        assert numbers(harness.rows()) == list(range(7))


def place_of(split: Any) -> dict[str, int]:
    return {"ledgerId": split.position.ledger, "entryId": 1}


def read_range(broker: Any, topic: str, split: Any) -> list[int]:
    found = source(broker, topic)
    with ReaderHarness(found.create_reader, found.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        return numbers(reader.run_to_end())


def test_a_partition_that_is_not_there_yet_is_waited_for(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    found = source(pulsar, topic_name)
    name = f"persistent://public/default/{topic_name}-partition-0"
    split = PulsarSplit(split_id=name, topic=name, partition=NOT_PARTITIONED)
    with ReaderHarness(found.create_reader, found.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        asked = time.monotonic() + 1
        while time.monotonic() < asked:
            reader.poll()
        create_topic(pulsar, f"{topic_name}-partition-0")
        produce(pulsar, f"{topic_name}-partition-0", messages(1))
        while not reader.rows():
            reader.step()
        assert numbers(reader.rows()) == [0]


def test_an_end_that_is_gone_is_before_what_is_there(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(3), batch=1)
    trimmed(pulsar, topic_name)
    ends = by_topic(topic_name, list(ids[1].serialize()))
    assert read(source(pulsar, topic_name, endingOffsets=ends), SCHEMA) == []


def test_discovery_while_partitions_move(pulsar: PulsarAddresses, topic_name: str) -> None:
    """Brokers leave out partitions that they are just loading."""
    create_topic(pulsar, topic_name, 6)
    produce(pulsar, topic_name, [Message(b"%d" % number, partition=number) for number in range(6)])
    for number in range(8):
        unload(pulsar, f"{topic_name}-partition-{number % 6}")
        assert numbers(read(source(pulsar, topic_name))) == list(range(6))


def test_a_subscription_keeps_what_was_not_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name, predefinedSubscription="ferry")
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, messages(3, 6), batch=1)
    before = ledgers(pulsar, topic_name)
    where = f"persistent/public/default/{topic_name}"
    ask(pulsar, "POST", f"{where}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    for _ in range(20):  # without the subscription the first ledger goes after one or two
        ask(pulsar, "POST", f"{where}/trim")
        time.sleep(0.1)
    assert ledgers(pulsar, topic_name)[0] == before[0]
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(4)
        assert numbers(harness.rows()) == [5, 6, 7, 8]
