"""The reader of a continuous query reports its position to a consumer group, and never at the query's cost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.reader import KafkaReader
from headgate.connectors.kafka.reader_metrics import ReaderMetrics
from headgate.connectors.kafka.split import KafkaSplit
from headgate.readers import ReaderOptions
from headgate.source import SourceReaderContext

CLIENT = ClientConfig((("bootstrap.servers", "127.0.0.1:1"),))


class Reader(KafkaReader):
    """Holds a split without reading it, and notes what it would commit."""

    def __init__(self, query: str | None) -> None:
        context = SourceReaderContext(
            subtask=0, schema=pa.schema([]), host=None, request_split=lambda: None, send_event=print, query=query
        )
        metrics = ReaderMetrics(context.metric_group)
        super().__init__(lambda: pytest.fail("nothing is read"), context, ReaderOptions(), CLIENT, metrics)
        self.committed: list[int] = []

    def at(self, position: int) -> None:
        """Move on."""
        split = KafkaSplit(split_id="t-0", topic="t", partition=0, position=position)
        self._splits = {split.split_id: split}

    def _commit(self, splits: list[KafkaSplit]) -> None:
        self.committed += [split.position for split in splits]


def test_a_completed_checkpoint_s_positions_are_committed_and_no_later_ones() -> None:
    reader = Reader("rides")
    for checkpoint, position in [(1, 10), (2, 20), (3, 30)]:
        reader.at(position)
        reader.snapshot_state(checkpoint)
    reader.at(40)
    reader.notify_checkpoint_complete(2)
    reader.notify_checkpoint_complete(2)  # reported again: nothing to do
    assert reader.committed == [20]


def test_without_a_query_nothing_is_committed() -> None:
    reader = Reader(None)
    reader.at(10)
    reader.snapshot_state(1)
    reader.notify_checkpoint_complete(1)
    assert reader.committed == []


def test_checkpoints_that_never_complete_are_forgotten() -> None:
    reader = Reader("rides")
    for checkpoint in range(1, 1000):
        reader.at(checkpoint)
        reader.snapshot_state(checkpoint)
    assert len(reader._positions) < 10
    reader.notify_checkpoint_complete(999)
    assert reader.committed == [999]


def test_an_error_of_the_brokers_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Reader):
        def _commit(self, splits: list[KafkaSplit]) -> Any:
            raise RuntimeError("no such group")

    reader = Failing("rides")
    reader.at(10)
    reader.snapshot_state(1)
    reader.notify_checkpoint_complete(1)
    assert "no such group" in caplog.text
    assert reader.context.metric_group.collect().metrics["commitsFailed"].value == 1
