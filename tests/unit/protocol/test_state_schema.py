"""`StateSchema`: which state of before is taken on."""

from __future__ import annotations

import pytest

from headgate.protocol.state_schema import StateColumn, StateSchema, places_of, widens


def columns(*given: str) -> tuple[StateColumn, ...]:
    """Return columns of texts like ``sum(n) int64``; with an exclamation mark they must stay as they are."""
    made = []
    for each in given:
        name, _, kind = each.rstrip("!").partition(" ")
        free = not each.endswith("!")
        made.append(StateColumn(name=name, kind=kind, can_widen=free, can_be_added=free))
    return tuple(made)


def schema(*aggregates: str, window: str = "w", keys: tuple[str, ...] = ("k int32",)) -> StateSchema:
    return StateSchema(window=window, keys=columns(*keys), aggregates=columns(*aggregates))


BEFORE = schema("sum(n) int32", "count(1) ")
TAKEN_ON = {
    "the same": schema("sum(n) int32", "count(1) "),
    "another order": schema("count(1) ", "sum(n) int32"),
    "one more": schema("max(n) int32", "sum(n) int32", "count(1) "),
    "one less": schema("sum(n) int32"),
    "one less, wider": schema("sum(n) int64"),
    "none": schema(),
    "twice": schema("sum(n) int32", "sum(n) int32", "count(1) "),
    "wider": schema("sum(n) int64", "count(1) "),
    "a wider key": schema("sum(n) int32", "count(1) ", keys=("k int64",)),
}
ROWS = schema(window="")
REFUSED = {
    "another, and one more": schema("max(n) int32", "count(1) ", "min(n) int32"),
    "one less, narrower": schema("sum(n) int16"),
    "another": schema("max(n) int32", "count(1) "),
    "another type": schema("sum(n) double", "count(1) "),
    "narrower": schema("sum(n) int16", "count(1) "),
    "another window": schema("sum(n) int32", "count(1) ", window="v"),
    "another key": schema("sum(n) int32", "count(1) ", keys=("j int32",)),
    "a key more": schema("sum(n) int32", "count(1) ", keys=("k int32", "j int32")),
    "a text as key": schema("sum(n) int32", "count(1) ", keys=("k string",)),
    "wider, where that is not known": schema("sum(n) int64!", "count(1) "),
    "one more that counts nulls": schema("sum(n) int32", "count(1) ", "first(n) int32!"),
}


@pytest.mark.parametrize("name", TAKEN_ON)
def test_what_is_taken_on(name: str) -> None:
    assert TAKEN_ON[name].takes_on(BEFORE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    assert not REFUSED[name].takes_on(BEFORE)


def test_rows_may_be_aggregated_and_nothing_becomes_rows_again() -> None:
    assert BEFORE.takes_on(ROWS) and ROWS.takes_on(ROWS)
    assert not ROWS.takes_on(BEFORE)
    assert not schema("count(1) ", keys=("j int32",)).takes_on(ROWS)


def test_places() -> None:
    assert places_of(columns("a", "b", "a"), columns("b", "a", "c", "a", "a")) == [1, 0, None, 2, None]


def test_widening() -> None:
    assert widens("int8", "int64")
    assert widens("float", "double")
    assert widens("decimal128(10, 2)", "decimal128(38, 2)")
    for before, now in (
        ("int64", "int32"), ("double", "float"), ("int32", "double"), ("string", "int64"),
        ("decimal128(10, 2)", "decimal128(12, 3)"), ("decimal128(10, 2)", "decimal128(9, 2)"),
    ):  # fmt: skip
        assert not widens(before, now)
