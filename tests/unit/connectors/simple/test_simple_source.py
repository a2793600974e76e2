"""The adapter of a `SimpleSource`: discovery, reading, stops for micro-batches, and the promises of the contract."""

import itertools
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.simple import adapt
from headgate.connectors.simple.source import SimpleSourceAdapter
from headgate.connectors.simple.split import SPLIT_SERIALIZER, STATE_SERIALIZER, SimpleSplit, SimpleState
from headgate.connectors.simple.split_reader import SimpleSplitReader
from headgate.errors import (
    ConnectorContractError,
    CorruptStateError,
    DataLossError,
    UnsupportedVersionError,
    UserFunctionError,
)
from headgate.source import Boundedness, PlanLimits
from headgate.source.simple import SimpleSource
from headgate.source.watermark import MIN_WATERMARK_MS
from headgate.testing import EnumeratorHarness, SourceHarness, SplitReaderHarness, VirtualClock, assert_same_rows
from headgate.testing.conformance import check, conformance_test, simple

GOLDEN = Path(__file__).parents[3] / "golden"
SCHEMA = pa.schema([("split", pa.string()), ("n", pa.int64())])
UNBOUNDED = Boundedness.CONTINUOUS_UNBOUNDED


class Pages(SimpleSource):
    """Splits of pages; a position is the number of pages read. The pages are class attributes."""

    name = "pages"
    schema = "split string, n bigint"
    contents: ClassVar[dict[str, list[int]]] = {"a": [2, 0, 3, 1], "b": [], "c": [4, 4, 4]}
    """The rows of each page of each split."""

    def splits(self):
        return list(self.contents)

    def read(self, split_id, position):
        pages = self.contents[split_id]
        for number in range(position or 0, len(pages)):
            rows = [number * 10 + row for row in range(pages[number])]
            yield pa.record_batch({"split": [split_id] * len(rows), "n": rows}, schema=SCHEMA), number + 1


class WithLatest(Pages):
    def latest(self, split_id):
        return len(self.contents[split_id]) or None


class Finite(Pages):
    finite_splits = True


class FiniteWithLatest(WithLatest):
    finite_splits = True


CLASSES = [Pages, WithLatest, Finite, FiniteWithLatest]


def of(user_class: type[Pages], contents: dict[str, list[int]]) -> type[Pages]:
    """Return the class with contents of its own, which a test may change."""
    return type(user_class.__name__, (user_class,), {"contents": contents})


def all_rows(contents: dict[str, list[int]]) -> list[dict[str, Any]]:
    return [
        {"split": split_id, "n": number * 10 + row}
        for split_id, pages in contents.items()
        for number, rows in enumerate(pages)
        for row in range(rows)
    ]


def drive(user_class: type[Pages], boundedness: Boundedness = UNBOUNDED, **arguments: Any) -> EnumeratorHarness:
    return EnumeratorHarness(adapt(user_class)({}), schema=SCHEMA, boundedness=boundedness, **arguments)


def finish(harness: EnumeratorHarness, *split_ids: str) -> None:
    for split_id in split_ids:
        harness.finish_split(0, split_id)
    harness.enumerator.notify_splits_finished(split_ids)


def reader(made: SimpleSourceAdapter, clock: VirtualClock) -> SplitReaderHarness:
    return SplitReaderHarness(SimpleSplitReader("pages", lambda: made._user_source(SCHEMA), 1000, clock), timeout_ms=0)


test_simple_sources_keep_the_promises_of_the_contract = pytest.mark.parametrize("user_class", CLASSES)(
    conformance_test(lambda user_class: simple(user_class, {"pollInterval": "1 ms"}))
)


class Ticks(SimpleSource):
    """Ten pages of a second each in two splits; it grows, and need not answer."""

    name = "ticks"
    schema = "at timestamp, n bigint"
    pages = 10
    answers = True

    def splits(self):
        if not self.answers:
            raise ConnectionError("no answer")
        return ["even", "odd"]

    def read(self, split_id, position):
        for number in range(position or 0, self.pages):
            if not self.answers:
                raise ConnectionError("no answer")
            numbers = [2 * number + (split_id == "odd")]
            at = pa.array([each * 1_000_000 for each in numbers], pa.timestamp("us", "UTC"))
            yield pa.record_batch({"at": at, "n": numbers}), number + 1

    @classmethod
    def grow(cls):
        cls.pages += 3

    @classmethod
    @contextmanager
    def silence(cls):
        cls.answers = False
        yield
        cls.answers = True


