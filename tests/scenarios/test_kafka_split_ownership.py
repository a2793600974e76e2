"""Who reads which partition, by FLIP-537's own stories and by bugs that others shipped (the numbers are public issues).

No broker: the cluster is a dict. Readers are numbered from 0, partitions as in the stories but from 0 as well.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from headgate.errors import InvalidTransitionError
from tests.unit.connectors.kafka.partitions_source import (
    BOUNDED,
    Cluster,
    Harness,
    begin,
    held,
    positions,
    pull,
    register,
    reports_of,
    split,
    state_of,
)

every_assigner = pytest.mark.parametrize("assigner", ["hash", "round-robin"])


def running(cluster: Cluster, parallelism: int, **options: str) -> Harness:
    """Return an enumerator whose readers have all registered and hold what there is."""
    harness = begin(cluster, parallelism, **{"discovery": "100", **options})
    register(harness)
    harness.run_next_call()
    return harness


def grow(harness: Harness, cluster: Cluster, **topics: int) -> None:
    """Let topics have more partitions, and find them."""
    for topic, count in topics.items():
        cluster.topics.setdefault(topic, []).extend([9] * count)
    harness.run_next_call()


def restarted(harness: Harness, cluster: Cluster, parallelism: int, **options: str) -> Harness:
    """Return what goes on from a checkpoint of ``harness``; no reader has registered yet."""
    return begin(cluster, parallelism, state=harness.snapshot(), **{"discovery": "100", **options})


def dealt(harness: Harness, parallelism: int) -> dict[int, list]:
    """Return the splits of a checkpoint as a runtime deals them to another number of readers."""
    splits = [each for of_reader in reports_of(harness).values() for each in of_reader]
    return {subtask: splits[subtask::parallelism] for subtask in range(parallelism)}


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


def sizes(harness: Harness, topic: str = "") -> list[int]:
    return [
        sum(name.startswith(topic) for name in harness.assigned.get(subtask, ()))
        for subtask in range(harness.parallelism)
    ]


# -- FLIP-537, Motivation -------------------------------------------------------------------------------------------


def test_case_1_two_topics_of_four_partitions_are_one_for_each_of_eight_readers() -> None:
    """FLINK-31762: some readers had two partitions, others none."""
    harness = running(Cluster(one=[1] * 4, two=[1] * 4), 8, assigner="round-robin")
    assert sizes(harness) == [1] * 8


def test_case_1_by_hash_each_topic_is_spread_by_itself() -> None:
    harness = running(Cluster(one=[1] * 4, two=[1] * 4), 8)
    assert sorted(sizes(harness, "one")) == sorted(sizes(harness, "two")) == [0] * 4 + [1] * 4


@every_assigner
def test_case_2_partitions_found_after_a_rescale_go_to_the_readers_without_any(assigner: str) -> None:
    """Three readers, one partition each (the first table); then six readers (the second); then partitions 4 to 6."""
    cluster = Cluster(topic=[1, 1, 1])
    before = running(cluster, 3, assigner=assigner)
    assert sizes(before) == [1, 1, 1]
    harness = restarted(before, cluster, 6, assigner=assigner)
    register(harness, reports_of(before))
    assert sorted(sizes(harness)) == [0, 0, 0, 1, 1, 1]
    grow(harness, cluster, topic=3)
    assert sizes(harness) == [1] * 6, "not 1,4 and 2,5 and 3,6 on three of them"


# -- FLIP-537, Behaviour Changes ------------------------------------------------------------------------------------


@every_assigner
def test_with_as_many_readers_owners_stay_over_restarts_discoveries_and_failures(assigner: str) -> None:
    """Discovery never moves others either. What grew bit by bit is not where it would be if assigned at once."""
    cluster = Cluster(b=[1, 1], c=[1])
    harness = running(cluster, 3, assigner=assigner)
    for _ in range(4):
        before = held(harness)
        grow(harness, cluster, a=2, c=1)
        after = held(harness)
        assert all(set(splits) <= set(after[subtask]) for subtask, splits in before.items())
        reports = reports_of(harness)
        harness = restarted(harness, cluster, 3, assigner=assigner)
        register(harness, reports)
        assert held(harness) == after
        harness.fail_reader(1)
        harness.register_reader(1)
        assert held(harness) == after


@every_assigner
@pytest.mark.parametrize("parallelism", [1, 2, 4, 7])
def test_with_another_number_of_readers_everything_is_assigned_anew(assigner: str, parallelism: int) -> None:
    cluster = Cluster(a=[5] * 5, b=[6] * 3)
    before = running(cluster, 3, assigner=assigner)
    harness = restarted(before, cluster, parallelism, assigner=assigner)
    register(harness, dealt(before, parallelism))
    assert positions(harness) == positions(before)
    if assigner == "hash":
        assert all(spread(sizes(harness, topic)) <= 1 for topic in "ab")
    else:
        assert spread(sizes(harness)) <= 1


# -- The whole contract, section by section -------------------------------------------------------------------------


def test_section_1_the_enumerator_alone_gives_out_what_readers_report() -> None:
    cluster = Cluster(topic=[5, 5])
    before = running(cluster, 2)
    harness = restarted(before, cluster, 2)
    reports = reports_of(before)
    harness.register_reader(0, reported_splits=reports[0])
    assert not held(harness), "reader 1 may come with what changes the picture"
    harness.register_reader(1, reported_splits=reports[1])
    assert held(harness) == held(before)


@every_assigner
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_section_2_a_checkpoint_between_report_and_assignment_loses_nothing(assigner: str, parallelism: int) -> None:
    """FLINK-40469: A reports 1 and 2, a checkpoint completes before they are assigned, readers restore empty."""
    cluster = Cluster(topic=[5, 6], more=[7])
    before = running(cluster, 2, assigner=assigner)
    window = restarted(before, cluster, 3, assigner=assigner)
    for subtask, reported in dealt(before, 2).items():
        window.register_reader(subtask, reported_splits=reported)
    assert not held(window)
    harness = restarted(window, cluster, parallelism, assigner=assigner)
    register(harness)
    assert positions(harness) == {"topic-0": 5, "topic-1": 6, "more-0": 7}
    assert spread(sizes(harness, "topic")) <= 1


def test_section_2_who_reported_in_that_window_keeps_its_splits_if_there_are_as_many_readers_again() -> None:
    """What is pending has its owner beside it, by split; assigned at once, a-0 would go to another reader."""
    cluster = Cluster(b=[5])
    before = running(cluster, 3, assigner="round-robin")
    grow(before, cluster, a=2)
    grow(before, cluster, c=3)
    reports = reports_of(before)
    window = restarted(before, cluster, 3, assigner="round-robin")
    for subtask in (0, 1):
        window.register_reader(subtask, reported_splits=reports[subtask])
    harness = restarted(window, cluster, 3, assigner="round-robin")
    register(harness, {2: reports[2]})
    assert held(harness) == held(before)


def test_section_2_reports_of_readers_dealt_anew_decide_nothing_at_the_next_start() -> None:
    """A checkpoint before a rescaled read was shared out: its readers hold what the runtime dealt, not what is fair."""
    cluster = Cluster(topic=[1] * 4)
    before = running(cluster, 1)
    splits = reports_of(before)[0]
    window = restarted(before, cluster, 2)
    assert state_of(window).parallelism is None
    harness = restarted(window, cluster, 2)
    register(harness, {0: splits, 1: []})
    assert sizes(harness) == [2, 2]


def both_partitions_reported_by_reader_0() -> tuple[Harness, list]:
    """Return FLIP-537's state of section 3: reader 0 reported 0 and 1, and has one of them; reader 1 has the other."""
    cluster = Cluster(topic=[5, 6])
    before = running(cluster, 1)
    reported = reports_of(before)[0]
    harness = restarted(before, cluster, 2)
    register(harness, {0: reported})
    assert sizes(harness) == [1, 1]
    return harness, reported


