"""What must hold after every step, in every checkpoint, after every commit, and in the end.

Checked: invariants 1 (a split is in one place, in every checkpoint), 2 (exactly once; by key in `scripted_query`),
3 (watermarks; of each reader in `subtask_process`), 4 (alignment; what is announced in `announcements`), 5 (owners
stay, balance) and 7 (memory) of the design. Not checked: the order of rows of different splits, anything about time in
which something is done, save that the query ends and that a paused split is resumed in time.

Never: look into a machine for what it decided; what it holds may be counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.source_state import decode_source_state
from headgate.protocol import messages as msg
from headgate.protocol.state import InlineState
from headgate.simulation.clockwork import Process
from headgate.simulation.durable import Row
from headgate.simulation.scripted_reader import ScriptedReader
from headgate.simulation.slot_process import SlotProcess
from headgate.simulation.whereabouts import check_rows
from headgate.simulation.world import World
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task.reader_output import StreamingOutput

_MAX_UNCONFIRMED = 1000
_NEWS_MS = 800
"""So long after it began to vote everybody has heard of a split, where nothing goes wrong."""
_RESUMED_MS = 1500
"""So long after nobody slow is left a split is resumed, where nothing goes wrong."""


class Invariants:
    """The checks of one cluster."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster
        self._slots: list[SlotProcess] = cluster.slots
        self._deployed: dict[int, int] = {}  # by subtask, the execution that counts
        self._owners: dict[tuple[str, str], int] = {}
        self._connections: dict[tuple[int, int], int] = {}
        self._parallelism = 0
        self._restoring: set[str] = set()
        self._epoch: int | None = None
        self._published_in: dict[bytes, int] = {}  # by the driver of this run, which knows what it published
        self._positions: dict[tuple[str, str], int] = {}  # where splits were in the newest manifest
        self._resolved: dict[tuple[str, str], int] = {}  # where they were in the first completed checkpoint
        # How far the slowest split of the alignment group was, and since when: as far back as somebody may not know.
        self._slowest: deque[tuple[int, int]] = deque()
        self._watermark_ms: int | None = None  # of the source whose reader reads
        # How far the splits of the reader that reads were before, save idle ones; None: no row of it was read.
        self._before: dict[str, int | None] = {}
        # Since when a split, of an execution, has been paused though it is not ahead of anybody.
        self._vainly_ms: dict[tuple[str, int, str], int] = {}

    def on_run(self, parallelism: int) -> None:
        """Note that a run begins."""
        self._deployed = {}
        self._epoch, self._published_in = None, {}
        self._slowest.clear()
        if parallelism != self._parallelism:
            self._owners = {}
        self._parallelism = parallelism

    def on_action(self, process: Process, action: Any) -> None:
        """Note which executions count, and that completed epochs are contiguous."""
        match action:
            case jm.Transmit(envelope=msg.Envelope(message=msg.Deploy(execution=execution, stage=0), slot=slot)):
                self._deployed[slot] = max(execution, self._deployed.get(slot, 0))
            case jm.Transmit(envelope=msg.Envelope(message=msg.CancelSubtask(stage=0), slot=slot)):
                self._deployed.pop(slot, None)
            case jm.ForSource(action=src.CallEnumerator(call=src.ForgetReader(subtask=subtask))):
                self._deployed.pop(subtask, None)
            case jm.ForSource(source=uid, action=src.DropLog(before_segment=None)):  # everything is restored
                self._deployed = {}
                self._restoring.add(uid)
            case jm.ShowCheckpoint():  # complete: what is resolved in it stays
                self._resolved = self._positions | self._resolved
            case jm.ForSource(source=uid, action=src.StartEnumerator(checkpoint_id=checkpoint_id)):
                self._restore_owners(uid, checkpoint_id)

    def on_streams(self, connections: dict[int, tuple[int, int]]) -> None:
        """Check that no slot's attempt is on an older connection again."""
        for connection, key in connections.items():
            newest = self._connections.get(key, 0)
            assert connection >= newest, f"slot {key} is on connection {connection} again, after {newest}"
            self._connections[key] = connection

    def _restore_owners(self, uid: str, checkpoint_id: int) -> None:
        """Take owners from the checkpoint: what it does not hold is discovered and assigned anew.

        It may be one that was given up when it existed already, so that owners since do not count.
        """
        known = (each for each in self._cluster.storage.manifests.values() if each.checkpoint_id <= checkpoint_id)
        restored = max(known, key=lambda each: each.checkpoint_id, default=None)
        states = restored.subtasks[0] if restored is not None and restored.parallelism == self._parallelism else ()
        held = {
            (uid, split.split_id): subtask
            for subtask, state in enumerate(states)
            if uid in state.readers
            for split in state.readers[uid].splits
        }
        if uid in self._restoring:
            self._restoring.discard(uid)
            self._owners = {key: owner for key, owner in self._owners.items() if key[0] != uid} | held
        else:
            self._owners = {key: owner for key, owner in self._owners.items() if key[0] != uid or key in held}

    def on_splits_added(self, slot: SlotProcess, uid: str, ids: set[str]) -> None:
        """Check that a split that a reader gets is with no other one, and stays with its owner."""
        cluster = self._cluster
        if not self._counts(slot):
            return
        if slot.execution is not None:
            self._check_in_time(slot.execution.readers[uid], ids)
        for other in self._slots:
            if other is not slot and other.execution is not None and self._counts(other):
                double = ids & set(other.execution.readers[uid].splits)
                assert not double, f"{slot.name} was given {double}, which {other.name} is reading"
        self._check_families(slot, uid, ids)
        if cluster.topics[uid].script.stays:
            for split_id in ids:
                owner = self._owners.setdefault((uid, split_id), slot.slot)
                assert owner == slot.slot, f"{split_id} moved from {owner} to {slot.slot} though P stayed the same"

    def _check_families(self, slot: SlotProcess, uid: str, ids: set[str]) -> None:
        """Check that nobody reads what is to be read before these splits, or after them."""
        splits = self._cluster.topics[uid].splits
        family = {parent for split_id in ids for parent in splits[split_id].parents}
        family |= {each.split_id for each in splits.values() if not ids.isdisjoint(each.parents)}
        for other in self._slots if family else ():
            if other.execution is not None and self._counts(other):
                unread = family & other.execution.readers[uid].splits.keys()
                assert not unread, f"{slot.name} was given {ids}, but {other.name} is reading {unread}"

    def _counts(self, slot: SlotProcess) -> bool:
        plan = self._cluster.plan
        return (
            slot.alive
            and plan is not None
            and slot.run == plan.run
            and slot.machine.state == "connected"
            and slot.execution is not None
            and self._deployed.get(slot.slot) == slot.execution.number
        )

    def before_rows(self, slot: SlotProcess, reader: ScriptedReader) -> None:
        """Note how far the slowest split of the alignment group is, and the watermark of the source's readers."""
        strategy = self._cluster.topics[reader.uid].script.strategy
        self._watermark_ms = None
        if strategy is None or not self._counts(slot):
            return
        if not self._is_late_excused(reader.uid):
            self._watermark_ms = self._watermark_of(reader.uid)
        if strategy.alignment is not None:
            self._note_slowest()
            self._before = {each: reader.highest_ms.get(each) for each in reader.splits.keys() - reader.idle}
            self.check_paused()

    def _note_slowest(self) -> None:
        now_ms, slowest_ms = self._cluster.clock.now_ms, min(self._votes(), default=MAX_WATERMARK_MS)
        while len(self._slowest) > 1 and self._slowest[1][0] <= now_ms - _NEWS_MS:
            self._slowest.popleft()
        if not self._slowest or self._slowest[-1][1] != slowest_ms:
            self._slowest.append((now_ms, slowest_ms))

    def on_look(self, reader: ScriptedReader, output: StreamingOutput) -> None:
        """Check that no split is idle that could not have been read long enough; note who votes, and who is paused."""
        strategy, now_ms = self._cluster.topics[reader.uid].script.strategy, self._cluster.clock.now_ms
        if strategy is None:
            return
        times = output.event_times()
        idle = {split_id for split_id, time in times.items() if time.idle}
        for split_id in idle - reader.idle:
            quiet_ms = reader.quiet_ms[split_id]
            # That the sink's room is gone shows after the turn in which a slow function gave it rows.
            unnoticed_ms = self._cluster.longest_turn_ms if self._cluster.scenario.source_row_ms else 0
            assert strategy.idle_timeout_ms is not None and quiet_ms + unnoticed_ms >= strategy.idle_timeout_ms, (
                f"{split_id} is idle after {quiet_ms} ms in which it could have been read"
            )
            reader.votes_since_ms.pop(split_id, None)
        reader.idle, reader.held = idle, {split_id for split_id, time in times.items() if time.paused}
        for split_id in reader.splits.keys() - idle:
            reader.votes_since_ms.setdefault(split_id, now_ms)

    def on_rows(self, slot: SlotProcess, reader: ScriptedReader, rows: list[Row]) -> None:
        """Check that a split is read at most a batch, or no row, beyond the slowest and the drift; and who is late."""
        topic = self._cluster.topics[reader.uid]
        strategy = topic.script.strategy
        if not rows or strategy is None or not self._counts(slot):
            return
        self._check_lateness(reader, rows)
        if strategy.alignment is None:
            return
        if not self._cluster.is_quiet:
            return
        split_id = rows[0][1]
        if not topic.script.pauses_splits:  # the source waits when all of its splits are ahead that are not idle
            before = [*self._before.values()]
            reached_ms = None if None in before else min((each for each in before if each is not None), default=None)
        else:
            reached_ms = reader.highest_ms[split_id] if topic.script.knows_rows else self._before.get(split_id)
        slowest_ms = max(each for _, each in self._slowest)
        if reached_ms is not None:
            assert reached_ms <= slowest_ms + strategy.alignment.max_drift_ms, (
                f"{split_id} is read at {reached_ms}, but the slowest split was not beyond {slowest_ms} lately, "
                f"and the drift is {strategy.alignment.max_drift_ms}"
            )

    def check_paused(self) -> None:
        """Check that no split is paused for long that nobody has to wait for.

        Of all readers: one whose splits are all paused is not polled, and others may be slower meanwhile.
        """
        before, self._vainly_ms = self._vainly_ms, {}
        if not self._cluster.is_quiet:
            return
        executions = [(slot.name, slot.execution) for slot in self._slots if self._counts(slot)]
        readers = [
            (name, execution.number, reader)
            for name, execution in executions
            if execution is not None
            for reader in execution.readers.values()
            if reader.held
        ]
        lowest_ms, now_ms = self._lowest_ms() if readers else None, self._cluster.clock.now_ms
        for name, number, reader in readers:
            strategy = self._cluster.topics[reader.uid].script.strategy
            assert strategy is not None and strategy.alignment is not None
            held = reader.held & reader.splits.keys()
            if not self._cluster.topics[reader.uid].script.pauses_splits:
                held -= reader.idle  # they wait with those that are ahead
            for split_id in held:
                next_ms, drift_ms = self._next_ms(reader, split_id), strategy.alignment.max_drift_ms
                if lowest_ms is not None and next_ms > lowest_ms + drift_ms:
                    continue
                key = name, number, split_id
                since_ms = self._vainly_ms[key] = before.get(key, now_ms)
                assert now_ms - since_ms <= _RESUMED_MS, (
                    f"{split_id} is paused in vain: it is at {next_ms}, and nobody is before {lowest_ms} and the drift "
                    f"of {drift_ms}"
                )

    def _next_ms(self, reader: ScriptedReader, split_id: str) -> int:
        """Return how far a split would be with its next row, or is, if readers do not know rows or there is none."""
        topic, position = self._cluster.topics[reader.uid], reader.splits[split_id]
        if topic.script.knows_rows and position < topic.rows(split_id):
            assert topic.script.strategy is not None
            return topic.event_time_ms(split_id, position) - topic.script.strategy.max_out_of_orderness_ms
        return reader.highest_ms.get(split_id, MIN_WATERMARK_MS)

    def _lowest_ms(self) -> int | None:
        """Return how far the slowest of the alignment group is at least; None: nobody has a vote."""
        plan, others_ms = self._cluster.plan, self._cluster.others_ms
        votes = [] if others_ms is None else [others_ms]
        counting = [slot for slot in self._slots if self._counts(slot)]
        if plan is None or len(counting) < plan.parallelism:
            return MIN_WATERMARK_MS
        for slot in counting:
            assert slot.execution is not None
            for reader in slot.execution.readers.values():
                strategy = self._cluster.topics[reader.uid].script.strategy
                if strategy is None or strategy.alignment is None:
                    continue
                voting = reader.splits.keys() - reader.idle
                votes += [reader.highest_ms.get(split_id, MIN_WATERMARK_MS) for split_id in voting]
                if not reader.splits and reader.unassigned_ms is not None:  # it is about to read the next one
                    votes.append(reader.unassigned_ms - strategy.max_out_of_orderness_ms)
        return min(votes, default=None)

    def _votes(self) -> Iterator[int]:
        """Yield how far the splits of the alignment group are that are not idle, for certain: to their next rows.

        And the vote of the application's other queries.
        """
        heard_ms = self._cluster.clock.now_ms - _NEWS_MS
        if self._cluster.others_ms is not None and self._cluster.others_since_ms <= heard_ms:
            yield self._cluster.others_ms
        for slot in self._slots:
            if slot.execution is None or not self._counts(slot):
                continue
            for uid, reader in slot.execution.readers.items():
                strategy = self._cluster.topics[uid].script.strategy
                if strategy is None or strategy.alignment is None:
                    continue
                for split_id, since_ms in reader.votes_since_ms.items():
                    if since_ms <= heard_ms:
                        position = reader.splits[split_id]
                        yield self._reach(uid, split_id, position, reader.highest_ms.get(split_id))

    def _reach(self, uid: str, split_id: str, position: int, highest_ms: int | None) -> int:
        """Return how far a split is when its next batch's rows count."""
        topic = self._cluster.topics[uid]
        assert topic.script.strategy is not None
        disorder_ms = topic.script.strategy.max_out_of_orderness_ms
        following = range(position, min(position + topic.script.batch_rows + 1, topic.rows(split_id)))
        times = [topic.event_time_ms(split_id, offset) - disorder_ms for offset in following]
        return max([*times, MIN_WATERMARK_MS if highest_ms is None else highest_ms])

    def _watermark_of(self, uid: str) -> int | None:
        """Return the lowest watermark of all readers of a source; None: one has none, or is not there."""
        plan = self._cluster.plan
        counting = [slot for slot in self._slots if self._counts(slot)]
        emitted = [slot.execution.readers[uid].watermarks for slot in counting if slot.execution is not None]
        if plan is None or len(emitted) < plan.parallelism or not all(emitted):
            return None
        return min(each[-1] for each in emitted)

    def _is_late_excused(self, uid: str) -> bool:
        """Return whether rows may come after the watermark of all readers of the source."""
        script = self._cluster.topics[uid].script
        assert script.strategy is not None
        has_all = script.holds_watermarks and not script.grows_splits
        return bool(self._cluster.faults) or script.strategy.idle_timeout_ms is not None or not has_all

    @property
    def excuses_late(self) -> bool:
        """Whether rows may come after the watermark at functions."""
        if self._cluster.scenario.in_time:
            return False
        scripts = [topic.script for topic in self._cluster.topics.values()]
        return any(script.strategy is None or self._is_late_excused(script.uid) for script in scripts)

    def _check_lateness(self, reader: ScriptedReader, rows: list[Row]) -> None:
        """Check that no row comes after the watermark of all readers, where nothing excuses it."""
        topic = self._cluster.topics[reader.uid]
        if self._watermark_ms is not None and not self._is_late_excused(reader.uid):
            earliest_ms = min(topic.event_time_ms(split_id, offset) for _, split_id, offset in rows)
            assert earliest_ms >= self._watermark_ms, (
                f"{rows} are late: {earliest_ms}, the watermark is {self._watermark_ms}"
            )

    def _check_in_time(self, reader: ScriptedReader, ids: set[str]) -> None:
        """Check that the watermark of a reader that gets splits has not passed them while they were on their way.

        It may have passed those that were not there from the beginning, and those that are read again.
        """
        topic = self._cluster.topics[reader.uid]
        has_times = topic.script.strategy is not None and topic.script.holds_watermarks
        if not has_times or not reader.watermarks or self._cluster.faults:
            return
        for split_id in ids:
            split = topic.splits[split_id]
            if not split.parents and not split.appears_ms:
                earliest_ms = topic.earliest_ms(split_id, reader.splits[split_id])
                assert earliest_ms >= reader.watermarks[-1], (
                    f"{split_id} came after the watermark: {earliest_ms}, and {reader.watermarks[-1]} is emitted"
                )

    def on_manifest(self, manifest: Manifest) -> None:
        """Check that every split is in exactly one place in a complete checkpoint."""
        self._positions = {}
        done: dict[tuple[str, str], int] = {}
        for uid, entry in manifest.sources.items():
            assert isinstance(entry.enumerator, InlineState)
            source = decode_source_state(entry.enumerator.data)
            scripted = self._cluster.sources[uid]
            state = scripted.remembered(source.enumerator)
            with_readers = set(source.assigned)
            pending = {split_id: row for split_id, row in state.pending.items() if split_id not in with_readers}
            readers = [subtask.readers[uid] for subtask in manifest.subtasks[0] if uid in subtask.readers]
            held = [split.split_id for reader in readers for split in reader.splits]
            ended = set(state.ended) | {end.split_id for reader in readers for end in reader.finished}
            for split in (split for reader in readers for split in reader.splits):
                stop = self._cluster.topics[uid].splits[split.split_id].stop if split.ended else None
                self._positions[uid, split.split_id] = scripted.position(split.data) if stop is None else stop
            self._positions |= {(uid, split_id): row for split_id, row in pending.items()}
            for split in entry.unassigned:
                assert split.split_id in pending, f"rows of {split.split_id} are in flight, but nobody has it"
                stop = self._cluster.topics[uid].splits[split.split_id].stop if split.ended else None
                if stop is not None:
                    self._positions[uid, split.split_id] = stop
            self._check_balance(uid, [len(reader.splits) for reader in readers], not pending)
            places = Counter([*pending, *held])
            for split_id in [*state.known, *places]:
                # One whose reader was restored to a time before its end is with the reader again, and known to end.
                assert places[split_id] == 1 or (places[split_id] == 0 and split_id in ended), (
                    f"checkpoint {manifest.checkpoint_id} has {split_id} in {places[split_id]} places: "
                    f"pending {sorted(pending)} (with readers {sorted(with_readers)}), with readers {held}, "
                    f"ended {sorted(ended)}"
                )
            topic = self._cluster.topics[uid]
            done |= {(uid, split_id): topic.rows(split_id) for split_id in ended if not places[split_id]}
        reached = self._positions | done
        positions = {split_id: position for (_, split_id), position in reached.items()}
        self._cluster.storage.complete[manifest.checkpoint_id] = manifest.run, positions
        check_rows(self._cluster, manifest, reached, self._resolved)

    def _check_balance(self, uid: str, counts: list[int], all_assigned: bool) -> None:
        """Check that no reader has two splits more than another, where none ends and all are spread."""
        topic = self._cluster.topics[uid]
        endless = all(split.stop is None for split in topic.splits.values())
        if topic.script.stays and endless and all_assigned and any(counts):
            assert max(counts) - min(counts) <= 1, f"the readers of {uid} have {counts} splits"

    def on_commit(self, action: cp.Commit) -> None:
        """Check that only what a complete checkpoint promises is published, epoch by epoch."""
        table, storage = self._cluster.table, self._cluster.storage
        for committables in action.committables.values():
            missing = [each for each in committables if each not in storage.promised]
            assert not missing, f"epoch {action.epoch} publishes {missing}, which no manifest holds"
            again = [each for each in committables if self._published_in.get(each, action.epoch) < action.epoch]
            assert not again, f"epoch {action.epoch} repeats {len(again)} committables that one before it published"
        # A new run may begin with epochs that were committed and are not known to be.
        first = self._epoch is None and action.epoch <= table.epoch + 1
        assert first or self._epoch in (action.epoch, action.epoch - 1), f"epoch {action.epoch} follows {self._epoch}"
        self._epoch = action.epoch
        table.epoch = max(table.epoch, action.epoch)

    def on_published(self, action: cp.Commit, published: list[bytes], whole: bool) -> None:
        """Check that nothing was published twice and, after a whole epoch, that nothing is left out."""
        self._published_in |= dict.fromkeys(published, action.epoch)
        doubled = self._cluster.table.doubled
        assert not doubled, f"published twice: {doubled[:5]}"
        if whole and not self._cluster.scenario.is_keyed:  # else rows may be on their way
            self._assert_no_gaps()

    def _assert_no_gaps(self) -> None:
        for (uid, split_id), offsets in self._cluster.table.offsets.items():
            first = min(offsets)
            assert len(offsets) == max(offsets) + 1 - first, f"rows of {split_id} are missing: {sorted(offsets)}"
            assert first <= self._resolved.get((uid, split_id), first), f"rows of {split_id} before {first} are missing"
            assert first == 0 or self._cluster.topics[uid].script.latest, f"{split_id} begins with row {first}"

    def missing(self) -> list[str]:
        """Return the splits that are not published up to their end."""
        published = self._cluster.table.offsets
        missing = []
        for uid, topic in self._cluster.topics.items():
            visible = {split.split_id for split in topic.visible()}
            for split in topic.splits.values():
                wanted = topic.rows(split.split_id) if split.stop is None else split.stop
                offsets = published.get((uid, split.split_id), set())
                # Less than the last one when some are kept for later.
                first = min(offsets, default=0) if topic.script.latest else 0
                first = min(first, self._resolved.get((uid, split.split_id), first))
                there = first + len(offsets) if offsets else self._stored_position(uid, split.split_id)
                if there < wanted and split.split_id in visible:
                    missing.append(f"{split.split_id}: {there} of {wanted}")
        return missing

    def _stored_position(self, uid: str, split_id: str) -> int:
        """Return up to where a split without published rows is done: one read from its latest row may have no new one.

        What was read since its first checkpoint is not done: it may be kept for a later publication.
        """
        if not self._cluster.topics[uid].script.latest:
            return 0
        return self._resolved.get((uid, split_id), self._positions.get((uid, split_id), 0))

    def at_the_end(self) -> None:
        """Check that everything is there, and that little is left."""
        cluster = self._cluster
        self._assert_no_gaps()
        assert not self.missing(), f"not published: {self.missing()}"
        for (run, uid), log in cluster.storage.logs.items():
            records = sum(len(segment) for segment in log.values())
            is_over = cluster.plan is None or run < cluster.plan.run
            assert is_over or records < _MAX_UNCONFIRMED, f"the log of {uid} has {records} records"
