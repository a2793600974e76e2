"""What must hold of a simulated keyed pipeline, after every step and of every completed checkpoint.

Never: change anything.

Checked: invariants 2 (exactly once, each key in its own subtask, order per key), 6 (how long a snapshot waits is
bounded by links and one slice, whatever rows cost) and 7 (memory within credits); no row late, no window
twice, also where a stage before it holds rows until the watermark is past them.
Not checked: how long aligned barriers wait for rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, ChunkState, FileState, RecoveredChannel
from headgate.simulation.keyed.rows import Recovered, Row, key_group
from headgate.simulation.keyed.scenario import Switches
from headgate.simulation.keyed.stages import HOLD, PASS, PASS_SALT, WINDOWS, WINDOWS_SALT, routing_of, source_uid

if TYPE_CHECKING:
    from headgate.simulation.keyed.cluster import KeyedCluster
    from headgate.simulation.keyed.deployment import Deployment, Link
    from headgate.simulation.keyed.subtask import KeyedSubtask

_Name = tuple[int, int]


class Invariants:
    """The checks of one simulation."""

    def __init__(self, cluster: KeyedCluster) -> None:
        self._cluster = cluster
        self.checkpoints: list[tuple[int, int, int, int]] = []
        """Number, parallelism, rows and bytes of channel state of each completed one."""
        self._snapshots: dict[tuple[int, int, int], dict[int, int]] = {}
        self._fired: dict[bytes, None] = {}
        self._fired_rows: set[_Name] = set()
        self._fired_windows: set[tuple[int, int]] = set()
        self._files: set[str] = set()
        self._checked: set[int] = set()

    # While it runs.

    def on_sent(self, link: Link, channel: ChannelId) -> None:
        """Check that no more is under way or waiting than was promised."""
        credits = self._cluster.scenario.credits
        waiting = link.sent - len(link.processed_ms)
        assert waiting <= credits, f"memory: {waiting} buffers are under way in {channel}, with {credits} credits"

    def before_rows(self, subtask: KeyedSubtask, channel: ChannelId, buffer: Buffer) -> None:
        """Check that nothing new is processed before what is recovered is there."""
        new = not isinstance(buffer.rows, Recovered)
        assert subtask.recovery_ended or not new, f"{subtask.name} processes new rows before its recovery is over"
        room = self._cluster.scenario.room
        assert subtask.in_memory <= room, f"memory: {subtask.in_memory} recovered buffers, with room for {room}"

    def on_triggered(self, deployment: Deployment) -> None:
        """Check that the first checkpoint comes early (FLINK-38939)."""
        if deployment.triggered:
            return
        deployment.triggered = True
        # What is restored is committed before a checkpoint begins.
        waited_ms = self._cluster.clock.now_ms - max(deployment.running_ms, self._cluster.committed_ms)
        most_ms = self._cluster.scenario.first_after_restore_ms
        assert waited_ms <= most_ms, f"sources ran for {waited_ms} ms before the first barrier of a deployment"

    def on_snapshot(self, subtask: KeyedSubtask, barrier: Barrier) -> None:
        """Check that a snapshot did not wait for rows, if it need not."""
        now_ms, stage = self._cluster.clock.now_ms, subtask.id.stage
        key = (subtask.deployment.number, barrier.checkpoint_id, stage)
        self._snapshots.setdefault(key, {})[subtask.id.subtask] = now_ms
        if not barrier.unaligned or subtask.gate is None:
            return
        assert subtask.phase_one_ended_ms is not None, f"{subtask.name} takes a snapshot in phase 1 of its recovery"
        self._assert_in_time(subtask, barrier.checkpoint_id, min, "takes the snapshot")

    def on_input_stored(self, subtask: KeyedSubtask, checkpoint_id: int) -> None:
        """Check that channel state did not wait for rows."""
        if self._cluster.is_unaligned(checkpoint_id):
            self._assert_in_time(subtask, checkpoint_id, max, "has the channel state")

    def _assert_in_time(self, subtask: KeyedSubtask, checkpoint_id: int, of: Any, what: str) -> None:
        """Check that something follows soon upon the first or last snapshot of those that send."""
        scenario, deployment = self._cluster.scenario, subtask.deployment
        uids = scenario.inputs_of(subtask.id.stage)
        times = [
            at_ms
            for plan in uids.values()
            if plan.kind != "forward"
            for at_ms in self._snapshots.get((deployment.number, checkpoint_id, plan.producer_stage), {}).values()
        ]
        began_ms = of(times, default=0)
        for uid, plan in uids.items():
            if plan.kind == "forward":  # its barrier keeps its place among the rows
                link = deployment.links[ChannelId(uid, subtask.id.subtask, subtask.id.subtask)]
                barrier = link.barriers.get(checkpoint_id)
                if barrier is None or subtask.blocked_ms >= barrier[0]:
                    return
                arrived_ms, rows = barrier
                began_ms = max(began_ms, arrived_ms, link.processed_ms[rows - 1] if rows else 0)
        assert subtask.phase_one_ended_ms is not None
        # Twice the timeout: each side of a channel may wait for it, and learns that it is over between two slices.
        waits_ms = 2 * (scenario.alignment_timeout_ms + max(s.longest_slice_ms for s in deployment.subtasks.values()))
        began_ms = max(began_ms, subtask.phase_one_ended_ms, deployment.connected_ms)
        most_ms = deployment.slowest_link_ms + waits_ms + 1
        took_ms = self._cluster.clock.now_ms - began_ms
        assert took_ms <= most_ms, (
            f"slow: {subtask.name} {what} of checkpoint {checkpoint_id} {took_ms} ms after it could, not {most_ms} ms"
        )

    def on_output_stored(self, subtask: KeyedSubtask, checkpoint_id: int) -> None:
        """Check that the output's channel state did not wait for those that consume it."""
        cluster, deployment = self._cluster, subtask.deployment
        assert subtask.output_uid is not None
        if not cluster.is_unaligned(checkpoint_id) or cluster.scenario.exchanges[subtask.output_uid].kind == "forward":
            return
        snapshot_ms = self._snapshots[deployment.number, checkpoint_id, subtask.id.stage][subtask.id.subtask]
        took_ms = cluster.clock.now_ms - max(snapshot_ms, 0)
        most_ms = cluster.scenario.alignment_timeout_ms + subtask.longest_slice_ms + 1
        assert took_ms <= most_ms, f"slow: the output state of {subtask.name} took {took_ms} ms, not {most_ms} ms"

    def on_assigned(
        self,
        stored: Manifest,
        recovered: dict[SubtaskId, tuple[RecoveredChannel, ...]],
        parallelism: int,
        switches: Switches,
    ) -> None:
        """Check that each buffer lands in the same subtask with the switch on and off (FLIP-547, 4.2).

        And in the same channel, where that keeps its place.
        """
        scenario = self._cluster.scenario
        other = self._cluster.parts.assign(
            stored.channels,
            scenario.exchanges,
            old_parallelism=stored.channels_parallelism,
            parallelism=parallelism,
            max_parallelism=scenario.max_parallelism,
            on_downstream=not switches.on_downstream,
        )
        relocated = self._cluster.parts.relocated(
            stored.channels, old_parallelism=stored.channels_parallelism, parallelism=parallelism
        )
        places = [sorted(_places(each, scenario.exchanges, relocated)) for each in (recovered, other)]
        assert places[0] == places[1], f"channel state goes to {places[0]}, or to {places[1]} with the switch turned"

    # Of every completed checkpoint.

    def on_manifest(self, manifest: Manifest) -> None:
        """Check a checkpoint that is complete, or restored (its manifest may exist though nobody was told)."""
        if manifest.epoch in self._checked:
            return
        self._checked.add(manifest.epoch)
        about = f"checkpoint {manifest.checkpoint_id}"
        scenario = self._cluster.scenario
        for channel in manifest.channels:
            assert isinstance(channel.handle, FileState)
            assert channel.handle.path not in self._files, f"{about} shares channel state with another"
            self._files.add(channel.handle.path)
        self.checkpoints.append(
            (
                manifest.checkpoint_id,
                manifest.parallelism,
                sum(each.rows for each in manifest.channels),
                sum(each.size_bytes for each in manifest.channels),
            )
        )
        self._take_fired(manifest, about)
        read = {stage: self._read(manifest, stage, about) for stage in scenario.sources}
        behind = [*self._fired_rows, *self._in_windows(manifest, about), *self._held(manifest, about)]
        on_the_way = {uid: self._on_the_way(manifest, uid, about) for uid in scenario.exchanges}
        for uid, plan in scenario.exchanges.items():
            by_consumer = on_the_way[uid]
            behind += (_name(row) for row in by_consumer[0])
            if plan.kind != "broadcast":
                behind += (_name(row) for rows in by_consumer[1:] for row in rows)
            if plan.kind == "hash" and plan.consumer_stage < scenario.stages - 1:
                self._assert_counts(manifest, uid, by_consumer, read[plan.producer_stage], about)
        self._assert_broadcast(manifest, on_the_way, read, about)
        _assert_same(behind, set().union(*read.values()), about)

    def _take_fired(self, manifest: Manifest, about: str) -> None:
        """Note what the checkpoint publishes; check that all before is still there, and nothing twice."""
        table = self._cluster.table
        names = {
            name
            for commits in (manifest.commits, *(each.committables for each in manifest.uncommitted))
            for committables in commits.values()
            for name in committables
        }
        lost = [name for name in self._fired if name not in names and name not in table.published]
        assert not lost, f"{about} does not publish {lost}, which one before it holds"
        for name in sorted(names):
            if name in self._fired:
                continue
            self._fired[name] = None
            for begins_ms, key, rows in table.staged[name]:
                assert (begins_ms, key) not in self._fired_windows, f"{about}: the window {begins_ms} of {key} twice"
                self._fired_windows.add((begins_ms, key))
                for row in rows:
                    assert _name(row) not in self._fired_rows, f"{about}: {row} is published twice"
                    self._fired_rows.add(_name(row))

    def _read(self, manifest: Manifest, stage: int, about: str) -> set[_Name]:
        """Return the rows that the splits of a stage are past."""
        read: set[_Name] = set()
        scripts = {script.split_id: script for script in self._cluster.scenario.sources[stage]}
        for subtask in manifest.subtasks[stage]:
            for split in subtask.readers[source_uid(stage)].splits:
                script = scripts.pop(split.split_id, None)
                assert script is not None, f"{about} has {split.split_id} twice"
                read |= {(script.number, number) for number in range(int(split.data))}
        assert not scripts, f"{about} lacks {sorted(scripts)}"
        return read

    def _in_windows(self, manifest: Manifest, about: str) -> Iterable[_Name]:
        for number, subtask in enumerate(manifest.subtasks[-1]):
            for chunk in subtask.keyed[WINDOWS].chunks:
                windows, _, _ = self._cluster.storage.get(chunk.handle)
                for (_, key), rows in windows.items():
                    _assert_owned(chunk, number, key, key_group(key, WINDOWS_SALT, manifest.max_parallelism), about)
                    yield from map(_name, rows)

    def _held(self, manifest: Manifest, about: str) -> Iterable[_Name]:
        for number, subtask in itertools.chain.from_iterable(map(enumerate, manifest.subtasks)):
            for chunk in subtask.keyed[HOLD].chunks if HOLD in subtask.keyed else ():
                rows, _ = self._cluster.storage.get(chunk.handle)
                for row in rows:
                    _assert_owned(
                        chunk, number, row.key, key_group(row.key, PASS_SALT, manifest.max_parallelism), about
                    )
                    yield _name(row)

    def _on_the_way(self, manifest: Manifest, uid: str, about: str) -> list[list[Row]]:
        """Return the channel state of an exchange, by consumer."""
        routing = routing_of(self._cluster.scenario, uid, manifest.parallelism)
        found: list[list[Row]] = [[] for _ in range(manifest.parallelism)]
        for state in manifest.channels:
            if state.exchange != uid:
                continue
            for rows in self._cluster.storage.get(state.handle):
                found[state.consumer] += rows
                if routing.kind in ("hash", "custom"):
                    wrong = [row for row in rows if routing.owner(row) != state.consumer]
                    assert not wrong, f"{about}: {wrong} are on their way to subtask {state.consumer}: another's"
        return found

    def _assert_broadcast(
        self, manifest: Manifest, on_the_way: dict[str, list[list[Row]]], read: dict[int, set[_Name]], about: str
    ) -> None:
        """Check that each subtask has, or is about to get, every row that is sent to all."""
        exchanges = self._cluster.scenario.exchanges
        uids = [uid for uid, plan in exchanges.items() if plan.kind == "broadcast"]
        if not uids:
            return
        wanted = set().union(*(read[exchanges[uid].producer_stage] for uid in uids))
        for number, subtask in enumerate(manifest.subtasks[exchanges[uids[0]].consumer_stage]):
            items = subtask.operators[PASS].items if PASS in subtask.operators else ()
            seen = [name for item in items for name in self._cluster.storage.get(item)]
            seen += (_name(row) for uid in uids for row in on_the_way[uid][number])
            _assert_same(seen, wanted, f"{about}, subtask {number} behind the broadcast")

    def _assert_counts(
        self, manifest: Manifest, uid: str, by_consumer: list[list[Row]], read: set[_Name], about: str
    ) -> None:
        """Check the counts per key of a stage that hands rows on."""
        plan = self._cluster.scenario.exchanges[uid]
        scripts = {script.number: script for script in self._cluster.scenario.sources[plan.producer_stage]}
        wanted: dict[int, int] = {}
        for split, number in read:
            key = scripts[split].row(number).key
            wanted[key] = wanted.get(key, 0) + 1
        for rows in by_consumer:
            for row in rows:
                wanted[row.key] = wanted.get(row.key, 0) - 1
        found: dict[int, int] = {}
        for subtask in manifest.subtasks[plan.consumer_stage]:
            for chunk in subtask.keyed[PASS].chunks if PASS in subtask.keyed else ():
                counts, _ = self._cluster.storage.get(chunk.handle)
                for (exchange, key), count in counts.items():
                    if exchange == uid:
                        found[key] = found.get(key, 0) + count
        wanted = {key: count for key, count in wanted.items() if count}
        assert found == wanted, f"{about}: counts per key are {found}, not {wanted}"

    def at_the_end(self) -> None:
        """Check that everything is published."""
        cluster = self._cluster
        wanted = {
            (script.number, number)
            for scripts in cluster.scenario.sources.values()
            for script in scripts
            for number in range(script.rows)
        }
        published = [
            _name(row) for name in cluster.table.published for _, _, rows in cluster.table.staged[name] for row in rows
        ]
        _assert_same(published, wanted, "in the end")


