"""Futures made of others: results in order, the first error, and whoever comes too late."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from headgate.futures import done_with, gathered, mapped


def test_results_are_in_the_order_of_the_futures_however_they_come() -> None:
    parts: list[Future[int]] = [Future(), done_with(2), Future()]
    whole = gathered(parts)
    parts[2].set_result(3)
    assert not whole.done()
    parts[0].set_result(1)
    assert whole.result(0) == [1, 2, 3]
    assert gathered([]).result(0) == []


def test_the_first_error_is_the_whole_s_and_what_comes_later_is_left_alone() -> None:
    parts: list[Future[int]] = [Future(), Future(), Future(), Future()]
    whole = gathered(parts)
    parts[1].set_exception(OSError("first"))
    with pytest.raises(OSError, match="first"):
        whole.result(0)
    parts[0].set_result(1)
    parts[2].set_exception(OSError("second"))
    parts[3].set_result(4)
    assert str(whole.exception(0)) == "first"


def test_what_is_made_of_a_result_fails_with_it() -> None:
    assert mapped(done_with(2), str).result(0) == "2"
    failed: Future[int] = Future()
    failed.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        mapped(failed, str).result(0)


def test_what_cannot_be_made_of_a_result_is_an_error_and_not_a_wait_for_ever() -> None:
    with pytest.raises(ZeroDivisionError):
        mapped(done_with(0), lambda number: 1 // number).result(0)
