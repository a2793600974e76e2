"""Fits the columns of bulk files to the wanted schema, with the conversions that Spark's Parquet reader allows.

Never: lose a digit or turn a value that does not fit into null: what Spark refuses is refused here. Bytes that are read
as text and are no UTF-8 have U+FFFD in it, as Spark shows them.

Follows Spark 4.3, ``ParquetVectorUpdaterFactory`` (which widenings there are) and ``ParquetToSparkSchemaConverter``
(the types of columns without a given schema).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import BadDataError
from headgate.formats.names import Names
from headgate.formats.values_datetime import Zone, local_to_utc
from headgate.java_texts import java_texts

Convert = Callable[[pa.Array], pa.Array]


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that Spark would infer for a bulk file: without unsigned numbers and Arrow's encodings."""
    return pa.schema([pa.field(each.name, spark_type(each.type)) for each in schema])


def spark_type(data_type: pa.DataType) -> pa.DataType:
    """Return the Arrow type that a column of this type has once it is read."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return spark_type(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return spark_type(data_type.value_type)
    if types.is_unsigned_integer(data_type):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[data_type.bit_width]
    if types.is_float16(data_type):
        return pa.float32()
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_decimal(data_type) and not types.is_decimal128(data_type):
        return pa.decimal128(min(data_type.precision, 38), data_type.scale)
    if types.is_timestamp(data_type):
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    if types.is_date64(data_type):
        return pa.date32()
    if types.is_time(data_type):
        return pa.time64("us") if data_type == pa.time64("us") else pa.time64("ns")
    if types.is_duration(data_type):
        return pa.duration("us")
    return _spark_nested_type(data_type)


def _spark_nested_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_map(data_type):
        return pa.map_(spark_type(data_type.key_type), spark_type(data_type.item_type))
    if types.is_struct(data_type):
        return pa.struct([pa.field(each.name, spark_type(each.type)) for each in data_type])
    if (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    ):
        return pa.list_(spark_type(data_type.value_type))
    return data_type


def with_leaves(data_type: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with ``leaf`` of each that is no struct, map or list in its place; lists of any kind are plain."""
    types = pa.types
    if types.is_struct(data_type):
        return pa.struct([each.with_type(with_leaves(each.type, leaf)) for each in data_type])
    if types.is_map(data_type):
        entry = (data_type.key_field, data_type.item_field)
        return pa.map_(*(each.with_type(with_leaves(each.type, leaf)) for each in entry))
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        values = data_type.value_field
        return pa.list_(values.with_type(with_leaves(values.type, leaf)))
    return leaf(data_type)


def match_columns(
    file_names: Sequence[str], wanted: pa.Schema, path: str, case_sensitive: bool = False
) -> list[str | None]:
    """Return for each wanted column the file's name of it, or None where it has none.

    Raises
    ------
    BadDataError
        Two columns of the file match one that is wanted.
    """
    key = Names(case_sensitive).key
    by_key: dict[str, list[str]] = {}
    for name in file_names:
        by_key.setdefault(key(name), []).append(name)
    matched: list[str | None] = []
    for name in wanted.names:
        candidates = by_key.get(key(name), [])
        if len(candidates) > 1:
            raise BadDataError(
                f"headgate.files: the column {name!r} could be any of {candidates} in {path}. Set "
                "spark.sql.caseSensitive to true to have both, or leave the column out of the schema.",
                path=path, byte_offset=0, column=name,
            )  # fmt: skip
        matched.append(candidates[0] if candidates else None)
    return matched


def converter(
    found: pa.DataType,
    wanted: pa.DataType,
    column: str,
    path: str,
    zone: Zone | None = None,
    case_sensitive: bool = False,
) -> Convert | None:
    """Return what turns a file's column into the wanted type; None if nothing has to be done.

    Local times become instants as the wall clock of ``zone``, of UTC if it is None.

    Raises
    ------
    BadDataError
        Spark's reader would not convert these types either; the message names file, column and both types.
    """
    if found == wanted:
        return None
    plain = spark_type(found)
    if plain == wanted:
        return _plain_converter(found, wanted)
    if pa.types.is_binary(plain) and pa.types.is_string(wanted):
        return lambda array: java_texts(_to_plain(array))
    if _widens(plain, wanted):
        return lambda array: _to_plain(array).cast(wanted)
    if pa.types.is_timestamp(plain) and pa.types.is_timestamp(wanted):
        if zone is not None and plain.tz is None:
            return lambda array: local_to_utc(_to_plain(array).cast(pa.timestamp("us"), safe=False), zone).cast(wanted)
        # Between instants and local times Spark re-labels: the wall clock of UTC.
        return lambda array: _to_plain(array).cast(pa.timestamp("us"), safe=False).cast(wanted)
    nested = None if _has_wide_decimals(found) else _nested_converter(plain, wanted, column, path, zone, case_sensitive)
    if nested is not None:
        return nested
    raise BadDataError(
        f"headgate.files: the column {column!r} of {path} is {found}, which cannot be read as {wanted}. Declare it as "
        f"{plain} in the schema and cast it afterwards.",
        path=path, byte_offset=0, column=column, found=str(found), wanted=str(wanted),
    )  # fmt: skip


