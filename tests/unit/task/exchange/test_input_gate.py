"""The input gate, rule by rule; `gate_world` asserts with each step that nothing is lost, doubled or out of order."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import (
    Barrier,
    ProducerActive,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.protocol.messages import CheckpointKind
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.exchange.gate_channel import GateChannel
from headgate.task.exchange.input_gate import (
    AdvanceWatermark,
    ChannelConnected,
    ElementArrived,
    EndInput,
    Event,
    GateInput,
    GateTimePassed,
    GrantCredit,
    InputGate,
    MarkActive,
    MarkIdle,
    PhaseOneEnded,
    Polled,
    ProcessRows,
    RecoveredProcessed,
    RecoveryEnded,
    RowsPutBack,
    RowsRecovered,
    RowsSpilled,
    Spilled,
    StoreChannels,
    TakeSnapshot,
)
from tests.unit.task.exchange.gate_world import World, barriers, channel, rows

A, B, Y = channel(0), channel(1), channel(0, "y")


def aligned(checkpoint_id: int = 1, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> Barrier:
    return Barrier(checkpoint_id=checkpoint_id, kind=kind)


def unaligned(checkpoint_id: int = 1, timeout_ms: int = 0) -> Barrier:
    return Barrier(checkpoint_id=checkpoint_id, unaligned=True, alignment_timeout_ms=timeout_ms)


def processed(world: World, more: int = 0) -> list[str]:
    """Poll once, with so many buffers more; return the rows."""
    return [row for each in world.poll(more=more) if isinstance(each, ProcessRows) for row in each.buffer.rows]


# Rows and credits.


def test_channels_take_turns() -> None:
    """No channel waits for another one's backlog."""
    world = World(2)
    world.send(A, "a1", "a2", "a3")
    world.send(B, "b1", "b2")
    assert [processed(world) for _ in range(6)] == [["a1"], ["b1"], ["a2"], ["b2"], ["a3"], []]


def test_a_connected_channel_is_granted_its_credits() -> None:
    """So many buffers may be under way."""
    world = World(1, credits=3, connect=False)
    assert world.notify(ChannelConnected(A)) == [GrantCredit(A, 3)]


def test_a_credit_comes_back_when_a_buffer_is_processed_to_its_end() -> None:
    """Not when it is handed out, and not while a rest of it is put back."""
    world = World(1)
    world.arrive(A, rows("a", "b", "c"))
    assert world.poll(put_back=2) == [ProcessRows(A, rows("a", "b", "c"))]
    assert world.poll(put_back=1) == [ProcessRows(A, rows("b", "c"))]
    assert world.poll() == [ProcessRows(A, rows("c"))]
    assert world.poll() == [GrantCredit(A, 1)]
    assert world.poll() == []


def test_what_was_put_back_comes_before_all_else_of_its_channel() -> None:
    """Others have their turns."""
    world = World(2)
    world.arrive(A, rows("a", "b"), rows("c"))
    world.send(B, "x")
    world.poll(put_back=1)
    assert [processed(world) for _ in range(3)] == [["x"], ["b"], ["c"]]


def test_small_buffers_of_several_channels_are_processed_together() -> None:
    """In turn, as many as are wanted; each channel gets its credits back at once, and no other exchange is touched."""
    world = World(aligned=1)
    for where, names in ((A, "abc"), (Y, "y"), (B, "d")):
        world.send(where, *names)
    assert processed(world, more=2) == ["a", "d", "b"]
    assert world.poll() == [GrantCredit(A, 2), GrantCredit(B, 1), ProcessRows(Y, rows("y"))]
    assert processed(world, more=5) == ["c"]


def test_the_rest_of_the_last_of_several_is_put_back() -> None:
    """The others are processed; a barrier that comes next finds it."""
    world = World()
    world.arrive(A, rows("a"))
    world.arrive(B, rows("b", "c"))
    world.poll(1, more=1)
    barriers(world, unaligned())
    assert world.stored == {1: {B: ["c"]}}
    assert processed(world) == ["c"]


