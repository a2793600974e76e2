"""Aggregates: results do not depend on how rows are cut and merged, and have the types and values of Spark's."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound
from headgate.operators.windows.aggregates import Aggregate, accumulator_of, merge
from headgate.operators.windows.catalyst_aggregate import CatalystAggregate
from tests.unit.operators.windows.words import (
    approx_count_distinct,
    avg,
    collect_list,
    count,
    first,
    last,
    max,
    min,
    sum,
)


def aggregated(aggregate: Aggregate, values: pa.Array, cuts: tuple[int, ...] = ()) -> Any:
    """Return an aggregate of all values, of which each piece is merged first."""
    accumulator = accumulator_of(aggregate, values.type)
    partials = {f"p{number}": each for number, each in enumerate(accumulator.partials)}
    arrays = accumulator.lift(values, len(values))
    table = pa.table([pa.array([1] * len(values)), *arrays], names=["k", *partials])
    bounds = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    pieces = [merge(table.slice(a, b - a), ["k"], partials) for a, b in pairwise(bounds) if a < b]
    merged = merge(pa.concat_tables(pieces), ["k"], partials)
    result = accumulator.finish([merged.column(name).combine_chunks() for name in partials])
    assert result.type == accumulator.kind
    (found,) = result.to_pylist()
    return found


VALUES = st.lists(st.none() | st.integers(-(2**40), 2**40), min_size=1, max_size=20)


@given(values=VALUES, cuts=st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_of_integers(values: list[int | None], cuts: tuple[int, ...]) -> None:
    """Null where there is no value; the order counts for first, last and lists."""
    array = pa.array(values, pa.int64())
    there = [each for each in values if each is not None]
    assert aggregated(count("v"), array, cuts) == len(there)
    assert aggregated(sum("v"), array, cuts) == (np.sum(there) if there else None)
    mean = aggregated(avg("v"), array, cuts)
    assert mean is None if not there else math.isclose(mean, np.mean(there), rel_tol=1e-9, abs_tol=1e-3)
    assert aggregated(min("v"), array, cuts) == (sorted(there)[0] if there else None)
    assert aggregated(max("v"), array, cuts) == (sorted(there)[-1] if there else None)
    assert aggregated(first("v"), array, cuts) == values[0]
    assert aggregated(last("v"), array, cuts) == values[-1]
    assert aggregated(first("v", True), array, cuts) == (there[0] if there else None)
    assert aggregated(last("v", True), array, cuts) == (there[-1] if there else None)
    assert aggregated(collect_list("v"), array, cuts) == there


DOUBLES = st.lists(st.sampled_from([None, math.nan, -math.inf, math.inf, -0.0, 1.5, -1.5]), min_size=1, max_size=8)


@given(values=DOUBLES, kind=st.sampled_from([pa.float64(), pa.float32()]))
def test_nan_is_greater_than_any_number(values: list[float | None], kind: pa.DataType) -> None:
    """As in Spark, and unlike in Arrow."""
    array = pa.array(values, kind)
    there = sorted((each for each in values if each is not None), key=lambda each: (math.isnan(each), each))
    assert repr(aggregated(min("v"), array)).lstrip("-") == (repr(there[0]).lstrip("-") if there else "None") or (
        aggregated(min("v"), array) == there[0]
    )
    greatest = aggregated(max("v"), array)
    assert greatest is None if not there else greatest == there[-1] or (math.isnan(greatest) and math.isnan(there[-1]))


def test_of_decimals() -> None:
    """The average has four more digits, and halves are rounded away from zero; sums have ten more."""
    array = pa.array([Decimal("0.01"), Decimal("0.02"), Decimal("0.02"), None], pa.decimal128(5, 2))
    assert aggregated(sum("v"), array) == Decimal("0.05")
    assert accumulator_of(sum("v"), array.type).kind == pa.decimal128(15, 2)
    assert aggregated(avg("v"), array) == Decimal("0.016667")
    assert accumulator_of(avg("v"), array.type).kind == pa.decimal128(9, 6)
    half = pa.array([Decimal("-0.01"), *[Decimal(0)] * 3199], pa.decimal128(5, 2))
    assert aggregated(avg("v"), half) == Decimal("-0.000003")
    wide = pa.array([Decimal(10**37), Decimal(10**37 * 9)], pa.decimal128(38, 0))
    with pytest.raises(OptionError, match="does not fit into decimal128"):
        aggregated(sum("v"), wide)
    fine = pa.array([Decimal("0.9"), Decimal("0.9")], pa.decimal128(38, 38))
    with pytest.raises(OptionError, match=r"avg\(v\): a result does not fit into decimal128\(38, 38\)"):
        aggregated(avg("v"), fine)  # whose sum does not, as in Spark


@pytest.mark.parametrize(
    "values",
    [
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([[1], None, []], pa.list_(pa.int32())),
        pa.array([Decimal("1.5"), None, Decimal("2.5")]),
    ],
    ids=["struct", "list", "decimal"],
)
def test_first_last_and_lists_take_any_type(values: pa.Array) -> None:
    """What Arrow's own kernels refuse, too."""
    for cuts in ((), (1,), (1, 2)):
        assert aggregated(first("v"), values, cuts) == values[0].as_py()
        assert aggregated(last("v"), values, cuts) == values[2].as_py()
        assert aggregated(collect_list("v"), values, cuts) == [values[0].as_py(), values[2].as_py()]
        assert aggregated(count("v"), values, cuts) == 2


