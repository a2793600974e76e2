"""The contract's own behaviour: defaults that refuse by name, values that are frozen, errors that keep their facts."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator

import msgspec
import pytest

import headgate.errors
from headgate.errors import HeadgateError, OptionError, UnsupportedOperationError
from headgate.source import (
    PlannedRange,
    ReaderInfo,
    Remaining,
    SourceEvent,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitReader,
    SupportsBoundedPlans,
    SupportsSplitReassignmentOnRecovery,
    WatermarkStrategy,
)


def without_abstract(cls: type) -> object:
    """Return an instance of a contract whose abstract methods are all missing."""
    return type("Bare", (cls,), dict.fromkeys(cls.__abstractmethods__, lambda self: None))()


def test_a_split_reader_that_does_not_pause_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="Bare does not support pausing") as raised:
        without_abstract(SplitReader).pause_or_resume_splits([], [])  # type: ignore[attr-defined]
    assert raised.value.operation == "pause_or_resume_splits"


def test_a_reader_that_does_not_pause_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="Bare does not support pausing"):
        without_abstract(SourceReader).pause_or_resume_splits([], [])  # type: ignore[attr-defined]


def test_a_reader_that_gets_events_it_does_not_handle_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="Bare got SourceEvent"):
        without_abstract(SourceReader).handle_source_event(SourceEvent())  # type: ignore[attr-defined]


def test_an_enumerator_that_gets_events_it_does_not_handle_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="Bare got SourceEvent from reader 3"):
        without_abstract(SplitEnumerator).handle_source_event(3, SourceEvent())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        Split(split_id="a"),
        SourceEvent(),
        ReaderInfo(subtask=1),
        Remaining(),
        PlannedRange(split=Split(split_id="a")),
        WatermarkStrategy(event_time_column="at"),
    ],
)
def test_values_of_the_contract_are_frozen_and_compare_by_content(value: msgspec.Struct) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0] if value.__struct_fields__ else "x", 1)


def test_a_split_knows_nothing_of_what_is_left_by_default() -> None:
    assert Split(split_id="a").remaining() == Remaining(rows=None, bytes=None, file=None)


def test_abilities_are_found_by_isinstance() -> None:
    class Plans:
        def plan_ranges(self) -> None: ...

    class Reports(SupportsSplitReassignmentOnRecovery): ...

    assert isinstance(Plans(), SupportsBoundedPlans)
    assert not isinstance(Reports(), SupportsBoundedPlans)
    assert isinstance(Reports(), SupportsSplitReassignmentOnRecovery)


def all_errors() -> Iterator[type[HeadgateError]]:
    for _, cls in inspect.getmembers(headgate.errors, inspect.isclass):
        if issubclass(cls, HeadgateError):
            yield cls


@pytest.mark.parametrize("error_type", sorted(all_errors(), key=lambda each: each.__name__))
def test_every_error_keeps_type_message_and_facts_through_pickle(error_type: type[HeadgateError]) -> None:
    error = error_type("what happened", path="x.csv", byte_offset=7)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is error_type
    assert str(copy) == "what happened"
    assert (copy.path, copy.byte_offset) == ("x.csv", 7)
    with pytest.raises(AttributeError, match=f"{error_type.__name__} has no attribute 'other'"):
        _ = copy.other


def test_an_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("error_type", sorted(all_errors(), key=lambda each: each.__name__))
def test_every_error_says_in_its_docstring_what_it_is(error_type: type[HeadgateError]) -> None:
    assert error_type.__doc__ and error_type.__name__ in (headgate.errors.__doc__ or "") + "HeadgateError"