@pytest.fixture
def ticks():
    return type("Ticks", (Ticks,), {"pages": 10})


test_a_growing_simple_source_keeps_the_promises_of_the_contract = conformance_test(
    lambda ticks: simple(ticks, {"pollInterval": "1 ms"}),
    add_rows=lambda ticks: ticks.grow(),
    unavailable=lambda ticks: ticks.silence(),
)


class GrowingBatches(Ticks):
    """Its batches are of up to four pages: the last one ends elsewhere when there is more."""

    def read(self, split_id, position):
        while (first := position or 0) < self.pages:
            position = min(first + 4, self.pages)
            batches = [batch for batch, _ in itertools.islice(super().read(split_id, first), position - first)]
            yield pa.Table.from_batches(batches).combine_chunks().to_batches()[0], position


def test_batches_that_end_elsewhere_when_there_is_more_break_a_promise() -> None:
    growing = type("Growing", (GrowingBatches,), {"pages": 10})
    promises = ["plans-can-be-replayed", "plans-survive-new-rows", "new-rows-are-found"]
    report = check(lambda: simple(growing, {"pollInterval": "1 ms"}), add_rows=growing.grow, only=promises)
    assert [each.promise.name for each in report.broken] == ["plans-survive-new-rows"], str(report)
    assert "before the position 10 that was there when the read was planned" in str(report.broken[0].seen)


# -- discovery ---------------------------------------------------------------------------------------------------


def test_a_bounded_read_lists_once_and_answers_requests_when_it_has() -> None:
    harness = drive(Pages, Boundedness.BOUNDED, parallelism=2)
    harness.start()
    harness.register_reader(0)
    harness.request_split(0)
    assert not harness.outbox
    assert harness.run_next_call() and not harness.run_next_call()
    assert list(harness.assigned[0]) == ["a"]
    for _ in range(3):
        harness.request_split(0)
    assert list(harness.assigned[0]) == ["a", "b", "c"] and harness.no_more_splits == {0}
    assert all(split.finite for split in harness.assigned[0].values())


def test_a_restored_bounded_read_lists_no_more() -> None:
    """FLINK-31006: and it ends, although nothing new is found."""
    harness = drive(Pages, Boundedness.BOUNDED)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    harness.request_split(0)
    restored = drive(Pages, Boundedness.BOUNDED, state=harness.snapshot())
    restored.start()
    assert not restored.calls
    restored.register_reader(0)
    for _ in range(3):
        restored.request_split(0)
    assert list(restored.assigned[0]) == ["b", "c"] and restored.no_more_splits == {0}


def test_an_unbounded_read_discovers_and_never_assigns_twice() -> None:
    user_class = of(Pages, {"a": [1]})
    harness = drive(user_class, parallelism=2)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    assert not harness.outbox, "not before all readers are there"
    harness.register_reader(1)
    assert list(harness.assigned[0]) == ["a"]
    user_class.contents |= {"b": [1], "c": [1], "d": [1]}
    harness.run_next_call()
    harness.run_next_call()
    assert (list(harness.assigned[0]), list(harness.assigned[1])) == (["a", "c"], ["b", "d"])
    assert harness.clock() == 20_000
    assert not harness.no_more_splits


def test_watermarks_wait_until_splits_are_listed_and_pushed() -> None:
    harness = drive(of(Pages, {"a": [1]}), parallelism=2)
    unassigned = harness.enumerator.unassigned_event_time_ms
    harness.start()
    harness.register_reader(0)
    assert unassigned() == MIN_WATERMARK_MS
    harness.run_next_call()
    assert unassigned() == MIN_WATERMARK_MS, "reader 1 is not there yet"
    harness.register_reader(1)
    assert unassigned() is None
    harness.fail_reader(0)
    assert unassigned() == MIN_WATERMARK_MS, "what it had is to be read again"
    harness.register_reader(0)
    assert unassigned() is None


def test_watermarks_wait_until_splits_are_pulled() -> None:
    """Of a bounded read, too: a split may hold rows of any time, which a watermark would make late."""
    harness = drive(Pages, Boundedness.BOUNDED)
    harness.start()
    assert harness.enumerator.unassigned_event_time_ms() == MIN_WATERMARK_MS
    harness.register_reader(0)
    harness.run_next_call()
    for _ in range(2):
        harness.request_split(0)
        assert harness.enumerator.unassigned_event_time_ms() == MIN_WATERMARK_MS
    harness.request_split(0)
    assert harness.enumerator.unassigned_event_time_ms() is None


