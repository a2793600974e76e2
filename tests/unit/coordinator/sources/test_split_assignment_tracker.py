"""The two-level map of assignments, against a model that keeps everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.coordinator.sources.split_assignment_tracker import SplitAssignmentTracker
from headgate.protocol.state import SplitState

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 2), st.lists(st.sampled_from("abcd"), max_size=3, unique=True)),
        st.tuples(st.sampled_from(["begin", "complete"]), st.just(0), st.just([])),
        st.tuples(st.just("take back"), st.integers(0, 2), st.just([])),
        st.tuples(st.just("discard"), st.just(0), st.sampled_from("abcd").map(list)),
    ),
    max_size=30,
)


def split(name: str) -> SplitState:
    return SplitState(name, name.encode())


@given(steps=STEPS)
def test_it_is_what_a_list_of_all_assignments_says(steps: list[tuple[str, int, list[str]]]) -> None:
    tracker, model = SplitAssignmentTracker(), dict[str, tuple[int, int]]()
    begun = completed = 0
    for step, subtask, names in steps:
        match step:
            case "assign":
                tracker.assign(subtask, map(split, names))
                for name in names:
                    model[name] = subtask, begun
            case "begin":
                begun += 1
                tracker.begin(begun)
            case "complete":
                completed = begun
                tracker.complete(completed)
                model = {name: (reader, since) for name, (reader, since) in model.items() if since >= completed}
            case "take back":
                taken = {each.split_id for each in tracker.take_back(subtask, completed)}
                assert taken == {name for name, (reader, _) in model.items() if reader == subtask}
                model = {name: (reader, since) for name, (reader, since) in model.items() if reader != subtask}
            case "discard":
                tracker.discard(names[0])
                model.pop(names[0], None)
        assert {each.split_id: reader for reader, each in tracker} == {name: at[0] for name, at in model.items()}
        assert [tracker.holder(name) for name in "abcd"] == [model.get(name, (None,))[0] for name in "abcd"]
        assert len(tracker) == len(model)


def test_splits_come_back_in_the_order_in_which_they_were_assigned() -> None:
    tracker = SplitAssignmentTracker(3)
    for checkpoint_id, name in ((3, "b"), (4, "a"), (5, "c")):
        tracker.begin(checkpoint_id)
        tracker.assign(1, [split(name)])
    assert [each.split_id for each in tracker.take_back(1, 4)] == ["a", "c"]
    assert [each.split_id for each in tracker.take_back(1, 3)] == ["b"]
    tracker.complete(5)
    assert len(tracker) == 0
