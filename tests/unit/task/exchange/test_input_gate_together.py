"""Any history of a larger input gate: recovery, rows, barriers of all kinds, timeouts and checkpoints given up.

`gate_world` says what must hold at each step; here also that in the end nothing is left over.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headgate.protocol.channels import Barrier, ChannelId, ProducerEnded, WatermarkPassed
from headgate.task.exchange.input_gate import EndInput, RecoveredProcessed
from tests.unit.task.exchange.gate_world import World, rows


class Gate(RuleBasedStateMachine):
    """Producers that send what the rules draw, a recovery, and a subtask that polls."""

    @initialize(
        producers=st.integers(1, 2),
        aligned=st.integers(0, 1),
        recovered=st.just([]) | st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=3),
        credits=st.integers(1, 3),
    )
    def begin(self, producers: int, aligned: int, recovered: list[tuple[int, bool]], credits: int) -> None:
        self.recovering = bool(recovered)
        self.world = World(producers, aligned=aligned, recovering=self.recovering, credits=credits)
        self.names = 0
        self.newest: Barrier | None = None
        self.due: dict[ChannelId, list[Barrier]] = {each: [] for each in self.world.channels}
        self.ended: set[ChannelId] = set()
        for place, spill in recovered:
            self.recover(place, 2, spill)

    def name(self, where: ChannelId, count: int) -> list[str]:
        self.names += 1
        return [f"{where.exchange}{where.producer}.{self.names}.{each}" for each in range(count)]

    def pick(self, place: int) -> ChannelId:
        return self.world.channels[place % len(self.world.channels)]

    @rule(place=st.integers(0, 2), count=st.integers(1, 3))
    def send(self, place: int, count: int) -> None:
        where = self.pick(place)
        if where not in self.ended and self.world.credits[where]:
            self.world.arrive(where, rows(*self.name(where, count)))

    @rule(place=st.integers(0, 2), timestamp_ms=st.integers(0, 100))
    def send_watermark(self, place: int, timestamp_ms: int) -> None:
        where = self.pick(place)
        if where not in self.ended:
            self.world.arrive(where, WatermarkPassed(timestamp_ms))

    @rule(place=st.integers(0, 2))
    def end(self, place: int) -> None:
        where = self.pick(place)
        if where not in self.ended:
            self.ended.add(where)
            self.world.arrive(where, ProducerEnded())

    @precondition(lambda self: not any(self.due.values()) or self.newest.checkpoint_id in self.world.given_up)
    @rule(
        unaligned=st.sampled_from([True, True, False]), timeout_ms=st.sampled_from([0, 0, 10]), place=st.integers(0, 2)
    )
    def trigger(self, unaligned: bool, timeout_ms: int, place: int) -> None:
        """Have a producer send a barrier, and the others sooner or later."""
        number = 1 if self.newest is None else self.newest.checkpoint_id + 1
        self.newest = Barrier(
            checkpoint_id=number, unaligned=unaligned, alignment_timeout_ms=timeout_ms if unaligned else 0
        )
        for each in self.due.values():
            each.append(self.newest)
        self.send_barriers(place)

    @precondition(lambda self: any(self.due.values()))
    @rule(place=st.integers(0, 2))
    def send_barriers(self, place: int) -> None:
        where = self.pick(place)
        for barrier in self.due[where]:
            self.world.arrive(where, barrier)
        self.due[where].clear()

    @precondition(lambda self: self.newest is not None and self.newest.checkpoint_id not in self.world.given_up)
    @rule()
    def give_up(self) -> None:
        assert self.newest is not None
        if self.newest.checkpoint_id not in self.world.stored:
            self.world.give_up(self.newest.checkpoint_id)

    @rule(later_ms=st.integers(0, 12))
    def pass_time(self, later_ms: int) -> None:
        self.world.pass_time(self.world.now_ms + later_ms)

    @rule(put_back=st.integers(0, 2))
    def poll(self, put_back: int) -> None:
        self.world.poll(put_back=put_back)

    @precondition(lambda self: self.world.gate.recovery == "reading")
    @rule(place=st.integers(0, 2), count=st.integers(1, 3), spill=st.booleans())
    def recover(self, place: int, count: int, spill: bool) -> None:
        where = self.pick(place)
        if spill:
            self.world.spill(where, *self.name(where, count))
        elif not self.world.disk:
            self.world.recover(where, *self.name(where, count))

    @precondition(lambda self: self.world.gate.recovery in ("reading", "replaying"))
    @rule(replay=st.booleans())
    def go_on_with_recovery(self, replay: bool) -> None:
        reading = self.world.gate.recovery == "reading"
        if self.world.disk and (replay or not reading):
            self.world.replay()
        elif reading:
            self.world.end_phase_one()
        else:
            self.world.end_recovery()

    def teardown(self) -> None:
        """Let all come that is under way: nothing is left, and the newest checkpoint is complete."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if world.gate.recovery == "reading":
            world.end_phase_one()
        while world.disk:
            world.replay()
        if world.gate.recovery == "replaying":
            world.end_recovery()
        for where in world.channels:
            for barrier in self.due[where]:
                world.arrive(where, barrier)
            if where not in self.ended:
                world.arrive(where, ProducerEnded())
        world.poll_all()
        assert world.done == {each: world.expected(each) for each in world.channels}
        assert {each.exchange for each in world.ordered if isinstance(each, EndInput)} == {
            each.exchange for each in world.channels
        }
        assert (RecoveredProcessed() in world.ordered) == self.recovering
        assert self.newest is None or self.newest.checkpoint_id in world.stored.keys() | world.given_up
        assert world.gate.checkpoint == "none"


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
