"""Anything that can happen to the enumerator of `headgate.kafka`, in any order, under a model of a runtime.

Readers register, fail and are restored; partitions appear; checkpoints are taken, also while readers are missing; all
of it restarts from the last checkpoint with any number of readers. Partitions end in bounded reads only. Not modelled:
removed topics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.connectors.kafka.split import KafkaSplit
from tests.unit.connectors.kafka.partitions_source import BOUNDED, Cluster, Harness, begin, held, state_of


class Checkpoint(msgspec.Struct, frozen=True):
    enumerator: bytes
    readers: dict[int, dict[str, KafkaSplit]]
    owners: dict[str, int]
    positions: dict[str, int]


class Runtime(RuleBasedStateMachine):
    assigner = "hash"
    harness: Harness

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        self.cluster = Cluster(a=[5, 5, 5])
        self.last = Checkpoint(b"", {}, {}, {})
        self._begin(parallelism, None)

    def _begin(self, parallelism: int, state: bytes | None) -> None:
        self.harness = begin(self.cluster, parallelism, state=state, discovery="100", assigner=self.assigner)
        self.since: dict[int, dict[str, KafkaSplit]] = {subtask: {} for subtask in range(parallelism)}
        self.failed = self.shared_out = False
        self.owners: dict[str, int] = {}

    def _deliver(self) -> None:
        for subtask, message in self.harness.outbox:
            assert isinstance(message, list)
            self.since[subtask].update((split.split_id, split) for split in message)
        self.harness.outbox.clear()
        self.shared_out = self.shared_out or len(self.harness.readers) == self.harness.parallelism

    def _restored(self, subtask: int) -> dict[str, KafkaSplit]:
        """Return what a reader is restored with: dealt out anew when their number changed."""
        return self.last.readers.get(subtask, {})

    @rule(topic=st.sampled_from("abc"), count=st.integers(1, 4), found=st.booleans())
    def add_partitions(self, topic: str, count: int, found: bool) -> None:
        self.cluster.topics.setdefault(topic, []).extend([9] * count)
        if found:
            self.discover()

    @rule()
    def discover(self) -> None:
        self.harness.run_next_call()
        self._deliver()

    @rule(subtask=st.integers(0, 3))
    def register(self, subtask: int) -> None:
        if subtask < self.harness.parallelism and subtask not in self.harness.readers:
            self.harness.register_reader(subtask, reported_splits=list(self._restored(subtask).values()))
            self._deliver()

    @rule()
    def register_all(self) -> None:
        for subtask in range(self.harness.parallelism):
            self.register(subtask)

    @rule(subtask=st.integers(0, 3))
    def fail(self, subtask: int) -> None:
        if subtask in self.harness.readers:
            self.harness.fail_reader(subtask, list(self.since[subtask].values()))
            self.since[subtask].clear()
            self.failed = True
            self._deliver()

    @rule(subtask=st.integers(0, 3))
    def ask(self, subtask: int) -> None:
        if subtask in self.harness.readers:
            self.harness.request_split(subtask)
            self._deliver()

    @rule()
    def read(self) -> None:
        for splits in self.harness.assigned.values():
            for split_id, split in splits.items():
                splits[split_id] = msgspec.structs.replace(split, position=split.position + 1)

    def _can_checkpoint(self) -> bool:
        # It begins when all readers run (FLIP-537, section 5); before any was given a split, it does no harm.
        return self.harness.readers.keys() == self.since.keys() or not (self.shared_out or self.failed)

    @precondition(lambda self: self._can_checkpoint())
    @rule()
    def checkpoint(self) -> None:
        readers = {
            subtask: dict(self.harness.assigned[subtask])
            if subtask in self.harness.readers
            else self._restored(subtask)
            for subtask in self.since
        }
        enumerator = self.harness.snapshot()
        positions = {split.split_id: split.position for split in state_of(self.harness).unassigned}
        for splits in readers.values():
            positions.update((split_id, split.position) for split_id, split in splits.items())
        self.last = Checkpoint(enumerator, readers, dict(self.owners), positions)
        for splits in self.since.values():
            splits.clear()

    @precondition(lambda self: self.last.enumerator)
    @rule(parallelism=st.integers(1, 4), same=st.booleans(), after_checkpoint=st.booleans())
    def restart(self, parallelism: int, same: bool, after_checkpoint: bool) -> None:
        if after_checkpoint and self._can_checkpoint():
            self.checkpoint()
        before = len(self.last.readers)
        if same or parallelism == before:
            self._begin(before, self.last.enumerator)
            self.owners = dict(self.last.owners)
            return
        splits = [split for of_reader in self.last.readers.values() for split in of_reader.values()]
        dealt: dict[int, dict[str, KafkaSplit]] = {
            subtask: {split.split_id: split for split in splits[subtask::parallelism]} for subtask in range(parallelism)
        }
        self.last = msgspec.structs.replace(self.last, readers=dealt, owners={})
        self._begin(parallelism, self.last.enumerator)

    @invariant()
    def every_split_is_in_one_place(self) -> None:
        inside = [split.split_id for split in state_of(self.harness).unassigned]
        outside = [split_id for splits in held(self.harness).values() for split_id in splits]
        assert len(set(inside + outside)) == len(inside + outside), (inside, outside)
        still_to_come = {
            split_id
            for subtask in self.since.keys() - self.harness.readers.keys()
            for split_id in self._restored(subtask)
        }
        known = self.last.positions.keys()
        assert known <= {*inside, *outside} | still_to_come, "a split of the checkpoint is lost"

    @invariant()
    def nobody_reads_again_what_a_checkpoint_has(self) -> None:
        for splits in self.harness.assigned.values():
            for split_id, split in splits.items():
                assert split.position >= self.last.positions.get(split_id, 0)

    @invariant()
    def owners_stay(self) -> None:
        for subtask, splits in held(self.harness).items():
            for split_id in splits:
                assert self.owners.setdefault(split_id, subtask) == subtask, f"{split_id} was moved"

    @invariant()
    def no_watermark_passes_what_a_reader_that_is_there_may_get(self) -> None:
        if self.harness.enumerator.unassigned_event_time_ms() is None:
            for split_id in [split.split_id for split in state_of(self.harness).unassigned]:
                owner = state_of(self.harness).owners[split_id]
                assert owner not in self.harness.readers, f"{split_id} of reader {owner}"

    @invariant()
    def nobody_has_more_than_a_fair_share(self) -> None:
        if self.harness.readers.keys() != self.since.keys():
            return
        everybody = {subtask: Counter(name[0] for name in self.harness.assigned[subtask]) for subtask in self.since}
        for topics in ["abc"] if self.assigner == "round-robin" else ["a", "b", "c"]:
            counts = [sum(counts[topic] for topic in topics) for counts in everybody.values()]
            assert max(counts) - min(counts) <= 1, everybody

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.register_all()
        self.discover()
        self.nobody_has_more_than_a_fair_share()
        self.owners_stay()
        outside = {split_id for splits in held(self.harness).values() for split_id in splits}
        assert outside == {
            f"{topic}-{number}" for topic, ends in self.cluster.topics.items() for number in range(len(ends))
        }
        assert not state_of(self.harness).unassigned


class RoundRobinRuntime(Runtime):
    assigner = "round-robin"


class BoundedRuntime(RuleBasedStateMachine):
    """A bounded read: partitions are pulled and read to their end, and what each reader does is lost with it.

    ``held`` and ``done`` of a reader are what it has and what it read to its end since the last checkpoint; ``past`` is
    what was read to its end before that.
    """

    harness: Harness

    @initialize(parallelism=st.integers(1, 3))
    def start(self, parallelism: int) -> None:
        self.cluster = Cluster(a=[5, 0, 9], b=[7, 7])
        self.names = {"a-0", "a-1", "a-2", "b-0", "b-1"}
        self.past: set[str] = set()
        self.last: dict[int, dict[str, KafkaSplit]] = {subtask: {} for subtask in range(parallelism)}
        self.state: bytes | None = None
        self._begin(parallelism)

    def _begin(self, parallelism: int) -> None:
        self.harness = begin(self.cluster, parallelism, BOUNDED, self.state, startingOffsets="earliest")
        self.since: dict[int, dict[str, KafkaSplit]] = {subtask: {} for subtask in range(parallelism)}
        self.done: dict[int, set[str]] = {subtask: set() for subtask in range(parallelism)}

    def _deliver(self) -> None:
        for subtask, message in self.harness.outbox:
            if isinstance(message, list):
                self.since[subtask].update((split.split_id, split) for split in message)
        self.harness.outbox.clear()

    @rule()
    def discover(self) -> None:
        if self.harness.calls:
            self.harness.run_next_call()
            self._deliver()

    @rule(subtask=st.integers(0, 2))
    def register(self, subtask: int) -> None:
        if subtask < self.harness.parallelism and subtask not in self.harness.readers:
            # All that it was restored with, though others may have it, or may have read it, by now.
            self.harness.register_reader(subtask, reported_splits=list(self.last[subtask].values()))
            self._deliver()

    @rule(subtask=st.integers(0, 2))
    def ask(self, subtask: int) -> None:
        if subtask in self.harness.readers and subtask not in self.harness.no_more_splits:
            self.harness.request_split(subtask)
            self._deliver()

    @rule(subtask=st.integers(0, 2))
    def finish(self, subtask: int) -> None:
        for name in sorted(self.harness.assigned.get(subtask, {}))[:1]:
            self.harness.finish_split(subtask, name)
            self.done[subtask].add(name)
            self.harness.enumerator.notify_splits_finished([name])

    @rule(subtask=st.integers(0, 2))
    def fail(self, subtask: int) -> None:
        if subtask in self.harness.readers:
            self.done[subtask].clear()
            self.harness.fail_reader(subtask, list(self.since[subtask].values()))
            self.since[subtask].clear()
            self._deliver()

    def _can_checkpoint(self) -> bool:
        return self.harness.readers.keys() == self.since.keys()

    @precondition(_can_checkpoint)
    @rule()
    def checkpoint(self) -> None:
        self.state = self.harness.snapshot()
        self.last = {subtask: dict(self.harness.assigned[subtask]) for subtask in self.since}
        for subtask, done in self.done.items():
            self.past |= done
            done.clear()
            self.since[subtask].clear()
        self.harness.complete_checkpoint()

    @precondition(lambda self: self.state is not None)
    @rule(parallelism=st.integers(1, 3))
    def restart(self, parallelism: int) -> None:
        splits = [split for of_reader in self.last.values() for split in of_reader.values()]
        if parallelism != len(self.last):
            self.last = {
                subtask: {split.split_id: split for split in splits[subtask::parallelism]}
                for subtask in range(parallelism)
            }
        self._begin(parallelism)

    @invariant()
    def no_watermark_passes_what_is_pending(self) -> None:
        if self.harness.enumerator.unassigned_event_time_ms() is None:
            assert not state_of(self.harness).unassigned

    @invariant()
    def nothing_is_twice(self) -> None:
        inside = [split.split_id for split in state_of(self.harness).unassigned]
        outside = [split_id for splits in held(self.harness).values() for split_id in splits]
        done = [name for of_reader in self.done.values() for name in of_reader]
        everything = [*inside, *outside, *done, *self.past]
        assert len(set(everything)) == len(everything), (inside, outside, done, self.past)

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for subtask in range(3):
            self.register(subtask)
        self.discover()
        for _ in range(len(self.names) + 1):
            for subtask in range(self.harness.parallelism):
                self.ask(subtask)
                self.finish(subtask)
        self.nothing_is_twice()
        read = {name for of_reader in self.done.values() for name in of_reader} | self.past
        assert read == self.names
        assert self.harness.no_more_splits == self.since.keys()


@pytest.mark.parametrize("machine", [Runtime, RoundRobinRuntime, BoundedRuntime])
def test_splits_are_kept_balanced_and_in_one_place_whatever_happens(machine: type[Any]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None))
