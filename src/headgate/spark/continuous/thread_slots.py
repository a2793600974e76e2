"""Slots as threads of the driver's process (``slots=threads``): each with a copy of the query, as a Spark task has it.

Never: start a Spark job, or let what a slot does to a function or a class of the user's show in the user's program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.core.broadcast import Broadcast

from headgate.driver.slot_threads import SlotThreads
from headgate.errors import DeploymentError
from headgate.graph.stage_graph import QueryDefinition
from headgate.pickling import dumps
from headgate.protocol.messages import ErrorReport
from headgate.runtime.process import SharedProcess
from headgate.runtime.slot import SlotRuntime, SlotSettings
from headgate.spark.continuous.copies import Copies
from headgate.spark.continuous.job import session_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def submit_threads(
    spark: SparkSession,
    name: str,
    settings: SlotSettings,
    definition: QueryDefinition,
    parallelism: int,
    on_ended: Callable[[ErrorReport | None], None],
    avoid: Collection[str] = (),
    description: str = "",
) -> SlotThreads:
    """Start the slots of one submission; the parameters are those of `headgate.spark.continuous.job.SlotJob`."""

    def make_all() -> Callable[[int], SlotRuntime]:
        try:
            data = dumps(definition)
        except Exception as error:
            raise DeploymentError(
                f"The query cannot be copied for its slots: {type(error).__name__}: {error}. Let functions make what "
                "cannot be pickled where they use it."
            ) from error
        context: Any = spark.sparkContext
        broadcasts = list(context._pickled_broadcast_vars)  # of this thread: those that the query uses
        return partial(_make_slot, settings, data, broadcasts, context._temp_dir)  # which Spark deletes when it stops

    return SlotThreads(name, make_all, parallelism, on_ended, look=partial(session_end, spark))


def _make_slot(
    settings: SlotSettings, data: bytes, broadcasts: Collection[Broadcast[Any]], folder: str, slot: int
) -> SlotRuntime:
    copies = Copies(broadcasts)
    process = SharedProcess((folder,), copies.loads)
    return SlotRuntime(settings, copies.loads(data), slot, settings.submission << 16, process)
