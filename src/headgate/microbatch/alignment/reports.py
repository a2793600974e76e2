"""A task's part: it records the highest event time of each split that it reads and reports to its planner when it ends.

Never: fail a task, or hold it up for long. What is reported is a hint: where no way leads to the planner it is lost,
which a warning says, and a source that cannot seek event times is then aligned less.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pyarrow as pa

from headgate.microbatch.alignment.messages import EventTimesSeen, ReportTo, receive, send
from headgate.source import SourceOutput
from headgate.source.event_time import highest_event_time_ms
from headgate.task.reader_output import BatchOutput

logger = logging.getLogger(__name__)

_REPORT_S = 2.0
_warned: set[str] = set()
"""The members that this process could not reach: one warning for each will do."""


class EventTimeOutput(BatchOutput):
    """Collects batches, and notes the highest event time of each split.

    Parameters
    ----------
    column
        The event-time column, a timestamp.
    """

    def __init__(self, column: str) -> None:
        super().__init__()
        self._column = column
        self.event_times: dict[str, int] = {}
        """The highest event time by split, in milliseconds; without splits that had none."""

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """Return an output that knows its split."""
        return _SplitOutput(self, split_id)

    def note(self, split_id: str, batch: pa.RecordBatch) -> None:
        """Look at the event times of a batch."""
        highest_ms = _highest_ms(batch, self._column)
        if highest_ms is not None:
            self.event_times[split_id] = max(highest_ms, self.event_times.get(split_id, highest_ms))


class _SplitOutput(SourceOutput):
    def __init__(self, output: EventTimeOutput, split_id: str) -> None:
        self._output = output
        self._split_id = split_id

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self._output.note(self._split_id, batch)
        self._output.emit_batch(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Ignored."""

    def mark_idle(self) -> None:
        """Ignored."""


def report(to: ReportTo, event_times: dict[str, int]) -> None:
    """Report to a planner what event times were read of its splits. Blocks for a moment; does nothing if that fails."""
    if not event_times:
        return
    errors = []
    for family, address in _ways(to):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(_REPORT_S)
                connection.connect(address)
                send(connection, EventTimesSeen(to.endpoint.token, to.member, event_times))
                receive(connection)  # only then may the planner be asked for the next batch
                return
        except (OSError, EOFError) as error:
            errors.append(f"{address}: {error}")
    level = logging.DEBUG if to.member in _warned else logging.WARNING
    _warned.add(to.member)
    logger.log(
        level,
        "The event times that this task read cannot be reported to the driver's machine (%s): the source is aligned "
        "less closely. Tasks connect to any port there; see docs/event-time.md.",
        "; ".join(errors),
    )


def _ways(to: ReportTo) -> Iterator[tuple[int, str | tuple[str, int]]]:
    """Yield the planner's sockets, the nearest first."""
    yield socket.AF_UNIX, to.endpoint.path
    for address in to.endpoint.addresses:
        yield socket.AF_INET, address


def _highest_ms(batch: pa.RecordBatch, name: str) -> int | None:
    index = batch.schema.get_field_index(name)
    if index < 0 or not pa.types.is_timestamp(batch.schema.field(index).type):
        return None  # the batch is refused where it is cast to the schema
    return highest_event_time_ms(batch.column(index))