@pytest.mark.parametrize("restore", [False, True])
def test_ids_are_forgotten_once_they_are_finished_and_listed_no_more(restore: bool) -> None:
    user_class = of(Finite, {str(number): [1] for number in range(50)})
    harness = drive(user_class)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    finish(harness, *(str(number) for number in range(49)))
    if restore:
        left = list(harness.assigned[0].values())
        harness = drive(user_class, state=harness.snapshot())
        harness.hold_restored(0, left)
        harness.start()
        harness.register_reader(0)
    harness.run_next_call()
    assert list(harness.assigned[0]) == ["49"], "finished, but still listed: not read again"
    user_class.contents.clear()
    harness.run_next_call()
    state = STATE_SERIALIZER.deserialize(harness.snapshot())
    assert (state.known, state.finished) == (("49",), ())


def test_splits_that_come_back_are_assigned_again() -> None:
    harness = drive(Pages)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    harness.fail_reader(0, [SimpleSplit(split_id="a", position=2)])
    assert STATE_SERIALIZER.deserialize(harness.snapshot()).pending == (SimpleSplit(split_id="a", position=2),)
    harness.register_reader(0)
    assert harness.assigned[0] == {"a": SimpleSplit(split_id="a", position=2)}


def test_what_failed_readers_had_is_read_before_what_nobody_has_begun() -> None:
    """A bounded read goes on with the same splits, in the author's order, whenever its readers fail."""
    harness = drive(of(Finite, {split_id: [1, 1] for split_id in "abcd"}), Boundedness.BOUNDED)
    harness.start()
    harness.run_next_call()
    for _ in range(3):
        for number in (0, 1):
            harness.register_reader(number)
            harness.request_split(number)
        assert [list(harness.assigned[number]) for number in (0, 1)] == [["a"], ["b"]]
        for number in (1, 0):
            harness.fail_reader(number)


@pytest.mark.parametrize("listed_on", [False, True])
def test_a_finished_split_that_comes_back_is_known_again(listed_on: bool) -> None:
    """Its reader failed, and had finished it after the last checkpoint."""
    user_class = of(Finite, {"a": [1, 1]})
    harness = drive(user_class)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    (split,) = harness.assigned[0].values()
    finish(harness, "a")
    if not listed_on:
        user_class.contents.clear()
    harness.run_next_call()
    harness.fail_reader(0, [split])
    harness.register_reader(0)
    assert harness.assigned[0] == {"a": split}
    user_class.contents["a"] = [1, 1]
    harness.run_next_call()
    assert STATE_SERIALIZER.deserialize(harness.snapshot()).known == ("a",)


def test_an_error_in_splits_fails_the_enumerator() -> None:
    harness = drive(Pages)
    harness.start()
    with pytest.raises(UserFunctionError, match="gone"):
        harness.fail_next_call(UserFunctionError("gone", function="Pages.splits"))


def test_a_listing_that_fails_is_tried_again_once_there_was_one() -> None:
    user_class = of(Pages, {"a": [1]})
    harness = drive(user_class)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    user_class.contents |= {"b": [1]}
    harness.fail_next_call(UserFunctionError("gone", function="Pages.splits"))
    assert list(harness.assigned[0]) == ["a"]
    harness.run_next_call()
    assert list(harness.assigned[0]) == ["a", "b"]
    with pytest.raises(ConnectorContractError):
        harness.fail_next_call(ConnectorContractError("an id twice"))


def test_what_a_reader_was_restored_with_counts_for_balance() -> None:
    """Otherwise all splits that are found next go to the reader that failed."""
    user_class = of(Pages, {f"a{number}": [1] for number in range(8)})
    harness = drive(user_class, parallelism=2)
    harness.start()
    for subtask in (0, 1):
        harness.register_reader(subtask)
    harness.run_next_call()
    before = list(harness.assigned[1])
    harness.fail_reader(1, [])
    harness.register_reader(1, held_split_ids=before)
    user_class.contents |= {f"b{number}": [1] for number in range(8)}
    harness.run_next_call()
    new = [[split_id for split_id in harness.assigned[subtask] if split_id.startswith("b")] for subtask in (0, 1)]
    assert [len(each) for each in new] == [4, 4]


