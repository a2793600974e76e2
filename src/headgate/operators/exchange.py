"""The exchange: where rows go from the subtasks of one stage to those of the next, as a node of a query.

Never: move a row itself (`headgate.runtime.output_exchange` does), or hold anything of a subtask.

    kind        rows go to                                        a recovered buffer, at another parallelism, goes to
    ----------  ------------------------------------------------  ---------------------------------------------------
    hash        the subtask of their key group                    every subtask with key groups of it, which filters
    rebalance   one of the first ``targets`` subtasks, in turn    one subtask
    broadcast   every subtask                                     every subtask, one copy each
    custom      the subtask that a function says                  every subtask, which filters
    forward     the subtask of the same number (slot)             none: its barriers are never unaligned

Of any other kind an exchange may be aligned, too: what a checkpoint is to show passes it before the barrier does.

Follows FLIP-547, "Existing logic"; FLINK-31963, -35351, -38483 and -37870.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.protocol.state_schema import StateColumn, StateSchema

ExchangeKind = Literal["hash", "rebalance", "broadcast", "custom", "forward"]
Partition = Callable[[pa.RecordBatch, int], pa.Array]
"""A partitioner: rows and the number of subtasks to the subtask of each row. Deterministic."""


class Exchange(Operator):
    """An edge between two stages.

    Parameters
    ----------
    schema
        The columns that pass.
    kind
        Who gets which rows.
    keys
        With ``hash``: the columns of the key, by name.
    targets
        With ``rebalance``: how many subtasks get rows at most; None: all.
    partition
        With ``custom``: the function.
    aligned
        Whether barriers never pass its rows, although those of its kind do.
    """

    def __init__(
        self,
        schema: pa.Schema,
        kind: ExchangeKind,
        *,
        keys: tuple[str, ...] = (),
        targets: int | None = None,
        partition: Partition | None = None,
        aligned: bool = False,
    ) -> None:
        assert (kind == "hash") == bool(keys) and (kind == "custom") == (partition is not None)
        self.schema = schema
        self.exchange_kind: ExchangeKind = kind
        self.kind = {"hash": "key-by", "rebalance": "repartition", "custom": "partition-by"}.get(kind, kind)
        self.keys = keys
        self.targets = targets
        self.partition = partition
        self.aligned = aligned

    @property
    def signature(self) -> str:
        """With ``hash``: by what rows are dealt out, else empty."""
        return f"by {', '.join(f'{key} {self.schema.field(key).type}' for key in self.keys)}" if self.keys else ""

    @property
    def state_schema(self) -> StateSchema | None:
        """With ``hash``: the columns of the key, which may become wider while rows are on their way, else None."""
        if not self.keys:
            return None
        keys = (StateColumn(name=key, kind=str(self.schema.field(key).type)) for key in self.keys)
        return StateSchema(window="", keys=tuple(keys), aggregates=())

    @property
    def supports_unaligned(self) -> bool:
        """Whether barriers may pass its rows (per connection: FLINK-37870)."""
        return self.exchange_kind != "forward" and not self.aligned

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Not called: an exchange is where a chain ends and another begins."""
        raise AssertionError(f"{self.uid} is an exchange")


class Partitioner:
    """Says which subtask gets which rows of an exchange. The contract; made by `partitioner_of`."""

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Return (consumer, rows) pairs: the rows of each consumer that gets any, in their order."""
        raise NotImplementedError

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        """Return the rows of a recovered buffer that belong to a consumer."""
        raise NotImplementedError
