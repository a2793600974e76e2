"""The long Spark task that is a slot.

Never: return rows. What a slot reads goes to the query's sink.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from headgate.errors import DeploymentError
from headgate.graph.stage_graph import QueryDefinition
from headgate.runtime.slot import SlotRuntime, SlotSettings
from headgate.versions import check_versions


def run_slot(
    settings: SlotSettings, definition: QueryDefinition, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Be a slot until the coordinator says that it is over: the function of Spark's ``mapInArrow``."""
    check_versions(settings.versions)
    context = TaskContext.get()
    if context is None:
        raise DeploymentError("a slot must run in a Spark task")
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    attempt = settings.submission << 16 | context.attemptNumber()
    slot = SlotRuntime(settings, definition, int(numbers[0]), attempt)
    slot.run()
    yield from ()
