"""What a partition's reader makes of entries whose messages are not what they should be, without a broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from headgate.connectors.pulsar import split_reader
from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.columns import PulsarColumns
from headgate.connectors.pulsar.entries import Holds
from headgate.connectors.pulsar.jobs import Jobs
from headgate.connectors.pulsar.ledgers import Ledger, Ledgers
from headgate.connectors.pulsar.opening import PartitionReaders, open_reader
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.scout import Scout
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.connectors.pulsar.split_reader import PulsarSplitReader
from headgate.errors import BadDataError, DataLossError, SourceError
from headgate.source.metrics import MetricGroup
from tests.unit.connectors.pulsar.messages import Encrypted, Message, MessageId

NAME = "persistent://public/default/rides"


@dataclass
class Partition:
    """A partition at a broker: what its entries hold, and the readers of it."""

    holds: dict[tuple[int, int], Holds | None] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def add(self, held: Holds | None = "a message", size: int = 0, *, ledger: int = 5, **more: Any) -> None:
        """Append an entry. ``size`` 0: without a batch; ``lost``: no message of it comes; ``encrypted``: with it."""
        entry = len([each for each in self.holds if each[0] == ledger])
        self.holds[ledger, entry] = held
        if held != "a message" or more.get("lost"):
            return
        value = b"%d" % len(self.holds)
        if (context := more.get("encrypted")) is not None:
            self.messages.append(Message(MessageId(ledger, entry), value, context=context))
        elif not size:
            self.messages.append(Message(MessageId(ledger, entry), value))
        else:
            ids = [MessageId(ledger, entry, index, size) for index in range(size)]
            self.messages += [Message(each, b"%s.%d" % (value, each.index)) for each in ids]

    def ledgers(self, _: str) -> Ledgers:
        ids = sorted({ledger for ledger, _ in self.holds})
        return Ledgers(tuple(Ledger(each, sum(one == each for one, _ in self.holds), 1000) for each in ids))

    def entries(self, _: str, wanted: Sequence[tuple[int, int]]) -> list[Holds | None]:
        self.asked += wanted
        return [self.holds.get(each) for each in wanted]

    def open(self, _: Any, split: PulsarSplit, position: Position | None, arguments: dict[str, Any]) -> Reader:
        left = [each for each in self.messages if position is None or _after(each) > position]
        self.readers.append(Reader(left, arguments["receiver_queue_size"]))
        return self.readers[-1]


class Reader:
    """A reader of the client's: the broker sends while it may, and counts a batch by its messages."""

    def __init__(self, left: list[Message], queue: int) -> None:
        self._left, self._queue, self._permits, self._returned = deque(left), queue, queue, 0
        self._here: deque[Message] = deque()
        self._then: Callable[..., None] | None = None

    def read_next(self, _: int) -> Message:
        self._send()
        if not self._here:
            raise pulsar.Timeout
        self._returned += 1
        if self._returned * 2 >= self._queue:
            self._permits, self._returned = self._permits + self._returned, 0
        return self._here.popleft()

    def read_next_async(self, then: Callable[..., None]) -> None:
        assert self._then is None
        self._then = then

    def has_message_available(self) -> bool:
        return bool(self._left or self._here)

    def close_async(self, _: Any) -> None:
        if self._then is not None:
            self._then(pulsar.Result.AlreadyClosed, None)

    def _send(self) -> None:
        while self._left and self._permits > 0:
            self._here.append(self._left.popleft())
            context = self._here[-1].context
            self._permits -= max(1, context.size) if context is not None else 1


