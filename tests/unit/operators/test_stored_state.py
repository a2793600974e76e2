"""State of a checkpoint as tables: what an operator would go on with is what its state reads as."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound
from headgate.expressions.key_bytes import key_bytes
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.first_rows import FirstRows
from headgate.operators.stored_state import key_names, side_names, stored_state
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import NoWindow, SessionWindow, TimeWindow
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn, StateSchema
from headgate.state.chunks import KeyedChunk, RestoredChunk
from tests.unit.operators.stream_join import join_world
from tests.unit.operators.transform_with_state.stateful_processors import Scripted
from tests.unit.operators.transform_with_state.stateful_runs import StatefulRun, definition
from tests.unit.operators.windows.window_world import EPOCH, SCHEMA, Subtasks, batch, made

AT, V = Bound(0, "at"), Bound(2, "v")
AGGREGATES = [
    Aggregate("count"),
    Aggregate("sum", V),
    Aggregate("avg", V),
    Aggregate("min", V),
    Aggregate("last", V, {"ignorenulls": True}),
    Aggregate("collect_list", V),
    Aggregate("approx_count_distinct", V, {"rsd": 0.05}),
]
Windows = TimeWindow | SessionWindow | NoWindow


def read(
    chunks: Sequence[KeyedChunk], signature: str, schema: StateSchema | None = None, *, now_ms: int = 0, groups: int = 8
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table of one subtask's state."""
    context = OperatorContext(uid="operator", subtask=0, parallelism=1, max_parallelism=groups)
    restored = [RestoredChunk(each.chunk_id, True, each.serialize) for each in chunks]
    found: dict[str, list[dict[str, Any]]] = {}
    for name, rows in stored_state(signature, schema, context, restored, now_ms):
        found.setdefault(name, []).extend(rows.to_pylist())
    return found


def test_how_many_of_the_first_rows_there_were() -> None:
    keyed = pa.schema([("n", pa.int64()), ("all", pa.int32())])
    operator = FirstRows(keyed, 3)
    operator.uid = "limit"
    operator.open(OperatorContext(uid="limit", subtask=0, parallelism=1, max_parallelism=8), [])
    operator.process(
        pa.RecordBatch.from_pylist([{"n": n, "all": 0} for n in range(2)], schema=keyed), "s", lambda *_: None
    )
    assert read(operator.snapshot_keyed(1), operator.signature) == {"rows": [{"rows": 2}]}


def windows(window: Windows, aggregates: Sequence[Aggregate] = AGGREGATES) -> tuple[Callable[[], Any], StateSchema]:
    schema = StateSchema(
        window=window.text,
        keys=(StateColumn(name="k", kind="int64"),),
        aggregates=tuple(each.state_column(None if each.argument is None else pa.int64()) for each in aggregates),
    )

    def make() -> Any:
        operator = made(SCHEMA, window, ["k"], aggregates)
        operator.state_schema = schema
        return operator

    return make, schema


@pytest.mark.parametrize(
    "window",
    [
        TimeWindow(AT, 10_000_000, 10_000_000),
        TimeWindow(AT, 10_000_000, 4_000_000),
        SessionWindow(AT, 5_000_000),
        NoWindow(),
        NoWindow(AT),
    ],
    ids=lambda window: window.text,
)
@pytest.mark.parametrize("memory_bytes", [0, 1])
def test_state_of_windows_reads_as_what_they_emit(tmp_path: Path, window: Windows, memory_bytes: int) -> None:
    make, schema = windows(window)
    world = Subtasks(make, tmp_path, memory_bytes=memory_bytes)
    for second in range(0, 40, 3):
        world.process(batch((second, second % 3, second), (second + 0.5, 7, 1), (second + 1, None, None)))
        if second % 2:
            world.checkpoint()
            world.watermark((second - 8) * 1000)
    (chunks,) = world.checkpoint()
    world.emitted.clear()
    found = read(chunks, "", schema)["groups"]
    expected = [tuple(map(str, row.values())) for row in world.finish()]
    assert sorted(tuple(map(str, row.values())) for row in found) == sorted(expected)