def test_what_is_finished_counts_no_longer() -> None:
    user_class = of(Finite, {f"a{number}": [1] for number in range(8)})
    harness = drive(user_class, parallelism=2)
    harness.start()
    for subtask in (0, 1):
        harness.register_reader(subtask)
    harness.run_next_call()
    finish(harness, *list(harness.assigned[0]))
    user_class.contents |= {f"b{number}": [1] for number in range(4)}
    harness.run_next_call()
    assert [len(harness.assigned[subtask]) for subtask in (0, 1)] == [4, 4]


# -- reading -----------------------------------------------------------------------------------------------------


def test_splits_take_turns_and_finite_ones_end() -> None:
    with reader(adapt(Pages)({}), VirtualClock()) as harness:
        harness.add_splits(*(SimpleSplit(split_id=each, finite=True) for each in "abc"))
        rows = harness.fetch_all()
        assert_same_rows(rows, all_rows(Pages.contents))
        order = [each.split.split_id for each in harness.fetched]
        assert order[:5] == ["a", "b", "c", "a", "c"]
        assert harness.fetched[2].batch is not None and harness.fetched[3].batch is None, "no empty batches"


def test_an_exhausted_split_is_read_again_after_the_interval() -> None:
    user_class, clock = of(Pages, {"a": [1]}), VirtualClock()
    with reader(adapt(user_class)({}), clock) as harness:
        harness.add_splits(SimpleSplit(split_id="a"))
        harness.fetch()
        assert harness.fetch() == []
        user_class.contents["a"] += [1]
        clock.advance(999)
        assert harness.fetch() == []
        clock.advance(1)
        harness.fetch()
        assert harness.position("a")["position"] == 2
        assert not harness.finished


def test_a_range_is_read_to_its_stop_and_no_further() -> None:
    with reader(adapt(Pages)({}), VirtualClock()) as harness:
        harness.add_splits(
            SimpleSplit(split_id="a", position=1, has_stop=True, stop=3),
            SimpleSplit(split_id="b", has_stop=True, stop=None),
            SimpleSplit(split_id="c", position=1, has_stop=True, stop=1),
        )
        assert [row["n"] for row in harness.fetch_all()] == [20, 21, 22]
        assert sorted(harness.finished) == ["a", "b", "c"]


def test_data_that_is_gone_before_its_stop_is_a_loss() -> None:
    with reader(adapt(Pages)({}), VirtualClock()) as harness:
        harness.add_splits(SimpleSplit(split_id="c", position=1, has_stop=True, stop=7))
        with pytest.raises(
            DataLossError, match="pages: split 'c' ended at position 3, before the position 7"
        ) as caught:
            harness.fetch_all()
        assert (caught.value.split, caught.value.position, caught.value.stop) == ("c", 3, 7)


def test_paused_splits_are_passed_over() -> None:
    with reader(adapt(Pages)({}), VirtualClock()) as harness:
        harness.add_splits(SimpleSplit(split_id="a", finite=True), SimpleSplit(split_id="c", finite=True))
        harness.pause("a")
        for _ in range(6):
            harness.fetch()
        assert harness.finished == ["c"] and harness.position("a")["position"] is None
        harness.resume("a")
        harness.fetch_all()
        assert_same_rows(harness.rows(), all_rows({"a": [2, 0, 3, 1], "c": [4, 4, 4]}))


def test_the_authors_iterators_are_closed_with_the_reader() -> None:
    closed = []

    class Closing(Pages):
        def read(self, split_id, position):
            try:
                yield from super().read(split_id, position)
            finally:
                closed.append(split_id)

    with reader(adapt(Closing)({}), VirtualClock()) as harness:
        harness.add_splits(SimpleSplit(split_id="a"), SimpleSplit(split_id="c"))
        harness.fetch()
        harness.fetch()
    assert sorted(closed) == ["a", "c"]


def test_an_error_reaches_the_task_with_split_and_position() -> None:
    class Broken(Pages):
        def read(self, split_id, position):
            yield from super().read(split_id, position)
            raise ValueError("the end is broken")

    with SourceHarness(adapt(of(Broken, {"a": [1, 1]}))({}), schema=SCHEMA) as harness:
        with pytest.raises(
            UserFunctionError, match=r"Broken\.read raised ValueError for split 'a' at position 2"
        ) as caught:
            harness.run_to_end()
        assert (caught.value.split, caught.value.position) == ("a", 2)


# -- stops for micro-batches -------------------------------------------------------------------------------------


