"""Which entries messages came from, which were passed over, and what these hold."""

from __future__ import annotations

import threading
from email.message import Message as Headers
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.pulsar.entries import Entry, entries_of, holds, passed_over
from headgate.connectors.pulsar.jobs import Parallel
from headgate.connectors.pulsar.ledgers import Ledger, Ledgers
from headgate.connectors.pulsar.position import Position
from tests.unit.connectors.pulsar.messages import Message, MessageId


def test_a_batch_of_which_not_all_came_hides_no_entry() -> None:
    ids = [MessageId(5, 0, 2, 5), MessageId(5, 1), MessageId(5, 2, 0, 2), MessageId(5, 3), MessageId(5, 5)]
    found = entries_of([Message(each, b"") for each in ids])
    assert found == [Entry(5, 0, 0), Entry(5, 1, 1), Entry(5, 2, 2), Entry(5, 3, 3), Entry(5, 5, 4)]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.data(),
)
def test_what_no_message_came_from_is_passed_over(sizes: list[int], data: st.DataObject) -> None:
    """Of all entries after the position up to the stop, or to the last one that came; some came in batches."""
    ledgers = Ledgers(tuple(Ledger(5 + 2 * n, size, 10 * size) for n, size in enumerate(sizes)))
    there = [(each.id, entry) for each in ledgers.ledgers for entry in range(each.entries)]
    begin = data.draw(st.integers(0, len(there)))
    last = Position(*there[begin - 1]) if begin else None
    ahead = there[begin:]
    came = [each for each in ahead if data.draw(st.booleans())]
    messages = []
    for ledger, entry in came:
        size = data.draw(st.integers(0, 3))
        indices = range(size) if size else [-1]
        messages += [Message(MessageId(ledger, entry, index, size), b"") for index in indices]
    entries = entries_of(messages)
    assert [each[:2] for each in entries] == came
    assert [messages[each.place].id.index in (0, -1) for each in entries] == [True] * len(came)
    reached = [each for each in ahead if came and each <= came[-1]]
    assert list(passed_over(entries, last, None, ledgers)) == [each for each in reached if each not in came]
    if ahead:
        stop = data.draw(st.sampled_from(ahead))
        expected = [each for each in ahead if each <= stop and each not in came]
        assert list(passed_over(entries, last, Position(*stop), ledgers)) == expected


def test_of_ledgers_that_are_gone_nothing_is_known() -> None:
    known = Ledgers((Ledger(7, 3, 30),))
    assert list(passed_over([Entry(7, 2, 0)], Position(5, 3), None, known)) == [(7, 0), (7, 1)]
    assert list(passed_over([], Position(5, 3), Position(5, 9), known)) == []


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "a message"),
        ({"num-batch-message": "50", "txn-uncommitted": "false"}, "a message"),
        ({"num-chunks-from-msg": "3", "chunk-id": "0"}, "a part of one"),
        ({"num-chunks-from-msg": "1"}, "a message"),
        ({"marker-type": "21", "txnid-most-bits": "0", "txn-aborted": "false"}, "nothing"),
        ({"txnid-most-bits": "0", "txn-aborted": "true", "num-chunks-from-msg": "3"}, "nothing"),
        ({"txnid-most-bits": "0", "txn-aborted": "false", "txn-uncommitted": "false"}, "a message"),
        ({"txnid-most-bits": "0", "txn-aborted": "false", "txn-uncommitted": "true"}, "nothing yet"),
        ({"txnid-most-bits": "0"}, "nothing"),
    ],
    ids=str,
)
def test_what_an_entry_holds(headers: dict[str, str], expected: str) -> None:
    answer = Headers()
    for name, value in headers.items():
        answer[f"x-pulsar-{name}"] = value  # case means nothing in HTTP
    assert holds(answer) == expected


def test_calls_in_parallel_return_in_order_on_threads_that_stay_until_nobody_has_them() -> None:
    both = threading.Barrier(2, timeout=60)
    threads: set[threading.Thread] = set()

    def one(number: int) -> int:
        threads.add(threading.current_thread())
        both.wait()
        return number

    parallel = Parallel(2)
    for _ in range(3):
        assert parallel.results([partial(one, number) for number in range(6)]) == list(range(6))
    assert len(threads) == 2
    del parallel
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_calls_in_parallel_raise() -> None:
    parallel = Parallel(2)
    with pytest.raises(ZeroDivisionError):
        parallel.results([lambda: 1, lambda: 1 // 0, lambda: 3])
    with pytest.raises(ZeroDivisionError):
        parallel.results([lambda: 1 // 0])
    assert parallel.results([lambda: 1, lambda: 2]) == [1, 2], "as if nothing had been"
