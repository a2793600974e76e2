"""Both ends of an exchange over real links: two producers and two consumers in two slots, driven by the test.

Half of the channels are within a slot, half of them go over Flight. Each subtask has its mailbox; the test runs their
mails in turn, so that a consumer is as slow as it says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.errors import TransportError
from headgate.operators.exchange import Exchange, ExchangeKind
from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element
from headgate.runtime.channel_recovery_thread import BufferPool, ChannelRecoveryThread
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.input_exchanges import InputExchanges
from headgate.runtime.mailbox import Mailbox
from headgate.runtime.output_exchange import OutputExchange
from headgate.runtime.partitioners import partitioner_of
from headgate.runtime.snapshot_parts import StoredRows
from headgate.task.exchange.input_gate import GateInput
from headgate.transport.data_plane import ConsumerEnd, ConsumerLink, DataPlane, ProducerEnd, ProducerLink

SCHEMA = pa.schema([("key", pa.string()), ("producer", pa.int64()), ("number", pa.int64())])
UID = "exchange-1"
SLOTS = (0, 1)
KEYS = 97
SLICE_ROWS = 500

Row = tuple[str, int, int]


class CountingPlane:
    """A data plane that notes credits: no producer may send more buffers than it was granted."""

    def __init__(self) -> None:
        self.plane = DataPlane(1, "secret", "127.0.0.1")
        self.buffers: Counter[ChannelId] = Counter()
        self.credits: Counter[ChannelId] = Counter()

    def offer(self, channel: ChannelId, generation: int, schema: pa.Schema, end: ProducerEnd) -> ProducerLink:
        counted = _CountingEnd(self, channel, end)
        return _CountingLink(self, channel, self.plane.offer(channel, generation, schema, counted))

    def connect(
        self, address: str, channel: ChannelId, generation: int, schema: pa.Schema, end: ConsumerEnd
    ) -> ConsumerLink:
        return self.plane.connect(address, channel, generation, schema, end)


class _CountingEnd:
    def __init__(self, plane: CountingPlane, channel: ChannelId, end: ProducerEnd) -> None:
        self._plane, self._channel, self._end = plane, channel, end
        self.on_connected, self.on_broken = end.on_connected, end.on_broken

    def on_credit(self, credits: int) -> None:
        self._plane.credits[self._channel] += credits
        self._end.on_credit(credits)


class _CountingLink:
    def __init__(self, plane: CountingPlane, channel: ChannelId, link: ProducerLink) -> None:
        self._plane, self._channel, self._link = plane, channel, link
        self.close = link.close

    def send(self, element: Element) -> None:
        if isinstance(element, Buffer):
            self._plane.buffers[self._channel] += 1
            assert self._plane.buffers[self._channel] <= self._plane.credits[self._channel]
        self._link.send(element)


class ProducerSubtask:
    """Writes numbered rows with keys in turn, as long as there is room."""

    def __init__(self, number: int, plane: CountingPlane, exchange: Exchange) -> None:
        self.number = number
        self.mailbox = Mailbox(monotonic_ms)
        self.written = 0
        self.stored: dict[int, list[Row]] = {}
        self.broken: list[TransportError] = []
        self.output = OutputExchange(
            UID, exchange, number, SLOTS, 1,
            partitioner_of(exchange, producer=number, parallelism=len(SLOTS), max_parallelism=128),
            0, plane, self.mailbox, monotonic_ms, self._on_stored, self.broken.append,
        )  # type: ignore[arg-type]  # fmt: skip

    def _on_stored(self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[Buffer]]) -> None:
        assert checkpoint_id not in self.stored
        self.stored[checkpoint_id] = [row for held in channels.values() for each in held for row in rows_of(each.rows)]

    def write(self, rows: int) -> None:
        numbers = np.arange(self.written, self.written + rows)
        keys = pa.array([f"key-{number % KEYS}" for number in numbers])
        producers = pa.array(np.full(rows, self.number))
        self.written += rows
        self.output.write(pa.record_batch([keys, producers, pa.array(numbers)], schema=SCHEMA))

    def write_until_full(self) -> None:
        while self.output.ready() is None:
            self.write(1000)
            self.mailbox.run_mail()

    def run(self) -> None:
        self.mailbox.run_mail()
        self.output.on_time()


class ConsumerSubtask:
    """Keeps every row that it gets; a `GateUser`."""

    def __init__(
        self, number: int, plane: CountingPlane, addresses: Mapping[int, str], exchange: Exchange, folder: str
    ) -> None:
        self.mailbox = Mailbox(monotonic_ms)
        self.rows: list[Row] = []
        self.watermarks: list[int] = []
        self.ended = False
        self.rows_at_barrier: dict[int, list[Row]] = {}
        self.stored: dict[int, list[Row]] = {}
        self.broken: list[TransportError] = []
        self.inputs = InputExchanges(
            number,
            {UID: exchange},
            {UID: GateInput(stage=0, producers=SLOTS, supports_unaligned=exchange.supports_unaligned)},
            {UID: partitioner_of(exchange, producer=number, parallelism=len(SLOTS), max_parallelism=128)},
            1, plane, self.mailbox, monotonic_ms, self, (),
            producers_recover=False,
            recovery=ChannelRecoveryThread, pool=BufferPool(1 << 20),
        )  # type: ignore[arg-type]  # fmt: skip
        self.inputs.start()
        self.inputs.connect(addresses)

    def entry_rows(self, exchange: str) -> int:
        return SLICE_ROWS

    def on_rows(self, exchange: str, batch: pa.RecordBatch) -> None:
        assert 0 < batch.num_rows <= SLICE_ROWS and not self.ended
        self.rows += rows_of(batch)

    def on_watermark(self, exchange: str, timestamp_ms: int) -> None:
        self.watermarks.append(timestamp_ms)

    def on_idle(self, exchange: str) -> None:
        raise AssertionError("no producer is idle")

    def on_active(self, exchange: str) -> None:
        raise AssertionError("no producer was idle")

    def on_inputs_ended(self) -> None:
        self.ended = True

    def on_barrier(self, barrier: Barrier) -> None:
        self.rows_at_barrier[barrier.checkpoint_id] = list(self.rows)

    def on_input_stored(
        self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[StoredRows]], relocated: frozenset[str]
    ) -> None:
        assert checkpoint_id not in self.stored and not relocated
        self.stored[checkpoint_id] = [
            row for held in channels.values() for read in held for row in rows_of(read.read())
        ]

    def on_recovered(self) -> None:
        """Nothing was."""

    def on_broken(self, error: TransportError) -> None:
        self.broken.append(error)

    def run(self, *, slices: int) -> None:
        self.mailbox.run_mail()
        self.inputs.on_time()
        for _ in range(slices):
            if not self.inputs.poll(overdraft=False):
                break


class World:
    """Two slots, each with a producer and a consumer."""

    def __init__(self, kind: ExchangeKind, folder: Path, **options: Any) -> None:
        exchange = Exchange(SCHEMA, kind, **options)
        self.planes = [CountingPlane() for _ in SLOTS]
        addresses = {slot: self.planes[slot].plane.address for slot in SLOTS}
        self.consumers = [ConsumerSubtask(slot, self.planes[slot], addresses, exchange, str(folder)) for slot in SLOTS]
        self.producers = [ProducerSubtask(slot, self.planes[slot], exchange) for slot in SLOTS]

    def run_until(self, condition: Callable[[], bool], *, slices: int = 3) -> None:
        """Run everyone's mails, and so many slices of each consumer a turn, until it holds."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            for producer in self.producers:
                producer.run()
            for consumer in self.consumers:
                consumer.run(slices=slices)
            time.sleep(0.0005)

    def finish(self) -> None:
        """End the producers, and read everything."""
        for producer in self.producers:
            producer.output.on_ended()
        self.run_until(lambda: all(consumer.ended for consumer in self.consumers))

    def written(self) -> list[Row]:
        """Return all that was written so far."""
        return [
            (f"key-{number % KEYS}", producer.number, number)
            for producer in self.producers
            for number in range(producer.written)
        ]

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.inputs.close()
        for producer in self.producers:
            producer.output.close()
        for each in self.planes:
            each.plane.close()


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def assert_once_and_in_order(world: World) -> None:
    """Every row came once; those of one key from one producer in the order in which they were written."""
    got = [row for consumer in world.consumers for row in consumer.rows]
    assert sorted(got) == sorted(world.written())
    for consumer in world.consumers:
        last: dict[tuple[str, int], int] = {}
        for key, producer, number in consumer.rows:
            assert last.get((key, producer), -1) < number
            last[key, producer] = number


