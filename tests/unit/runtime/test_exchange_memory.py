"""What the channels of a subtask hold does not grow with their number: neither at the consumer nor at the producer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.exchange import Exchange
from headgate.protocol.channels import CREDITS, Buffer, ChannelId, Element, WatermarkPassed
from headgate.runtime.coalescer import MAX_BYTES, MEMORY_BYTES, MIN_BYTES, buffer_bytes, buffers_of
from headgate.runtime.mailbox import Mailbox
from headgate.runtime.output_exchange import OutputExchange
from headgate.runtime.partitioners import partitioner_of
from headgate.task.exchange import input_gate as ig
from headgate.task.exchange import result_partition as rp

SCHEMA = pa.schema({"n": pa.int64()})
ROWS = pa.record_batch([pa.array(range(1 << 15), pa.int64())], schema=SCHEMA)  # 256 KiB
MANY = [2, 8, 64, 1_000]


@pytest.mark.parametrize(("channels", "kib"), [(2, 1024), (8, 1024), (64, 128), (1_000, 32)])
def test_the_more_channels_the_smaller_are_buffers(channels: int, kib: int) -> None:
    """Between 1 MiB and 32 KiB; three quarters of it are worth sending."""
    assert buffer_bytes(channels) == kib << 10
    output = output_to(channels, Plane(), Mailbox(lambda: 0), timeout_ms=5)
    many = -(-(channels * kib * 768) // ROWS.nbytes)
    for _ in range(many - 1):
        output.write(ROWS)
    assert output.is_empty
    assert output.due_ms() is not None
    output.write(ROWS)
    assert output.due_ms() is None


def test_more_memory_makes_larger_buffers_and_less_smaller_ones() -> None:
    assert buffer_bytes(64, 4 * MEMORY_BYTES) == 512 << 10
    assert buffer_bytes(1, 1 << 30) == MAX_BYTES
    assert buffer_bytes(8, 2 << 20) == 64 << 10
    assert buffer_bytes(1, 1) == MIN_BYTES


@pytest.mark.parametrize("channels", MANY)
def test_a_gate_whose_channels_are_all_full_holds_what_it_may(channels: int) -> None:
    """Nobody processes; every producer sends as much as it has credit for."""
    inputs = {"keys": ig.GateInput(stage=0, producers=tuple(range(channels)), supports_unaligned=True)}
    gate = ig.InputGate(0, inputs)
    for producer in range(channels):
        channel = ChannelId("keys", producer, 0)
        partition = rp.ResultPartition("keys", producer, [0], supports_unaligned=True)
        partition.handle(rp.ConsumerConnected(0), 0)
        for granted in gate.handle(ig.ChannelConnected(channel), 0):
            assert isinstance(granted, ig.GrantCredit) and granted.channel == channel
            partition.handle(rp.CreditGranted(0, granted.credits), 0)
        while not partition.queued_buffers:
            for buffer in buffers_of(ROWS, buffer_bytes(channels)):
                for sent in partition.handle(rp.RowsEmitted(0, buffer), 0):
                    assert isinstance(sent, rp.Transmit)
                    gate.handle(ig.ElementArrived(channel, sent.element), 0)
    waiting = [each for channel in gate._channels.values() for each in channel.sent]
    assert len(waiting) == CREDITS * channels
    held_bytes = sum(each.size_bytes for each in waiting if isinstance(each, Buffer))
    assert held_bytes <= max(MEMORY_BYTES, channels * CREDITS * MIN_BYTES)


class Link:
    """A consumer that takes what it has granted credit for, and nothing more."""

    def __init__(self, end: Any) -> None:
        self.end = end
        self.taken: list[Element] = []
        self.send = self.taken.append

    def close(self) -> None:
        pass


class Plane:
    """Has a link to each consumer."""

    def __init__(self) -> None:
        self.links: list[Link] = []

    def offer(self, channel: ChannelId, generation: int, schema: pa.Schema, end: Any) -> Link:
        self.links.append(Link(end))
        return self.links[-1]


def output_to(consumers: int, plane: Plane, mailbox: Mailbox, timeout_ms: int = 0) -> OutputExchange:
    """Return an output whose consumers are connected, and have granted a credit each."""
    exchange = Exchange(SCHEMA, "rebalance")
    output = OutputExchange(
        "keys", exchange, 0, range(consumers), 1,
        partitioner_of(exchange, producer=0, parallelism=consumers, max_parallelism=1024), timeout_ms,
        plane, mailbox, lambda: 0, lambda checkpoint_id, channels: None, on_broken=pytest.fail,
    )  # type: ignore[arg-type]  # fmt: skip
    for link in plane.links:
        link.end.on_connected()
        link.end.on_credit(1)
    mailbox.run_mail()
    return output


def test_a_watermark_leaves_with_the_rows_before_it() -> None:
    """Also where a producer is always busy, and its buffers are full; none waits for what may never come."""
    plane, mailbox = Plane(), Mailbox(lambda: 0)
    output = output_to(2, plane, mailbox, timeout_ms=5)
    for link in plane.links:
        link.end.on_credit(10_000)
    mailbox.run_mail()
    output.write(ROWS.slice(0, 2))
    output.on_watermark(7)
    output.write(pa.concat_batches([ROWS] * 16))
    assert output.due_ms() is None
    for link in plane.links:
        assert link.taken[-1] == WatermarkPassed(7)


@pytest.mark.parametrize("both_slow", [False, True])
def test_without_room_rows_leave_if_they_reach_anybody_at_once(both_slow: bool) -> None:
    """Where all consumers would find them in a queue, they wait for more rows."""
    plane, mailbox = Plane(), Mailbox(lambda: 0)
    output = output_to(2, plane, mailbox, timeout_ms=5)
    if not both_slow:
        plane.links[1].end.on_credit(10_000)
        mailbox.run_mail()
    while output.ready() is None:
        output.write(pa.concat_batches([ROWS] * 16))
    for n in range(2):
        output.write(ROWS.slice(n, 1))
    output.on_watermark(7)
    output.rest()
    taken = plane.links[1].taken
    assert output.ready() is not None and len(plane.links[0].taken) == 1
    if both_slow:
        assert output.due_ms() == 100 and len(taken) == 1
    else:
        assert output.due_ms() is None
        assert [taken[-2].num_rows, type(taken[-1])] == [1, WatermarkPassed]  # type: ignore[union-attr]


@pytest.mark.parametrize("consumers", MANY)
def test_what_waits_at_a_producer_is_bounded_for_all_consumers_together(consumers: int) -> None:
    """It has no room when half a buffer waits for each, or a quarter of the memory if that is less, whoever it is for.

    All of it is written with an unaligned checkpoint.
    """
    plane, mailbox = Plane(), Mailbox(lambda: 0)
    output = output_to(consumers, plane, mailbox)
    most = 0
    written = pa.concat_batches([ROWS] * 16)  # 4 MiB
    while output.ready() is None:
        output.write(written)
        most = max(most, output._partition.queued_bytes)
    bound = min(MEMORY_BYTES // 4, consumers * buffer_bytes(consumers) // 2)
    assert bound <= most <= bound + written.nbytes
    sent = [each for link in plane.links for each in link.taken if isinstance(each, Buffer)]
    assert max(each.size_bytes for each in sent) <= buffer_bytes(consumers)
    for link in plane.links:  # somebody has room again, and so has it
        link.end.on_credit(1_000_000)
    mailbox.run_mail()
    assert output.ready() is None and output.is_empty