class AtOnce(Jobs):
    """Runs what blocks on the caller's thread."""

    def run(self, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        try:
            result, error = work(), None
        except Exception as raised:
            result, error = None, raised
        self.post(lambda: then(result, error))


def _after(message: Message) -> Position:
    at = message.id
    return Position(at.ledger, at.entry) if at.index in (-1, at.size - 1) else Position(at.ledger, at.entry, at.index)


def reader_of(
    partition: Partition,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fail_on_data_loss: bool = True,
    metrics: MetricGroup | None = None,
) -> PulsarSplitReader:
    """Return a reader of a partition, by a clock that goes a second for each look at it."""
    clock = count(0, 1000)
    monkeypatch.setattr(split_reader, "open_reader", partition.open)
    monkeypatch.setattr(split_reader, "_now_ms", lambda: next(clock))
    columns = PulsarColumns(
        pa.schema({"value": pa.binary()}), {"valueFormat": "binary", "allowDifferentTopicSchemas": False}, None,
        None,  # type: ignore[arg-type]
    )  # fmt: skip
    reader = PulsarSplitReader(
        ClientConfig("pulsar://broker", (), "http://broker"), columns, fail_on_data_loss=fail_on_data_loss,
        poll_timeout_ms=60_000, reader_arguments={"receiver_queue_size": 100}, metric_group=metrics or MetricGroup(),
    )  # fmt: skip
    reader._jobs, reader._admin = AtOnce(0), partition  # type: ignore[assignment]
    return reader


def read(
    reader: PulsarSplitReader, position: Position | None = None, stop: Position | None = None, *, fetches: int = 200
) -> list[bytes]:
    """Read up to the stop, or what so many fetches bring; return the values."""
    split = PulsarSplit(split_id=NAME, topic=NAME, partition=NOT_PARTITIONED, position=position, stop=stop)
    reader.handle_splits_changes([split])
    rows: list[bytes] = []
    for _ in range(fetches):
        for each in reader.fetch(1):
            rows += each.batch.column("value").to_pylist() if each.batch is not None else []
            if each.finished:
                return rows
    assert stop is None, f"it did not end; there are {rows}"
    return rows


STOPS = pytest.mark.parametrize("has_stop", [True, False], ids=["bounded", "unbounded"])


@STOPS
@pytest.mark.parametrize("context", [Encrypted(-1), Encrypted(50)], ids=["a message", "a batch"])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_message_that_cannot_be_decrypted_is_an_error(
    monkeypatch: pytest.MonkeyPatch, has_stop: bool, context: Encrypted, at_the_end: bool
) -> None:
    partition = Partition()
    partition.add()
    partition.add(encrypted=context)
    if not at_the_end:
        partition.add(size=3)
    stop = Position(5, 1 if at_the_end else 2) if has_stop else None
    with pytest.raises(
        BadDataError, match=r"5:1 of persistent://.*rides is encrypted with the key 'harbour'"
    ) as caught:
        read(reader_of(partition, monkeypatch), None, stop)
    assert caught.value.facts["path"] == NAME
    assert caught.value.facts["message_id"] == "5:1"


def test_one_that_was_decrypted_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition()
    partition.add(encrypted=Encrypted(-1, failed=False))
    partition.add(size=2)
    assert read(reader_of(partition, monkeypatch), None, Position(5, 1)) == [b"1", b"2.0", b"2.1"]


@STOPS
def test_or_they_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_stop: bool
) -> None:
    """However many: the broker counts the messages of a batch, the client the one as which it came."""
    partition, expected = Partition(), []
    for number in range(40):
        partition.add(encrypted=Encrypted(50))
        if number % 10 == 9:
            partition.add(size=2)
            expected += [message.value for message in partition.messages[-2:]]
    partition.add(encrypted=Encrypted(-1))
    metrics = MetricGroup()
    reader = reader_of(partition, monkeypatch, fail_on_data_loss=False, metrics=metrics)
    stop = Position(5, len(partition.holds) - 1) if has_stop else None
    assert read(reader, None, stop) == expected
    assert len(partition.readers) > 1, "no reader gets so many"
    assert metrics.collect([]).metrics["skippedMessages"].value == 40 * 50 + 1
    assert len(caplog.records) == 1, "one warning for all"