@pytest.mark.parametrize("failing", [0, 1])
def test_section_3_a_reader_fails_before_the_first_checkpoint_and_reports_again(failing: int) -> None:
    """FLIP-537: its split was added twice, and the other's as well."""
    harness, reported = both_partitions_reported_by_reader_0()
    before = held(harness)
    harness.fail_reader(failing)
    assert [each.split_id for each in state_of(harness).unassigned] == before[failing]
    harness.register_reader(failing, reported_splits=reported if failing == 0 else ())
    assert held(harness) == before
    assert positions(harness) == {"topic-0": 5, "topic-1": 6}
    assert not state_of(harness).unassigned


def test_section_3_nothing_is_lost_with_a_reader_that_reports_nothing_the_second_time() -> None:
    """FLINK-40710: one reader fails alone before the first checkpoint and registers again empty."""
    for failing in ((0,), (1,), (0, 1), (0, 0, 1)):
        harness, _ = both_partitions_reported_by_reader_0()
        before = held(harness)
        for subtask in failing:
            harness.fail_reader(subtask)
        for subtask in set(failing):
            if subtask not in harness.readers:
                harness.register_reader(subtask)
        assert held(harness) == before


def test_section_3_a_checkpoint_while_a_reader_is_away_has_its_splits() -> None:
    harness, _ = both_partitions_reported_by_reader_0()
    (lost,) = reports_of(harness)[0]
    harness.fail_reader(0)
    assert state_of(harness).unassigned == (lost,)
    assert state_of(harness).owners == {lost.split_id: 0}


