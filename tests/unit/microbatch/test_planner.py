"""A bounded read takes every split of the enumerator once, and never waits for one that will not come."""

from __future__ import annotations

import pytest
from counting_source import CountingEnumerator, CountingSource, World

from headgate.errors import ConnectorContractError, UnsupportedOperationError
from headgate.microbatch.packing import pack
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits
from headgate.source import Boundedness, SourceEvent, SourceReaderContext


@pytest.mark.parametrize("pull", ["true", "false"])
def test_every_split_is_planned_once(pull: str) -> None:
    source = CountingSource({"pull": pull}, World(a=5, b=3, c=0))
    splits = plan_batch(source, source.schema(), 0)
    assert [(split.split_id, split.stop) for split in splits] == [("a", 5), ("b", 3), ("c", 0)]
    assert source.world.listings == 1


def test_an_enumerator_that_does_not_answer_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingEnumerator, "handle_split_request", lambda *_: None)
    source = CountingSource({"pull": "true"}, World(a=5))
    with pytest.raises(ConnectorContractError, match="neither assigned a split nor signalled"):
        plan_batch(source, source.schema(), 0)


def test_an_entry_point_that_the_source_does_not_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingSource, "supports", lambda _, boundedness: boundedness is not Boundedness.BOUNDED)
    source = CountingSource({}, World(a=5))
    with pytest.raises(UnsupportedOperationError, match=r"counting cannot be read by spark\.read"):
        plan_batch(source, source.schema(), 0)


def test_an_error_of_discovery_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CountingEnumerator) -> dict[str, int]:
        raise PermissionError("no entry")

    monkeypatch.setattr(CountingEnumerator, "_list", fail)
    source = CountingSource({}, World())
    with pytest.raises(PermissionError, match="no entry"):
        plan_batch(source, source.schema(), 0)


def test_tasks_are_balanced_by_size_and_hold_every_split_once() -> None:
    world = World(**{f"s{n}": n for n in range(100)})
    source = CountingSource({}, world)
    splits = plan_batch(source, source.schema(), 0)
    tasks = pack(splits, 4)
    assert sorted(split.split_id for task in tasks for split in task) == sorted(world.lengths)
    assert max(map(len, tasks)) - min(map(len, tasks)) <= 1
    assert pack([], 4) == []
    assert len(pack(splits[:2], 4)) == 2


class Hint(SourceEvent, frozen=True):
    """An event of a connector's own."""


def test_an_event_that_cannot_be_delivered_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: CountingEnumerator, subtask: int) -> None:
        self._context.send_event_to_source_reader(subtask, Hint())

    monkeypatch.setattr(CountingEnumerator, "add_reader", send)
    source = CountingSource({}, World(a=5))
    with pytest.raises(
        UnsupportedOperationError, match=r"sends Hint to reader 0, .* planned before any reader .* headgate\.continuous"
    ):
        plan_batch(source, source.schema(), 0)


def test_an_event_of_a_reader_is_refused_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: CountingSource, context: SourceReaderContext) -> None:
        context.send_event(Hint())

    monkeypatch.setattr(CountingSource, "create_reader", create)
    source = CountingSource({}, World(a=5))
    with pytest.raises(UnsupportedOperationError, match=r"Reader 3 of counting sends Hint .* after its plan is made"):
        list(read_splits(source, source.schema(), [], 3, "UTC"))
