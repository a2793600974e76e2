"""The sink ``noop``: throws rows away, to measure everything before it.

Never: look at a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import pyarrow as pa

from headgate.futures import done_with
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.sink import Sink, SinkWriter
from headgate.source.options import Options, OptionSpec, text

SINK_OPTION_SPECS = (OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),)


class NoopSink(Sink):
    """See `Sink`.

    Parameters
    ----------
    options
        What the user set.
    """

    name = "noop"

    def __init__(self, options: Mapping[str, str]) -> None:
        Options.parse("The sink noop", SINK_OPTION_SPECS, options)

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> NoopWriter:
        """See `Sink.create_writer`."""
        return NoopWriter()


class NoopWriter(SinkWriter):
    """Counts rows."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self.rows += batch.num_rows

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """See `SinkWriter.prepare_commit`."""
        return done_with(OperatorState())
