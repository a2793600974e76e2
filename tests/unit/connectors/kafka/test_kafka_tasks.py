"""Which ranges share a task: nothing lost, nothing twice, as many and as large as asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.assigners import ASSIGNERS, HashAssigner, RoundRobinAssigner
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.tasks import group

Tasks = list[list[KafkaSplit]]


def range_of(topic: str, number: int, start: int, stop: int) -> KafkaSplit:
    return KafkaSplit(
        split_id=f"{topic}-{number}", topic=topic, partition=number, position=start, stop=stop, topic_id="id"
    )


def tasks(
    splits: list[KafkaSplit],
    min_partitions: int | None = None,
    max_records: int | None = None,
    parallelism: int | None = None,
    assigner: str = "hash",
) -> Tasks:
    return group(
        splits,
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        parallelism=parallelism,
        assigner=ASSIGNERS[assigner](),
    )


def bounds(made: Tasks) -> list[list[tuple[str, int, int | None]]]:
    return [[(piece.split_id, piece.position, piece.stop) for piece in task] for task in made]


def test_each_range_is_a_task_and_empty_ones_are_none() -> None:
    splits = [range_of("a", 0, 5, 9), range_of("a", 1, 7, 7), range_of("b", 0, 0, 1)]
    assert tasks(splits) == [[splits[0]], [splits[2]]]
    assert tasks([splits[1]], min_partitions=4, parallelism=3) == []


def test_large_ranges_are_cut_and_small_ones_are_not() -> None:
    made = tasks([range_of("a", 0, 100, 1100), range_of("a", 1, 0, 10)], min_partitions=4)
    assert bounds(made) == [
        [("a-0@100", 100, 433)],
        [("a-0@433", 433, 766)],
        [("a-0@766", 766, 1100)],
        [("a-1", 0, 10)],
    ]


def test_pieces_are_of_about_equal_size() -> None:
    made = tasks([range_of("a", 0, 0, 1000), range_of("a", 1, 0, 900), range_of("a", 2, 0, 60)], min_partitions=6)
    assert [piece.remaining().rows for task in made for piece in task] == [333, 333, 334, 450, 450, 60]


def test_no_piece_is_larger_than_allowed() -> None:
    made = tasks([range_of("a", 0, 0, 10), range_of("a", 1, 0, 4)], max_records=4)
    assert bounds(made) == [[("a-0@0", 0, 3)], [("a-0@3", 3, 6)], [("a-0@6", 6, 10)], [("a-1", 0, 4)]]


def test_two_topics_share_tasks_by_the_assigner() -> None:
    splits = [range_of(topic, number, 0, 10) for topic in "ab" for number in range(4)]
    assert [len(task) for task in tasks(splits, parallelism=8, assigner="round-robin")] == [1] * 8
    by_hash = tasks(splits, parallelism=3)
    for topic in "ab":
        assert sorted(Counter(piece.topic for piece in task)[topic] for task in by_hash) == [1, 1, 2]


def test_pieces_of_a_partition_are_in_order_in_their_task() -> None:
    (made,) = tasks([range_of("a", 0, 0, 1000)], min_partitions=100, parallelism=1)
    assert [piece.position for piece in made] == list(range(0, 1000, 10))


def test_a_split_without_an_end_is_no_task() -> None:
    with pytest.raises(AssertionError, match="has no stop"):
        tasks([KafkaSplit(split_id="a-0", topic="a", partition=0, position=0)])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**12), st.integers(0, 400)), max_size=8),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 9),
    st.sampled_from(["hash", "round-robin"]),
)
def test_pieces_cover_the_ranges_exactly(
    drawn: list[tuple[str, int, int]],
    min_partitions: int | None,
    max_records: int | None,
    parallelism: int | None,
    assigner: str,
) -> None:
    splits = [range_of(topic, number, start, start + size) for number, (topic, start, size) in enumerate(drawn)]
    made = tasks(splits, min_partitions, max_records, parallelism, assigner)
    pieces = [piece for task in made for piece in task]
    assert all(made), "no task is empty"
    assert len({piece.split_id for piece in pieces}) == len(pieces)
    assert {piece.topic_id for piece in pieces} <= {"id"}
    for split in splits:
        reached = split.position
        of_split = [each for each in pieces if each.topic_partition == split.topic_partition]
        for piece in sorted(of_split, key=lambda each: each.position):
            assert piece.position == reached and piece.stop is not None and piece.stop > piece.position
            assert piece.split_id == (split.split_id if len(of_split) == 1 else f"{split.split_id}@{reached}")
            reached = piece.stop
        assert reached == split.stop
    total = sum(size for _, _, size in drawn)
    assert len(pieces) >= min(min_partitions or 0, total)
    assert max_records is None or all((piece.remaining().rows or 0) <= max_records for piece in pieces)
    if max_records is None and len(pieces) > len([size for _, _, size in drawn if size]):
        assert len(pieces) == min(min_partitions or 0, total), "no more are cut than were asked for"
    for task in made:
        for partition in {piece.topic_partition for piece in task}:
            offsets = [piece.position for piece in task if piece.topic_partition == partition]
            assert offsets == sorted(offsets)
    if parallelism is not None:
        assert len(made) == min(parallelism, len(pieces)) or assigner == "hash"
        assert len(made) <= parallelism
    assert tasks(splits, min_partitions, max_records, parallelism, assigner) == made


def test_both_assigners_are_ones_of_the_option() -> None:
    assert {name: type(make()) for name, make in ASSIGNERS.items()} == {
        "hash": HashAssigner,
        "round-robin": RoundRobinAssigner,
    }
