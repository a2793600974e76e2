"""The hash that says which key group a row belongs to: fixed, vectorised, the same for the same key for ever.

Never: change a result, which is part of the checkpoint format (`HASH_VERSION`); look at a value in Python.

Arrow has no such hash, and its own ones change between releases. Version 1: each value becomes a word of 64
bits, and the words of a row's columns are mixed one after the other. How a value becomes its word:

    type                                     word (all arithmetic modulo 2**64)
    ---------------------------------------  ------------------------------------------------------------------------
    integers, booleans                       the value: of every width the same
    halffloat, float, double                 the bits as a double; -0.0 is 0.0, and there is one NaN
    timestamp, date, time, duration          nanoseconds: of every unit and time zone the same instant is the same
    decimal, of every width                  the unscaled value: its low word plus what the higher ones add to its sign
    string, binary, of every layout          the sum of its mixed words of eight bytes, salted by place, and its length
    list, of every layout                    the same sum over the hashes of its elements
    struct                                   the hash of its fields
    dictionary, run-end encoded, extension   that of the value that it stands for
    null, of whatever type                   a word of its own

What differs need not have different hashes: an integer and a decimal may share theirs, since a key's columns have one
type for ever. Not keys: maps (Spark's rule, too), unions, calendar intervals.

Follows docs/architecture.md, "Stages and exchanges". The mixing is two rounds of multiply and xor-shift, whose
constants are those of SplitMix64 and MurmurHash3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError

HASH_VERSION = 1
"""Checkpoints are keyed by it; golden vectors of every version are in tests/golden."""
MOST_KEY_GROUPS = 1 << 15
"""As in Flink."""

Words = Any
"""A NumPy array of uint64, which is the caller's own."""

_SEED = np.uint64(0x243F6A8885A308D3)
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xFF51AFD7ED558CCD)
_THIRD = np.uint64(0xC4CEB9FE1A85EC53)
_NULL = np.uint64(0x13198A2E03707344)
_HALF = np.uint64(32)
_NAN = np.uint64(0x7FF8000000000000)
_BLOCK_ROWS = 1 << 14
_BLOCK_VALUES = 1 << 13
_BLOCK_WORDS = 1 << 14
"""So many words, and as many to work with, stay in the second cache."""
_COLUMNS = 4
_SALTS = np.arange(_COLUMNS, dtype=np.uint64) * _THIRD
_LAST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
_INTEGERS = {
    pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64,
    pa.uint8(): np.uint8, pa.uint16(): np.uint16, pa.uint32(): np.uint32, pa.uint64(): np.uint64,
}  # fmt: skip
_FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def key_groups(arrays: Sequence[pa.Array], max_parallelism: int) -> pa.Array:
    """Return the key group of each row.

    Parameters
    ----------
    arrays
        The columns of the key, of one length.
    max_parallelism
        How many groups there are, at most `MOST_KEY_GROUPS`.

    Returns
    -------
    pa.Array
        Of type uint16, without nulls, each below ``max_parallelism``.

    Raises
    ------
    OptionError
        A column cannot be part of a key.

    Examples
    --------
    >>> key_groups([pa.array(["AAPL", "MSFT", None, "AAPL"])], 128).to_pylist()
    [88, 57, 2, 88]
    """
    assert 0 < max_parallelism <= MOST_KEY_GROUPS
    return pa.array(groups_of_hashes(key_hash(arrays), max_parallelism))


