"""`Evaluator`: a projection that Catalyst's own code evaluates, batch by batch.

What an expression gives is what Spark gives: the same class evaluates it. The messages are in Evaluator.java.

Never: start a process; interpret an expression.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from headgate.catalyst.helper_jvm import HelperJvm
from headgate.errors import ExpressionError

_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">bi")
_REQUEST: Final = struct.Struct(">i?i")


class Evaluator:
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

    Raises
    ------
    HelperLostError
        The process has ended.
    ExpressionError
        Spark cannot make a projection of the expressions.
    """

    def __init__(self, helper: HelperJvm, projection: bytes, partition: int, *, own_seeds: bool) -> None:
        self._helper = helper
        self._connection = helper.connect()
        try:
            self._send(_REQUEST.pack(partition, own_seeds, len(projection)), projection)
            schemas = pa.BufferReader(self._answer())
        except BaseException:
            self.close()
            raise
        self._input = pa.ipc.read_schema(schemas)
        self._output = pa.ipc.read_schema(schemas)

    def evaluate(self, columns: list[pa.Array], rows: int) -> list[pa.Array]:
        """Return a column for each expression, as many rows as the columns have that it is evaluated on.

        Raises
        ------
        HelperLostError
            The process has ended.
        ExpressionError
            Spark's code raised an error, which its ``condition`` names.
        """
        arrays = [each if each.type == kind else each.cast(kind) for each, kind in zip(columns, self._input.types)]
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._input)
        else:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        message = batch.serialize()
        self._send(_SIZE.pack(message.size), memoryview(message))
        made = pa.ipc.read_record_batch(self._answer(), self._output)
        return list(made.columns)

    def close(self) -> None:
        """Let the helper forget the projection."""
        self._connection.close()

    def _send(self, *parts: bytes | memoryview) -> None:
        try:
            for part in parts:
                self._connection.sendall(part)
        except OSError as error:
            raise self._helper.lost() from error

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
                raise self._helper.lost() from error
            if not count:
                raise self._helper.lost()
            rest = rest[count:]
        return received