def test_a_slide_of_sliding_windows_is_read_for_itself(tmp_path: Path) -> None:
    make, schema = windows(TimeWindow(AT, 10_000_000, 5_000_000), AGGREGATES[:2])
    world = Subtasks(make, tmp_path)
    world.process(batch((1, 1, 100), (6, 1, 10)))
    (chunks,) = world.checkpoint()
    found = read(chunks, "", schema)["groups"]
    assert [(each["window"]["start"], each["sum(v)"]) for each in found] == [
        (EPOCH, 100),
        (EPOCH + dt.timedelta(seconds=5), 10),
    ]


def test_what_only_sparks_code_can_finish_is_given_as_it_is_stored(tmp_path: Path) -> None:
    """Where there is one piece of it: only Spark's code could merge two."""
    make, schema = windows(TimeWindow(AT, 10_000_000, 10_000_000), AGGREGATES[1:2])
    unknown = StateColumn(name="percentile(v, 0.5)", kind="int64", can_widen=False)
    other = StateSchema(window=schema.window, keys=schema.keys, aggregates=(unknown,))

    def make_other() -> Any:
        operator = make()
        operator.state_schema = other
        return operator

    world = Subtasks(make_other, tmp_path)
    world.process(batch((1, 1, 100), (2, 2, 7)))
    world.checkpoint()
    world.process(batch((3, 1, 5)))
    (chunks,) = world.checkpoint()
    found = read(chunks, "", other)["groups"]
    assert {each["k"]: each["percentile(v, 0.5)"] for each in found} == {1: None, 2: 7}


def test_known_keys_and_until_when(tmp_path: Path) -> None:
    def make() -> Any:
        operator = Deduplicate(SCHEMA, ["k"], time="at", within_us=5_000_000)
        operator._keys = [type("Key", (), {"column": "k"})]  # type: ignore[attr-defined]  # by which the world deals out
        return operator

    world = Subtasks(make, tmp_path)
    world.process(batch((1, 1, 1), (2, 2, 1), (9, 3, 1)))
    world.watermark(6_500)
    (chunks,) = world.checkpoint()
    found = read(chunks, "first rows by k int64, for 5000 ms")["keys"]
    assert sorted((each["k"], each["known until"]) for each in found) == [
        (2, EPOCH + dt.timedelta(seconds=7)),
        (3, EPOCH + dt.timedelta(seconds=14)),
    ]


def test_keys_that_are_stored_as_bytes_are_shown() -> None:
    kind = pa.list_(pa.field("element", pa.struct([("x", pa.float64()), ("y", pa.string())])))
    lists: list[Any] = [[{"x": 0.5, "y": None}, None], None, []]
    context = OperatorContext(uid="operator", subtask=0, parallelism=1, max_parallelism=8)
    name = f"a.bytes of {kind}"
    stored = pa.record_batch([key_bytes(pa.array(lists, kind))], names=[name])
    known = Deduplicate(stored.schema, [name])
    schema = StateSchema(
        window=NoWindow().text,
        keys=(StateColumn(name="a", kind=str(kind)),),
        aggregates=(Aggregate("count").state_column(None),),
    )
    counted = made(stored.schema, NoWindow(), [name], [Aggregate("count")])
    counted.state_schema = schema
    found = []
    for operator, signature in ((known, f"first rows by {name} binary"), (counted, "")):
        operator.open(context, [])
        operator.restore_keyed([])
        operator.process(stored, "split", lambda *_: None)
        (rows,) = read(operator.snapshot_keyed(1), signature, schema if operator is counted else None).values()
        found.append(sorted((each["a"] for each in rows), key=repr))
    assert found == [sorted(lists, key=repr)] * 2


def test_kept_rows_of_both_sides(tmp_path: Path) -> None:
    world = join_world.Subtasks(lambda: join_world.made("left"), tmp_path)
    world.process(0, [(1, 1_000, "a"), (2, 50_000, "b")])
    world.process(1, [(1, 2_000, "c"), (3, 50_000, "d")])
    world.process(1, [(2, 50_500, "e")])
    world.watermark(20_000)
    (chunks,) = world.checkpoint()
    signature = (
        "left join; left: k int64, lt timestamp[us, tz=UTC], lv string by k, until lt is at the watermark; "
        "right: k 2 int64, rt timestamp[us, tz=UTC], rv string by k 2, until rt is at the watermark"
    )
    found = read(chunks, signature)
    assert [(each["lv"], each["matched"]) for each in found["left"]] == [("b", True)]
    assert sorted(each["rv"] for each in found["right"]) == ["d", "e"], "c is over"
    assert found["left"][0]["kept until"] > EPOCH + dt.timedelta(seconds=50)
    world.close()


