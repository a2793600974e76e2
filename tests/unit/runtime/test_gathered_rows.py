"""Small buffers of several channels are one batch for the chain; large ones are not copied for that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.exchange import Exchange
from headgate.protocol.channels import Buffer
from headgate.runtime.channel_recovery_thread import BufferPool
from headgate.runtime.coalescer import MAX_BYTES
from headgate.runtime.input_exchanges import InputExchanges
from headgate.runtime.mailbox import Mailbox
from headgate.runtime.partitioners import partitioner_of
from headgate.task.exchange.input_gate import GateInput

SCHEMA = pa.schema({"n": pa.int64()})


PARTITIONER = partitioner_of(
    Exchange(SCHEMA, "hash", keys=("n",)), producer=0, parallelism=2, max_parallelism=8
)  # fmt: skip


class Link:
    """A producer, as far as a consumer sees it."""

    def __init__(self, end: Any) -> None:
        self.end = end
        self.granted = 0

    def grant(self, credits: int) -> None:
        self.granted += credits


class Gate:
    """The inputs of a subtask with two exchanges, of two producers each; it is their plane and their user."""

    def __init__(self) -> None:
        self.links: dict[tuple[str, int], Link] = {}
        self.taken: list[tuple[str, list[int]]] = []
        self.batches: list[pa.RecordBatch] = []
        self.slice_rows = 1_000_000
        exchanges = {uid: Exchange(SCHEMA, "hash", keys=("n",)) for uid in "xy"}
        self.mailbox = Mailbox(lambda: 0)
        self.inputs = InputExchanges(
            0,
            exchanges,
            {uid: GateInput(stage=0, producers=(0, 1), supports_unaligned=True) for uid in exchanges},
            {
                uid: partitioner_of(each, producer=0, parallelism=2, max_parallelism=8)
                for uid, each in exchanges.items()
            },
            1,
            self,  # type: ignore[arg-type]
            self.mailbox,
            lambda: 0,
            self,  # type: ignore[arg-type]
            [],
            producers_recover=False,
            recovery=pytest.fail,
            pool=BufferPool(1),
        )
        self.inputs.connect({0: "a", 1: "b"})
        for link in self.links.values():
            link.end.on_connected()
        self.mailbox.run_mail()

    def connect(self, address: str, channel: Any, generation: int, schema: pa.Schema, end: Any) -> Link:
        return self.links.setdefault((channel.exchange, channel.producer), Link(end))

    def entry_rows(self, exchange: str) -> int:
        return self.slice_rows

    def on_rows(self, exchange: str, batch: pa.RecordBatch) -> None:
        self.taken.append((exchange, batch.column("n").to_pylist()))
        self.batches.append(batch)

    def send(self, exchange: str, producer: int, numbers: Any, *, unfiltered: bool = False) -> pa.RecordBatch:
        rows = pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)
        self.links[exchange, producer].end.on_element(Buffer(rows, rows.num_rows, rows.nbytes, unfiltered))
        self.mailbox.run_mail()
        return rows

    def poll(self) -> list[tuple[str, list[int]]]:
        self.inputs.poll(overdraft=False)
        taken, self.taken = self.taken, []
        return taken


def test_what_is_ready_is_one_batch() -> None:
    """Of one exchange, each channel in its order; what is another subtask's is left out; credits come back together."""
    gate = Gate()
    gate.send("x", 0, [1])
    gate.send("y", 0, [2])
    gate.send("x", 1, [3, 4])
    gate.send("x", 0, [5])
    gate.send("x", 1, range(100), unfiltered=True)
    ((exchange, numbers),) = gate.poll()
    own = PARTITIONER.filter_owned(pa.record_batch([pa.array(range(100))], schema=SCHEMA), 0).column("n").to_pylist()
    assert (exchange, numbers) == ("x", [1, 3, 4, 5, *own]) and 0 < len(own) < 100
    assert gate.poll() == [("y", [2])]
    assert [link.granted for link in gate.links.values()] == [6, 6, 4, 4]


def test_no_more_than_a_slice_is_taken() -> None:
    """The rest of the last buffer comes first next time."""
    gate = Gate()
    gate.slice_rows = 4
    gate.send("x", 0, [1, 2, 3])
    gate.send("x", 1, [4, 5, 6])
    assert [gate.poll() for _ in range(3)] == [[("x", [1, 2, 3, 4])], [("x", [5, 6])], []]


def test_a_large_buffer_is_not_copied() -> None:
    """What is ready besides is the next batch."""
    gate = Gate()
    large = gate.send("x", 0, range(MAX_BYTES // 16))
    gate.send("x", 1, [4])
    gate.poll()
    assert gate.batches[0].column(0).buffers()[1].address == large.column(0).buffers()[1].address
    assert gate.poll() == [("x", [4])]