def _plain_converter(found: pa.DataType, wanted: pa.DataType) -> Convert:
    is_wide = _has_wide_decimals(found)
    return lambda array: _to_plain(array).cast(wanted, safe=is_wide)


def _has_wide_decimals(data_type: pa.DataType) -> bool:
    """Whether digits may be too many for Spark: cut as nanoseconds are, they would be another number."""
    if pa.types.is_nested(data_type):
        return any(_has_wide_decimals(data_type.field(index).type) for index in range(data_type.num_fields))
    return bool(pa.types.is_decimal256(data_type))


def _to_plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    return array


_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    if found in _INTEGERS and wanted in _INTEGERS:
        return bool(found.bit_width <= wanted.bit_width)
    if found in _INTEGERS:
        if wanted == pa.float64():
            return bool(found.bit_width <= 32)
        digits = 19 if found.bit_width == 64 else 10
        return bool(types.is_decimal128(wanted) and wanted.precision - wanted.scale >= digits)
    if found == pa.float32():
        return bool(wanted == pa.float64())
    if types.is_decimal128(found) and types.is_decimal128(wanted):
        return bool(wanted.scale >= found.scale and wanted.precision - wanted.scale >= found.precision - found.scale)
    if types.is_date32(found):
        return bool(types.is_timestamp(wanted) and wanted.tz is None)
    if types.is_string(found) or types.is_binary(found):
        return bool(types.is_string(wanted) or types.is_binary(wanted))
    return bool(types.is_null(found))


def _nested_converter(
    found: pa.DataType, wanted: pa.DataType, column: str, path: str, zone: Zone | None, case_sensitive: bool
) -> Convert | None:
    types = pa.types
    how = (path, zone, case_sensitive)
    if types.is_struct(found) and types.is_struct(wanted):
        return _struct_converter(found, wanted, column, *how)
    if types.is_list(found) and types.is_list(wanted):
        inner = converter(found.value_type, wanted.value_type, f"{column}.element", *how) or _same

        def convert_list(array: pa.Array) -> pa.Array:
            array = array.cast(found, safe=False)
            values = inner(array.values)
            return pa.ListArray.from_arrays(array.offsets, values, type=wanted, mask=_nulls_of(array))

        return convert_list
    if types.is_map(found) and types.is_map(wanted):
        keys = converter(found.key_type, wanted.key_type, f"{column}.key", *how) or _same
        items = converter(found.item_type, wanted.item_type, f"{column}.value", *how) or _same

        def convert_map(array: pa.Array) -> pa.Array:
            array = array.cast(found, safe=False)
            mask = _nulls_of(array)
            return pa.MapArray.from_arrays(array.offsets, keys(array.keys), items(array.items), type=wanted, mask=mask)

        return convert_map
    return None


def _same(array: pa.Array) -> pa.Array:
    return array


def _nulls_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _struct_converter(
    found: pa.StructType, wanted: pa.StructType, column: str, path: str, zone: Zone | None, case_sensitive: bool
) -> Convert:
    names = match_columns([each.name for each in found], pa.schema(list(wanted)), path, case_sensitive)
    steps: list[tuple[int | None, Convert, pa.DataType]] = []
    for field, name in zip(wanted, names):
        if name is None:
            steps.append((None, _same, field.type))
            continue
        index = found.get_field_index(name)
        step = converter(found.field(index).type, field.type, f"{column}.{field.name}", path, zone, case_sensitive)
        steps.append((index, step or _same, field.type))

    def convert_struct(array: pa.Array) -> pa.Array:
        array = array.cast(found, safe=False)
        children = [
            pa.nulls(len(array), data_type) if index is None else step(array.field(index))
            for index, step, data_type in steps
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_nulls_of(array))

    return convert_struct


class ColumnFitter:
    """Turns the batches of one file into batches of the wanted schema.

    Parameters
    ----------
    found
        The file's schema.
    wanted
        The schema to produce; columns that the file lacks are null.
    path
        For messages.
    zone
        See `converter`.
    case_sensitive
        Whether columns whose names differ only in case are two.
    """

    def __init__(
        self,
        found: pa.Schema,
        wanted: pa.Schema,
        path: str,
        zone: Zone | None = None,
        case_sensitive: bool = False,
    ) -> None:
        self._wanted = wanted
        self._path = path
        self.wanted_names = wanted.names
        self.names = match_columns(found.names, wanted, path, case_sensitive)
        self._steps = [
            None
            if name is None
            else converter(found.field(name).type, field.type, field.name, path, zone, case_sensitive)
            for name, field in zip(self.names, wanted)
        ]
        self.columns = [name for name in self.names if name is not None]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns of a batch of the file, in the wanted order and types."""
        arrays = []
        for field, name, step in zip(self._wanted, self.names, self._steps):
            if name is None:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = batch.column(name)
            try:
                fitted = array if step is None else step(array)
                # INT96 instants come without their zone.
                arrays.append(fitted if fitted.type == field.type else fitted.cast(field.type))
            except pa.ArrowException as error:
                raise BadDataError(
                    f"headgate.files: the column {field.name!r} of {self._path} cannot be read as {field.type}: "
                    f"{error}.",
                    path=self._path, byte_offset=0, column=field.name,
                ) from error  # fmt: skip
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)