@pytest.fixture
def hashed(tmp_path: Path) -> Iterator[World]:
    world = World("hash", tmp_path, keys=("key",))
    yield world
    world.close()


def test_every_row_comes_once_to_the_consumer_of_its_key_and_in_order(hashed: World) -> None:
    """Batches of all sizes; producers wait for room, consumers take a few slices a turn."""
    sizes = [1, 3000, 7, 30_000, 500, 499, 2, 5000] * 2
    for position, rows in enumerate(sizes):
        for producer in hashed.producers:
            hashed.run_until(lambda producer=producer: producer.output.ready() is None)
            producer.write(rows)
            producer.output.on_watermark(position)
    hashed.finish()
    assert_once_and_in_order(hashed)
    keys = [{key for key, _, _ in consumer.rows} for consumer in hashed.consumers]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == KEYS
    for consumer in hashed.consumers:
        assert consumer.watermarks == sorted(set(consumer.watermarks))
        assert len(sizes) - 1 in consumer.watermarks
    assert all(each.buffers.total() for each in hashed.planes)


@pytest.mark.parametrize("kind", ["rebalance", "broadcast", "forward", "custom"])
def test_other_kinds_lose_nothing_either(tmp_path: Path, kind: ExchangeKind) -> None:
    partition = {"partition": lambda batch, parallelism: pa.array(np.arange(batch.num_rows) % parallelism)}
    world = World(kind, tmp_path, **(partition if kind == "custom" else {}))
    for _ in range(3):
        for producer in world.producers:
            world.run_until(lambda producer=producer: producer.output.ready() is None)
            producer.write(5000)
    world.finish()
    if kind == "broadcast":
        for consumer in world.consumers:
            assert sorted(consumer.rows) == sorted(world.written())
    else:
        assert_once_and_in_order(world)
    world.close()


