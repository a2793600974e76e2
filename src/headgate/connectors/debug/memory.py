"""The sink ``memory``: committed rows as one Arrow table on the driver, for tests and notebooks.

Never: use it for much data: rows travel in checkpoints and stay in the driver's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.debug.carried_rows import CarryingWriter, CommittedNumbers
from headgate.errors import OptionError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import Sink, SinkCommitter
from headgate.source.options import Options, OptionSpec, text

SINK_OPTION_SPECS = (OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),)


class MemorySink(Sink):
    """See `Sink`.

    Parameters
    ----------
    options
        What the user set.
    schema
        The rows' columns.
    """

    name = "memory"

    def __init__(self, options: Mapping[str, str], schema: pa.Schema) -> None:
        Options.parse("The sink memory", SINK_OPTION_SPECS, options)
        self._schema = schema
        self._committer: MemoryCommitter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_committer": None}  # the rows stay on the driver

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> CarryingWriter:
        """See `Sink.create_writer`."""
        return CarryingWriter(context, schema, most_rows=None, always=self.output_mode == "complete")

    def create_committer(self, checkpoint_location: str) -> MemoryCommitter:
        """Return the one committer of this query: a rescaled query's next run goes on with the same table."""
        if self._committer is None:
            self._committer = MemoryCommitter(self._schema, replaces=self.output_mode == "complete")
        return self._committer


class MemoryCommitter(SinkCommitter):
    """Holds the committed rows. Rows committed by an earlier process are gone with it.

    Parameters
    ----------
    schema
        The rows' columns.
    replaces
        Whether the rows of a checkpoint replace those before, as in the output mode ``complete``.
    """

    def __init__(self, schema: pa.Schema, *, replaces: bool = False) -> None:
        self._schema = schema
        self._replaces = replaces
        self._numbers = CommittedNumbers()
        self._lock = threading.Lock()
        self._tables: list[pa.Table] = []  # guarded by _lock

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """See `SinkCommitter.commit`."""
        new = self._numbers.take_new(committables)
        with self._lock:
            if not self._replaces:
                self._tables += [rows.table for rows in new]
            elif new:
                # A writer also carries what an aborted checkpoint had: its last rows count.
                self._tables = list({rows.writer: rows.table for rows in new}.values())
        return ()

    def table(self) -> pa.Table:
        """Return what is committed, with null in columns that a program before this one did not have. On any thread.

        Raises
        ------
        OptionError
            A column of a program before this one has a type that goes with none of its type now.
        """
        with self._lock:
            tables = [self._schema.empty_table(), *self._tables]
        if all(each.schema == self._schema for each in tables):
            return pa.concat_tables(tables)
        # A checkpoint that an earlier program wrote had rows that were not committed.
        tables = [each.cast(pa.schema([field.with_nullable(True) for field in each.schema])) for each in tables]
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise OptionError(
                f"The checkpoint from which this query resumed holds rows of other columns, which one table cannot "
                f"have beside those of now: {error}. Rename or cast the column, or begin at a new location.",
                option="format", value="memory",
            ) from error  # fmt: skip
