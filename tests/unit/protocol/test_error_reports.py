"""Errors on their way to the driver: the original survives, or its text does; the user reads where it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headgate.errors import (
    BadDataError,
    DataLossError,
    DeploymentError,
    HeadgateError,
    InvalidTransitionError,
    OptionError,
    SourceError,
    SourceUnavailableError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    UserFunctionError,
)
from headgate.operators.map_in_arrow import MapInArrow
from headgate.protocol.error_reports import error_of, report_of
from headgate.protocol.messages import ErrorReport
from tests.unit.operators.collecting_sink import NUMBERS, numbers


class OwnError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


class UnreadableError(Exception):
    """Can be written, and not read again: its constructor wants more than ``args``."""

    def __init__(self, message: str, more: str) -> None:
        super().__init__(message)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """Return an error as it is where it is caught."""
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except Exception as inner:
            raise error from inner
    except Exception as caught:
        return caught


def test_one_of_ours_comes_back_as_it_was_with_its_facts_and_its_cause() -> None:
    cause = ZeroDivisionError("by zero")
    error = raised(UserFunctionError("f raised", function="f", split="s"), cause)
    back = error_of(report_of(error, stage=0, subtask=3, source="a", position="17"))

    assert type(back) is UserFunctionError
    assert back.facts == {"stage": 0, "subtask": 3, "source": "a", "position": "17", "function": "f", "split": "s"}
    assert type(back.__cause__) is ZeroDivisionError
    lines = str(back).splitlines()
    assert lines[0] == "f raised"
    assert "Where: stage 0, subtask 3, source a, split s, position 17." in lines
    assert lines[-1] == "ZeroDivisionError: by zero"


def test_what_the_error_says_itself_wins_over_what_its_place_says() -> None:
    report = report_of(raised(SourceError("gone", split="s", position=5)), source="a", position="?")
    assert report.facts == {"source": "a", "split": "s", "position": 5}


def test_facts_that_are_no_plain_values_are_left_out() -> None:
    report = report_of(raised(InvalidTransitionError("no", state="x", event="y", history=("a", "b"))))
    assert report.facts == {"state": "x", "event": "y"}


def test_a_place_that_is_not_known_is_not_named() -> None:
    report = report_of(raised(OSError("broken")), stage=0, subtask=1, source="", split="")
    assert "Where: stage 0, subtask 1." in str(error_of(report))
    assert "Where" not in str(error_of(report_of(raised(OSError("broken")))))


def test_an_error_that_was_made_and_not_raised_is_shown_once() -> None:
    assert str(error_of(report_of(HeadgateError("the job ended")))) == "the job ended"


def test_why_there_was_no_other_try_stands_before_the_traceback() -> None:
    report = report_of(raised(HeadgateError("it failed")), stage=0, subtask=1)
    lines = [line for line in str(error_of(report, given_up="No other try.")).splitlines() if line]
    assert lines[:4] == [
        "it failed", "Where: stage 0, subtask 1.", "No other try.", "Traceback (most recent call last):"
    ]  # fmt: skip


@pytest.mark.parametrize(("facts", "kind"), [({}, HeadgateError), ({"function": "f"}, UserFunctionError)])
def test_a_foreign_error_becomes_the_cause_of_one_of_ours(facts: dict[str, Any], kind: type[HeadgateError]) -> None:
    back = error_of(report_of(raised(OSError("broken")), **facts))
    assert type(back) is kind
    assert type(back.__cause__) is OSError
    assert str(back).startswith("broken\n\n")


def test_an_error_of_the_users_own_class_travels() -> None:
    error = raised(HeadgateError("it failed"), OwnError.__new__(OwnError, 1, 2))
    assert isinstance(error_of(report_of(error)).__cause__, OwnError)


@pytest.mark.parametrize(
    "original",
    [UnreadableError("broken", "more"), OSError(threading.Lock()), OSError("x" * (1 << 20))],
    ids=["cannot be read again", "cannot be written", "is too large"],
)
def test_of_an_error_that_does_not_travel_the_text_does(original: Exception) -> None:
    report = report_of(raised(UserFunctionError("f raised", function="f"), original))
    assert report.pickled is None
    assert type(original).__name__ in report.traceback
    back = error_of(report)
    assert back.__cause__ is None
    assert type(original).__name__ in str(back)


def test_a_class_that_the_driver_does_not_know_leaves_the_text() -> None:
    report = ErrorReport(error_type="SourceError", message="gone", pickled=b"no pickle", traceback="Traceback\n")
    assert str(error_of(report)) == "gone\n\nTraceback"


def test_an_error_without_words_is_called_by_its_name() -> None:
    assert str(error_of(report_of(raised(WordlessError())))).startswith("WordlessError\n\n")


class WordlessError(Exception):
    pass


def test_of_a_users_function_only_the_users_own_lines_are_shown() -> None:
    def mine(batches: Any) -> Any:
        raise ValueError("mine")

    failed = UserFunctionError("f raised")
    try:
        MapInArrow(mine, NUMBERS).process(numbers(1), "s", lambda batch, split: None)
    except ValueError as error:
        assert error.__traceback__ is not None
        failed.__cause__ = error.with_traceback(error.__traceback__.tb_next)  # without this function, which calls
    shown = [line for line in report_of(failed).traceback.splitlines() if line.strip().startswith("File")]
    assert len(shown) == 1 and "in mine" in shown[0]


@pytest.mark.parametrize(
    ("kind", "final"),
    [
        (OptionError, True), (DeploymentError, True), (UnsupportedOperationError, True),
        (DataLossError, True), (BadDataError, True), (UnsupportedVersionError, True),
        (UserFunctionError, False), (SourceError, False), (SourceUnavailableError, False), (OSError, False),
    ],
)  # fmt: skip
def test_what_only_the_user_can_mend_is_final(kind: type[Exception], final: bool) -> None:
    assert report_of(raised(kind("x"))).final is final


def test_an_error_that_says_so_is_final() -> None:
    assert report_of(raised(SourceUnavailableError("x", final=True))).final
