"""Makes CSV lines of record batches: the text that Spark's CSV sink writes, with Arrow's kernels alone.

Never: look at one row at a time.

Follows Spark 4.3's CSV writer: a value is quoted where it must be, and inside quotes a backslash precedes a
quote and before a backslash; the empty text is ``""``, null is nothing. Other than Spark, white space at the ends of
values and the microseconds of timestamps are kept: Spark's sink cuts both off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.files.sink.text_lines import float_texts, joined_bytes, timestamp_texts


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How CSV is spelled.

    Parameters
    ----------
    separator
        What stands between two values.
    null
        What stands for null.
    header
        Whether a file begins with the columns' names.
    """

    separator: str = ","
    null: str = ""
    header: bool = False


def csv_header(names: Sequence[str], dialect: CsvDialect) -> bytes:
    """Return the first line of a file: the names of its columns, with a line end."""
    quoted = _quoted(pa.array(names, pa.string()), dialect).to_pylist()
    return (dialect.separator.join(quoted) + "\n").encode()


def csv_lines(batch: pa.RecordBatch, dialect: CsvDialect) -> pa.Buffer:
    """Return a batch as CSV, a line per row, in UTF-8.

    Parameters
    ----------
    batch
        Rows of at least one column, of types that `check_csv_type` allows.
    dialect
        How it is spelled.

    Examples
    --------
    >>> csv_lines(pa.record_batch({"a": [1, None], "b": ["x,y", ""]}), CsvDialect()).to_pybytes().decode().split()
    ['1,"x,y"', ',""']
    """
    columns = [pc.fill_null(_texts(column, dialect), dialect.null) for column in batch.columns]
    joined = pc.binary_join_element_wise(*columns, dialect.separator)
    return joined_bytes(pc.binary_join_element_wise(joined, "\n", ""))


def check_csv_type(data_type: pa.DataType) -> bool:
    """Return whether values of a type can be written: neither nested nor binary."""
    return bool(
        _is_text(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_timestamp(data_type)
    )


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.large_string())


def _texts(column: pa.Array, dialect: CsvDialect) -> pa.Array:
    """Return the text of each value; null where it is null."""
    if pa.types.is_floating(column.type):
        return float_texts(column)
    if pa.types.is_timestamp(column.type):
        return timestamp_texts(column)
    made = column.cast(pa.string())
    return _quoted(made, dialect) if _is_text(column.type) else made


def _quoted(column: pa.Array, dialect: CsvDialect) -> pa.Array:
    must = pc.match_substring_regex(column, f'["\r\n]|{re.escape(dialect.separator)}|^$')
    if not pc.any(must).as_py():
        return column
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(must, pc.binary_join_element_wise('"', escaped, '"', ""), column)
