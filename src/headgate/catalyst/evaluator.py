"""`Evaluator`: a projection that Catalyst's own code evaluates, batch by batch; `AggregateEvaluator`: an aggregate.

What an expression gives is what Spark gives: the same class evaluates it. The messages are in Evaluator.java.

Never: start a process; interpret an expression.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

import pyarrow as pa

from headgate.catalyst.helper_jvm import HelperJvm
from headgate.errors import ExpressionError, HelperLostError

_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">bi")
_REQUEST: Final = struct.Struct(">i?i")
_BUFFERS: Final = pa.schema([("buffer", pa.binary())])
_GROUPED: Final = pa.schema([("buffer", pa.binary()), ("group", pa.int32())])


class _Connection:
    """A connection to a thread of the helper, for one thread.

    Raises
    ------
    HelperLostError
        The process has ended.
    ExpressionError
        Spark cannot make what is asked for.
    """

    def __init__(self, helper: HelperJvm, request: bytes, partition: int, *, own_seeds: bool) -> None:
        self._helper = helper
        self._connection, self._pid = helper.connect()
        try:
            self._lifeline = self._opened_lifeline()
        except BaseException:
            self._connection.close()
            raise
        try:
            self._send(_REQUEST.pack(partition, own_seeds, len(request)), request)
            schemas = pa.BufferReader(self._answer())
        except BaseException:
            self.close()
            raise
        self._input, self._output = (_with_nulls(pa.ipc.read_schema(schemas)) for _ in range(2))

    def _batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """Return a batch of columns as the helper wants them."""
        arrays = [each if each.type == kind else each.cast(kind) for each, kind in zip(columns, self._input.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._input)

    def _evaluated(self, kind: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the answer to a batch.

        Raises
        ------
        HelperLostError
            The process has ended.
        ExpressionError
            Spark's code raised an error, which its ``condition`` names.
        """
        began = time.perf_counter()
        self._send(_SIZE.pack(kind), memoryview(batch.serialize()))
        answer = self._answer()
        self._helper.on_evaluated(batch.num_rows, 1000 * (time.perf_counter() - began))
        return pa.ipc.read_record_batch(answer, schema)

    def close(self) -> None:
        """Let the helper forget what it evaluates."""
        self._connection.close()
        self._lifeline.close()

    def _opened_lifeline(self) -> socket.socket:
        """Return a connection on which nothing is sent: it keeps the helper alive."""
        lifeline, pid = self._helper.connect()
        if pid != self._pid:
            lifeline.close()
            raise self._lost()
        return lifeline

    def _lost(self) -> HelperLostError:
        return self._helper.lost(self._pid)

    def _send(self, *parts: bytes | memoryview) -> None:
        try:
            for part in parts:
                self._connection.sendall(part)
        except OSError as error:
            raise self._lost() from error

    def _answer(self) -> pa.Buffer:
        kind, size = _HEAD.unpack(self._received(_HEAD.size))
        answer = self._received(size)
        if kind == 0:
            return pa.py_buffer(answer)
        java_class, condition, message = answer.decode().split("\n", 2)
        raise ExpressionError(message, condition=condition or None, java_class=java_class)

    def _received(self, size: int) -> bytearray:
        received = bytearray(size)
        rest = memoryview(received)
        while rest:
            try:
                count = self._connection.recv_into(rest)
            except OSError as error:
                raise self._lost() from error
            if not count:
                raise self._lost()
            rest = rest[count:]
        return received


def _with_nulls(schema: pa.Schema) -> pa.Schema:
    """Return columns of which any part may be null, as our own are, so that none is cast.

    Where a struct is null, so are its fields that Spark says never are: Arrow's casts take that for an error. What they
    make of nulls without a type in lists is no array. A variant stays one, whose parts are never null.
    """
    return pa.schema([_field_with_nulls(each) for each in schema])


def _field_with_nulls(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind) and not any(b"variant" in (each.metadata or ()) for each in kind):
        kind = pa.struct([_field_with_nulls(each) for each in kind])
    elif pa.types.is_map(kind):
        key = kind.key_field.with_type(_field_with_nulls(kind.key_field).type)
        kind = pa.map_(key, _field_with_nulls(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_field_with_nulls(kind.value_field))
    return field.with_type(kind).with_nullable(True)


class Evaluator(_Connection):
    """Evaluates the expressions of a projection in a helper's thread. For one thread.

    Parameters
    ----------
    helper
        The Java process.
    projection
        What `headgate.spark.analyzed.catalyst` made: the expressions, Java-serialised.
    partition
        The number of the partition, for functions that ask.
    own_seeds
        Whether what is drawn by chance has new seeds, or those that are in the expressions.
    """

    def evaluate(self, columns: list[pa.Array], rows: int) -> list[pa.Array]:
        """Return a column for each expression, as many rows as the columns have that it is evaluated on."""
        nothing = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return list(self._evaluated(0, self._batch(columns) if columns else nothing, self._output).columns)


class AggregateEvaluator(_Connection):
    """Computes an aggregate function in a helper's thread, with its buffers as bytes. For one thread.

    Parameters
    ----------
    helper
        The Java process.
    function
        What `headgate.spark.analyzed.catalyst` made: the function, Java-serialised.
    """

    def __init__(self, helper: HelperJvm, function: bytes) -> None:
        super().__init__(helper, function, 0, own_seeds=False)

    def lift(self, columns: list[pa.Array]) -> pa.Array:
        """Return a buffer for each row; the last column says which rows count."""
        return self._evaluated(1, self._batch(columns), _BUFFERS).column(0)

    def of_nothing(self) -> pa.Array:
        """Return the buffer of no rows, once."""
        return self.lift([pa.nulls(1, each) for each in self._input.types])

    def merge(self, buffers: pa.Array, groups: pa.Array) -> pa.Array:
        """Return a buffer for each group; rows of a group, which is a number, follow one another."""
        return self._evaluated(2, pa.RecordBatch.from_arrays([buffers, groups], schema=_GROUPED), _BUFFERS).column(0)

    def finish(self, buffers: pa.Array) -> pa.Array:
        """Return the result of each buffer."""
        groups = pa.nulls(len(buffers), pa.int32())
        batch = pa.RecordBatch.from_arrays([buffers, groups], schema=_GROUPED)
        return self._evaluated(3, batch, self._output).column(0)
