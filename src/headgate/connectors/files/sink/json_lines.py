"""Makes JSON lines of record batches: the objects that Spark's JSON sink writes, with Arrow's kernels alone.

Never: look at one row at a time. The one exception is binary columns (base64), value by value.

Follows Spark 4.3's ``JacksonGenerator``: fields that are null are left out, nulls in arrays and maps are written,
NaN and the infinities are strings. Unlike Spark's sink, which truncates them, timestamps keep their microseconds.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.files.sink.text_lines import float_texts, joined_bytes, timestamp_texts

_MUST_ESCAPE = r'["\\\x00-\x1f]'
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROLS = {chr(code): _ESCAPES.get(chr(code), f"\\u{code:04X}") for code in range(0x20)}


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    r"""Return a batch as JSON objects, each with a line end, in UTF-8.

    Parameters
    ----------
    batch
        Rows of types that `check_json_type` allows.

    Examples
    --------
    >>> json_lines(pa.record_batch({"a": [1, None], "b": ["x", 'y"']})).to_pybytes().decode().split()
    ['{"a":1,"b":"x"}', '{"b":"y\\""}']
    """
    objects = _objects(batch.schema.names, batch.columns, batch.num_rows)
    return joined_bytes(pc.binary_join_element_wise(objects, "\n", ""))


def check_json_type(data_type: pa.DataType) -> bool:
    """Return whether values of a type, and those in it, can be written."""
    if pa.types.is_nested(data_type):
        if pa.types.is_map(data_type):
            nested = pa.types.is_nested(data_type.key_type) or pa.types.is_binary(data_type.key_type)
            return not nested and check_json_type(data_type.key_type) and check_json_type(data_type.item_type)
        if not (pa.types.is_struct(data_type) or _is_list(data_type)):
            return False
        return all(check_json_type(data_type.field(each).type) for each in range(data_type.num_fields))
    return any(is_kind(data_type) for is_kind in _SCALARS)


def _objects(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    """Return one JSON object per row; a null in a column leaves its field out."""
    # Each with the comma before it: Arrow's join that skips nulls loses rows in which all are null.
    fields = [
        pc.fill_null(pc.binary_join_element_wise(f",{_name(name)}:", texts(column), ""), "")
        for name, column in zip(names, columns, strict=True)
    ]
    if not fields:
        return pa.array(["{}"] * rows, pa.string())
    return pc.binary_join_element_wise(
        pc.binary_replace_slice(pc.binary_join_element_wise(*fields, ""), 0, 1, "{"), "}", ""
    )


def _name(name: str) -> str:
    """Return a field's name as JSON."""
    text: str = _quoted(pa.array([name], pa.string()))[0].as_py()
    return text


def texts(column: pa.Array) -> pa.Array:
    """Return the JSON text of each value; null where it is null."""
    data_type = column.type
    for is_kind, make in _SCALARS.items():
        if is_kind(data_type):
            return make(column).cast(pa.string())
    if pa.types.is_struct(data_type):
        names = [data_type.field(each).name for each in range(data_type.num_fields)]
        return _where(column, _objects(names, column.flatten(), len(column)))
    if pa.types.is_map(data_type):
        keys, values = _child(column, column.keys), _child(column, column.items)
        pairs = pc.binary_join_element_wise(_keys(keys), _or_null(values), ":")
        return _grouped(column, pairs, "{", "}")
    return _grouped(column, _or_null(_child(column, column.values)), "[", "]")


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _child(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the part of a list's or map's values that its rows use."""
    start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(start, stop - start)


def _grouped(column: pa.Array, values: pa.Array, before: str, after: str) -> pa.Array:
    """Join the texts of values to one text per row of the list or map that they lie in."""
    offsets = pc.subtract(column.offsets, column.offsets[0]).cast(pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values.cast(pa.string()))
    joined = pc.binary_join(lists, ",")
    return _where(column, pc.binary_join_element_wise(before, joined, after, ""))


def _where(column: pa.Array, made: pa.Array) -> pa.Array:
    """Return the texts; null where the column is."""
    if column.null_count == 0:
        return made
    return pc.if_else(column.is_valid(), made, pa.scalar(None, made.type))


def _or_null(values: pa.Array) -> pa.Array:
    return pc.fill_null(texts(values), "null")


def _keys(keys: pa.Array) -> pa.Array:
    return texts(keys) if _is_text(keys.type) else _in_quotes(pc.replace_substring(texts(keys), '"', ""))


def _quoted(column: pa.Array) -> pa.Array:
    column = column.cast(pa.string())
    if pc.any(pc.match_substring_regex(column, _MUST_ESCAPE)).as_py():
        column = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(column, r"[\x00-\x1f]")).as_py():
            for control, escape in _CONTROLS.items():
                column = pc.replace_substring(column, control, escape)
    return _in_quotes(column)


def _in_quotes(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")


def _floats(column: pa.Array) -> pa.Array:
    made = float_texts(column)
    return pc.if_else(pc.is_finite(column), made, _in_quotes(made))


def _base64(column: pa.Array) -> pa.Array:
    values = (None if value is None else base64.b64encode(value).decode() for value in column.to_pylist())
    return _in_quotes(pa.array(values, pa.string()))


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.large_string())


def _is_bytes(data_type: pa.DataType) -> bool:
    return data_type in (pa.binary(), pa.large_binary())


_SCALARS: dict[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]] = {
    _is_text: _quoted,
    pa.types.is_integer: _text,
    pa.types.is_boolean: _text,
    pa.types.is_float32: _floats,
    pa.types.is_float64: _floats,
    pa.types.is_decimal: _text,
    pa.types.is_date: lambda column: _in_quotes(column),
    pa.types.is_timestamp: lambda column: _in_quotes(timestamp_texts(column)),
    _is_bytes: _base64,
}
"""Kinds of types that are not nested, and what makes their texts."""
