"""The Pulsar sink of continuous queries: how rows are sent, staged and published.

Never: look at the guarantee; `headgate.sink.broker_sink` has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headgate.connectors.pulsar.client import NAME, require_client_library
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import MessageWriter
from headgate.connectors.pulsar.sink.publisher import PulsarPublisher
from headgate.connectors.pulsar.sink.rows import ROWS_SCHEMA
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.broker_sink import BrokerSink, RowSender, RowStager


def make_pulsar_sink(options: Mapping[str, str], schema: pa.Schema) -> ContinuousPulsarSink:
    """Return the sink for the format ``headgate.pulsar``. On the driver.

    Parameters
    ----------
    options
        Those of ``writeStream``: as for `headgate.pulsar` in Structured Streaming.
    schema
        The columns that are written.

    Raises
    ------
    OptionError
        An option is unknown or has a bad value; a column is missing or has the wrong type.
    DeploymentError
        pulsar-client is not installed.
    """
    require_client_library()
    return ContinuousPulsarSink(PulsarSink.of(options, schema))


class ContinuousPulsarSink(BrokerSink):
    """Writes rows to Pulsar. Made by `make_pulsar_sink`."""

    name = NAME

    def __init__(self, sink: PulsarSink) -> None:
        super().__init__(exactly_once=sink.exactly_once)
        self._sink = sink

    def row_sender(self) -> RowSender:
        """Return what sends messages by producers."""
        return _Sender(self._sink)

    def row_stager(self) -> RowStager:
        """Return what stages messages, each with its partition."""
        return _Stager(self._sink)

    def publisher(self, context: OperatorContext, items: Sequence[bytes]) -> PulsarPublisher:
        """Return what publishes by producers with sequence ids. Raises `OptionError` if there is no ``admin.url``."""
        return PulsarPublisher(self._sink, context, items)


class _Sender:
    def __init__(self, sink: PulsarSink) -> None:
        self._writer = MessageWriter(sink)
        self.serve = self._writer.raise_failure
        self.drop_rows = self.close = self._writer.abandon

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(self._writer.router.route(batch))
        self._writer.flush()  # without one the last rows would wait for more

    def write_now(self, batch: pa.RecordBatch) -> int:
        return 0  # a flush waits for the brokers

    def flush(self) -> None:
        self._writer.router.forget()


class _Stager(RowStager):
    schema = ROWS_SCHEMA

    def __init__(self, sink: PulsarSink) -> None:
        self._lookups = MessageWriter(sink)  # it asks for partitions, and sends nothing

    def staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._lookups.router.route(batch)

    def barrier_passed(self) -> None:
        self._lookups.router.forget()

    def close(self) -> None:
        self._lookups.abandon()
