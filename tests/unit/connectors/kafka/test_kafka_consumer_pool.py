"""Which consumers are kept, and which are closed."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors.kafka import consumer_pool
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.consumer_pool import MOST_IDLE, _Pool


def key(address: str) -> Any:
    return ClientConfig((("bootstrap.servers", address),)), (), "auto"


@pytest.fixture
def pool() -> Any:
    """A pool: it only moves consumers about, so a word does for one."""
    return _Pool(process=1)


def test_a_consumer_is_found_by_an_equal_key(pool: Any) -> None:
    pool.put(key("a:1"), "for a", now=10.0)
    pool.put(key("b:1"), "for b", now=10.0)
    assert pool.take(key("a:1"), idle_since=0.0) == ("for a", [])


def test_a_consumer_is_handed_out_once(pool: Any) -> None:
    pool.put(key("a:1"), "for a", now=10.0)
    pool.take(key("a:1"), idle_since=0.0)
    assert pool.take(key("a:1"), idle_since=0.0) == (None, [])


def test_the_one_used_last_is_taken_first(pool: Any) -> None:
    pool.put(key("a:1"), "older", now=10.0)
    pool.put(key("a:1"), "newer", now=11.0)
    assert pool.take(key("a:1"), idle_since=0.0) == ("newer", [])


def test_those_idle_for_long_are_closed_whoever_asks(pool: Any) -> None:
    pool.put(key("a:1"), "old", now=10.0)
    pool.put(key("b:1"), "new", now=20.0)
    assert pool.take(key("c:1"), idle_since=15.0) == (None, ["old"])
    assert pool.take(key("b:1"), idle_since=15.0) == ("new", [])


def test_an_old_one_is_not_handed_out(pool: Any) -> None:
    pool.put(key("a:1"), "old", now=10.0)
    assert pool.take(key("a:1"), idle_since=15.0) == (None, ["old"])


def test_only_a_few_are_kept(pool: Any) -> None:
    surplus = [pool.put(key("a:1"), number, now=float(number)) for number in range(MOST_IDLE + 2)]
    assert surplus == [[]] * MOST_IDLE + [[0], [1]]


def test_a_forked_child_leaves_its_parents_consumers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = _Pool(process=-1)
    parents.put(key("a:1"), "the parent's", now=10.0)  # type: ignore[arg-type]
    monkeypatch.setattr(consumer_pool, "_pool", parents)
    assert consumer_pool._of_this_process().idle == []
    assert len(parents.idle) == 1