class Readers(PartitionReaders):
    """Readers of one partition, for a scout."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(ClientConfig("pulsar://broker", ()), {"receiver_queue_size": 100}, 1000)
        self._partition = partition

    def open(self, split: PulsarSplit, position: Position | None, **_: Any) -> Any:
        return self._partition.open(None, split, position, self._arguments)


def test_a_plan_of_rows_goes_past_them() -> None:
    partition = Partition()
    for _ in range(10):
        partition.add(encrypted=Encrypted(50))
    partition.add()
    split = PulsarSplit(split_id=NAME, topic=NAME, partition=NOT_PARTITIONED)
    scout = Scout(Readers(partition), None)
    assert scout.nearer([split], {NAME: Position(5, 10)}, 11, None) == {NAME: Position(5, 10)}


def test_a_key_that_cannot_be_read_is_named() -> None:
    split = PulsarSplit(split_id=NAME, topic=NAME, partition=NOT_PARTITIONED)
    with pytest.raises(SourceError, match=r"the private key in /nowhere/harbour.pem cannot be read"):
        open_reader(ClientConfig("pulsar://broker", ()), split, None, {"crypto_key_reader": "/nowhere/harbour.pem"})


def test_those_after_the_stop_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition()
    partition.add()
    partition.add(encrypted=Encrypted(50))
    assert read(reader_of(partition, monkeypatch), None, Position(5, 0)) == [b"1"]


@STOPS
@pytest.mark.parametrize("entries", ["mPPm", "PmPm", "Pm", "mP", "mmP", "mP|P", "m|Pm", "mnP", "P", "mnnPnm"])
def test_a_message_in_chunks_is_an_error_wherever_a_part_is(
    monkeypatch: pytest.MonkeyPatch, entries: str, has_stop: bool
) -> None:
    """Also where no message came from: the part before is in an earlier plan, or the part after is not written yet."""
    partition = partition_of(entries)
    stop = Position(7 if "|" in entries else 5, entries[::-1].index("|") - 1 if "|" in entries else len(entries) - 1)
    with pytest.raises(SourceError, match=rf"{NAME} has messages that were sent in chunks") as caught:
        read(reader_of(partition, monkeypatch), Position(5, -1), stop if has_stop else None)
    assert not isinstance(caught.value, DataLossError)


@STOPS
@pytest.mark.parametrize("entries", ["nmn", "mnnnbn", "nnbb|nb", "mnn|nnm", "nn"])
def test_entries_that_hold_nothing_for_readers_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, entries: str, has_stop: bool
) -> None:
    partition = partition_of(entries)
    stop = Position(7 if "|" in entries else 5, entries[::-1].index("|") - 1 if "|" in entries else len(entries) - 1)
    rows = read(reader_of(partition, monkeypatch), Position(5, -1), stop if has_stop else None)
    assert rows == [message.value for message in partition.messages]
    assert len(partition.asked) == len(set(partition.asked)), "each is asked for once"
    assert {partition.holds[each] for each in partition.asked} == {"nothing"}


def test_entries_without_gaps_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = partition_of("mbbmb|bm")
    assert len(read(reader_of(partition, monkeypatch), None, Position(7, 1))) == 15
    assert partition.asked == []


@STOPS
@pytest.mark.parametrize("entries", ["mLm", "mbLLb", "mL|bm", "Lm", "nLm"])
def test_messages_that_do_not_come_are_lost(monkeypatch: pytest.MonkeyPatch, entries: str, has_stop: bool) -> None:
    """As those are that expire while a reader is under way."""
    partition = partition_of(entries)
    stop = Position(7 if "|" in entries else 5, entries[::-1].index("|") - 1 if "|" in entries else len(entries) - 1)
    chosen = stop if has_stop else None
    first = entries.index("L")
    with pytest.raises(DataLossError, match=rf"the entry 5:{first} of {NAME}, but its messages never came"):
        read(reader_of(partition, monkeypatch), Position(5, -1), chosen)
    rows = read(reader_of(partition, monkeypatch, fail_on_data_loss=False), Position(5, -1), chosen)
    assert rows == [message.value for message in partition.messages]


def partition_of(entries: str) -> Partition:
    """Return one: ``m`` a message, ``b`` a batch, ``P`` a part of one, ``n`` nothing, ``L`` one that is lost."""
    partition, ledger = Partition(), 5
    for each in entries:
        match each:
            case "|":
                ledger = 7
            case "P":
                partition.add("a part of one", ledger=ledger)
            case "n":
                partition.add("nothing", ledger=ledger)
            case _:
                partition.add(size=3 if each == "b" else 0, ledger=ledger, lost=each == "L")
    return partition