def groups_of_hashes(hashes: npt.NDArray[np.uint64], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Return the key group of each hash of `key_hash`."""
    groups = np.empty(len(hashes), np.uint16)
    many = np.uint64(max_parallelism)
    for begin in range(0, len(hashes), _BLOCK_ROWS):
        # The upper half of the hash as a fraction of the groups: no division.
        part = hashes[begin : begin + _BLOCK_ROWS] >> _HALF
        part *= many
        part >>= _HALF
        groups[begin : begin + _BLOCK_ROWS] = part
    return groups


def key_hash(arrays: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Return the hash of each row, all 64 bits of it good.

    Parameters
    ----------
    arrays
        The columns of the key, of one length, at least one.

    Raises
    ------
    OptionError
        A column cannot be part of a key.
    """
    hashes: Words = None
    for number, array in enumerate(arrays):
        check_key_type(f"number {number}", array.type)
        hashes = _mixed(_words(array), hashes)
    assert hashes is not None
    found: npt.NDArray[np.uint64] = hashes
    return found


def check_key_type(column: str, data_type: pa.DataType) -> None:
    """Check whether a column can be part of a key.

    Parameters
    ----------
    column
        Its name, for the message.
    data_type
        Its type.

    Raises
    ------
    OptionError
        It cannot.
    """
    wrong = _no_key(data_type)
    if wrong is None:
        return
    within = "" if wrong == data_type else f" within {data_type}"
    raise OptionError(
        f"The column {column} cannot be part of a key: a value of the type {wrong}{within} has no hash. Make columns "
        "of its parts, or a string.",
        option="groupBy", value=column,
    )  # fmt: skip


def _no_key(data_type: Any) -> pa.DataType | None:
    """Return the type that cannot be hashed, be it within this one; None: all is well."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return _no_key(data_type.storage_type)
    if types.is_struct(data_type):
        return next((wrong for each in data_type if (wrong := _no_key(each.type)) is not None), None)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type) or _is_list(data_type):
        return _no_key(data_type.value_type)
    if types.is_map(data_type) or types.is_union(data_type) or types.is_interval(data_type):
        return data_type
    return None


def _mixed(words: Words, hashes: Words) -> Words:
    """Return the hashes with a further word per row mixed in, which is done in the words' place or in the hashes'."""
    result = words if hashes is None else hashes
    spare = np.empty(min(len(words), _BLOCK_ROWS), np.uint64)
    for begin in range(0, len(words), _BLOCK_ROWS):
        part = result[begin : begin + _BLOCK_ROWS]
        part ^= _SEED if hashes is None else words[begin : begin + _BLOCK_ROWS]
        _mix(part, spare[: len(part)])
    return result


def _mix(words: Words, spare: Words) -> None:
    """Mix words in their place: one of the bits of a word changes half of all bits."""
    words *= _FIRST
    words ^= np.right_shift(words, _HALF, out=spare)
    words *= _SECOND
    words ^= np.right_shift(words, _HALF, out=spare)


def _words(array: Any) -> Words:
    """Return the word of each value, in an array that is the caller's."""
    if isinstance(array, pa.ExtensionArray):
        return _words(array.storage)
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    if pa.types.is_run_end_encoded(array.type):
        return _words(pc.run_end_decode(array))
    if pa.types.is_dictionary(array.type):
        return _of_dictionary(array)
    words = _of_values(array)
    if array.null_count:
        np.copyto(words, _NULL, where=array.is_null().to_numpy(zero_copy_only=False))
    return words


def _of_values(array: Any) -> Words:
    """Return the word of each value; of nulls any."""
    types, kind = pa.types, array.type
    if kind in _INTEGERS:
        # Through int64, so that what is negative is so in every width.
        return _fixed(array, _INTEGERS[kind]).astype(np.int64).view(np.uint64)
    if kind in _FLOATS:
        numbers = _fixed(array, _FLOATS[kind]).astype(np.float64)
        numbers += 0.0  # -0.0 becomes 0.0
        words = numbers.view(np.uint64)
        words[np.isnan(numbers)] = _NAN
        return words
    if types.is_boolean(kind):
        return _words(array.cast(pa.uint8()))
    if types.is_decimal(kind):
        return _of_decimals(array)
    if types.is_temporal(kind):
        return _of_times(array)
    if types.is_struct(kind):
        return _of_structs(array)
    if _is_list(kind):
        return _of_lists(array)
    return _of_bytes(array)


def _fixed(array: Any, dtype: Any, values_each: int = 1) -> Any:
    """Return the values of an array of fixed width, as they lie in its buffer."""
    if len(array) == 0:
        return np.empty(0, dtype)
    begin, end = array.offset * values_each, (array.offset + len(array)) * values_each
    return np.frombuffer(array.buffers()[1], dtype, count=end)[begin:]


def _of_times(array: Any) -> Words:
    kind = array.type
    if pa.types.is_date32(kind):
        values, factor = _fixed(array, np.int32), 86_400 * _NANOSECONDS["s"]
    elif pa.types.is_date64(kind):
        values, factor = _fixed(array, np.int64), _NANOSECONDS["ms"]
    else:
        values = _fixed(array, np.int32 if pa.types.is_time32(kind) else np.int64)
        factor = _NANOSECONDS[kind.unit]
    words = values.astype(np.int64).view(np.uint64)
    words *= np.uint64(factor)
    return words


def _of_decimals(array: Any) -> Words:
    width = array.type.bit_width
    if width <= 64:
        return _fixed(array, np.int32 if width == 32 else np.int64).astype(np.int64).view(np.uint64)
    parts = _fixed(array, np.int64, width // 64).reshape(len(array), width // 64)
    words = parts[:, 0].astype(np.int64).view(np.uint64)
    factor = _SECOND
    for number in range(1, width // 64):
        # A narrow value's higher words repeat its sign, and add nothing.
        beyond = parts[:, number] - (parts[:, number - 1] >> 63)
        words += beyond.view(np.uint64) * factor
        factor = (factor ^ (factor >> _HALF)) | np.uint64(1)
    return words


def _of_structs(array: Any) -> Words:
    hashes = np.full(len(array), _SEED)
    for field in array.flatten():  # a child's values where the parent is not null
        hashes = _mixed(_words(field), hashes)
    return hashes


def _of_lists(array: Any) -> Words:
    lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    elements = _mixed(_words(array.flatten()), None)
    # An element's hash is a word of eight bytes.
    return _sums(elements.view(np.uint8), (ends - lengths) * 8, lengths * 8)


def _of_dictionary(array: Any) -> Words:
    values = array.dictionary
    if len(values) > len(array):  # of a dictionary that many batches share
        return _words(values.take(array.indices))
    if not array.null_count:
        return _words(values)[_fixed(array.indices, _INTEGERS[array.type.index_type])]
    # Null, too, is one of the values that an index may stand for: the last.
    words = np.append(_words(values), _NULL)
    return words[_indices(array, len(values))]


def _indices(array: Any, null: int) -> Any:
    """Return what each row's index is, and ``null`` where there is none."""
    indices = _fixed(array.indices, _INTEGERS[array.type.index_type]).astype(np.int64)
    np.copyto(indices, null, where=array.indices.is_null().to_numpy(zero_copy_only=False))
    return indices


def _of_bytes(array: Any) -> Words:
    types, kind = pa.types, array.type
    if len(array) == 0:
        return np.empty(0, np.uint64)
    if types.is_fixed_size_binary(kind):
        data = array.buffers()[1]
        starts = (np.arange(len(array)) + array.offset) * kind.byte_width
        return _sums(_bytes(data), starts, np.full(len(array), kind.byte_width))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
        kind = array.type
    dtype = np.int64 if types.is_large_string(kind) or types.is_large_binary(kind) else np.int32
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype, count=array.offset + len(array) + 1)[array.offset :].astype(np.int64)
    return _sums(_bytes(data), ends[:-1], np.diff(ends))


def _bytes(buffer: pa.Buffer | None) -> Any:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _sums(data: Any, starts: Any, lengths: Any) -> Words:
    """Return a word for each stretch of bytes.

    Each eight bytes (the last ones filled up with zeros) are mixed with their place and added up, which needs no order:
    the first ones are done column by column, those of long values in a row, and there is no loop over values.
    """
    sums = lengths.astype(np.uint64)
    sums *= _THIRD
    for begin in range(0, len(lengths), _BLOCK_VALUES):
        part = slice(begin, begin + _BLOCK_VALUES)
        _add_first_words(data, starts[part], lengths[part], sums[part])
    (long,) = np.nonzero(lengths > _COLUMNS * 8)
    if len(long):
        starts, lengths = starts[long] + _COLUMNS * 8, lengths[long] - _COLUMNS * 8
        words_before = np.cumsum((lengths + 7) >> 3)
        begin, done = 0, 0
        while begin < len(long):
            # As many values as fit a block; one that is larger than that alone.
            end = max(int(np.searchsorted(words_before, done + _BLOCK_WORDS, side="right")), begin + 1)
            sums[long[begin:end]] += _sums_of_rest(data, starts[begin:end], lengths[begin:end])
            begin, done = end, int(words_before[end - 1])
    return sums


def _add_first_words(data: Any, starts: Any, lengths: Any, sums: Words) -> None:
    """Add up the first words of each value, column by column."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    spare = np.empty(len(lengths), np.uint64)
    for place in range(min(_COLUMNS, (longest + 7) >> 3)):
        some: Any = slice(None) if shortest > place * 8 else np.nonzero(lengths > place * 8)[0]
        words = _load(data, starts[some] + place * 8)
        if shortest < place * 8 + 8:
            words &= _LAST_BYTES.take(lengths[some] - place * 8, mode="clip")
        words ^= _SALTS[place]
        _mix(words, spare[: len(words)])
        sums[some] += words


def _sums_of_rest(data: Any, starts: Any, lengths: Any) -> Words:
    """Return the sums of the words after the first ones, of values that have any."""
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    firsts = ends - counts
    places = np.arange(int(ends[-1])) - np.repeat(firsts, counts)
    words = _load(data, np.repeat(starts, counts) + (places << 3))
    words[ends - 1] &= _LAST_BYTES[((lengths - 1) & 7) + 1]
    salts = (places + _COLUMNS).astype(np.uint64)
    salts *= _THIRD
    words ^= salts
    _mix(words, salts)
    return np.add.reduceat(words, firsts)


def _load(data: Any, at: Any) -> Words:
    """Return the eight bytes at each place as a word, in memory's order; those after the end are zeros."""
    low, high = int(at.min()), int(at.max()) + 8
    part = data[low:high]
    if len(part) < high - low:
        part = np.concatenate([part, np.zeros(high - low - len(part), np.uint8)])
    every = np.ndarray((high - low - 7,), np.dtype("<u8"), buffer=part, strides=(1,))
    return every[at - low]


def _is_list(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type) or types.is_large_list_view(data_type)
    )  # fmt: skip
