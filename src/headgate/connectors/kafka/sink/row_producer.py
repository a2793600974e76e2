"""A connected producer that takes rows: the contract of `bulk_producer` and `plain_producer`.

Never: connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

OnFailure = Callable[["KafkaError", str | None, int | None], object]
"""Gets the error of a row that was not delivered, its topic and its partition."""


class RowProducer(Protocol):
    """A connected client. One thread at a time calls it, save for `purge`, and for `poll` beside other calls.

    Callbacks run in calls only. All but `rows` and ``len`` raise ``KafkaException`` for what librdkafka refuses.
    """

    def rows(self, batch: pa.RecordBatch) -> Callable[[], int]:
        """Return what adds the rows of a batch to the queue: from where it ended last time, until the queue is full.

        It returns how many rows are in the queue, or were, all in all. It does not block, and raises
        ``KafkaException`` with the error and the number of the row that can never be added.
        """

    def __len__(self) -> int:
        """Return how many rows the brokers have not acknowledged."""

    def poll(self, seconds: float) -> object:
        """Run the callbacks that are due; wait so long for one."""

    def flush(self, seconds: float) -> int:
        """Wait so long at most until the brokers have all rows; return how many they have not acknowledged."""

    def purge(self) -> object:
        """Drop all rows that the brokers do not have; each is a failure. From any thread."""

    def init_transactions(self, seconds: float) -> object:
        """Fence earlier producers of the same transactional id."""

    def begin_transaction(self) -> object:
        """Begin a transaction."""

    def send_offsets(self, group: str, topics: Iterable[str], offset: int, metadata: str, seconds: float) -> object:
        """Commit an offset on partition 0 of topics for a consumer group, with the transaction."""

    def commit_transaction(self, seconds: float) -> object:
        """Commit the transaction."""

    def abort_transaction(self, seconds: float) -> object:
        """Abort the transaction; its rows that are not sent are failures."""

    def close(self) -> None:
        """Drop what is not sent, and let go of the client; it ends with the last call that is under way."""