def plan(made: Any, splits: list[SimpleSplit], **limits: Any) -> dict[str, tuple[Any, Any, bool]]:
    """Return position, stop and whether there is a rest, by split; checks what a rest must be."""
    planned = {}
    for each in made.plan_ranges(splits, PlanLimits(**limits), 0):
        assert each.split.has_stop
        if each.rest is not None:
            (before,) = [split for split in splits if split.split_id == each.split.split_id]
            assert each.rest == msgspec.structs.replace(before, position=each.split.stop)
        planned[each.split.split_id] = (each.split.position, each.split.stop, each.rest is not None)
    return planned


@pytest.mark.parametrize("user_class", [Pages, WithLatest])
def test_a_plan_ends_at_what_is_there(user_class: type[Pages]) -> None:
    made = adapt(user_class)({})
    splits = [SimpleSplit(split_id="a", position=1), SimpleSplit(split_id="b"), SimpleSplit(split_id="c", position=3)]
    assert plan(made, splits) == {"a": (1, 4, True)}


@pytest.mark.parametrize("user_class", [Finite, FiniteWithLatest])
def test_finite_splits_end_with_their_last_range(user_class: type[Pages]) -> None:
    made = adapt(user_class)({})
    splits = [SimpleSplit(split_id=each, finite=True) for each in "abc"]
    splits[2] = SimpleSplit(split_id="c", finite=True, position=3)
    assert plan(made, splits) == {"a": (None, 4, False), "b": (None, None, False), "c": (3, 3, False)}


def test_with_latest_nothing_is_read_to_plan() -> None:
    class NeverRead(WithLatest):
        def read(self, split_id, position):
            raise AssertionError("planned by reading")

    assert plan(adapt(NeverRead)({}), [SimpleSplit(split_id="a")]) == {"a": (None, 4, True)}


@pytest.mark.parametrize("user_class", CLASSES)
@given(
    pages=st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5), max_size=5), min_size=1),
    limit=st.integers(1, 12),
)
def test_a_limit_of_rows_is_kept_and_everything_is_read_once(
    user_class: type[Pages], pages: dict[str, list[int]], limit: int
) -> None:
    made = adapt(of(user_class, pages))({})
    splits = [SimpleSplit(split_id=each, finite=user_class.finite_splits) for each in pages]
    found: list[dict[str, Any]] = []
    while ranges := made.plan_ranges(splits, PlanLimits(max_rows=limit), 0):
        with reader(made, VirtualClock()) as harness:
            harness.add_splits(*(each.split for each in ranges))
            rows = harness.fetch_all()
        assert len(rows) <= max(
            limit, max(each.batch.num_rows for each in harness.fetched if each.batch) if rows else 0
        )
        found += rows
        rest = {each.split.split_id: each.rest for each in ranges}
        splits = [left for split in splits if (left := rest.get(split.split_id, split)) is not None]
    assert_same_rows(found, all_rows(pages))
    assert not (user_class.finite_splits and splits), "finite splits end"


def test_a_small_limit_serves_all_splits_in_turn() -> None:
    made = adapt(of(Pages, {each: [5] * 4 for each in "abc"}))({})
    splits = [SimpleSplit(split_id=each) for each in "abc"]
    served = []
    for _ in range(3):
        (planned,) = made.plan_ranges(splits, PlanLimits(max_rows=5), 0)
        served.append(planned.split.split_id)
    assert sorted(served) == ["a", "b", "c"]


def test_read_ahead_ends_after_its_time() -> None:
    clock = VirtualClock()

    class Slow(Pages):
        def read(self, split_id, position):
            for item in super().read(split_id, position):
                clock.advance(400)
                yield item

    user_class = of(Slow, {"a": [1] * 10, "b": [1] * 2})
    made = SimpleSourceAdapter(user_class, {}, clock)
    splits = [SimpleSplit(split_id="a"), SimpleSplit(split_id="b")]
    assert plan(made, splits, max_planning_ms=1000) == {"a": (None, 3, True), "b": (None, 2, True)}
    assert plan(made, splits) == {"a": (None, 10, True), "b": (None, 2, True)}


