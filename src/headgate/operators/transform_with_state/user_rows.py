"""Arrow batches as what a `StatefulProcessor` takes and gives: rows (`RowFlavor`) or pandas frames (`PandasFlavor`).

Never: convert one row or frame at a time where a batch of them can be converted at once.

Follows the workers of Spark 4.3 for ``transformWithState`` and ``transformWithStateInPandas``.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import UserFunctionError
from headgate.operators.cast_to_schema import MisfitError, cast_to_schema
from headgate.operators.transform_with_state.row_codec import row_maker

FLUSH_ROWS = 1 << 14
"""So many rows of output become a batch."""
Key = tuple[Any, ...]


class Flavor(ABC):
    """Converts for one processor. All methods are called on one thread.

    Parameters
    ----------
    processor
        The name of the processor, for errors.
    schema
        The columns of the output.
    time_zone
        The session's.
    """

    def __init__(self, processor: str, schema: pa.Schema, time_zone: str) -> None:
        self._processor = processor
        self._schema = schema
        self._time_zone = time_zone
        self._held: list[Any] = []
        self._held_rows = 0

    @abstractmethod
    def groups(self, rows: pa.Table, keys: list[str], starts: list[int]) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yield the key and the rows of each group, as the user takes them.

        Parameters
        ----------
        rows
            The rows of one group stand together.
        keys
            The columns of the key.
        starts
            Where each group begins, and the number of rows.
        """

    def take(self, output: Any, method: str) -> None:
        """Take all of what a method of the user's returned.

        Raises
        ------
        UserFunctionError
            It is not an iterator of what it should be.
        """
        try:
            each = iter(output)
        except TypeError as error:
            raise self._wrong(method, f"returned {type(output).__name__}; it must return an iterator of") from error
        for row in each:
            self._held_rows += self._add(row, method)

    @property
    def is_full(self) -> bool:
        """Whether there is enough output for a batch."""
        return self._held_rows >= FLUSH_ROWS

    def flush(self) -> pa.RecordBatch | None:
        """Return the output that was taken since the last call; None: there is none.

        Raises
        ------
        UserFunctionError
            It does not fit the columns of the output.
        """
        if not self._held:
            return None
        held, self._held, self._held_rows = self._held, [], 0
        try:
            return cast_to_schema(self._converted(held), self._schema)
        except (pa.ArrowException, MisfitError, TypeError, ValueError, OverflowError) as error:
            raise UserFunctionError(
                f"{self._processor} gave output that does not fit outputStructType ({self._described()}): {error}",
                function=self._processor,
            ) from error

    def _described(self) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in self._schema)

    def _wrong(self, method: str, what: str) -> UserFunctionError:
        return UserFunctionError(
            f"{self._processor}.{method} {what} {self._unit}: write 'yield'.", function=f"{self._processor}.{method}"
        )

    _unit: str

    @abstractmethod
    def _add(self, output: Any, method: str) -> int:
        """Hold one of what the user yields, and return how many rows it has."""

    @abstractmethod
    def _converted(self, held: list[Any]) -> pa.RecordBatch:
        """Return what is held as a batch."""


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Python's: as ``to_pylist``, which takes several times as long for timestamps."""
    kind = column.type
    micros = column.cast(pa.int64()) if pa.types.is_timestamp(kind) and kind.unit == "us" else None
    found: list[Any]
    if micros is None or not all(_FIRST_US < (each.as_py() or 0) < _LAST_US for each in pc.min_max(micros).values()):
        found = column.to_pylist()
        return found
    zone = None if kind.tz is None else pa.scalar(0, kind).as_py().tzinfo
    since = micros.fill_null(0).to_numpy().view("m8[us]").tolist()
    found = list(map(datetime.datetime(1970, 1, 1, tzinfo=zone).__add__, since))
    if zone is not None:
        found = list(map(zone.fromutc, found))
    for place in np.flatnonzero(column.is_null().to_numpy()).tolist():
        found[place] = None
    return found


_FIRST_US, _LAST_US = (
    int((datetime.datetime(*of) - datetime.datetime(1970, 1, 1)).total_seconds()) * 1_000_000
    for of in ((1, 1, 2), (9999, 12, 30))
)
"""The times that Python has in any zone."""


