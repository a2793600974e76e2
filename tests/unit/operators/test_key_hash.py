"""The key hash: the golden vectors, what must not matter to it, and how it spreads keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import OptionError
from headgate.operators.key_hash import HASH_VERSION, MOST_KEY_GROUPS, check_key_type, key_groups, key_hash

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / f"key_hash-v{HASH_VERSION}.json"
EPOCH = datetime(1970, 1, 1)
INTEGERS = [0, 1, -1, 42, -128, 127, None]
NATURALS = [0, 1, 42, 255, None]
FLOATS = [0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan"), None]
INSTANTS = [
    EPOCH, EPOCH - timedelta(seconds=1), datetime(2026, 7, 14, 12, 30, 15), datetime(1901, 2, 3), None,
]  # fmt: skip
DECIMALS = [Decimal("0.00"), Decimal("1.00"), Decimal("-1.00"), Decimal("1234.56"), Decimal("-9999.99"), None]
LARGE = [*DECIMALS, Decimal("12345678901234567890123456789012.34"), Decimal("-12345678901234567890123456789012.34")]
TEXTS = ["", "a", "AAPL", "eight by", "nine byte", "Zürich", "x" * 31, "x" * 32, "x" * 33, "long " * 50, "\0", None]
BYTES = [None if each is None else each.encode() for each in TEXTS]
PAIR = pa.struct({"a": pa.int64(), "b": pa.string()})
# What is in the golden file, by Arrow type.
VECTORS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), [None, None]),
    (pa.bool_(), [False, True, None]),
    *((kind, INTEGERS) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.int64(), [2**63 - 1, -(2**63), 10**12]),
    *((kind, NATURALS) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.uint64(), [2**64 - 1]),
    *((kind, FLOATS) for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.float64(), [0.1, 1e300, 5e-324]),
    *((pa.timestamp(unit), INSTANTS) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", "Europe/Zurich"), INSTANTS),
    (pa.date32(), [date(1970, 1, 1), date(2026, 7, 14), date(1900, 1, 1), None]),
    (pa.date64(), [date(1970, 1, 1), date(2026, 7, 14), date(1900, 1, 1), None]),
    *((pa.time32(unit), [time(0), time(23, 59, 59), None]) for unit in ("s", "ms")),
    *((pa.time64(unit), [time(0), time(23, 59, 59), None]) for unit in ("us", "ns")),
    *((pa.duration(unit), [timedelta(0), timedelta(days=-2), None]) for unit in ("s", "ms", "us", "ns")),
    *((kind, DECIMALS) for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2))),
    (pa.decimal128(38, 2), LARGE),
    (pa.decimal256(76, 2), [*LARGE, Decimal("9" * 70 + ".99"), Decimal("-" + "9" * 70 + ".99")]),
    *((kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, BYTES) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(3), [b"abc", b"\0\0\0", None]),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (PAIR, [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": None, "b": None}, None]),
    *((kind(pa.int64()), [[], [0], [1, 2], [2, 1], [None], None]) for kind in (pa.list_, pa.large_list, pa.list_view)),
    (pa.list_(pa.int64(), 2), [[1, 2], [2, 1], [None, 0], None]),
    (pa.list_(pa.list_(pa.string())), [[], [[]], [["a"], []], [["a", None]], None]),
]


def golden_vectors() -> list[dict[str, Any]]:
    """Return what is in the golden file, made from what the hash says now."""
    found = []
    for kind, values in VECTORS:
        array = pa.array(values, kind)
        hashes, groups = key_hash([array]), key_groups([array], 128)
        found.append({
            "type": str(kind),
            "vectors": [
                {"value": repr(value), "hash": f"{number:016x}", "group": group}
                for value, number, group in zip(values, hashes.tolist(), groups.to_pylist(), strict=True)
            ],
        })  # fmt: skip
    return found


def test_golden_vectors() -> None:
    """The hash of every type of key is what it was when its version came out: checkpoints depend on it."""
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert stored["version"] == HASH_VERSION
    assert golden_vectors() == stored["types"]


def test_several_columns() -> None:
    """The hash of several columns is fixed too, and their order counts."""
    columns = [pa.array([1, 1, None, 7]), pa.array(["a", None, "a", ""]), pa.array([1.5, 1.5, 1.5, None])]
    assert [f"{number:016x}" for number in key_hash(columns).tolist()] == [
        "b3c55ba55e310e2f", "e1f3cc77e54c7008", "61637443bf54c3c5", "9d38458215b965c5",
    ]  # fmt: skip
    assert key_groups(columns, 128).to_pylist() == [89, 112, 48, 78]
    assert key_hash([pa.array([1]), pa.array([2])]) != key_hash([pa.array([2]), pa.array([1])])


def variants(array: pa.Array) -> list[tuple[str, pa.Array]]:
    """Return arrays with the same values that lie in memory in other ways."""
    found = [("itself", array)]
    padded = pa.concat_arrays([array.slice(0, 1), array, array.slice(0, 1)])
    found.append(("a slice", padded.slice(min(1, len(array)), len(array))))
    if not array.null_count:
        with_null = pa.concat_arrays([array, pa.nulls(1, array.type)])
        found.append(("of an array with nulls", with_null.slice(0, len(array))))
    # An IPC message that lies at an odd address: its buffers are not aligned.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"key": array.type})) as writer:
        writer.write_batch(pa.record_batch({"key": array}))
    moved = pa.py_buffer(b"." + sink.getvalue().to_pybytes()).slice(1)
    found.append(("unaligned", pa.ipc.open_stream(moved).read_next_batch().column(0)))
    return found


def same_values(array: pa.Array) -> list[tuple[str, pa.Array]]:
    """Return arrays of other types that hold the same values."""
    found: list[tuple[str, pa.Array]] = []
    if pa.types.is_string(array.type):
        casts = [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
        found += [(str(kind), array.cast(kind)) for kind in casts]
    if pa.types.is_integer(array.type) and not pa.types.is_uint64(array.type):
        found.append(("int64", array.cast(pa.int64())))
    if not pa.types.is_nested(array.type):
        encoded = array.dictionary_encode()
        found.append(("dictionary", encoded))
        found.append(("dictionary, nulls within", array.dictionary_encode("encode")))
        shared = pa.DictionaryArray.from_arrays(encoded.indices, pa.concat_arrays([encoded.dictionary, array, array]))
        found.append(("a large dictionary", shared))
        found.append(("run-end encoded", pc.run_end_encode(array)))
    return found


def arrays() -> st.SearchStrategy[pa.Array]:
    """Draw keys of some type."""
    kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
        (pa.int8(), st.integers(-128, 127)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.float64(), st.floats()),
        (pa.bool_(), st.booleans()),
        (pa.string(), st.text(max_size=70)),
        (pa.binary(), st.binary(max_size=70)),
        (pa.binary(5), st.binary(min_size=5, max_size=5)),
        (pa.decimal128(38, 3), st.decimals(-(10**30), 10**30, places=3)),
        (pa.timestamp("us"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
        (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=40), max_size=4)),
        (PAIR, st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9), "b": st.none() | st.text(max_size=9)})),
    ]
    return st.one_of(
        st.builds(pa.array, st.lists(st.none() | values, max_size=20), st.just(kind)) for kind, values in kinds
    )


@settings(max_examples=150, deadline=None)
@given(arrays())
def test_where_and_how_a_value_lies_does_not_matter(array: pa.Array) -> None:
    """Offset, slice, validity buffer, alignment, dictionary and string type change no hash; nor do the neighbours."""
    expected = key_hash([array]).tolist()
    for name, other in [*variants(array), *same_values(array)]:
        assert key_hash([other]).tolist() == expected, name
    assert [key_hash([array.slice(row, 1)]).item() for row in range(len(array))] == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=80), min_size=1, max_size=20))
def test_values_that_differ_have_different_hashes(values: list[bytes | None]) -> None:
    """Nulls, empty values, trailing zeros and order of words included: 64 bits do not collide here."""
    assert len(set(key_hash([pa.array(values, pa.binary())]).tolist())) == len(set(values))


def test_values_of_more_words_than_a_block() -> None:
    """Many long values, and one larger than all others together, hash as each does by itself."""
    values = [bytes([number % 251]) * (number % 700) for number in range(9000)]
    values[17] = b"ab" * 200_000
    hashes = key_hash([pa.array(values)]).tolist()
    for row in (0, 1, 17, 18, 699, 700, 8191, 8192, 8999):
        assert key_hash([pa.array([values[row]])]).item() == hashes[row]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_an_instant_has_one_hash(unit: str) -> None:
    """Whatever the unit and the time zone, also before 1970; and a date is its midnight."""
    expected = key_hash([pa.array(INSTANTS, pa.timestamp("us"))]).tolist()
    assert key_hash([pa.array(INSTANTS, pa.timestamp(unit))]).tolist() == expected
    assert key_hash([pa.array(INSTANTS, pa.timestamp(unit, "UTC"))]).tolist() == expected
    midnight = key_hash([pa.array([datetime(2026, 7, 14)], pa.timestamp(unit))]).tolist()
    for kind in (pa.date32(), pa.date64()):
        assert key_hash([pa.array([date(2026, 7, 14)], kind)]).tolist() == midnight


def test_decimals_of_every_width_are_one() -> None:
    """A narrow decimal has the hash that it has in a wider type."""
    found = [
        key_hash([pa.array(DECIMALS, kind)]).tolist()
        for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(76, 2))
    ]
    assert all(each == found[0] for each in found)
    wide = [key_hash([pa.array(LARGE, kind)]).tolist() for kind in (pa.decimal128(38, 2), pa.decimal256(76, 2))]
    assert wide[0] == wide[1]


def test_numbers_that_are_equal_are_one_key() -> None:
    """-0.0 is 0.0, each NaN is every other, and null is neither."""
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    zero, minus_zero, nan, null = key_hash([pa.array([0.0, -0.0, float("nan"), None])]).tolist()
    assert zero == minus_zero
    assert set(key_hash([pa.array(other_nan)]).tolist()) == {nan}
    assert len({zero, nan, null}) == 3


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (pa.map_(pa.string(), pa.int64()), "map"),
        (pa.list_(pa.struct({"a": pa.map_(pa.string(), pa.int64())})), "within"),
        (pa.month_day_nano_interval(), "interval"),
        (pa.dense_union([pa.field("a", pa.int64())]), "union"),
    ],
)
def test_what_cannot_be_a_key_is_refused(kind: pa.DataType, named: str) -> None:
    """By the name of its column, before the query starts."""
    with pytest.raises(OptionError, match=f"column user cannot be part of a key: .*{named}"):
        check_key_type("user", kind)


SPREADS: dict[str, Callable[[], pa.Array]] = {
    "one after the other": lambda: pa.array(np.arange(50_000)),
    "steps of 128": lambda: pa.array(np.arange(50_000) * 128),
    "steps of 2**20": lambda: pa.array(np.arange(50_000) << 20),
    "steps of 2**44": lambda: pa.array(np.arange(50_000) << 44),
    "steps of a million": lambda: pa.array(np.arange(50_000) * 1_000_000),
    "negative": lambda: pa.array(-np.arange(50_000)),
    "whole doubles": lambda: pa.array(np.arange(50_000, dtype=np.float64)),
    "tenths": lambda: pa.array(np.arange(50_000) / 10),
    "seconds": lambda: pa.array(np.arange(50_000) + 1_780_000_000, pa.timestamp("s")),
    "days": lambda: pa.array(np.arange(50_000), pa.int32()).cast(pa.date32()),
    "decimals": lambda: pa.array(np.arange(50_000)).cast(pa.decimal128(38, 6)),
    "short names": lambda: pa.array([f"k{number}" for number in range(50_000)]),
    "long names": lambda: pa.array([f"https://example.org/customers/number/{number}/" for number in range(50_000)]),
}


@pytest.mark.parametrize("groups", [128, 100, 7])
@pytest.mark.parametrize("spread", SPREADS)
def test_keys_are_spread_evenly(spread: str, groups: int) -> None:
    """Chi-square over the key groups, for both halves of the hash: as chance would, or better."""
    array = SPREADS[spread]()
    upper = np.bincount(key_groups([array], groups).to_numpy(), minlength=groups)
    lower = np.bincount((key_hash([array]) % np.uint64(groups)).astype(np.int64), minlength=groups)
    expected = len(array) / groups
    for counts in (upper, lower):
        square = float(((counts - expected) ** 2 / expected).sum())
        assert square < (groups - 1) + 5 * (2 * (groups - 1)) ** 0.5


def test_every_group_is_below_the_number_of_groups() -> None:
    """For any number that is allowed; and one group has all keys."""
    keys = pa.array(np.arange(200_000))
    for many in (1, 2, 3, 127, MOST_KEY_GROUPS):
        groups = key_groups([keys], many)
        assert groups.type == pa.uint16() and groups.null_count == 0
        assert pc.min_max(groups).as_py() == {"min": 0, "max": many - 1}


def test_no_rows() -> None:
    """Have no hashes, of whatever type the key is."""
    for kind, _ in VECTORS:
        assert key_groups([pa.array([], kind)], 128).to_pylist() == []


if __name__ == "__main__":  # for a new version: python -m tests.unit.operators.test_key_hash
    GOLDEN.write_text(json.dumps({"version": HASH_VERSION, "types": golden_vectors()}, indent=1) + "\n", "utf-8")
