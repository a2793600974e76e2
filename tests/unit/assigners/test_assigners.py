"""Balance, stability and determinism of `headgate.assigners`; the golden owners are in users' checkpoints."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.assigners import ASSIGNERS, HashAssigner, RoundRobinAssigner, SplitAssigner

every_assigner = pytest.mark.parametrize("assigner", [make() for make in ASSIGNERS.values()], ids=ASSIGNERS.keys())
ROUNDS = st.lists(st.dictionaries(st.sampled_from(["rides", "fares", "zäune", "t-1"]), st.integers(0, 9)), max_size=5)


def partitions(topic: str, first: int, count: int) -> list[tuple[str, str]]:
    return [(topic, f"{topic}-{number}") for number in range(first, first + count)]


def spread(counts: Counter[int], parallelism: int) -> int:
    of_each = [counts[subtask] for subtask in range(parallelism)]
    return max(of_each) - min(of_each)


def add(assigner: SplitAssigner, rounds: list[dict[str, int]], parallelism: int) -> dict[str, tuple[str, int]]:
    """Let topics grow, round by round, and check after each what every assigner promises."""
    owners: dict[str, tuple[str, int]] = {}
    for grown in rounds:
        new = []
        for topic, count in grown.items():
            new += partitions(topic, sum(group == topic for group, _ in owners.values()), count)
        assigned = assigner.assign(new, dict(owners), parallelism)
        assert assigned.keys() == {split_id for _, split_id in new}, "the new ones, all of them and no others"
        assert set(assigned.values()) <= set(range(parallelism))
        owners.update((split_id, (topic, assigned[split_id])) for topic, split_id in new)
    return owners


@given(ROUNDS, st.integers(1, 9))
def test_by_hash_no_reader_has_two_more_of_a_topic_than_another(rounds: list[dict[str, int]], parallelism: int) -> None:
    owners = add(HashAssigner(), rounds, parallelism)
    for topic in {group for group, _ in owners.values()}:
        of_topic = Counter(subtask for group, subtask in owners.values() if group == topic)
        assert spread(of_topic, parallelism) <= 1, (topic, of_topic)


@given(ROUNDS, st.integers(1, 9))
def test_by_round_robin_no_reader_has_two_more_than_another(rounds: list[dict[str, int]], parallelism: int) -> None:
    counts = Counter(subtask for _, subtask in add(RoundRobinAssigner(), rounds, parallelism).values())
    assert spread(counts, parallelism) <= 1, counts


@every_assigner
@given(ROUNDS, st.dictionaries(st.integers(20, 40), st.integers(0, 3)), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    assigner: SplitAssigner, rounds: list[dict[str, int]], owned: dict[int, int], random: random.Random
) -> None:
    new = [
        each for topic, count in Counter(rounds[0] if rounds else {}).items() for each in partitions(topic, 0, count)
    ]
    owners = [(f"rides-{number}", ("rides", subtask)) for number, subtask in owned.items()]
    expected = assigner.assign(new, dict(owners), 4)
    random.shuffle(new)
    random.shuffle(owners)
    assert assigner.assign(new, dict(owners), 4) == expected


@every_assigner
def test_what_is_unbalanced_is_filled_up_where_there_is_least(assigner: SplitAssigner) -> None:
    owners = {f"rides-{number}": ("rides", 0) for number in range(3)} | {"rides-3": ("rides", 1)}
    assigned = assigner.assign(partitions("rides", 4, 5), owners, 3)
    assert Counter(assigned.values()) == {1: 2, 2: 3}


def test_two_topics_of_four_partitions_on_eight_readers_are_one_each() -> None:
    """FLINK-31762."""
    new = partitions("a", 0, 4) + partitions("b", 0, 4)
    assert sorted(RoundRobinAssigner().assign(new, {}, 8).values()) == list(range(8))


def test_small_topics_do_not_all_begin_with_the_first_reader() -> None:
    new = [(f"t{number}", f"t{number}-0") for number in range(100)]
    assert len(set(HashAssigner().assign(new, {}, 8).values())) == 8


GOLDEN = {
    "hash": {
        "rides-0": 2, "rides-1": 0, "rides-2": 1, "rides-9": 2, "rides-10": 0, "rides-11": 1,
        "zäune-0": 0, "fares-0": 2, "fares-1": 0,
    },
    "round-robin": {
        "fares-0": 0, "fares-1": 1, "rides-0": 2, "rides-1": 0, "rides-2": 1, "rides-9": 2, "rides-10": 0,
        "rides-11": 1, "zäune-0": 2,
    },
}  # fmt: skip


def golden_case(name: str) -> dict[str, int]:
    new = [*partitions("rides", 0, 12), ("zäune", "zäune-0"), *partitions("fares", 0, 2)]
    return ASSIGNERS[name]().assign(new, {}, 3)


@pytest.mark.parametrize("name", GOLDEN)
def test_owners_are_those_of_every_version_before(name: str) -> None:
    assert {split_id: golden_case(name)[split_id] for split_id in GOLDEN[name]} == GOLDEN[name]


def test_another_process_with_another_hash_seed_gives_the_same_answer() -> None:
    code = (
        "from headgate.assigners import HashAssigner;"
        "print(sorted(HashAssigner().assign([(t, t + '-0') for t in 'abcdefgh'], {}, 5).items()))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
