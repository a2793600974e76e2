"""Slots as threads of the driver's process (``slots=threads``): each with a copy of the query, as a Spark task has it.

Never: start a Spark job, or let what a slot does to a function or a class of the user's show in the user's program.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark import cloudpickle
from pyspark.core import broadcast
from pyspark.core.broadcast import Broadcast

from headgate.driver.slot_threads import SlotThreads
from headgate.errors import DeploymentError
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol.messages import ErrorReport
from headgate.runtime.process import SharedProcess
from headgate.runtime.slot import SlotRuntime, SlotSettings
from headgate.spark.continuous.job import session_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_cloudpickle: Any = cloudpickle.cloudpickle
_CLASS_MAKERS = (_cloudpickle._make_skeleton_class, _cloudpickle._make_skeleton_enum)
"""What cloudpickle makes a class with that cannot be imported; the last two arguments are its id, and nothing."""


def submit_threads(
    spark: SparkSession,
    name: str,
    settings: SlotSettings,
    definition: QueryDefinition,
    parallelism: int,
    on_ended: Callable[[ErrorReport | None], None],
    avoid: Collection[str] = (),
) -> SlotThreads:
    """Start the slots of one submission; the parameters are those of `headgate.spark.continuous.job.SlotJob`."""

    def make_all() -> Callable[[int], SlotRuntime]:
        try:
            data = bytes(cloudpickle.dumps(definition))  # type: ignore[no-untyped-call]
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
    copies = SlotCopies(broadcasts)
    process = SharedProcess((folder,), copies.load)
    return SlotRuntime(settings, copies.load(data), slot, settings.submission << 16, process)


class SlotCopies:
    """Reads what was pickled for one slot, as another process would.

    cloudpickle knows classes of this process again and would write over them; here they are the slot's own. What a
    slot pickles of them is known to the driver by the same id.

    Parameters
    ----------
    broadcasts
        The broadcast variables that functions may use: these are the driver's.
    """

    def __init__(self, broadcasts: Collection[Broadcast[Any]] = ()) -> None:
        self._broadcasts = {cast(Any, each)._jbroadcast.id(): each for each in broadcasts}
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._classes: dict[str, type] = {}

    def load(self, data: bytes) -> Any:
        """Return the object. Any thread."""
        return _Unpickler(io.BytesIO(data), self).load()

    def replacement(self, found: Any) -> Any:
        """Return what stands for a function that a pickle calls."""
        if any(found is each for each in _CLASS_MAKERS):
            return partial(self._make_class, found)
        return self._broadcast if found is broadcast._from_id else found

    def _broadcast(self, number: int) -> Broadcast[Any]:
        known = self._broadcasts.get(number)
        return broadcast._from_id(number) if known is None else known

    def _make_class(self, make: Callable[..., type], *arguments: Any) -> type:
        *what, identity, extra = arguments
        with self._lock:
            if identity not in self._classes:
                made = make(*what, None, extra)
                with _cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
                    _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity
                self._classes[identity] = made
            return self._classes[identity]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, copies: SlotCopies) -> None:
        super().__init__(file)
        self._copies = copies

    def find_class(self, module: str, name: str, /) -> Any:
        return self._copies.replacement(super().find_class(module, name))