class RowFlavor(Flavor):
    """``transformWithState``: iterators of `pyspark.sql.Row`."""

    _unit = "pyspark.sql.Row"

    def groups(self, rows: pa.Table, keys: list[str], starts: list[int]) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yield the key of each group, and its rows with all columns."""
        names = rows.schema.names
        indices = [names.index(key) for key in keys]
        columns = [values_of(self._in_zone(column)) for column in rows.columns]
        made = list(map(row_maker(names), zip(*columns, strict=True)))
        for start, end in pairwise(starts):
            yield tuple(columns[index][start] for index in indices), iter(made[start:end])

    def _in_zone(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return timestamps in the session's time zone."""
        if pa.types.is_timestamp(column.type) and column.type.tz is not None and column.type.tz != self._time_zone:
            return column.cast(pa.timestamp(column.type.unit, self._time_zone))
        return column

    def _add(self, output: Any, method: str) -> int:
        if not hasattr(output, "__fields__"):
            raise self._wrong(method, f"yielded {type(output).__name__} without names; it must yield")
        self._held.append(output)
        return 1

    def _converted(self, held: list[Any]) -> pa.RecordBatch:
        names = held[0].__fields__
        if any(pa.types.is_nested(field.type) for field in self._schema) or any(
            row.__fields__ is not names and list(row.__fields__) != list(names) for row in held
        ):
            return pa.RecordBatch.from_pylist([row.asDict(True) for row in held], schema=self._schema)
        columns = dict(zip(names, zip(*held, strict=True), strict=True))
        empty = (None,) * len(held)
        arrays = [pa.array(columns.get(field.name, empty), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class PandasFlavor(Flavor):
    """``transformWithStateInPandas``: iterators of `pandas.DataFrame`.

    Parameters
    ----------
    processor, schema, time_zone
        See `Flavor`.
    conf
        The session's settings that Spark gives to its Python workers.
    """

    _unit = "pandas.DataFrame"

    def __init__(self, processor: str, schema: pa.Schema, time_zone: str, conf: Mapping[str, str]) -> None:
        from headgate.spark.compatibility import WorkerSettings

        super().__init__(processor, schema, time_zone)
        self._settings = WorkerSettings.of(conf)

    def groups(self, rows: pa.Table, keys: list[str], starts: list[int]) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yield the key of each group, and frames with its rows: as many in each as the session's settings allow."""
        import pandas as pd

        from headgate.spark.compatibility import to_pandas

        frame = pd.concat(to_pandas(rows, self._time_zone, self._settings), axis=1)
        of_keys = frame[keys].iloc[starts[:-1]]
        most = self._settings.rows_of_a_frame(rows)
        for key, (start, end) in zip(of_keys.itertuples(index=False, name=None), pairwise(starts), strict=True):
            yield key, (frame.iloc[at : min(at + most, end)].reset_index(drop=True) for at in range(start, end, most))

    def _add(self, output: Any, method: str) -> int:
        import pandas as pd

        if not isinstance(output, pd.DataFrame):
            raise self._wrong(method, f"yielded {type(output).__name__}; it must yield")
        if len(output):
            self._check_names(output.columns)
            self._held.append(output)
        return len(output)

    def _check_names(self, given: Any) -> None:
        """Refuse a frame without one of the columns that are taken from it by name."""
        if not self._settings.assign_cols_by_name or not any(isinstance(each, str) for each in given):
            return  # by their places
        missing = [name for name in self._schema.names if name not in given]
        if missing:
            raise UserFunctionError(
                f"{self._processor} yielded a frame with the columns {', '.join(map(repr, given))}. The output is "
                f"{self._described()}, by name: {', '.join(map(repr, missing))} is missing. Name the frame's columns "
                "as those of the output.",
                function=self._processor,
            )

    def _converted(self, held: list[Any]) -> pa.RecordBatch:
        import pandas as pd

        from headgate.spark.compatibility import from_arrow_schema, to_arrow

        first = held[0].dtypes
        alike = all(each.dtypes.equals(first) for each in held[1:])
        schema = from_arrow_schema(self._schema)
        batches = [
            to_arrow(frame, schema, self._time_zone, self._settings)
            for frame in ([pd.concat(held, ignore_index=True)] if alike else held)
        ]
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
