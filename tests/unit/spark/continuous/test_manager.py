"""The queries of this process: one at a location, and none is held when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.errors import OptionError
from headgate.spark.continuous import listener, live_queries, manager
from headgate.spark.continuous.manager import ContinuousQueryManager
from headgate.spark.continuous.query import ContinuousQuery


class StandIn:
    """What the manager knows of a query."""

    def __init__(self, id: str, name: str | None = None) -> None:
        self.id = id
        self.name = name


def query(id: str, name: str | None = None) -> ContinuousQuery:
    return cast(ContinuousQuery, StandIn(id, name))


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the process's own queries out of it."""
    monkeypatch.setattr(live_queries, "_by_location", {})
    listeners: list[object] = []
    for module in (listener, manager):
        monkeypatch.setattr(module, "listeners", listeners)
    yield


@pytest.mark.parametrize(("name", "called"), [("rides", "rides"), (None, "one")])
def test_a_location_belongs_to_one_live_query(name: str | None, called: str) -> None:
    first, second = query("one", name), query("two")
    live_queries.enter("here", first)
    with pytest.raises(OptionError, match=f"belongs to the query '{called}'") as refused:
        live_queries.enter("here", second)
    assert refused.value.facts["option"] == "checkpointLocation"
    live_queries.enter("there", second)
    assert ContinuousQueryManager().active == [first, second]

    live_queries.leave("here", second)  # is not its own
    assert ContinuousQueryManager().get("one") is first
    live_queries.leave("here", first)
    live_queries.leave("here", first)
    assert ContinuousQueryManager().get("one") is None
    live_queries.enter("here", query("three"))


def test_a_name_belongs_to_one_live_query() -> None:
    first = query("one", "rides")
    live_queries.enter("here", first)
    with pytest.raises(OptionError, match="A query named 'rides' runs already") as refused:
        live_queries.enter("there", query("two", "rides"))
    assert refused.value.facts["option"] == "queryName"
    live_queries.enter("there", query("three"))
    live_queries.leave("here", first)
    live_queries.enter("here", query("two", "rides"))


def test_who_sees_the_end_of_a_query_finds_its_location_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = SimpleNamespace(checkpoint_location=str(tmp_path), name="rides")
    ended = ContinuousQuery(cast(Any, None), cast(Any, definition))
    live_queries.enter(ended._storage.store.path(""), ended)
    active_as_it_left, leave = [], live_queries.leave

    def note(location: str, query: ContinuousQuery) -> None:
        active_as_it_left.append(query.isActive)
        leave(location, query)

    monkeypatch.setattr(live_queries, "leave", note)
    ended._finish(None)
    assert active_as_it_left == [True] and not ended.isActive
    assert ContinuousQueryManager().active == []


def test_a_listener_is_notified_once_however_often_it_is_added() -> None:
    streams, added = ContinuousQueryManager(), cast(Any, object())
    streams.removeListener(added)
    streams.addListener(added)
    streams.addListener(added)
    assert manager.listeners == [added]
    streams.removeListener(added)
    assert manager.listeners == []
