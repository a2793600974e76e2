"""State is found by what it is, where operators have other uids than before; where that is not clear, nobody has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.manifest import Manifest, SourceEntry
from headgate.checkpoint.moved_state import Described, Moves, moves
from headgate.checkpoint.restore import restore
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.errors import StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import ChannelState, ChunkState, InlineState, KeyedState, SubtaskState
from headgate.protocol.state_schema import StateColumn, StateSchema


def schema(*aggregates: str) -> StateSchema:
    return StateSchema(
        window="w",
        keys=(StateColumn(name="k", kind="int32"),),
        aggregates=tuple(StateColumn(name=each, kind="int32") for each in aggregates),
    )


def of(text: str, after: str = "rides", kind: str = "window") -> Described:
    """Return a description; an aggregation is of names with commas."""
    return Described(after, kind, text, schema=schema(*text.split(",")) if kind == "window" else None)


NOTHING: dict[str, str | None] = {}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # The same program, and one whose aggregates changed where they are, keep their uids.
        ({"a": "n"}, {"a": "n"}, Moves(NOTHING, {})),
        ({"a": "n", "b": "n"}, {"a": "n", "b": "n"}, Moves(NOTHING, {})),
        ({"a": "n", "b": "n"}, {"a": "n,s", "b": "n"}, Moves(NOTHING, {})),
        # One more operator in front, one less, and one between two of the same kind.
        ({"a": "n"}, {"b": "n"}, Moves({"a": "b"}, {})),
        ({"a": "n", "b": "s"}, {"a": "n", "c": "s"}, Moves({"b": "c"}, {})),
        ({"a": "n", "b": "s"}, {"b": "n", "c": "s"}, Moves({"a": "b", "b": "c"}, {})),
        ({"a": "n", "b": "s"}, {"a": "s", "b": "n"}, Moves({"a": "b", "b": "a"}, {})),
        ({"a": "n", "b": "n,s"}, {"a": "n,s", "b": "n"}, Moves({"a": "b", "b": "a"}, {})),
        # The aggregates changed, too.
        ({"a": "n"}, {"b": "n,s"}, Moves({"a": "b"}, {})),
        ({"a": "n,s"}, {"b": "s"}, Moves({"a": "b"}, {})),
        ({"a": "n,s", "b": "n"}, {"b": "n,s,t", "c": "n"}, Moves({"a": "b", "b": "c"}, {})),
        # What is new, gone, or another, has no state, and takes none away.
        ({"a": "n"}, {"b": "m"}, Moves(NOTHING, {})),
        ({"a": "n"}, {"a": "m"}, Moves(NOTHING, {})),
        ({"a": "n", "b": "m"}, {"b": "n"}, Moves({"a": "b", "b": None}, {})),
        # Not clear: two of the same where one was, or the other way round.
        ({"a": "n", "b": "n"}, {"b": "n", "c": "n"}, Moves(NOTHING, {"a": ("b", "c"), "b": ("b", "c")})),
        ({"a": "n"}, {"a": "n", "b": "n"}, Moves(NOTHING, {"a": ("a", "b")})),
        ({"a": "n", "b": "n"}, {"c": "n"}, Moves(NOTHING, {"a": ("c",), "b": ("c",)})),
        ({"a": "n"}, {"b": "n,s", "c": "n,t"}, Moves(NOTHING, {"a": ("b", "c")})),
    ],
)  # fmt: skip
def test_which_state_goes_where(before: dict[str, str], now: dict[str, str], expected: Moves) -> None:
    found = moves({uid: of(text) for uid, text in before.items()}, {uid: of(text) for uid, text in now.items()})
    assert found == expected


def test_only_what_is_after_the_same_name_and_of_the_same_kind_fits() -> None:
    for other in (of("n", after="taxis"), of("n", kind="deduplicate")):
        assert moves({"a": of("n")}, {"b": other}) == Moves({}, {})
    both = {"a": of("n"), "b": of("n", after="taxis")}
    assert moves(both, {"c": both["b"], "d": both["a"]}).targets == {"a": "d", "b": "c"}


TEXTS = st.sampled_from(["n", "s", "n,s", "m"])


@given(st.dictionaries(st.sampled_from("abcd"), TEXTS), st.dictionaries(st.sampled_from("abcd"), TEXTS))
def test_no_state_goes_to_two_and_nobody_gets_two_and_only_what_fits(
    before: dict[str, str], now: dict[str, str]
) -> None:
    was, new = ({uid: of(text) for uid, text in each.items()} for each in (before, now))
    found = moves(was, new)
    places = [target for uid in was if (target := found.targets.get(uid, uid)) is not None]
    assert len(set(places)) == len(places)
    assert all(new[target].takes_on(was[uid]) for uid, target in found.targets.items() if target is not None)
    if set(before.values()) == set(now.values()) and len(set(before.values())) == len(before) == len(now):
        assert not found.unclear
        assert {uid: now[found.targets.get(uid, uid) or ""] for uid in before} == before, "found by what it is"


# In checkpoints.


def query(uids: str, aggregates: str = "n", *, named: tuple[str, ...] = (), second: str = "") -> JobPlan:
    """Return a query of two stages: of the uids of its exchange and its operators."""
    exchange, window, *more = uids.split()
    texts = dict(zip((window, *more), (aggregates, second)))
    return JobPlan(
        sources={"rides": SourcePlan(name="numbers", reassigns_on_recovery=False)},
        stages=(("rides",), (window, *more, "sink")), parallelism=2, max_parallelism=8, query_id="q", run=4,
        exchanges={exchange: ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
        signatures={exchange: "by k int32"} | {uid: f"{text} by k" for uid, text in texts.items()},
        state_schemas={exchange: schema()} | {uid: schema(*text.split(",")) for uid, text in texts.items()},
        named=frozenset(named),
    )  # fmt: skip


CHUNK = partial(ChunkState, handle=InlineState(b"c"), first_key_group=0, last_key_group=7)


def taken(plan: JobPlan, **more: Any) -> Manifest:
    """Return a checkpoint of a query: of each operator a chunk, and a row on its way through the exchange."""
    (exchange,) = plan.exchanges
    keyed = {uid: KeyedState(chunks=(CHUNK(chunk_id=f"{uid}-1"),)) for uid in plan.signatures if uid != exchange}
    first = ChannelState(exchange=exchange, producer=0, consumer=1, output=False, buffers=1, rows=1, size_bytes=1,
                         handle=InlineState(b"x"))  # fmt: skip
    made = Manifest(
        checkpoint_id=7, epoch=5, kind=CheckpointKind.CHECKPOINT, query_id="q", run=3, created_ms=0, parallelism=2,
        max_parallelism=8, stages=plan.stages, channels=(first,), channels_parallelism=2, exchanges=plan.exchanges,
        subtasks=((SubtaskState(), SubtaskState()), (SubtaskState(keyed=keyed), SubtaskState())),
        sources={"rides": SourceEntry(name="numbers", enumerator=InlineState(b"e"))},
        signatures=plan.signatures, state_schemas=plan.state_schemas,
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


BEFORE = "rides.2.key-by rides.3.window"


def chunks(restored: Manifest) -> dict[str, list[str]]:
    return {uid: [each.chunk_id for each in state.chunks] for uid, state in restored.subtasks[1][0].keyed.items()}


@pytest.mark.parametrize("aggregates", ["n", "n,s"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_state_and_rows_on_their_way_are_found_after_one_more_operator(aggregates: str, parallelism: int) -> None:
    now = msgspec.structs.replace(query("rides.5.key-by rides.6.window", aggregates), parallelism=parallelism)
    restored = restore(taken(query(BEFORE)), now)
    assert chunks(restored) == {"rides.6.window": ["rides.3.window-1"]}
    assert [(each.exchange, each.stored_as) for each in restored.channels] == [("rides.5.key-by", "rides.2.key-by")]
    assert (restored.signatures, restored.exchanges) == (now.signatures, now.exchanges)
    fewer = restore(restored, msgspec.structs.replace(query(BEFORE), run=5))
    assert set(chunks(fewer)) == {"rides.3.window"}


def in_two_phases(plan: JobPlan) -> JobPlan:
    """Return a query whose exchange partial results pass."""
    (uid,) = plan.exchanges
    was, window = plan.state_schemas[uid], plan.state_schemas["rides.3.window"]
    crossing = msgspec.structs.replace(was, window="partial results in w", aggregates=window.aggregates)
    return msgspec.structs.replace(
        plan,
        signatures=plan.signatures | {uid: f"partial results of n {plan.signatures[uid]}"},
        state_schemas=plan.state_schemas | {uid: crossing},
    )


def test_rows_on_their_way_become_partial_results_and_these_no_rows() -> None:
    """A checkpoint of an earlier version, or of one phase, fits a query in two; the other way round none does."""
    raw = query(BEFORE)
    raw = msgspec.structs.replace(
        raw,
        state_schemas=raw.state_schemas
        | {"rides.2.key-by": msgspec.structs.replace(raw.state_schemas["rides.2.key-by"], window="", aggregates=())},
    )
    two = in_two_phases(raw)
    assert [each.exchange for each in restore(taken(raw), two).channels] == ["rides.2.key-by"]
    assert [each.exchange for each in restore(taken(two), two).channels] == ["rides.2.key-by"]
    with pytest.raises(StoredStateError, match=r"through the exchange 'rides.2.key-by', partial results of n by k"):
        restore(taken(two), raw)
    assert chunks(restore(taken(two, channels=()), raw)) == {"rides.3.window": ["rides.3.window-1"]}


def test_rows_of_two_aggregations_by_the_same_key_become_partial_results_of_each() -> None:
    """By what they are on their way to, with one more operator before both."""

    def exchanges(first: int, kind: str, *aggregates: str) -> dict[str, Described]:
        keys = (StateColumn(name="k", kind="int64"),)
        columns = {each: (StateColumn(name=each, kind="int64"),) for each in aggregates}
        return {
            f"rides.{first + number}.key-by": Described(
                "rides", "hash exchange", f"{kind} {each}" if kind else "by k", (each,),
                StateSchema(window=kind, keys=keys, aggregates=columns[each] if kind else ()),
            )
            for number, each in enumerate(aggregates)
        }  # fmt: skip

    found = moves(exchanges(2, "", "n", "s"), exchanges(3, "partial results in w", "n", "s"))
    assert found == Moves({"rides.2.key-by": "rides.3.key-by", "rides.3.key-by": "rides.4.key-by"}, {})


def test_a_name_of_the_users_is_found_by_that_name_only() -> None:
    before = query("rides.2.key-by totals")
    now = query("rides.4.key-by totals", named=("totals",))
    restored = restore(taken(before), now)
    assert chunks(restored) == {"totals": ["totals-1"]} and restored.channels[0].exchange == "rides.4.key-by"
    renamed = query("rides.2.key-by rides.3.window")
    with pytest.raises(
        StoredStateError, match=r"(?s)state of 'totals' \(n by k\).*it has .*'rides.3.window' \(n by k\)"
    ):
        restore(taken(before), renamed)
    fresh = query("rides.4.key-by rides.5.window", named=("rides.5.window",))
    with pytest.raises(StoredStateError, match=r"state of 'rides.3.window' \(n by k\)"):
        restore(taken(query(BEFORE)), fresh)
    assert chunks(restore(taken(query(BEFORE)), fresh, allow_non_restored_state=True)) == {}


def test_of_two_that_fit_the_name_decides() -> None:
    two = "rides.2.key-by rides.3.window rides.4.window"
    before = taken(query(two, "n", second="n"))
    moved = "rides.3.key-by rides.4.window rides.5.window"
    for allow in (False, True):
        with pytest.raises(
            StoredStateError, match=r"'rides.3.window' .*'rides.4.window', 'rides.5.window'. Call .*alias"
        ):
            restore(before, query(moved, "n", second="n"), allow_non_restored_state=allow)
    names = ("rides.3.window", "rides.4.window")
    restored = restore(before, query("rides.3.key-by rides.3.window rides.4.window", "n", named=names, second="n"))
    assert chunks(restored) == {uid: [f"{uid}-1"] for uid in names}


def test_state_whose_uid_another_one_gets_is_left_over() -> None:
    before = taken(query("rides.2.key-by rides.3.window rides.4.window", "n", second="m"))
    now = query("rides.3.key-by rides.4.window", "n")
    with pytest.raises(StoredStateError, match=r"state of 'rides.4.window' \(m by k\), which the query does not have"):
        restore(before, now)
    restored = restore(before, now, allow_non_restored_state=True)
    assert chunks(restored) == {"rides.4.window": ["rides.3.window-1"]}


def test_rows_on_their_way_through_one_of_two_equal_exchanges_are_not_given_to_any() -> None:
    def twice(*uids: str) -> JobPlan:
        exchanges = {
            uid: ExchangePlan(kind="rebalance", producer_stage=n, consumer_stage=n + 1) for n, uid in enumerate(uids)
        }
        stages = (("rides",), (), ("sink",))
        return msgspec.structs.replace(
            query(BEFORE), exchanges=exchanges, stages=stages, signatures={}, state_schemas={}
        )

    before = taken(query(BEFORE))
    was = twice("rides.1.repartition", "rides.3.repartition")
    channels = tuple(msgspec.structs.replace(before.channels[0], exchange=uid) for uid in was.exchanges)
    before = msgspec.structs.replace(
        before, exchanges=was.exchanges, stages=was.stages, channels=channels, signatures={}, state_schemas={},
        subtasks=((SubtaskState(),) * 2,) * 3,
    )  # fmt: skip
    now = twice("rides.2.repartition", "rides.3.repartition")
    with pytest.raises(StoredStateError, match=r"End the query as it was with a savepoint"):
        restore(before, now)
    assert restore(msgspec.structs.replace(before, channels=()), now).exchanges == now.exchanges
    assert len(restore(before, was).channels) == 2
