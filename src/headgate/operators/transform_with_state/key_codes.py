"""Finds the rows of each key in a batch, and the bytes under which a key's state is kept.

Never: take two keys for different that are one: -0.0 is 0.0, a NaN is any other, and null is a key.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.expressions.key_bytes import key_bytes, key_value
from headgate.operators.transform_with_state.row_codec import RowCodec
from headgate.operators.windows.windowed import comparable_key, plain_key


class KeyCodes:
    """The columns of a key.

    Parameters
    ----------
    schema
        The columns of the rows.
    keys
        Those of the key.
    zone
        The session's: timestamps of a key are given to timers in it, as those of rows are.
    """

    def __init__(self, schema: pa.Schema, keys: tuple[str, ...], zone: datetime.tzinfo) -> None:
        from headgate.spark.compatibility import from_arrow_schema

        self._keys = keys
        key_schema = from_arrow_schema(pa.schema([schema.field(name) for name in keys]))
        self.codec = RowCodec(key_schema, "the key", zone)

    def group(self, rows: pa.Table) -> tuple[pa.Array, list[int]]:
        """Return an order in which the rows of each key stand together, and where each begins, with the end.

        Keys come in the order of their first rows, and the rows of one as they stood.
        """
        codes = np.zeros(rows.num_rows, np.int64)
        for name in self._keys:
            column_codes = _codes(rows.column(name).combine_chunks())
            codes = codes * (int(column_codes.max()) + 1) + column_codes
            _, codes = np.unique(codes, return_inverse=True)
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        codes = rank[codes]
        order = np.argsort(codes, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(codes))))
        return pa.array(order), starts.tolist()

    def encode(self, first: pa.Table) -> list[bytes]:
        """Return the bytes of each row's key."""
        columns = [_normal(first.column(name).combine_chunks()).to_pylist() for name in self._keys]
        return [self.codec.encode(key) for key in zip(*columns, strict=True)]

    def key_of(self, data: bytes) -> Any:
        """Return a key as a `Row`: what Spark gives to ``handleExpiredTimer``."""
        return self.codec.decode_row(data)


def _normal(column: pa.Array) -> pa.Array:
    """Return floats, also those within nested values, with one zero and one NaN."""
    return key_value(key_bytes(column), column.type) if pa.types.is_nested(column.type) else plain_key(column)


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a number for each value, the same for the same."""
    encoded = comparable_key(column).dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