@pytest.mark.parametrize(("rsd", "many"), [(None, 200), (None, 5000), (None, 100_000), (0.01, 50_000), (0.3, 10_000)])
@pytest.mark.parametrize("texts", [False, True])
def test_sketches_are_within_their_error(rsd: float | None, many: int, texts: bool) -> None:
    """Of 30 of them the deviation is about what was asked for, and there is no bias; cutting changes nothing."""
    errors = []
    for seed in range(30 if many <= 10_000 else 6):
        numbers = np.arange(many) + seed * 1_000_003
        values = pa.array(np.concatenate([numbers, numbers[::2]]))
        values = values.cast(pa.string()) if texts else values
        found = aggregated(approx_count_distinct("v", rsd), values)
        assert seed or found == aggregated(approx_count_distinct("v", rsd), values, (10, many))
        errors.append(found / many - 1)
    wanted = rsd or 0.05
    assert np.sqrt(np.mean(np.square(errors))) < 2 * wanted
    assert abs(np.mean(errors)) < 1.5 * wanted


def test_sketches_count_few_values_exactly() -> None:
    """Null is none of them; no value at all is zero."""
    values = pa.array([1.0, 2.0, None, math.nan, math.nan, -0.0, 0.0])
    assert aggregated(approx_count_distinct("v", 0.01), values) == 4
    assert aggregated(approx_count_distinct("v"), pa.array([None], pa.int64())) == 0


def test_what_cannot_be_computed_is_refused() -> None:
    """With the aggregate and the type in the message."""
    for aggregate in (sum("v"), avg("v")):
        with pytest.raises(OptionError, match=rf"there is no {aggregate.function} of string"):
            accumulator_of(aggregate, pa.string())
    with pytest.raises(OptionError, match="there is no min of struct"):
        accumulator_of(min("v"), pa.struct([("a", pa.list_(pa.int64()))]))
    for kind in (pa.map_(pa.string(), pa.int32()), pa.list_(pa.map_(pa.string(), pa.int32()))):
        with pytest.raises(OptionError, match="there is no approx_count_distinct of"):
            accumulator_of(approx_count_distinct("v"), kind)


@given(
    values=st.lists(st.none() | st.floats(-1e9, 1e9) | st.sampled_from([math.inf, math.nan]), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30)),
    function=st.sampled_from(["stddev_pop", "stddev_samp", "var_pop", "var_samp"]),
)
def test_variances_are_those_of_all_values_however_they_are_merged(
    values: list[float | None], cuts: list[int], function: str
) -> None:
    """Of null none; of infinite values NaN, as in Spark; of a sample of one null."""
    made = accumulator_of(Aggregate(function, Bound(0, "x")), pa.float64())
    (parts,) = made.lift(pa.array(values, pa.float64()), len(values))
    (partial,) = made.partials
    assert partial.merge_buffers is not None
    merged = partial.merge_buffers(parts, np.searchsorted(sorted(cuts), np.arange(len(values)), side="right"))
    (found,) = made.finish([partial.merge_buffers(merged, np.zeros(len(merged)))]).to_pylist()
    numbers = np.array([each for each in values if each is not None])
    sample = function.endswith("samp")
    if len(numbers) <= sample:
        assert found is None
        return
    with np.errstate(invalid="ignore"):
        expected = numbers.var(ddof=int(sample))
    found = found**2 if function.startswith("stddev") else found
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


def test_moments_that_overflow_are_no_warning() -> None:
    """Which pytest takes for an error."""
    made = accumulator_of(Aggregate("var_pop", Bound(0, "x")), pa.float64())
    (parts,) = made.lift(pa.array([1e308, -1e308]), 2)
    (partial,) = made.partials
    assert partial.merge_buffers is not None
    (found,) = made.finish([partial.merge_buffers(parts, np.zeros(2))]).to_pylist()
    assert not math.isfinite(found)


STRUCTS = st.lists(
    st.none()
    | st.fixed_dictionaries({
        "f": st.none() | st.sampled_from([0.0, -0.0, -1.5, 2.0, math.inf, math.nan]),
        "s": st.none() | st.sampled_from(["", "a", "b", "z", "ä", "\U0001f600"]),
    }),
    min_size=1, max_size=12,
)  # fmt: skip


@given(values=STRUCTS, cuts=st.tuples(st.integers(1, 12), st.integers(1, 12)))
def test_of_structs(values: list[dict[str, Any] | None], cuts: tuple[int, ...]) -> None:
    """Field by field; in a field null is the least, NaN the greatest number, and the zeros are equal."""

    def rank(each: dict[str, Any]) -> tuple[Any, ...]:
        f, s = each["f"], each["s"]
        number = (0, 0.0) if f is None else (2, 0.0) if math.isnan(f) else (1, f + 0.0)
        return (number, (0, b"") if s is None else (1, s.encode()))

    array = pa.array(values, pa.struct([("f", pa.float64()), ("s", pa.string())]))
    there = sorted((each for each in values if each is not None), key=rank)
    for made, wanted in ((min("v"), there[:1]), (max("v"), there[-1:])):
        found = aggregated(made, array, cuts)
        assert ([] if found is None else [rank(found)]) == [rank(each) for each in wanted]


def test_a_text_of_spark_s_code_that_is_no_utf_8_is_shown_as_spark_shows_it() -> None:
    class Evaluator:
        def finish(self, buffers: pa.Array) -> pa.Array:
            return pa.array([b"a\xff", None, b"b"]).view(pa.string())

    aggregate = CatalystAggregate("listagg(value)", pa.string(), b"", conditional=False)
    aggregate._buffers.evaluator = Evaluator()  # type: ignore[assignment]
    assert aggregate.finish([pa.array([b"", b"", b""])]).to_pylist() == ["a\ufffd", None, "b"]