@every_assigner
def test_section_4_what_a_failed_reader_was_given_waits_for_it(assigner: str) -> None:
    """FLIP-537: split 2 went to reader 1 while reader 2 was away: two splits against none."""
    cluster = Cluster(topic=[5])
    harness = running(cluster, 2, assigner=assigner)
    checkpoint = reports_of(harness)
    grow(harness, cluster, topic=1)
    before = held(harness)
    newcomer = next(subtask for subtask, splits in before.items() if "topic-1" in splits)
    assert not checkpoint[newcomer]
    harness.fail_reader(newcomer)
    harness.request_split(1 - newcomer)
    grow(harness, cluster)
    assert held(harness) == {1 - newcomer: ["topic-0"]}
    harness.register_reader(newcomer)
    assert held(harness) == before


def test_section_4_not_even_where_another_reader_has_less_to_do_by_now() -> None:
    harness = running(Cluster(topic=[5] * 4), 2, assigner="round-robin")
    assert held(harness) == {0: ["topic-0", "topic-2"], 1: ["topic-1", "topic-3"]}
    harness.finish_split(0, "topic-0")
    harness.enumerator.notify_splits_finished(["topic-0"])
    kept, lost = harness.assigned[1]["topic-1"], harness.assigned[1]["topic-3"]
    harness.fail_reader(1, [lost])
    harness.register_reader(1, reported_splits=[kept])
    assert held(harness) == {0: ["topic-2"], 1: ["topic-1", "topic-3"]}


def test_section_5_a_checkpoint_before_all_readers_came_has_what_those_that_came_reported() -> None:
    cluster = Cluster(topic=[5] * 4)
    before = running(cluster, 2)
    reports = reports_of(before)
    harness = restarted(before, cluster, 2)
    harness.register_reader(1, reported_splits=reports[1])
    state = state_of(harness)
    assert sorted(each.split_id for each in state.unassigned) == held(before)[1]
    assert [f"topic-{number}" for number, _ in state.assigned["topic"]] == held(before)[0], "reader 0 still has them"
    assert {reader for _, reader in state.assigned["topic"]} == {0}


