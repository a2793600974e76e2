"""Expressions: texts, branches that are not taken, pickles, and what is refused before there are rows."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.expressions.compiled import evaluate, type_in
from headgate.expressions.expressions import Bound, Branches, Call, Column, Constant, Node, index_of, text_of
from headgate.operators.filter import Filter
from headgate.operators.project import Project
from tests.unit.expressions.nodes import N, call, cast

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string()), ("o", pa.struct([("a", pa.int32())])), ("p", pa.bool_())])
NAME, PART, P = (Bound(place, SCHEMA.names[place]) for place in (1, 2, 3))
ROWS = pa.RecordBatch.from_pylist(
    [{"n": 0, "name": "x", "o": {"a": 1}, "p": True}, {"n": 2, "name": None, "o": None, "p": None}], schema=SCHEMA
)
NOTHING = Constant(None, pa.null())


def values(node: Node) -> list[Any]:
    found: list[Any] = evaluate(node, ROWS, "UTC").to_pylist()
    return found


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (call("upper", PART), "upper cannot take struct"),
        (call("not", N), "cannot take int64"),
        (cast(PART, pa.string()), "no cast of struct<a: int32> to string"),
        (cast(N, pa.date32()), "no cast of int64 to date32"),
        (Branches(((P, N),), NAME), "its branches have the types int64, string"),
        (Call("regexp_extract", (NAME,), {"pattern": "(a)", "group": 2}), "has 1 groups"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_there_are_rows(node: Node, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        type_in(node, SCHEMA, "UTC")


def test_a_column_is_found_by_its_exact_name_or_without_regard_to_case() -> None:
    assert [index_of(pa.schema({"a": pa.int64(), "A": pa.int64()}), name) for name in ("a", "A")] == [0, 1]
    assert index_of(SCHEMA, "NAME") == 1
    with pytest.raises(OptionError, match=r"no column 'b'\. The columns are: n, name"):
        index_of(SCHEMA, "b")
    with pytest.raises(OptionError, match="more than one column 'aB'"):
        index_of(pa.schema({"ab": pa.int64(), "AB": pa.int64()}), "aB")


def test_branches_that_are_not_taken_are_not_evaluated() -> None:
    there, quotient = call(">", N, 0), call("/", Constant(10.0, pa.float64()), cast(N, pa.float64()))
    assert values(Branches(((there, quotient),), Constant(0.0, pa.float64()))) == [0.0, 5.0]
    assert values(Branches(((there, quotient),))) == [None, 5.0]
    assert values(Branches(((there, NOTHING),), N)) == [0, None]
    assert values(call("and", there, call(">", quotient, Constant(1.0, pa.float64())))) == [False, True]
    with pytest.raises(pa.ArrowInvalid, match="divide by zero"):
        values(quotient)


def test_branches_keep_their_order() -> None:
    big = pa.RecordBatch.from_pydict({"n": list(range(1000))})
    third = [call("=", call("%", N, 3), each) for each in (0, 1)]
    texts = [Constant(each, pa.string()) for each in "ab"]
    found = evaluate(Branches(tuple(zip(third, texts))), big, "UTC")
    assert found.to_pylist() == [["a", "b", None][n % 3] for n in range(1000)]


def test_texts() -> None:
    texts = [
        (N, "n"), (Call("getfield", (PART,), {"name": "a"}), "o.a"), (cast(N, pa.int8()), "CAST(n AS INT8)"),
        (call("+", N, 1), "(n + 1)"), (call("in", N, 1, 2), "in(n, 1, 2)"), (call("not", P), "(NOT p)"),
        (NOTHING, "NULL"), (Constant(True, pa.bool_()), "true"),
        (Branches(((P, N),), Constant(2, pa.int64())), "CASE WHEN p THEN n ELSE 2 END"),
    ]  # fmt: skip
    for node, text in texts:
        assert text_of(node) == Column(node).name_in_output == text
    assert repr(Column(N, "m")) == "Column<n AS m>" and Column(N, "m").name_in_output == "m"


def test_expressions_are_pickled() -> None:
    node = Branches(((call("=", call("upper", NAME), "X"), cast(N, pa.decimal128(5, 1))),))
    assert values(pickle.loads(pickle.dumps(node))) == values(node)


def test_project_and_filter_refuse_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="'n' appears more than once"):
        Project(SCHEMA, [Column(N), Column(Constant(1, pa.int64()), "n")], "UTC")
    with pytest.raises(OptionError, match="has the type int64; a condition is boolean"):
        Filter(SCHEMA, Column(N), "UTC")
    assert Project(SCHEMA, [Column(cast(N, pa.int32()), "m")], "UTC").schema == pa.schema([("m", pa.int32())])


def test_bytes_that_are_no_text_are_shown_as_spark_shows_them() -> None:
    """A key or a value of Kafka's that is cast to a string ends no query; what is valid is as it was."""
    schema = pa.schema([("value", pa.binary())])
    values = pa.array([b"a\xffb", None, "é".encode(), b"\xed\xa0\x80"], pa.binary())
    batch = pa.record_batch([values], schema=schema)
    found = evaluate(cast(Bound(0, "value"), pa.string()), batch, "UTC")
    found.validate(full=True)
    assert found.to_pylist() == ["a\ufffdb", None, "é", "\ufffd"]
