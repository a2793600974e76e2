"""The queue of epochs to be committed: in order, one at a time, and the same again after a failure."""

from __future__ import annotations

from headgate.checkpoint.commits import CommitQueue
from headgate.checkpoint.manifest import UncommittedEpoch


def test_epochs_go_out_one_at_a_time_with_what_was_left_before() -> None:
    queue = CommitQueue(())
    queue.add(1, {"a": (b"1",)})
    assert queue.order_next() == UncommittedEpoch(1, {"a": (b"1",)})
    queue.add(2, {"b": (b"2",)})
    assert queue.order_next() is None and queue.under_way == 1
    queue.committed({"a": (b"1",), "b": ()})
    assert queue.order_next() == UncommittedEpoch(2, {"a": (b"1",), "b": (b"2",)})
    queue.committed({})
    assert queue.epochs == () and queue.order_next() is None and queue.under_way is None


def test_what_failed_is_ordered_again_as_it_was_before_anything_else() -> None:
    queue = CommitQueue(())
    queue.add(1, {"a": (b"1",)})
    queue.order_next()
    queue.committed({"a": (b"1",)})
    queue.add(2, {"a": (b"2",)})
    ordered = queue.order_next()
    queue.add(3, {})
    assert not queue.comes_first
    queue.failed()
    assert queue.comes_first and queue.order_next() == ordered
    queue.committed({})
    assert queue.comes_first  # it completed before the failover
    queue.order_next()
    queue.committed({})
    assert not queue.comes_first


def test_a_manifest_names_what_was_left_once() -> None:
    queue = CommitQueue((UncommittedEpoch(4, {"a": (b"4",)}),))
    assert queue.comes_first and queue.for_manifest({"a": (b"5",)}) == {"a": (b"5",)}
    queue.order_next()
    queue.committed({"a": (b"4",)})
    assert queue.for_manifest({"a": (b"5",)}) == {"a": (b"4", b"5")}
    queue.check(4)