# -- topics come and go ---------------------------------------------------------------------------------------------


@every_assigner
def test_a_topic_that_is_not_named_any_longer_is_dropped_and_no_other_moves(
    assigner: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(gone=[1] * 3, kept=[1] * 5)
    before = running(cluster, 3, subscribe="gone,kept", assigner=assigner)
    before.fail_reader(2)
    lost = state_of(before).unassigned
    assert Counter(each.topic for each in lost).keys() == {"gone", "kept"}
    kept = {subtask: [name for name in splits if name.startswith("kept")] for subtask, splits in held(before).items()}
    with caplog.at_level(logging.WARNING):
        harness = restarted(before, cluster, 3, subscribe="kept", assigner=assigner)
        register(harness, reports_of(before))
        harness.run_next_call()
    after = held(harness)
    assert {subtask: after[subtask] for subtask in (0, 1)} == kept
    assert after[2] == [each.split_id for each in lost if each.topic == "kept"]
    assert [message for message in caplog.messages if "gone-0, gone-1, gone-2" in message]
    assert [number for number, _ in state_of(harness).assigned["kept"]] == [0, 1, 2, 3, 4]


@every_assigner
def test_a_topic_that_is_named_anew_is_assigned_and_no_other_moves(assigner: str) -> None:
    cluster = Cluster(old=[4] * 5, new=[4] * 4)
    before = running(cluster, 3, subscribe="old", assigner=assigner)
    harness = restarted(before, cluster, 3, subscribe="old,new", assigner=assigner)
    register(harness, reports_of(before))
    assert held(harness) == held(before)
    harness.run_next_call()
    assert all(set(splits) <= set(held(harness)[subtask]) for subtask, splits in held(before).items())
    assert {position for name, position in positions(harness).items() if name.startswith("new")} == {0}
    if assigner == "hash":
        assert spread(sizes(harness, "new")) == 1
    else:
        assert sizes(harness) == [3, 3, 3]


@every_assigner
def test_discovery_never_moves_others(assigner: str) -> None:
    cluster = Cluster(a=[1])
    harness = running(cluster, 4, assigner=assigner)
    seen: dict[str, int] = {}
    for topic in "bacabdaacb":
        grow(harness, cluster, **{topic: 3})
        for subtask, splits in held(harness).items():
            assert {seen.setdefault(name, subtask) for name in splits} <= {subtask}
        topics = set(cluster.topics) if assigner == "hash" else {""}
        assert all(spread(sizes(harness, each)) <= 1 for each in topics)


# -- shipped elsewhere ----------------------------------------------------------------------------------------------


def test_a_start_position_is_resolved_once() -> None:
    """FLINK-38453: the state held partitions without offsets, and latest was resolved a second time."""
    cluster = Cluster(topic=[5, 6])
    harness = begin(cluster, 2, startingOffsets="latest", discovery="100")
    harness.run_next_call()
    cluster.topics["topic"] = [50, 60]
    again = restarted(harness, cluster, 2)
    register(again)
    again.run_next_call()
    assert positions(again) == {"topic-0": 5, "topic-1": 6}


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_bounded_read_ends_after_any_restore(parallelism: int) -> None:
    """FLINK-31006: nothing new was found, and no-more-splits was never sent."""
    cluster = Cluster(topic=[5, 6, 0])
    fresh = begin(cluster, 2, BOUNDED, startingOffsets="earliest")
    after_discovery = begin(cluster, 2, BOUNDED, startingOffsets="earliest")
    after_discovery.run_next_call()
    assigned = begin(cluster, 2, BOUNDED, startingOffsets="earliest")
    register(assigned)
    assigned.run_next_call()
    pull(assigned)
    for before, reports in ((fresh, {}), (after_discovery, {}), (assigned, dealt(assigned, parallelism))):
        harness = begin(cluster, parallelism, BOUNDED, before.snapshot(), startingOffsets="earliest")
        register(harness, reports)
        harness.run_next_call()
        pull(harness)
        assert positions(harness) == {"topic-0": 0, "topic-1": 0, "topic-2": 0}
        assert harness.no_more_splits == set(range(parallelism))


def test_a_bounded_read_of_nothing_ends_and_so_does_one_that_was_read_to_its_end() -> None:
    """FLINK-31006 again."""
    for cluster in (Cluster(), Cluster(topic=[5])):
        before = begin(cluster, 2, BOUNDED)
        register(before)
        before.run_next_call()
        pull(before)
        for subtask, splits in held(before).items():
            for name in splits:
                before.finish_split(subtask, name)
                before.enumerator.notify_splits_finished([name])
        harness = begin(cluster, 2, BOUNDED, before.snapshot())
        register(harness)
        harness.run_due_calls()
        pull(harness)
        assert harness.no_more_splits == {0, 1}
        assert not held(harness)


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_pending_work_survives_a_rescale(parallelism: int) -> None:
    """FLINK-21817: it was stored by reader number, which means nothing to another number of readers."""
    cluster = Cluster(topic=[5] * 6)
    before = running(cluster, 2)
    before.fail_reader(1)
    assert state_of(before).owners.keys() == {each.split_id for each in state_of(before).unassigned}
    harness = restarted(before, cluster, parallelism)
    register(harness, dealt(before, parallelism))
    assert positions(harness) == {f"topic-{number}": 5 for number in range(6)}
    assert spread(sizes(harness)) <= 1


def test_an_impossible_transition_is_an_error_with_the_history_of_the_split() -> None:
    """FLINK-39073: invalid transitions went unnoticed."""
    harness = running(Cluster(topic=[5]), 1)
    harness.fail_reader(0)
    register(harness)
    with pytest.raises(InvalidTransitionError) as raised:
        harness.enumerator.add_splits_back([split("topic", 0, 5)], 1)
    assert raised.value.history == (
        "discovered at 5",
        "assigned to reader 0 at 5",
        "given back by reader 0 at 5",
        "assigned to reader 0 at 5",
    )
    assert "belongs to reader 0" in str(raised.value)


def test_splits_given_back_wake_the_readers_that_wait() -> None:
    """SeaTunnel: restored splits went back to the assigner and nobody was woken: running, and no rows."""
    cluster = Cluster(topic=[5, 6])
    harness = running(cluster, 2)
    lost = {subtask: list(splits.values()) for subtask, splits in harness.assigned.items()}
    harness.fail_reader(0)
    harness.fail_reader(1)
    harness.register_reader(1)
    assert list(held(harness)) == [1]
    harness.register_reader(0)
    assert reports_of(harness) == lost
    # A runtime that gives splits back only after the reader is there again: it has to get them at once.
    harness.assigned[0].clear()
    harness.enumerator.add_splits_back(lost[0], 0)
    assert reports_of(harness) == lost


def test_every_split_has_its_own_place() -> None:
    """Fluss 3548: splits were kept by something coarser than their ids, and all but one were lost."""
    cluster = Cluster(**{"a": [1] * 12, "a-1": [1] * 12, "b": [1] * 12})
    harness = begin(cluster, 5, discovery="100")
    harness.run_next_call()
    again = restarted(harness, cluster, 2)
    register(again)
    assert len(positions(again)) == 36
    again.fail_reader(0)
    again.fail_reader(1)
    assert len(state_of(again).unassigned) == 36


def test_a_topic_that_appears_after_an_empty_first_discovery_is_read_from_its_beginning() -> None:
    cluster = Cluster()
    before = running(cluster, 2, startingOffsets="latest")
    cluster.topics["late"] = [100]
    for harness in (before, restarted(before, cluster, 2, startingOffsets="latest")):
        if harness is not before:
            register(harness)
        harness.run_next_call()
        assert positions(harness) == {"late-0": 0}