def _assert_owned(chunk: ChunkState, number: int, key: int, group: int, about: str) -> None:
    owned = chunk.first_key_group <= group <= chunk.last_key_group
    assert owned, f"{about}: subtask {number} has the key {key} of group {group}"


def _name(row: Row) -> _Name:
    return row.split, row.number


def _assert_same(found: list[_Name], wanted: set[_Name], about: str) -> None:
    names = set(found)
    if len(names) != len(found):
        twice = sorted(name for name in names if found.count(name) > 1)
        raise AssertionError(f"{about}: {len(twice)} rows are there twice: {twice[:8]}")
    if names != wanted:
        lost, surplus = sorted(wanted - names), sorted(names - wanted)
        raise AssertionError(f"{about}: {len(lost)} rows are lost: {lost[:8]}; {len(surplus)} are new: {surplus[:8]}")


def _places(
    recovered: dict[SubtaskId, tuple[RecoveredChannel, ...]], exchanges: dict[str, Any], relocated: frozenset[str]
) -> Iterable[Any]:
    """Return where each stored channel lands: stored (exchange, pair, side), consumer, producer if it keeps that."""
    for subtask, channels in recovered.items():
        for each in channels:
            state: ChannelState = each.state
            consumes = exchanges[state.exchange].consumer_stage == subtask.stage
            consumer, producer = (subtask.subtask, each.channel) if consumes else (each.channel, subtask.subtask)
            place = None if state.exchange in relocated else producer
            yield state.exchange, state.producer, state.consumer, state.output, consumer, place, each.filtered