def test_no_rows_are_asked_for_before_the_first_credit(hashed: World) -> None:
    """A consumer grants none while it recovers: else every rescale would add rows to what is under way."""
    assert all(producer.output.ready() is not None for producer in hashed.producers)
    hashed.run_until(lambda: all(producer.output.ready() is None for producer in hashed.producers), slices=0)
    hashed.finish()


def test_an_unaligned_barrier_passes_rows_that_nobody_processes(hashed: World) -> None:
    """What it passed, in the producers' and the consumers' queues, is in the checkpoint once, and processed later."""
    hashed.run_until(lambda: all(each.output.ready() is None for each in hashed.producers), slices=0)
    for producer in hashed.producers:
        producer.write_until_full()
    hashed.run_until(lambda: all(each.buffers == each.credits and each.buffers for each in hashed.planes), slices=0)
    for producer in hashed.producers:
        producer.write_until_full()
    before = hashed.written()
    for producer in hashed.producers:
        producer.output.barrier(Barrier(checkpoint_id=1, unaligned=True))
    everyone = (*hashed.producers, *hashed.consumers)
    hashed.run_until(lambda: all(1 in each.stored for each in everyone), slices=0)
    assert not any(consumer.rows for consumer in hashed.consumers), "nothing was processed"
    assert sorted(row for each in everyone for row in each.stored[1]) == sorted(before)
    assert all(each.stored[1] for each in everyone), "on both sides"
    hashed.finish()
    assert_once_and_in_order(hashed)


def test_an_aligned_barrier_waits_for_the_rows_before_it(hashed: World) -> None:
    hashed.run_until(lambda: all(each.output.ready() is None for each in hashed.producers), slices=0)
    for producer in hashed.producers:
        producer.write_until_full()
    before = hashed.written()
    for producer in hashed.producers:
        producer.output.barrier(Barrier(checkpoint_id=1))
        producer.write(5000)
    everyone = (*hashed.producers, *hashed.consumers)
    hashed.run_until(lambda: all(1 in each.stored for each in everyone), slices=1)
    assert sorted(row for each in hashed.consumers for row in each.rows_at_barrier[1]) == sorted(before)
    assert not any(each.stored[1] for each in everyone)
    hashed.finish()
    assert_once_and_in_order(hashed)


def test_a_barrier_with_a_timeout_passes_when_it_is_over(hashed: World) -> None:
    """It kept its place for 50 ms, in vain."""
    hashed.run_until(lambda: all(each.output.ready() is None for each in hashed.producers), slices=0)
    for producer in hashed.producers:
        producer.write_until_full()
    before = hashed.written()
    for producer in hashed.producers:
        producer.output.barrier(Barrier(checkpoint_id=1, unaligned=True, alignment_timeout_ms=50))
        assert not producer.stored
    everyone = (*hashed.producers, *hashed.consumers)
    hashed.run_until(lambda: all(1 in each.stored for each in everyone), slices=0)
    assert sorted(row for each in everyone for row in each.stored[1]) == sorted(before)
    hashed.finish()
    assert_once_and_in_order(hashed)


def test_a_side_that_closes_is_reported_to_the_other(hashed: World) -> None:
    for producer in hashed.producers:
        producer.write(100)
    hashed.producers[0].output.close()
    hashed.run_until(lambda: all(consumer.broken for consumer in hashed.consumers))
    assert all(str(UID) in str(error) for consumer in hashed.consumers for error in consumer.broken)
    hashed.consumers[0].inputs.close()
    hashed.run_until(lambda: bool(hashed.producers[1].broken), slices=0)
    assert not hashed.producers[0].broken
