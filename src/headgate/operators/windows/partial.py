"""The first phase of an aggregation: rows become partial results before the exchange, and groups where keys repeat.

Never: hold a row between two batches, or decide whether one is late.

    columns that cross     what they are
    ---------------------  ---------------------------------------------------------------------------------------
    the event time         with windows, or if it is among the keys; of a group one that stands for all that are in the
                           same windows
    keys                   as they were, under their names: rows go to the same subtask
    partial results        of each aggregate, but of those that count rows
    rows                   how many rows it was; it is what those are

The operator after the exchange does with these what it did with rows: it merges what it is given, in whatever pieces.
It decides by the event time what is late, and counts that in rows. What is kept, and stored, is the same.

Where `Repetition` sees that keys do not repeat, each row is lifted, and crosses as a group of its own.

What a checkpoint holds of rows on their way through such an exchange has these columns too, with the aggregates' texts
for names: aggregates more or less are found by them. Rows of before, which an earlier version stored or a query without
two phases, are lifted when they are read (`Partials.of_now`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Emit, Operator
from headgate.operators.windows.aggregates import Partial, merge, ones
from headgate.operators.windows.assigner import MOST_US, Micros, NoWindow, TimeWindow
from headgate.operators.windows.repetition import Repetition
from headgate.operators.windows.windowed import Aggregated, Key, event_times, plain_key
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateSchema
from headgate.state.arrays import one_array

_OURS = "\0"
"""How the names of columns begin that are no row's."""
_TIME, _ROWS = f"{_OURS}time", f"{_OURS}rows"


class Partials:
    """What crosses the exchange instead of rows, and how rows become that.

    Parameters
    ----------
    input_schema
        The columns of the rows.
    window
        The windows.
    time
        The column with the event time; None: it does not matter.
    keys
        The columns of the key.
    aggregates
        What is computed.
    texts
        What each of these is: it is found by that in what was stored.
    """

    def __init__(
        self,
        input_schema: pa.Schema,
        window: TimeWindow | NoWindow,
        *,
        time: str | None,
        keys: Sequence[Key],
        aggregates: Sequence[Aggregated],
        texts: Sequence[str],
    ) -> None:
        self.input_schema = input_schema
        self.texts = tuple(texts)
        self._window = window
        self._time = time
        self.keys = list(dict.fromkeys(key.column for key in keys))
        self._aggregates = tuple(aggregates)
        self._columns = [
            [_ROWS] if each.column is None else [f"{_OURS}{name} {n}" for n in range(len(each.accumulator.partials))]
            for each, name in zip(aggregates, _distinct(texts), strict=True)
        ]
        self._merged_by = {
            name: partial
            for names, each in zip(self._columns, aggregates)
            for name, partial in zip(names, each.accumulator.partials, strict=True)
            if name != _ROWS
        } | {_ROWS: Partial(pa.int64(), "sum", "count(1)", counts=True)}
        self._groups = [*([] if time is None else [_TIME]), *self.keys]
        kinds = {_TIME: pa.int64()} | {name: input_schema.field(name).type for name in self.keys}
        kinds |= {name: each.kind for name, each in self._merged_by.items()}
        self.schema = pa.schema([(name, kinds[name]) for name in (*self._groups, *self._merged_by)])

    # Before the exchange.

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the partial results of rows, one by one; those without an event time are in no window."""
        arrays = []
        if self._time is not None:
            times = batch.column(self._time)
            if isinstance(self._window, NoWindow):
                arrays.append(event_times(times).fill_null(MOST_US))
            else:
                if times.null_count:
                    batch = batch.filter(times.is_valid())
                    times = batch.column(self._time)
                arrays.append(times.cast(pa.int64()))
        arrays += [plain_key(batch.column(name)) for name in self.keys]
        for each in self._aggregates:
            if each.column is not None:
                arrays += each.accumulator.lift(batch.column(each.column), batch.num_rows)
        arrays.append(ones(batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def merged(self, lifted: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row for each group.

        Raises
        ------
        OptionError
            A sum does not fit into its type.
        """
        if isinstance(self._window, TimeWindow):
            panes = self._window.panes(lifted.column(0).to_numpy())
            lifted = lifted.set_column(0, self.schema.field(0), pa.array(panes))
        made = merge(pa.Table.from_batches([lifted]), self._groups, self._merged_by)
        return pa.RecordBatch.from_arrays([one_array(each) for each in made.columns], schema=self.schema)

    # After it.

    def times(self, batch: pa.RecordBatch) -> Micros:
        """Return the event time of each row, or one in the same windows; 0 where none matters."""
        if self._time is None:
            return np.zeros(batch.num_rows, np.int64)
        found: Micros = batch.column(0).to_numpy()
        return found

    def partials_in(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the partial results, aggregate by aggregate."""
        return [batch.column(name) for names in self._columns for name in names]

    def rows_in(self, batch: pa.RecordBatch) -> int:
        """Return how many rows these were."""
        return pc.sum(batch.column(_ROWS)).as_py() or 0

    # In checkpoints.

    @staticmethod
    def are_in(schema: pa.Schema) -> bool:
        """Return whether these columns are partial results, and no rows."""
        return any(name.startswith(_OURS) for name in schema.names)

    def of_now(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Return partial results of other aggregates, or of narrower types, as those of now."""
        columns = dict(zip(stored.schema.names, stored.columns, strict=True))
        nothing = pa.array(np.zeros(stored.num_rows, np.int64))
        for names, each in zip(self._columns, self._aggregates):
            if names[0] not in columns:
                of_nothing = each.accumulator.of_nothing()
                columns |= {name: one.take(nothing) for name, one in zip(names, of_nothing, strict=True)}
        return pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in self.schema], schema=self.schema
        )


