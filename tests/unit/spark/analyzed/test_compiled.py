"""What is decided of expressions once they are nodes: which never fail, which types are the same."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pytest

from headgate.expressions.compiled import compiled, evaluate
from headgate.expressions.expressions import Bound, Branches, Call, CastTo, Constant, Node
from headgate.spark.analyzed.rules import _SAME_REGEX
from headgate.spark.analyzed.scala import UnsupportedTypeError, constant, same_type

N = Bound(0, "n")
ONE = Constant(1, pa.int64())


def cannot_fail(node: Node) -> bool:
    return compiled(node, pa.schema({"n": pa.int64()}), "UTC").cannot_fail


def test_what_cannot_fail_may_be_evaluated_needlessly() -> None:
    positive = Call(">", (N, ONE))
    assert cannot_fail(Branches(((positive, N),), ONE))
    assert cannot_fail(Call("and", (positive, Call("isnull", (N,)))))
    assert not cannot_fail(Call("/", (ONE, N)))
    assert not cannot_fail(Branches(((Call("=", (Call("%", (N, N)), ONE)), N),)))
    assert not cannot_fail(CastTo(N, pa.int8(), "int8"))


def test_moments_and_days_are_numbers_and_evaluate_to_what_they_are() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()):
        made = evaluate(Constant(3, kind), batch, "America/New_York")
        assert made.type == kind
        assert made.cast(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist() == [3, 3]


def test_a_column_is_found_by_its_place() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    assert evaluate(Bound(1, "n"), batch, "UTC").to_pylist() == [2]


def test_what_is_null_already_has_no_error() -> None:
    batch = pa.record_batch({"n": pa.array([4.0, None, 2.0]), "zero": pa.array([1.0, 0.0, 2.0])})
    quotient = Call("/", (Constant(1.0, pa.float64()), Bound(1, "zero")))
    assert evaluate(Call("+", (N, quotient)), batch, "UTC").to_pylist() == [5.0, None, 2.5]
    assert evaluate(Call("/", (quotient, N)), batch, "UTC").to_pylist() == [0.25, None, 0.25]
    for call in (Call("+", (quotient, N)), Call("greatest", (N, quotient)), Call("/", (N, quotient))):
        with pytest.raises(pa.ArrowInvalid):
            evaluate(call, batch, "UTC")


def test_constants_are_simple_values() -> None:
    class Scala:
        def toString(self) -> str:
            return "1.50"

    assert constant(None, pa.int64()) is None
    assert constant(Scala(), pa.decimal128(3, 2)) == decimal.Decimal("1.50")
    assert constant(Scala(), pa.string()) == "1.50"
    with pytest.raises(UnsupportedTypeError, match="list"):
        constant(Scala(), pa.list_(pa.int64()))


def test_types_are_the_same_whatever_may_be_null() -> None:
    strict = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    assert same_type(strict, pa.struct([pa.field("a", pa.int64())]))
    assert not same_type(strict, pa.struct([pa.field("b", pa.int64())]))
    assert not same_type(pa.int32(), pa.int64())


@pytest.mark.parametrize("pattern", ["a.c", "a$", r"\bab", r"\s", r"\d+", "(?i)a", "[[:alpha:]]", r"\p{L}", "[a&&b]"])
def test_regular_expressions_that_mean_something_else_to_java_are_refused(pattern: str) -> None:
    assert _SAME_REGEX.fullmatch(pattern) is None or "(?" in pattern


@pytest.mark.parametrize("pattern", ["^ab+[.]c", r"[a-z0-9_]{2,3}-(x|y)", r"\.csv", "[^/]+/", ""])
def test_regular_expressions_that_mean_the_same_are_taken(pattern: str) -> None:
    assert _SAME_REGEX.fullmatch(pattern) is not None