def test_events_and_barriers_keep_their_places_where_buffers_are_gathered() -> None:
    """What follows upon them waits; a snapshot is taken after all that was polled."""
    world = World()
    world.arrive(A, rows("a"), WatermarkPassed(3), rows("b"), aligned())
    world.arrive(B, rows("c"), aligned())
    assert processed(world, more=9) == ["a", "c"]
    world.poll_all()
    assert world.snapshots == {1: {A: 2, B: 1}}


def test_recovered_buffers_come_one_by_one() -> None:
    """Each of them takes room of recovery's until it is processed."""
    world = World(recovering=True)
    for where, name in ((A, "a"), (B, "b")):
        world.recover(where, name)
    world.end_phase_one()
    world.end_recovery()
    world.send(A, "c")
    assert [processed(world, more=9) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_a_producer_that_ended_is_granted_nothing() -> None:
    """It has no use for it."""
    world = World(1)
    world.arrive(A, rows("a"), ProducerEnded())
    world.poll()
    assert world.poll() == [AdvanceWatermark("x", MAX_WATERMARK_MS), EndInput("x")]


# Watermarks and ends.


def test_events_wait_after_their_rows() -> None:
    """A watermark, idleness and an end are reported when everything before them is processed."""
    world = World(1)
    world.arrive(A, rows("a"), WatermarkPassed(5), ProducerIdle(), ProducerActive(), ProducerEnded())
    assert processed(world) == ["a"]
    assert world.ordered == []
    world.poll_all()
    assert world.ordered == [
        AdvanceWatermark("x", 5),
        MarkIdle("x"),
        MarkActive("x"),
        AdvanceWatermark("x", MAX_WATERMARK_MS),
        EndInput("x"),
    ]


def test_each_exchange_has_its_own_watermark() -> None:
    """Its minimum; what another one says does not count."""
    world = World(2, aligned=1)
    world.arrive(A, WatermarkPassed(5))
    world.arrive(Y, WatermarkPassed(9))
    assert world.poll_all() == [AdvanceWatermark("y", 9)]
    world.arrive(B, WatermarkPassed(7))
    assert world.poll_all() == [AdvanceWatermark("x", 5)]


def test_a_poll_passes_over_events_that_change_nothing() -> None:
    """An empty answer means that nothing is left, not that an event was in the way."""
    world = World(2)
    world.arrive(A, WatermarkPassed(5), rows("a"))
    assert world.poll() == [ProcessRows(A, rows("a"))]


# Aligned checkpoints.


def test_an_aligned_snapshot_is_taken_when_every_channel_is_read_up_to_its_barrier() -> None:
    """A channel is not read past it; the rest are read on."""
    world = World(2)
    world.arrive(A, aligned(), rows("a"))
    assert world.poll() == []
    world.arrive(B, rows("b"), aligned())
    assert world.poll() == [ProcessRows(B, rows("b"))]
    assert world.poll() == [GrantCredit(B, 1), TakeSnapshot(aligned()), StoreChannels(1, {})]
    assert world.poll() == [ProcessRows(A, rows("a"))]


def test_a_barrier_after_what_is_being_processed_is_not_reached() -> None:
    """The rest of it may be put back, and precedes the barrier."""
    world = World(1)
    world.arrive(A, rows("a", "b"), aligned())
    assert world.poll(put_back=1) == [ProcessRows(A, rows("a", "b"))]
    assert world.poll() == [ProcessRows(A, rows("b"))]
    assert world.poll() == [GrantCredit(A, 1), TakeSnapshot(aligned()), StoreChannels(1, {})]


def test_without_room_only_what_an_unaligned_barrier_waits_for_is_processed() -> None:
    """Consumers may have been stopped by that barrier, and take nothing before this snapshot is taken, too."""
    world = World(1, aligned=1)
    world.send(A, "a")
    world.send(Y, "x", "y")
    assert not world.gate.waits_for_aligned
    assert world.poll(overdraft=True) == []
    world.arrive(A, unaligned())
    world.arrive(Y, unaligned())
    assert world.gate.waits_for_aligned
    ordered = [world.poll(overdraft=True) for _ in range(3)]
    assert [actions[-1] for actions in ordered[:2]] == [ProcessRows(Y, rows("x")), ProcessRows(Y, rows("y"))]
    assert TakeSnapshot(unaligned()) in ordered[2]
    assert world.stored[1] == {A: ["a"]}
    assert not world.gate.waits_for_aligned
    assert world.poll(overdraft=True) == []
    assert world.poll() == [ProcessRows(A, rows("a"))]


def test_without_room_recovered_rows_are_processed_while_an_aligned_channel_waits_for_them() -> None:
    """It gets no credit before recovery is over, and recovery may have more than fits into memory."""
    world = World(1, aligned=1, recovering=True)
    world.recover(A, "r")
    world.end_phase_one()
    world.arrive(A, unaligned())
    assert world.poll(overdraft=True) == [ProcessRows(A, rows("r"), recovered=True)]


def test_without_an_aligned_channel_nothing_is_processed_without_room() -> None:
    """Phase 1 of recovery needs no room for what becomes of rows: it spills them."""
    world = World(1, recovering=True)
    world.recover(A, "r")
    world.arrive(A, unaligned())
    assert not world.gate.waits_for_aligned
    assert world.poll(overdraft=True) == []


def test_a_barrier_elsewhere_does_not_end_what_is_being_processed() -> None:
    """While its own channel's barrier follows it: its rest may be put back still."""
    world = World(2)
    world.arrive(A, rows("a", "b"), aligned())
    world.gate.handle(Polled(), 0)
    assert world.gate.handle(ElementArrived(B, aligned()), 0) == []
    assert world.gate.handle(RowsPutBack(rows("b")), 0) == []
    assert world.gate.handle(Polled(), 0) == [ProcessRows(A, rows("b"))]


@pytest.mark.parametrize("kind", CheckpointKind)
def test_a_barrier_is_aligned_or_not_whatever_it_is_for(kind: CheckpointKind) -> None:
    """What a kind asks for beside is the subtask's affair: the barrier is handed on as it came."""
    world = World(1)
    assert world.arrive(A, aligned(kind=kind)) == [TakeSnapshot(aligned(kind=kind)), StoreChannels(1, {})]


def test_ended_channels_deliver_barriers_and_are_waited_for() -> None:
    """Whoever ended still takes part."""
    world = World(2)
    world.arrive(A, ProducerEnded())
    world.poll_all()
    assert world.arrive(B, aligned()) == []
    assert world.arrive(A, aligned()) == [TakeSnapshot(aligned()), StoreChannels(1, {})]


def test_barriers_of_two_checkpoints_in_a_row() -> None:
    """The second one's turn comes when the first is taken, even if it has waited in every channel."""
    world = World(2)
    world.arrive(A, aligned(1), rows("a"), aligned(2))
    assert world.arrive(B, aligned(1)) == [TakeSnapshot(aligned(1)), StoreChannels(1, {})]
    world.arrive(B, aligned(2))
    assert world.poll_all() == [TakeSnapshot(aligned(2)), StoreChannels(2, {})]


# Unaligned checkpoints.


def test_an_unaligned_barrier_is_seen_at_once_and_what_it_passed_is_stored() -> None:
    """With all that waits, in its order, and all that comes until the last barrier, which is processed all the same."""
    world = World(2)
    world.arrive(A, rows("a1"), rows("a2"), WatermarkPassed(1))
    world.arrive(B, rows("b1"))
    assert world.arrive(A, unaligned()) == [TakeSnapshot(unaligned())]
    world.arrive(A, rows("a3"))
    assert processed(world) == ["a1"]
    world.arrive(B, rows("b2"))
    assert processed(world) == ["b1"]
    assert world.arrive(B, unaligned()) == [
        StoreChannels(1, {A: (rows("a1"), rows("a2")), B: (rows("b1"), rows("b2"))})
    ]
    world.poll_all()
    assert world.done == {A: ["a1", "a2", "a3"], B: ["b1", "b2"]}


def test_channels_without_state_are_left_out() -> None:
    """Nothing waits in them."""
    world = World(2)
    world.arrive(A, rows("a"))
    assert barriers(world, unaligned(), [B, A]) == [StoreChannels(1, {A: (rows("a"),)})]


def test_the_rest_of_a_buffer_that_was_put_back_is_stored() -> None:
    """What of it was processed is in the snapshot."""
    world = World(1)
    world.arrive(A, rows("a", "b", "c"))
    world.poll(put_back=2)
    assert world.arrive(A, unaligned()) == [TakeSnapshot(unaligned()), StoreChannels(1, {A: (rows("b", "c"),)})]


def test_what_was_polled_and_not_put_back_is_in_the_snapshot() -> None:
    """It is processed before anything else is reported; its credit comes with the snapshot."""
    world = World(1)
    world.arrive(A, rows("a"), rows("b"))
    world.poll()
    assert world.arrive(A, unaligned()) == [
        GrantCredit(A, 1),
        TakeSnapshot(unaligned()),
        StoreChannels(1, {A: (rows("b"),)}),
    ]
    with pytest.raises(InvalidTransitionError, match="is waiting"):
        world.gate.handle(RowsPutBack(rows("a")), 0)


def test_a_connection_that_must_be_aligned_does_not_disable_it_for_others() -> None:
    """Its channels are read up to their barriers; in the others barriers pass, and what they passed is stored.

    FLINK-37870: there one such connection made the whole checkpoint aligned.
    """
    world = World(2, aligned=1)
    world.arrive(A, rows("a1"), rows("a2"))
    world.arrive(B, rows("b1"))
    world.arrive(Y, rows("y1"))
    assert world.arrive(A, unaligned(), rows("a3")) == []
    assert world.arrive(Y, unaligned(), rows("y2")) == []
    assert [processed(world) for _ in range(3)] == [["a1"], ["b1"], ["y1"]]
    assert world.poll() == [GrantCredit(Y, 1), TakeSnapshot(unaligned())]
    assert world.arrive(B, rows("b2"), unaligned()) == [StoreChannels(1, {A: (rows("a2"),), B: (rows("b2"),)})]
    world.poll_all()
    assert world.done == {A: ["a1", "a2", "a3"], B: ["b1", "b2"], Y: ["y1", "y2"]}


def test_rows_are_processed_up_to_a_barrier_that_passed_them_but_not_beyond() -> None:
    """Until the aligned channels are ready: then the rest before it is the channel's state, which may be none."""
    world = World(1, aligned=1)
    world.arrive(A, rows("a1"), unaligned(), rows("a2"))
    assert [processed(world) for _ in range(2)] == [["a1"], []]
    assert world.arrive(Y, unaligned()) == [TakeSnapshot(unaligned()), StoreChannels(1, {})]
    assert processed(world) == ["a2"]


# The timeout of alignment.


def test_a_barrier_is_aligned_until_its_timeout_is_over() -> None:
    """In time, the checkpoint is an aligned one, and the barrier goes on as it came."""
    world = World(2)
    world.send(B, "b")
    world.arrive(A, unaligned(timeout_ms=10))
    assert world.gate.next_time_ms() == 10
    world.now_ms = 5
    world.arrive(B, unaligned(timeout_ms=10))
    assert world.gate.next_time_ms() == 10
    assert world.poll_all() == [TakeSnapshot(unaligned(timeout_ms=10)), StoreChannels(1, {})]
    assert world.gate.next_time_ms() is None


def test_a_barrier_passes_rows_when_its_timeout_is_over() -> None:
    """It goes on as one that passes rows at once, and so do those that are still to come here."""
    world = World(2)
    world.send(A, "a")
    world.send(B, "b")
    world.arrive(A, unaligned(timeout_ms=10), rows("a2"))
    assert world.pass_time(9) == []
    assert world.pass_time(10) == [TakeSnapshot(unaligned())]
    assert world.gate.next_time_ms() is None
    assert world.arrive(B, unaligned(timeout_ms=10)) == [StoreChannels(1, {A: (rows("a"),), B: (rows("b"),)})]


def test_one_barrier_that_timed_out_further_up_lets_all_pass() -> None:
    """Back pressure that is elsewhere is not a reason to wait here."""
    world = World(2)
    world.send(A, "a")
    world.arrive(A, unaligned(timeout_ms=10))
    assert world.arrive(B, unaligned()) == [TakeSnapshot(unaligned()), StoreChannels(1, {A: (rows("a"),)})]


# Checkpoints that nobody wants any longer.


def test_barriers_of_older_checkpoints_are_dropped() -> None:
    """They block nothing, wherever they are."""
    world = World(2)
    world.arrive(A, aligned(1), rows("a"))
    world.arrive(B, rows("b"), aligned(1))
    assert world.arrive(B, unaligned(2)) == [TakeSnapshot(unaligned(2))]
    assert world.arrive(A, unaligned(2)) == [StoreChannels(2, {A: (rows("a"),), B: (rows("b"),)})]
    world.poll_all()
    assert world.done == {A: ["a"], B: ["b"]}
    assert world.snapshots.keys() == {2}


def test_a_newer_barrier_replaces_a_checkpoint_that_waits_for_late_ones() -> None:
    """What was kept for the older one is forgotten; its late barriers are dropped."""
    world = World(2)
    world.arrive(A, unaligned(1))
    world.send(B, "b")
    assert world.arrive(A, unaligned(2)) == [TakeSnapshot(unaligned(2))]
    assert world.arrive(B, unaligned(1)) == []
    assert world.arrive(B, unaligned(2)) == [StoreChannels(2, {B: (rows("b"),)})]


def test_an_older_barrier_that_a_newer_one_passed_is_dropped() -> None:
    """An aligned one that is given up waits after rows on the producer's side, and comes last."""
    world = World(2)
    barriers(world, unaligned(2))
    assert world.arrive(A, rows("a"), aligned(1), rows("b")) == []
    world.poll_all()
    assert world.done[A] == ["a", "b"]


def test_a_checkpoint_that_is_given_up_blocks_nothing() -> None:
    """Neither where its barrier is, nor where it is still to come."""
    world = World(2)
    world.arrive(A, aligned(), rows("a"))
    assert world.give_up(1) == []
    assert processed(world) == ["a"]
    assert world.arrive(B, aligned(), rows("b")) == []
    assert processed(world) == ["b"]


def test_a_checkpoint_that_was_given_up_before_its_barriers_come() -> None:
    """They are dropped; an older one that is under way is not harmed."""
    world = World(2)
    world.arrive(A, aligned(1))
    world.give_up(2)
    assert world.arrive(B, aligned(1)) == [TakeSnapshot(aligned(1)), StoreChannels(1, {})]
    assert barriers(world, unaligned(2)) == []
    assert barriers(world, aligned(3)) == [TakeSnapshot(aligned(3)), StoreChannels(3, {})]


def test_what_is_given_up_while_storing_stores_nothing() -> None:
    """The snapshot is taken, and its channels are not wanted."""
    world = World(2)
    world.arrive(A, unaligned())
    world.give_up(1)
    world.send(B, "b")
    assert world.arrive(B, unaligned()) == []
    assert world.stored == {}


# Recovery.


def test_recovered_rows_are_processed_with_the_first_buffer() -> None:
    """In phase 1 already, before the channel is connected; in their order, spilled ones after those in memory."""
    world = World(1, recovering=True, connect=False)
    world.recover(A, "r1")
    assert processed(world) == ["r1"]
    world.recover(A, "r2")
    world.spill(A, "r3")
    assert [processed(world) for _ in range(2)] == [["r2"], []]
    world.replay()
    assert processed(world) == ["r3"]


def test_no_new_row_comes_before_recovery_is_over() -> None:
    """Credits are granted then, to those that are connected, and to others when they are."""
    world = World(2, recovering=True, connect=False)
    assert world.notify(ChannelConnected(A)) == []
    world.end_phase_one()
    assert world.end_recovery() == [GrantCredit(A, 4), RecoveredProcessed()]
    assert world.notify(ChannelConnected(B)) == [GrantCredit(B, 4)]


def test_recovered_buffers_give_no_credit() -> None:
    """Not even one that was put back: no producer sent it."""
    world = World(1, recovering=True)
    world.recover(A, "r1", "r2")
    world.poll(put_back=1)
    world.end_phase_one()
    world.end_recovery()
    assert processed(world) == ["r2"]
    assert world.poll() == [RecoveredProcessed()]


def test_that_all_is_processed_is_reported_once() -> None:
    """With the last recovered buffer's end, and never if there was nothing to recover."""
    world = World(1, recovering=True)
    world.recover(A, "r")
    world.end_phase_one()
    world.poll()
    world.end_recovery()
    assert world.poll() == [RecoveredProcessed()]
    assert World(1).poll() == []


def test_what_producers_recover_counts() -> None:
    """Each says when it precedes it (`recover-output-on-downstream` off)."""
    world = World(2, producers_recover=True)
    world.arrive(A, rows("r1", unfiltered=True), ProducerRecovered(), rows("a"))
    world.arrive(B, ProducerRecovered())
    assert world.poll() == [ProcessRows(A, rows("r1", unfiltered=True))]
    assert world.poll() == [GrantCredit(A, 1), RecoveredProcessed()]
    assert world.poll() == [ProcessRows(A, rows("a"))]


def test_relocated_rows_come_before_all_that_producers_send() -> None:
    """Rows of their keys may come through any channel: none has credit before the last is processed."""
    world = World(2, recovering=True, relocated=True, aligned=1)
    world.recover(A, "r1", "r2")
    world.spill(A, "r3")
    world.end_phase_one()
    world.arrive(B, WatermarkPassed(7))
    assert processed(world) == ["r1", "r2"]
    assert world.poll() == []  # the watermark waits for what is on the disk
    world.replay()
    assert world.end_recovery() == [GrantCredit(Y, 4)]
    world.send(Y, "y")
    assert [processed(world) for _ in range(2)] == [["r3"], ["y"]]
    assert world.ordered == [RecoveredProcessed()]
    assert world.credits[A] == world.credits[B] == 4
    world.poll_all()
    assert world.ordered[1:] == []  # A has no watermark
    world.send(B, "b")
    assert processed(world) == ["b"]


def test_what_is_stored_of_a_relocated_exchange_is_marked_until_it_is_processed() -> None:
    """Who restores it must relocate it again, whatever the parallelism is then."""
    world = World(2, recovering=True, relocated=True)
    world.recover(A, "r1")
    world.recover(A, "r2")
    world.end_phase_one()
    world.end_recovery()
    assert processed(world) == ["r1"]
    barriers(world, unaligned(1))
    assert (world.stored[1], world.relocated[1]) == ({A: ["r2"]}, {"x"})
    world.poll_all()
    world.send(B, "b")
    barriers(world, unaligned(2))
    assert (world.stored[2], world.relocated[2]) == ({B: ["b"]}, frozenset())


def test_rows_wait_for_what_every_producer_recovered_of_a_relocated_exchange() -> None:
    """With `recover-output-on-downstream` off: what another one recovered may be older and of the same key."""
    world = World(2, producers_recover=True, relocated=True)
    world.arrive(A, rows("r1", unfiltered=True), ProducerRecovered(), rows("a"))
    world.arrive(B, rows("r2", unfiltered=True))
    assert [processed(world) for _ in range(3)] == [["r1"], ["r2"], []]
    world.arrive(B, ProducerRecovered(), rows("b"))
    assert sorted(row for _ in range(3) for row in processed(world)) == ["a", "b"]


def test_what_others_keep_too_is_never_stored() -> None:
    """FLIP-547's own bug: each of the new subtasks stores the whole of an unfiltered buffer."""
    world = World(2, producers_recover=True)
    world.arrive(A, rows("r", unfiltered=True))
    with pytest.raises(AssertionError, match="others keep"):
        world.arrive(B, unaligned())


# Watermarks and recovered rows.


def test_the_watermark_is_held_until_recovered_rows_are_processed() -> None:
    """Each channel's watermark waits after what was recovered in it, and so holds the minimum of the others."""
    world = World(2, recovering=True)
    world.recover(A, "r1")
    world.spill(A, "r2")
    world.arrive(A, WatermarkPassed(5))
    world.arrive(B, WatermarkPassed(7))
    assert world.poll_all() == []
    world.end_phase_one()
    assert world.poll_all() == []
    world.replay()
    world.end_recovery()
    assert processed(world) == ["r2"]
    assert world.poll() == [RecoveredProcessed(), AdvanceWatermark("x", 5)]


def test_no_event_is_reported_while_rows_are_read_from_the_checkpoint() -> None:
    """More may be recovered in front of it: an end or idleness would let others' watermarks pass."""
    world = World(2, recovering=True)
    world.arrive(A, WatermarkPassed(9), ProducerIdle())
    world.arrive(B, ProducerEnded())
    assert world.poll() == []
    world.recover(B, "r")
    world.end_phase_one()
    assert processed(world) == ["r"]
    assert world.poll() == [AdvanceWatermark("x", 9)]
    assert world.poll_all() == [MarkIdle("x")]


# Checkpoints during recovery.


def test_a_checkpoint_of_phase_one_completes_as_phase_one_ends() -> None:
    """With what is in memory, then what was spilled, by its number."""
    world = World(2, recovering=True)
    world.recover(A, "r1")
    assert barriers(world, unaligned()) == []
    world.recover(B, "r2")
    world.spill(A, "r3")
    assert processed(world) == ["r1"]
    assert world.end_phase_one() == [
        TakeSnapshot(unaligned()),
        StoreChannels(1, {A: (Spilled(1),), B: (rows("r2"),)}),
    ]


def test_a_checkpoint_of_phase_two_begins_at_once() -> None:
    """What a late barrier has to wait for is stored too: a buffer that was replayed meanwhile, in itself."""
    world = World(2, recovering=True)
    world.recover(A, "r1")
    world.spill(A, "r2")
    world.spill(B, "r3")
    world.end_phase_one()
    assert world.arrive(B, unaligned()) == [TakeSnapshot(unaligned())]
    world.replay()
    world.poll_all()
    assert world.arrive(A, unaligned()) == [StoreChannels(1, {A: (rows("r1"), rows("r2")), B: (Spilled(2),)})]


def test_what_producers_hold_back_belongs_to_the_checkpoint() -> None:
    """Rows that come after the end of recovery, but before the barrier, follow the recovered ones."""
    world = World(2, recovering=True)
    world.recover(A, "r")
    world.end_phase_one()
    world.arrive(B, unaligned())
    world.end_recovery()
    assert world.arrive(A, rows("a"), unaligned()) == [StoreChannels(1, {A: (rows("r"), rows("a"))})]


def test_an_aligned_barrier_waits_for_the_recovered_buffers() -> None:
    """Those in memory, on the disk and still to be read."""
    world = World(1, recovering=True)
    assert world.arrive(A, aligned()) == []
    world.recover(A, "r1")
    world.spill(A, "r2")
    assert world.end_phase_one() == []
    assert processed(world) == ["r1"]
    assert world.poll() == []
    world.replay()
    assert processed(world) == ["r2"]
    assert world.poll() == [TakeSnapshot(aligned()), StoreChannels(1, {})]


def test_a_recovered_buffer_that_was_put_back_is_stored_in_front() -> None:
    """Its rest, before the others."""
    world = World(1, recovering=True)
    world.recover(A, "r1", "r2")
    world.recover(A, "r3")
    world.end_phase_one()
    world.poll(put_back=1)
    assert world.arrive(A, unaligned()) == [
        TakeSnapshot(unaligned()),
        StoreChannels(1, {A: (rows("r2"), rows("r3"))}),
    ]


# What cannot happen.


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ((), ElementArrived(A, rows("a")), "is unconnected"),
        ((ChannelConnected(A),), ChannelConnected(A), "is granted"),
        ((), ChannelConnected(channel(9)), "no such channel"),
        ((ChannelConnected(A), ElementArrived(A, rows("a"))), ElementArrived(A, rows("b")), "no credit"),
        ((ChannelConnected(A), ElementArrived(A, ProducerEnded())), ElementArrived(A, rows("b")), "is ended"),
        ((ChannelConnected(A),), ElementArrived(A, ProducerRecovered()), "does not recover"),
        ((ChannelConnected(A), ElementArrived(A, aligned(2))), ElementArrived(A, aligned(2)), "has had"),
        ((), RowsPutBack(rows("a")), "is waiting"),
        ((), RowsRecovered(A, rows("a")), "is over"),
        ((), RowsSpilled(A, 1), "is over"),
        ((), PhaseOneEnded(), "is over"),
        ((), RecoveryEnded(), "is over"),
    ],
)
def test_what_cannot_happen_is_refused(before: tuple[Event, ...], event: Event, why: str) -> None:
    """With the history of what refuses it, in which no rows are kept."""
    gate = World(2, connect=False, credits=1).gate
    for each in before:
        gate.handle(each, 0)
    with pytest.raises(InvalidTransitionError, match=why) as refused:
        gate.handle(event, 0)
    assert bool(refused.value.facts["history"]) == bool(before)
    assert "'a'" not in str(refused.value.facts)