def _distinct(texts: Sequence[str]) -> list[str]:
    """Return the texts, those that are there already with a number."""
    seen: Counter[str] = Counter()
    found = []
    for text in texts:
        seen[text] += 1
        found.append(text if seen[text] == 1 else f"{text} {seen[text]}")
    return found


class PartialAggregate(Operator):
    """Turns rows into partial results, and these into groups where keys repeat. It has no state.

    Parameters
    ----------
    partials
        What it makes.
    function
        What it is, for people to read.
    always
        Whether each batch is grouped, whatever is known of those before.
    """

    kind = "partial"

    def __init__(self, partials: Partials, function: str, *, always: bool) -> None:
        self.schema = partials.schema
        self.function = function
        self._partials = partials
        self._always = always

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without an idea of how often keys repeat."""
        self._repetition = Repetition()

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the partial results of a batch."""
        lifted = self._partials.lifted(batch)
        rows = lifted.num_rows
        if rows and (self._always or self._repetition.is_worth_grouping(rows)):
            # A sum may be too large; whether it still is with all rows is found where all are merged.
            with contextlib.suppress(OptionError, pa.ArrowInvalid):
                lifted = self._partials.merged(lifted)
            self._repetition.grouped(rows, lifted.num_rows)
        emit(lifted, split_id)


class PartialExchange(Exchange):
    """The exchange of an aggregation whose first phase is before it.

    Parameters
    ----------
    partials
        What passes.
    keys
        The columns of the key, by name.
    window
        The windows, for people to read.
    state_schema
        That of the aggregation's state; None: it is not known.
    """

    def __init__(
        self, partials: Partials, keys: tuple[str, ...], window: str, state_schema: StateSchema | None
    ) -> None:
        super().__init__(partials.schema, "hash", keys=keys)
        self.partials = partials
        self._window = f"partial results in {window}"
        self._aggregates = () if state_schema is None else state_schema.aggregates

    @property
    def signature(self) -> str:
        """By what the partial results of what are dealt out."""
        kinds = ", ".join(str(field.type) for field in self.schema)
        return f"{self._window} of {', '.join(self.partials.texts)} as {kinds} {super().signature}"

    @property
    def state_schema(self) -> StateSchema | None:
        """The columns of the key, and the aggregates: there may be more or less while they are on their way."""
        of_rows = super().state_schema
        assert of_rows is not None
        return StateSchema(window=self._window, keys=of_rows.keys, aggregates=self._aggregates)
