"""What an operator, or a sink's writer, may know about where and as what it runs.

Never: hold anything that is open.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec

from headgate.protocol.key_groups import KeyGroupRange, key_group_range
from headgate.protocol.messages import HelperProgress


class HelperUse(msgspec.Struct):
    """What the operators of a subtask had the Java process for expressions do, since the deployment.

    Parameters
    ----------
    requests, rows
        Batches that were sent to it, and their rows.
    busy_ms
        How long operators waited for answers, in milliseconds.
    """

    requests: int = 0
    rows: int = 0
    busy_ms: float = 0.0

    def add(self, rows: int, took_ms: float) -> None:
        """Count a batch. On the subtask's thread."""
        self.requests += 1
        self.rows += rows
        self.busy_ms += took_ms

    def progress(self) -> HelperProgress | None:
        """Return it as figures; None: nothing was done."""
        if not self.requests:
            return None
        return HelperProgress(requests=self.requests, rows=self.rows, busy_ms=round(self.busy_ms))


class OperatorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may know.

    Parameters
    ----------
    uid
        Names the operator in checkpoints.
    subtask, parallelism
        Which one of how many.
    run, attempt, execution
        They make names of staged files unique.
    query_id
        The query's.
    options
        The query's options (``spark.headgate.*`` and those of ``writeStream``).
    max_parallelism
        How many key groups there are.
    time_zone
        The session's.
    spill_folder
        A folder on the local disk, for this execution alone; deleted after it.
    memory_bytes
        How much of its keyed state an operator keeps in memory (`state.memory`); the rest is spilled.
    catalyst_memory_bytes
        The largest heap of the Java process for expressions (`catalyst.memory`).
    catalyst_java_options
        Its further options (`catalyst.extraJavaOptions`).
    application
        Spark's id of the application: its slots on a host share that process.
    helper_use
        Counts what that process is asked.
    load
        Reads a pickled object of the user's, whose classes are the slot's own.
    """

    uid: str
    subtask: int
    parallelism: int
    run: int = 0
    attempt: int = 0
    execution: int = 0
    query_id: str = ""
    options: dict[str, str] = {}
    max_parallelism: int = 128
    time_zone: str = "UTC"
    spill_folder: str = ""
    memory_bytes: int = 0
    catalyst_memory_bytes: int = 512 << 20
    catalyst_java_options: str = ""
    application: str = ""
    helper_use: HelperUse = msgspec.field(default_factory=HelperUse)
    load: Callable[[bytes], Any] = pickle.loads

    @property
    def execution_name(self) -> str:
        """Names what the subtask makes in this execution: no other one of the query has the same."""
        return f"{self.run}-{self.subtask}-{self.attempt}-{self.execution}"

    def chunk_names(self) -> Iterator[str]:
        """Return names for chunks of the operator's state, that no other execution gives."""
        return (f"{self.uid}-{self.execution_name}-{number}" for number in count(1))

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of this subtask."""
        return key_group_range(self.subtask, self.parallelism, self.max_parallelism)