@pytest.mark.parametrize("limit", [None, 4])
def test_a_plan_of_a_plan_stays_within_it(limit: int | None) -> None:
    """AvailableNow fixes a stop first; what comes later is not read."""
    for user_class in (Pages, WithLatest):
        changing = of(user_class, {"a": [2, 2, 2]})
        made = adapt(changing)({})
        (target,) = made.plan_ranges([SimpleSplit(split_id="a")], PlanLimits(), 0)
        changing.contents["a"] += [2, 2]
        stops = []
        left: SimpleSplit | None = target.split
        while left is not None:
            (planned,) = made.plan_ranges([left], PlanLimits(max_rows=limit), 0)
            stops.append(planned.split.stop)
            left = planned.rest
        assert stops == ([3] if limit is None else [2, 3])


def test_a_target_that_is_gone_is_planned_and_reported_by_the_task() -> None:
    made = adapt(of(Pages, {"a": [1]}))({})
    split = SimpleSplit(split_id="a", has_stop=True, stop=3)
    assert plan(made, [split], max_rows=10) == {"a": (None, 3, False)}


# -- stored bytes and pickling -----------------------------------------------------------------------------------


def test_stored_splits_and_states_are_still_read() -> None:
    split = SimpleSplit(
        split_id="AAPL", position={"page": 7, "of": ["a", 1.5]}, has_stop=True, stop=[1, None], finite=True
    )
    state = SimpleState(known=("AAPL", "MSFT"), finished=("IBM",), pending=(SimpleSplit(split_id="MSFT"),), listed=True)
    for serializer, value, file in ((SPLIT_SERIALIZER, split, "split"), (STATE_SERIALIZER, state, "state")):
        stored = (GOLDEN / f"simple-{file}-v1.json").read_bytes()
        assert serializer.deserialize(stored) == value
        assert serializer.serialize(value) == stored
        with pytest.raises(UnsupportedVersionError, match="version 2"):
            serializer.deserialize(stored.replace(b'"v":1', b'"v":2'))
        with pytest.raises(CorruptStateError):
            serializer.deserialize(stored[:-3])


def test_a_class_that_no_module_has_travels_with_the_source() -> None:
    """As one that is defined in a notebook does."""
    from pyspark import cloudpickle

    class Local(Pages):
        name = "local"

    copy = cloudpickle.loads(cloudpickle.dumps(adapt(Local)({"x": "y"})))
    assert (copy.name, copy.schema()) == ("local", "split string, n bigint")
    with SourceHarness(copy, schema=SCHEMA) as harness:
        harness.run_to_end()
        assert_same_rows(harness.rows(), all_rows(Pages.contents))


def test_the_reader_refuses_batches_of_another_schema() -> None:
    class Changing(Pages):
        def read(self, split_id, position):
            yield from super().read(split_id, position)
            yield pa.record_batch({"n": ["text"]}), 99

    harness = SourceHarness(adapt(of(Changing, {"a": [1]}))({}), schema=SCHEMA)
    with harness, pytest.raises(ConnectorContractError, match=r"Changing\.read of split 'a' .* the columns are n"):
        harness.run_to_end()


@pytest.mark.parametrize("user_class", [Pages, WithLatest])
def test_planning_leaves_a_quiet_split_alone_for_its_poll_interval(user_class: type[Pages]) -> None:
    calls: list[str] = []

    class Counted(user_class):  # type: ignore[misc, valid-type]
        contents: ClassVar[dict[str, list[int]]] = {"a": []}

        def read(self, split_id, position):
            calls.append(split_id)
            return super().read(split_id, position)

        if hasattr(user_class, "latest"):

            def latest(self, split_id):
                calls.append(split_id)
                return super().latest(split_id)

    now_ms = [0]
    source = SimpleSourceAdapter(Counted, {"pollInterval": "1 second"}, clock_ms=lambda: now_ms[0])
    split = SimpleSplit(split_id="a")
    for now_ms[0] in range(0, 1000, 10):
        assert source.plan_ranges([split], PlanLimits(max_planning_ms=1000), now_ms[0]) == []
    assert len(calls) == 1
    Counted.contents["a"].append(3)
    assert source.plan_ranges([split], PlanLimits(max_planning_ms=1000), 0) == []
    now_ms[0] = 1000
    assert len(source.plan_ranges([split], PlanLimits(max_planning_ms=1000), 0)) == 1


def test_a_latest_that_goes_back_plans_nothing() -> None:
    """An answer of a replica that lags must not become a stop in the checkpoint, which no read could reach."""
    source = SimpleSourceAdapter(of(WithLatest, {"a": [1, 1]}), {})
    split = SimpleSplit(split_id="a", position=5)
    assert source.plan_ranges([split], PlanLimits(), 0) == []