@pytest.mark.parametrize("event", [RowsRecovered(channel(9), rows("a")), RowsSpilled(channel(9), 1)])
def test_what_is_recovered_of_a_channel_that_is_not_there_is_refused(event: Event) -> None:
    with pytest.raises(InvalidTransitionError, match="no such channel"):
        World(2, recovering=True).gate.handle(event, 0)


def test_spilled_buffers_come_back_in_their_order() -> None:
    """The oldest first, none skipped, none in memory before them."""
    world = World(2, recovering=True)
    world.spill(A, "r1")
    world.spill(B, "r2")
    for event in (RowsRecovered(B, rows("r2"), 2), RowsSpilled(A, 4), RowsRecovered(A, rows("r3"))):
        with pytest.raises(InvalidTransitionError):
            world.gate.handle(event, 0)
    world.end_phase_one()
    world.replay()
    with pytest.raises(InvalidTransitionError, match="spilled buffers are left"):
        world.gate.handle(RecoveryEnded(), 0)


def test_time_that_passes_without_a_timeout_does_nothing() -> None:
    """A late call is not an error."""
    world = World(1)
    assert world.gate.handle(GateTimePassed(), 5) == []
    assert world.gate.handle(Polled(), 5) == []


class CountingGate(InputGate):
    """Counts how often it looks at what is next in a channel."""

    looked = 0

    def _look(self, channel: GateChannel, now_ms: int) -> None:
        self.looked += 1
        super()._look(channel, now_ms)


@pytest.mark.parametrize("passes", [True, False])
def test_a_barrier_is_looked_at_in_its_own_channel(passes: bool) -> None:
    """But for the first and the last of a checkpoint: else many channels would each look at all the others."""
    producers = tuple(range(100))
    gate = CountingGate(7, {"x": GateInput(stage=0, producers=producers, supports_unaligned=True)})
    found: list[object] = []
    for producer in producers:
        gate.handle(ChannelConnected(channel(producer)), 0)
        barrier = unaligned() if passes else aligned()
        found += gate.handle(ElementArrived(channel(producer), barrier), 0)
        gate.check()
    assert [type(each) for each in found] == [TakeSnapshot, StoreChannels]
    assert gate.looked <= 5 * len(producers)
