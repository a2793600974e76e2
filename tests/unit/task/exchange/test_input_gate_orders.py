"""Every order in which barriers and rows may come and be processed, in small gates (FLINK-20645).

A script says what each producer sends. All interleavings of arrivals and polls, with buffers put back in between, and
where requested with time passing or checkpoints given up, are gone through; `gate_world` says what must hold at
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element, ProducerEnded, WatermarkPassed
from headgate.task.exchange.input_gate import RecoveredProcessed
from tests.machines import copy_of, key_of
from tests.unit.task.exchange.gate_world import World, forget_history, rows

Move = Callable[[World], object]


def script(text: str, producer: int, barrier: Barrier) -> tuple[Element, ...]:
    """Return what a producer sends: ``b`` a buffer of two rows, ``1`` a barrier, ``w`` a watermark, ``e`` the end."""
    elements: list[Element] = []
    for place, each in enumerate(text):
        if each == "b":
            elements.append(rows(f"{producer}.{place}a", f"{producer}.{place}b"))
        elif each == "w":
            elements.append(WatermarkPassed(100 + producer))
        elif each == "e":
            elements.append(ProducerEnded())
        else:
            elements.append(_barrier(barrier, int(each)))
    return tuple(elements)


def _barrier(barrier: Barrier, checkpoint_id: int) -> Barrier:
    return Barrier(
        checkpoint_id=checkpoint_id,
        unaligned=barrier.unaligned,
        alignment_timeout_ms=barrier.alignment_timeout_ms,
    )


def _arrival(where: ChannelId, element: Element) -> Move:
    return lambda world: world.arrive(where, element)


class Place(msgspec.Struct, frozen=True):
    """A world, how many elements of each script have arrived, how many steps recovery took, and what led here."""

    world: World
    at: tuple[int, ...]
    recovered: int
    ordered: str
    before: Place | None = None

    def key(self) -> object:
        """Return what makes it a different one: turns count, what is over and done does not."""
        gate = self.world.gate
        snapshot = None if gate.checkpoint == "none" else self.world.snapshots.get(gate._checkpoint.newest)
        return (
            self.at,
            self.recovered,
            tuple(gate._ready),
            key_of(gate, {"_history", "_gate_channels"}),
            tuple(map(len, self.world.done.values())),
            None if snapshot is None else tuple(snapshot.values()),
            tuple(self.world.given_up),
        )

    def trace(self) -> str:
        """Return what led here, oldest first, for errors."""
        return f"{'' if self.before is None else self.before.trace()}\n{self.ordered}"


class Explorer:
    """Goes through all worlds that a script leads to."""

    def __init__(
        self, scripts: Sequence[tuple[Element, ...]], *, put_back: bool, give_up: int, recovery: Sequence[str]
    ) -> None:
        self.scripts = scripts
        self.put_back = put_back
        self.give_up = give_up
        self.recovery = recovery

    def explore(self, world: World) -> None:
        """Assert what must hold in all of them."""
        seen: set[object] = set()
        ended = False
        todo: list[tuple[Place, object]] = [(Place(world, (0,) * len(self.scripts), 0, "connected"), None)]
        while todo:
            place, key = todo.pop()
            reached = [self._after(place, *each) for each in self._moves(place)]
            keys = [each.key() for each in reached]
            if all(each == key for each in keys):
                self._assert_ended(place)
                ended = True
            for after, each in zip(reached, keys):
                if each not in seen:
                    seen.add(each)
                    todo.append((after, each))
        assert ended

    def _after(self, place: Place, ordered: str, move: Move, arrived: int | None = None, recovered: int = 0) -> Place:
        at = tuple(count + (number == arrived) for number, count in enumerate(place.at))
        after = Place(copy_of(place.world), at, place.recovered + recovered, ordered, place)
        try:
            move(after.world)
        except Exception as error:
            error.add_note(after.trace())
            raise
        forget_history(after.world.gate)
        return after

    def _moves(self, place: Place) -> Iterator[tuple[str, Move] | tuple[str, Move, int | None, int]]:
        world = place.world
        for number, (where, elements) in enumerate(zip(world.channels, self.scripts)):
            if place.at[number] < len(elements):
                element = elements[place.at[number]]
                if not isinstance(element, Buffer) or world.credits[where]:
                    yield f"{where}: {element}", _arrival(where, element), number, 0
        if place.recovered < len(self.recovery):
            step = self.recovery[place.recovered]
            yield step, self._recovery_move(step, place.recovered), None, 1
        yield "poll", World.poll
        if self.put_back:
            yield "poll, put back", lambda w: w.poll(put_back=1)
        due_ms = world.gate.next_time_ms()
        if due_ms is not None:
            yield "time", lambda w: w.pass_time(due_ms)
        if self.give_up and self.give_up not in world.given_up:
            yield "give up", lambda w: w.give_up(self.give_up)

    def _recovery_move(self, step: str, number: int) -> Move:
        kind, _, place = step.partition(" ")
        match kind:
            case "recover":
                return lambda w: w.recover(w.channels[int(place)], f"r{number}a", f"r{number}b")
            case "spill":
                return lambda w: w.spill(w.channels[int(place)], f"s{number}")
            case "replay":
                return World.replay
            case "phase":
                return World.end_phase_one
            case _:
                return World.end_recovery

    def _assert_ended(self, place: Place) -> None:
        """Nothing can move: then everything came, was processed, and no checkpoint is left over."""
        world = place.world
        assert place.at == tuple(map(len, self.scripts)), f"an element has no credit: {place.trace()}"
        assert place.recovered == len(self.recovery)
        for where in world.channels:
            assert world.done[where] == world.expected(where), f"a channel is blocked for ever: {place.trace()}"
        assert not world.recovered[world.channels[0]] or RecoveredProcessed() in world.ordered
        last = max(world.before)
        assert last in world.stored or last in world.given_up
        if not any(isinstance(each, Barrier) and each.unaligned for each in self.scripts[0]):
            everywhere = {each for each, where in world.before.items() if len(where) == len(world.channels)}
            assert world.stored.keys() | world.given_up >= everywhere, "in its turn each is complete"
        assert world.gate.recovery in ("processing", "over") and world.gate.checkpoint == "none"


def explored(
    *texts: str,
    barrier: Barrier,
    aligned: int = 0,
    put_back: bool = False,
    give_up: int = 0,
    recovery: Sequence[str] = (),
    credits: int = 2,
) -> None:
    """Go through all orders of these scripts; the last ``aligned`` ones have no unaligned barriers."""
    scripts = [script(text, producer, barrier) for producer, text in enumerate(texts)]
    world = World(len(texts) - aligned, aligned=aligned, credits=credits, recovering=bool(recovery))
    Explorer(scripts, put_back=put_back, give_up=give_up, recovery=recovery).explore(world)


MODES = {
    "aligned": Barrier(checkpoint_id=1),
    "unaligned": Barrier(checkpoint_id=1, unaligned=True),
    "timeout": Barrier(checkpoint_id=1, unaligned=True, alignment_timeout_ms=10),
}
in_every_mode = pytest.mark.parametrize("barrier", MODES.values(), ids=MODES)
RECOVERY = ("recover 0", "spill 1", "phase", "replay", "end")


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1])
def test_one_checkpoint_over_two_channels(barrier: Barrier, aligned: int) -> None:
    """Rows before, between and after its barriers, put back or not: each is in the snapshot or stored, and once."""
    explored("b1b", "bb1", barrier=barrier, aligned=aligned, put_back=not barrier.alignment_timeout_ms)


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1, 2])
def test_one_checkpoint_over_three_channels(barrier: Barrier, aligned: int) -> None:
    """Whichever channel's barrier is first, second and last, and however many connections stay aligned."""
    explored("b1", "1b", "b1", barrier=barrier, aligned=aligned)


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1])
def test_two_checkpoints(barrier: Barrier, aligned: int) -> None:
    """The second is complete, whatever became of the first; aligned, both are."""
    explored("b1b2", "1b2b", barrier=barrier, aligned=aligned)


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("give_up", [1, 2])
def test_a_checkpoint_that_is_given_up_at_any_time(barrier: Barrier, aligned: int, give_up: int) -> None:
    """Nothing of it blocks a channel, and the other one is complete."""
    explored("b12", "1b2", barrier=barrier, aligned=aligned, give_up=give_up)


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1])
def test_a_checkpoint_that_a_producer_skipped(barrier: Barrier, aligned: int) -> None:
    """It was given up further up before its turn came there: the next one's barrier says so."""
    explored("1b2b", "b2b", barrier=barrier, aligned=aligned)
    explored("b2b", "1b2b", barrier=barrier, aligned=aligned)


@in_every_mode
def test_ends_and_watermarks(barrier: Barrier) -> None:
    """They wait after their rows; barriers come after an end, too."""
    explored("be1", "bw1e", barrier=barrier)


@in_every_mode
@pytest.mark.parametrize("aligned", [0, 1])
def test_a_checkpoint_during_recovery(barrier: Barrier, aligned: int) -> None:
    """In whichever phase it comes: recovered, spilled and new rows are in the snapshot or stored, and once."""
    explored("1b", "w1b", barrier=barrier, aligned=aligned, recovery=RECOVERY)


def test_two_checkpoints_during_recovery() -> None:
    """The second one may come before a recovered buffer was processed, and after some are in the first."""
    explored("12", "12", barrier=MODES["unaligned"], recovery=RECOVERY, put_back=True)
