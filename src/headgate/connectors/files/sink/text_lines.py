"""Texts of numbers and times that JSON and CSV files share, and their bytes.

Never: look at one row at a time. Texts are Arrow's ``string``: 2 GB in a batch at most, which its writer slices.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def float_texts(column: pa.Array) -> pa.Array:
    """Return floating-point numbers as Java reads and Spark infers them: ``1.0``, ``1e+30``, ``NaN``, ``-Infinity``.

    Examples
    --------
    >>> float_texts(pa.array([1.0, 0.5, float("nan"), float("-inf")])).to_pylist()
    ['1.0', '0.5', 'NaN', '-Infinity']
    """
    made = column.cast(pa.string())
    whole = pc.match_substring_regex(made, r"^-?[0-9]+$")
    made = pc.if_else(whole, pc.binary_join_element_wise(made, ".0", ""), made)
    if pc.all(pc.is_finite(column)).as_py() is False:
        made = pc.replace_substring(pc.replace_substring(made, "nan", "NaN"), "inf", "Infinity")
    return made


def timestamp_texts(column: pa.Array) -> pa.Array:
    """Return timestamps as ISO 8601 with microseconds; with a zone, as UTC.

    Examples
    --------
    >>> timestamp_texts(pa.array([0], pa.timestamp("us", "UTC"))).to_pylist()
    ['1970-01-01T00:00:00.000000Z']
    """
    zone = None if column.type.tz is None else "UTC"
    made = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.string())
    return pc.replace_substring(made, " ", "T", max_replacements=1)


def joined_bytes(lines: pa.Array) -> pa.Buffer:
    """Return the bytes of texts, concatenated. None of them is null."""
    assert lines.null_count == 0
    if len(lines) == 0:
        return pa.py_buffer(b"")
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.combine_chunks()
    _, offsets, data = lines.buffers()
    first, last = (
        int.from_bytes(offsets[4 * each : 4 * each + 4].to_pybytes(), "little")
        for each in (lines.offset, lines.offset + len(lines))
    )
    return data.slice(first, last - first)
