"""`MapInArrow`: runs a user's function over the rows at hand of one split.

Never: keep a function's iterator open between two calls: rows that it held would be in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.cast_to_schema import MisfitError, cast_to_schema
from headgate.operators.operator import Emit, Operator
from headgate.protocol.operator_context import OperatorContext

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""What ``mapInArrow`` takes: PySpark's signature."""


class MapInArrow(Operator):
    """Calls a function with an iterator over the rows at hand of one split; its output ends with the call.

    PySpark never promised how many batches a call sees, so any function that is right there is right here; one that
    collects rows and yields at the end does so for each call.

    Parameters
    ----------
    function
        A function, a generator function, or an object with ``__call__`` and, if it likes, ``open()`` and ``close()``,
        which are called in every subtask, once each time it is started: after a failure on the same object again.
    schema
        The columns of what it yields.
    given
        The columns that it gets, if their types are others than those of the rows; None: they are the same.
    """

    kind = "map-in-arrow"

    blocks = True

    def __init__(self, function: ArrowFunction, schema: pa.Schema, given: pa.Schema | None = None) -> None:
        self._function = function
        self._given = given
        self.schema = schema
        self.function = _name_of(function)

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Let the user's object get ready."""
        self._call_if_there("open")

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Call the function, and emit what it yields.

        Raises
        ------
        OptionError
            It returns no batches, or other columns than those declared: that is so for every record.
        UserFunctionError
            It yields a value that does not fit.
        """
        returned = self._function(iter((batch if self._given is None else batch.cast(self._given),)))
        if isinstance(returned, pa.RecordBatch | pa.Table) or not isinstance(returned, Iterable):
            raise self._wrong_function(f"returned {type(returned).__name__}; it must return an iterator of")
        for each in returned:
            emit(self._fit(each), split_id)

    def close(self) -> None:
        """Let the user's object release what it holds."""
        self._call_if_there("close")

    def _fit(self, batch: Any) -> pa.RecordBatch:
        if not isinstance(batch, pa.RecordBatch):
            raise self._wrong_function(f"yielded {type(batch).__name__}; it must yield")
        try:
            return cast_to_schema(batch, self.schema)
        except MisfitError as error:
            message = (
                f"The function {self.function} of mapInArrow yielded a batch that does not fit its schema: {error}."
            )
            if error.columns:
                raise OptionError(message, option="schema", value=str(self.schema), function=self.function) from error
            raise UserFunctionError(message, function=self.function) from error

    def _wrong_function(self, what: str) -> OptionError:
        return OptionError(
            f"The function {self.function} of mapInArrow {what} pyarrow.RecordBatch: write 'yield batch'.",
            option="func", value=self.function, function=self.function,
        )  # fmt: skip

    def _call_if_there(self, method: str) -> None:
        # A class is callable and may have an open of its own, which is not meant for the class itself.
        found = None if isinstance(self._function, type) else getattr(self._function, method, None)
        if callable(found):
            found()


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