def test_state_variables_and_timers(tmp_path: Path) -> None:
    def add(p: Any, user: Any, rows: Any, times: Any) -> None:
        for row in rows:
            p.value.update((row.amount,))
            p.list.appendValue((row.amount,))
            p.map.updateValue((f"m{row.amount}",), (row.amount,))
        p.handle.registerTimer(90_000)

    facts = definition([("user", pa.string()), ("result", pa.string())], time_mode="eventtime", event_time="at")
    run = StatefulRun(Scripted(add), facts)
    run.rows(("ann", 1, 1000), ("bob", 5, 1000))
    first = run.snapshot()
    run.rows(("ann", 2, 2000))
    chunks = [*first, *(each for each in run.snapshot() if each.chunk_id not in {one.chunk_id for one in first})]
    found = read(chunks, run.operator.signature, now_ms=1, groups=128)
    assert {(each["user"], each["n"]) for each in found["value"]} == {("ann", 2), ("bob", 5)}
    assert sorted((each["user"], each["position"], each["n"]) for each in found["list"]) == [
        ("ann", 0, 1), ("ann", 1, 2), ("bob", 0, 5),
    ]  # fmt: skip
    assert ("ann", "m2", 2) in {(each["user"], each["name"], each["n"]) for each in found["map"]}
    assert {each["user"] for each in found["timers"]} == {"ann", "bob"}
    assert found["timers"][0]["timer"] == EPOCH + dt.timedelta(seconds=90)


def test_what_has_expired_is_left_out() -> None:
    def add(p: Any, user: Any, rows: Any, times: Any) -> None:
        p.value.update((1,))

    facts = definition([("user", pa.string()), ("result", pa.string())], time_mode="processingtime")
    run = StatefulRun(Scripted(add, ttl_ms=60_000), facts, now_ms=1_000_000)
    run.rows(("ann", 1, 1000))
    chunks = run.snapshot()
    (row,) = read(chunks, run.operator.signature, now_ms=1_050_000, groups=128)["value"]
    assert row["expires"] == EPOCH + dt.timedelta(milliseconds=1_060_000)
    assert read(chunks, run.operator.signature, now_ms=1_060_000, groups=128)["value"] == []


def test_the_names_of_columns_may_have_spaces_and_types_commas() -> None:
    assert key_names("first rows by a b string, price decimal128(9, 2), list<item: int64> x int64") == [
        "a b", "price", "list<item: int64> x",
    ]  # fmt: skip
    signature = "full join; left: s struct<a: int64, b: string>, k int64 by k, for ever; right: k int64 by k"
    assert side_names(signature) == {"left": ["s", "k"], "right": ["k"]}


def test_state_of_an_operator_that_is_not_known() -> None:
    with pytest.raises(UnsupportedOperationError, match="of an operator that cannot be read here: sorted by k"):
        read([], "sorted by k")


def test_state_variables_of_version_1() -> None:
    golden = Path(__file__).parents[2] / "golden" / "transform-with-state-v1.arrows"
    context = OperatorContext(uid="operator", subtask=0, parallelism=1)
    chunk = RestoredChunk("chunk", True, golden.read_bytes)
    tables = stored_state("transformWithState by user", None, context, [chunk], 0)
    found = {name: [tuple(row.values()) for row in rows.to_pylist()] for name, rows in tables}
    assert found["value"] == [("user-1", 11, None), ("user-2", 2, None)]
    assert found["list"] == [("user-1", 0, 1, None), ("user-1", 1, 11, None), ("user-2", 0, 2, None)]
    assert found["map"] == [("user-1", "1", 11, None), ("user-2", "2", 2, None)]
    seconds = [(user, (at - EPOCH).total_seconds()) for user, at in found["timers"]]
    assert seconds == [("user-1", 1), ("user-1", 11), ("user-2", 2)]
