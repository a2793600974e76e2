"""The long Spark task that is a slot.

Never: return rows. What a slot reads goes to the query's sink.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark import TaskContext

from headgate.errors import DeploymentError
from headgate.event_log import configure, set_process_context
from headgate.graph.stage_graph import QueryDefinition
from headgate.runtime.slot import SlotRuntime, SlotSettings
from headgate.versions import check_versions


def run_slot(settings: SlotSettings, definition: QueryDefinition, numbers: Iterable[int | str]) -> Iterable[None]:
    """Be the slot of a number until the coordinator says that it is over: the function of Spark's ``mapPartitions``."""
    check_versions(settings.versions)
    context = TaskContext.get()
    if context is None:
        raise DeploymentError("a slot must run in a Spark task")
    (number,) = numbers
    configure(structured=settings.structured_logs, level=logging.INFO if settings.structured_logs else logging.WARNING)
    set_process_context(query=definition.name or settings.query_id[:8], slot=number)
    attempt = settings.submission << 16 | context.attemptNumber()
    SlotRuntime(settings, definition, int(number), attempt).run()
    return ()
