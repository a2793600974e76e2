"""Snapshots of `TransformWithState`: what changed only, consistent, restored at any parallelism, refused if wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType
from stateful_processors import LONG, Scripted, columns, state_of
from stateful_runs import INPUT, StatefulRun, Uploads, as_restored, definition, events, for_subtask

from headgate.errors import CorruptStateError, StoredStateError, UnsupportedVersionError
from headgate.operators.key_hash import key_groups
from headgate.operators.transform_with_state import restored_rows, sorted_runs
from headgate.operators.transform_with_state.state_rows import SCHEMA, ChunkHeader, read_chunk, write_chunk
from headgate.state.chunks import RestoredChunk

RESULT = definition([("user", pa.string()), ("result", pa.string())], time_mode="eventtime", event_time="at")
GOLDEN = Path(__file__).parents[3] / "golden" / "transform-with-state-v1.arrows"


def add_all(p: Any, user: Any, rows: Any, times: Any) -> Any:
    """Put rows into every state; negative amounts take away; emit the state."""
    for row in rows:
        amount = row.amount
        if amount == 0:
            p.value.clear(), p.list.clear(), p.map.clear()
            for at_ms in list(p.handle.listTimers()):
                p.handle.deleteTimer(at_ms)
        elif amount < 0:
            p.map.removeKey((str(-amount),))
            p.handle.deleteTimer(-amount)
            p.list.put([(amount,)])
        else:
            p.value.update((amount,))
            p.list.appendValue((amount,))
            p.map.updateValue((str(amount % 5),), (amount,))
            p.handle.registerTimer(amount * 1000)
    return state_of(p)


def result(stateful: StatefulRun, *users: str) -> dict[str, str]:
    """Return the state of keys, as the processor emits it."""
    probe = stateful.operator._processor.rows  # type: ignore[attr-defined]
    stateful.operator._processor.rows = lambda p, user, rows, times: state_of(p)  # type: ignore[attr-defined]
    found = dict(stateful.rows(*((user, 0, 10**9) for user in users)))
    stateful.operator._processor.rows = probe  # type: ignore[attr-defined]
    return found


USERS = [f"user-{number}" for number in range(6)]
AMOUNTS = st.integers(-6, 12)
STEP = st.one_of(
    st.lists(st.tuples(st.sampled_from(USERS), AMOUNTS), min_size=1, max_size=4),
    st.sampled_from(["snapshot", "lost", 1, 2, 3]),
)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=25))
def test_any_life_with_restores_is_one_without(life: list[Any]) -> None:
    """Whatever happens to states, whenever snapshots are taken, restored and rescaled: keys have the state they had."""
    model = StatefulRun(Scripted(add_all), RESULT)
    parts = [StatefulRun(Scripted(add_all), RESULT)]
    execution = 0
    for step in life:
        if step == "lost":  # a checkpoint that nobody stored
            for part in parts:
                part.snapshot()
        elif step == "snapshot" or isinstance(step, int):
            chunks = [chunk for part in parts for chunk in part.snapshot()]
            parallelism = step if isinstance(step, int) else len(parts)
            execution += 1
            contexts = [{"subtask": n, "parallelism": parallelism} for n in range(parallelism)]
            parts = [
                StatefulRun(
                    Scripted(add_all), RESULT, execution=execution,
                    restored=for_subtask(chunks, parts[0].context_with(**context)), **context,
                )
                for context in contexts
            ]  # fmt: skip
        else:
            rows = [(user, amount, 10**9) for user, amount in step]
            before = model.rows(*rows)
            assert Counter(before) == Counter(
                row
                for n, part in enumerate(parts)
                if (own := [each for each in rows if subtask_of_user(each[0], len(parts)) == n])
                for row in part.rows(*own)
            )
    assert result(model, *USERS) == {
        user: text
        for n, part in enumerate(parts)
        if (own := [user for user in USERS if subtask_of_user(user, len(parts)) == n])
        for user, text in result(part, *own).items()
    }


def subtask_of_user(user: str, parallelism: int) -> int:
    """Return which subtask a key belongs to."""
    group = key_groups([pa.array([user])], 128)[0].as_py()
    return group * parallelism // 128


def test_a_restore_makes_no_state_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of keys: their rows are indexed, in steps; a key's state is made in its turn, and once."""
    monkeypatch.setattr(restored_rows, "ROWS_OF_INDEX", 40)
    before = StatefulRun(Scripted(add_all), RESULT)
    users = [f"user {number}" for number in range(300)]
    before.rows(*((user, number, 10**9) for number, user in enumerate(users)))
    chunks = before.snapshot()
    rows = sum(each.table().num_rows for each in before.operator._runs.runs)
    for whole in (True, False):
        restored = StatefulRun(Scripted(add_all), RESULT)
        steps = sum(1 for _ in restored.operator.restore_in_steps(as_restored(chunks, whole=whole)))
        store = restored.operator._store
        assert (len(store.cells), steps > rows // 40) == (0, True)
        assert result(restored, users[7]) == result(before, users[7])
        assert list(store.cells) == [restored.operator._codes.codec.encode((users[7],))]
        assert result(restored, *users) == result(before, *users)
        assert store._restored.take(list(store.cells)) == {}, "nothing is given twice"


def test_a_restore_that_is_given_up_takes_nothing_from_the_next_one(tmp_path: Path) -> None:
    """A slot that dies or is cancelled in the middle; the next one restores the same chunks at another parallelism."""
    before = StatefulRun(Scripted(add_all), RESULT)
    before.rows(*((user, 3, 10**9) for user in USERS))
    chunks = before.snapshot()
    given_up = StatefulRun(Scripted(add_all), RESULT, memory_bytes=1, spill_folder=str(tmp_path / "first"))
    given_up.operator._store.close()
    steps = given_up.operator.restore_in_steps(as_restored(chunks))
    next(steps), next(steps)
    given_up.operator.close()
    for parallelism in (1, 2):
        found: dict[str, str] = {}
        for n in range(parallelism):
            facts: dict[str, Any] = {"subtask": n, "parallelism": parallelism}
            restored = for_subtask(chunks, before.context_with(**facts))
            folder = str(tmp_path / f"{parallelism}-{n}")
            part = StatefulRun(
                Scripted(add_all), RESULT, restored=restored, execution=1, memory_bytes=1, spill_folder=folder, **facts
            )
            found |= result(part, *(user for user in USERS if subtask_of_user(user, parallelism) == n))
        assert found == result(before, *USERS)


def test_timers_of_a_restore_fire_in_their_order_with_new_ones() -> None:
    """Of keys that nothing was asked of, deleted ones and those that chunks have twice not."""
    before = StatefulRun(Scripted(add_all), RESULT)
    before.rows(("a", 5, 10**9), ("b", 3, 10**9), ("c", 4, 10**9))
    chunks = before.snapshot()
    before.rows(("c", -4000, 10**9), ("a", -5000, 10**9))
    chunks = before.snapshot()
    before.rows(("a", 5, 10**9))
    chunks = before.snapshot()
    restored = StatefulRun(Scripted(add_all), RESULT, restored=as_restored(chunks), execution=1)
    restored.rows(("d", 4, 10**9), ("e", 3, 10**9))
    fired = [user for user, _ in restored.watermark(10**8)]
    assert fired == [user for user, _ in before_with(before, ("d", 4, 10**9), ("e", 3, 10**9)).watermark(10**8)]
    assert fired == ["b", "e", "d", "a"]
    assert restored.watermark(10**9) == []


def test_timers_of_one_key_that_fire_together_after_a_restore_find_its_state_once() -> None:
    """Its rows are asked for with those of all that fire."""

    def keep(p: Any, user: str, rows: Any, times: Any) -> None:
        for row in rows:
            p.list.appendValue((row.amount,))
            p.handle.registerTimer(row.amount)

    before = StatefulRun(Scripted(keep), RESULT)
    before.rows(("a", 5, 10**9), ("a", 7, 10**9))
    restored = StatefulRun(Scripted(keep), RESULT, restored=as_restored(before.snapshot()), execution=1)
    assert restored.watermark(10) == [("a", "5"), ("a", "7")]
    assert result(restored, "a") == {"a": "(None, [(5,), (7,)], [], [])"}


def before_with(stateful: StatefulRun, *rows: tuple[str, int, int]) -> StatefulRun:
    """Return the same run after rows."""
    stateful.rows(*rows)
    return stateful


def test_one_percent_of_the_keys_is_a_few_percent_of_the_bytes() -> None:
    """What changed is uploaded, and nothing else; chunks of before keep their names."""
    stateful = StatefulRun(Scripted(add_all), RESULT)
    users = [f"user-{number}" for number in range(5_000)]
    stateful.batch(many(users, 7))
    uploads = Uploads()
    everything = uploads.upload(stateful.snapshot())
    assert uploads.upload(stateful.snapshot()) == 0
    stateful.batch(many(users[::100], 8))
    assert 0 < uploads.upload(stateful.snapshot()) <= everything * 0.05


def test_chunks_are_few_and_rows_are_not_stored_over_and_over() -> None:
    """After many checkpoints: some runs, about as many bytes as a few times the state, and the right state."""
    stateful = StatefulRun(Scripted(add_all), RESULT)
    users = [f"user-{number}" for number in range(2_000)]
    stateful.batch(many(users, 1))
    uploads = Uploads()
    everything = uploads.upload(stateful.snapshot())
    uploaded, largest = 0, 0
    for number in range(100):
        stateful.batch(many(users[number * 20 : number * 20 + 20], 2))
        uploaded += uploads.upload(stateful.snapshot())
        largest = max(largest, len(stateful.snapshot()))
    assert largest <= 10
    assert uploaded < everything * 8
    chunks = stateful.snapshot()
    restored = StatefulRun(Scripted(add_all), RESULT, restored=as_restored(chunks), execution=1)
    assert result(restored, *users) == result(stateful, *users)
    assert [each.chunk_id for each in restored.snapshot()] == [each.chunk_id for each in chunks], "nothing is uploaded"


def test_hot_keys_do_not_make_the_lowest_run_be_stored_again() -> None:
    """Rows that replace one another are one when runs become one."""
    stateful = StatefulRun(Scripted(lambda p, user, rows, times: p.value.update((rows[0].amount,))), RESULT)
    stateful.batch(many([f"user-{number}" for number in range(2_000)], 1))
    uploads = Uploads()
    uploads.upload(stateful.snapshot())
    lowest = stateful.snapshot()[0].chunk_id
    for number in range(200):
        stateful.rows(*((f"user-{hot}", number, 10**9) for hot in range(20)))
        uploads.upload(stateful.snapshot())
    assert stateful.snapshot()[0].chunk_id == lowest


def many(users: list[str], amount: int) -> pa.RecordBatch:
    """Return a row for each user."""
    return events(*((user, amount, 10**9) for user in users))


def test_a_snapshot_stays_as_it_was() -> None:
    """It may be stored long after the operator went on."""
    stateful = StatefulRun(Scripted(add_all), RESULT)
    stateful.rows(("a", 1, 10**9), ("b", 2, 10**9))
    before = result(stateful, "a", "b")
    chunks = stateful.snapshot()
    stateful.rows(("a", 0, 10**9), ("b", 9, 10**9), ("c", 9, 10**9))
    stateful.snapshot()
    stateful.watermark(10**9)
    restored = StatefulRun(Scripted(add_all), RESULT, restored=as_restored(chunks), execution=1)
    assert result(restored, "a", "b") == before


def test_large_runs_wait_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After their upload they take no memory, and can be uploaded and merged again; with the last name they go."""
    monkeypatch.setattr(sorted_runs, "SPILL_BYTES", 1 << 14)
    stateful = StatefulRun(Scripted(add_all), RESULT, spill_folder=str(tmp_path / "spill"))
    users = [f"user-{number}" for number in range(300)]
    stateful.batch(many(users, 1))
    (chunk,) = stateful.snapshot()
    first = chunk.serialize()
    assert [path.stat().st_size > 1 << 14 for path in (tmp_path / "spill").iterdir()] == [True]
    assert chunk.serialize() == first
    stateful.batch(many(users, 2))
    stateful.batch(many(users, 3))
    (merged,) = stateful.snapshot()
    merged.serialize()
    restored = StatefulRun(Scripted(add_all), RESULT, restored=as_restored([merged]), execution=1)
    assert result(restored, "user-7") == result(stateful, "user-7")
    del chunk, first
    assert len(list((tmp_path / "spill").iterdir())) == 1


def test_timers_and_times_to_live_are_restored() -> None:
    """They go on where they were; what expired meanwhile is gone."""
    ttl = definition([("user", pa.string()), ("result", pa.string())], time_mode="processingtime")

    def keep(p: Any, user: str, rows: Any, times: Any) -> None:
        p.value.update((rows[0].amount,))
        p.list.appendValue((rows[0].amount,))
        p.map.updateValue(("x",), (rows[0].amount,))
        p.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 7000)

    stateful = StatefulRun(Scripted(keep, ttl_ms=10_000), ttl)
    stateful.rows(("a", 1, 0))
    stateful.now_ms += 6000
    stateful.rows(("b", 2, 0))
    chunks = as_restored(stateful.snapshot())
    restored = StatefulRun(Scripted(keep, ttl_ms=10_000), ttl, restored=chunks, execution=1, now_ms=1_011_000)
    assert restored.operator.due_ms() == 1_007_000
    assert restored.time(1_011_000) == [("a", "1007000")]
    assert restored.operator.due_ms() == 1_013_000
    assert result(restored, "a", "b") == {
        "a": "(None, [], [], [])",
        "b": "((2,), [(2,)], [(('x',), (2,))], [1013000])",
    }


def test_what_was_late_is_late_after_a_restore() -> None:
    """The watermark up to which timers fired is kept for each key group, and does not go back."""
    chunks = []
    for subtask, watermark in ((0, 1000), (1, 5000)):
        part = StatefulRun(Scripted(add_all), RESULT, subtask=subtask, parallelism=2)
        part.watermark(watermark)
        chunks += part.snapshot()
    one = StatefulRun(Scripted(add_all), RESULT, restored=as_restored(chunks), execution=1)
    of = {n: next(user for user in USERS if subtask_of_user(user, 2) == n) for n in (0, 1)}
    one.rows((of[0], 1, 1000), (of[0], 2, 1001), (of[1], 1, 5000), (of[1], 2, 5001))
    assert one.operator.late_rows == 2
    one.watermark(500)
    again = StatefulRun(Scripted(add_all), RESULT, restored=as_restored(one.snapshot()), execution=2)
    again.rows((of[0], 1, 1000), (of[1], 1, 5000), (of[1], 2, 5001))
    assert again.operator.late_rows == 2
    again.watermark(6000)
    again.rows((of[0], 1, 6000), (of[1], 1, 5999))
    assert again.operator.late_rows == 4


def test_the_initial_state_is_given_once() -> None:
    """At the first start, to the subtask of each key; not after a restore, at whatever parallelism."""
    state = pa.table({"user": USERS, "amount": range(len(USERS))})
    defined = msgspec.structs.replace(RESULT, initial_state=state)

    def initial(p: Any, user: str, row: Any, times: Any) -> None:
        p.value.update((row.amount,))
        p.handle.registerTimer(500)
        p.list.appendValue((times.getCurrentWatermarkInMs(),))

    def deploy(subtask: int, parallelism: int, restored: Any, execution: int) -> StatefulRun:
        return StatefulRun(
            Scripted(initial=initial), defined, restored=restored, subtask=subtask, parallelism=parallelism,
            execution=execution,
        )  # fmt: skip

    parts = [deploy(n, 3, (), 0) for n in range(3)]
    assert sum(len(part.operator._store.cells) for part in parts) == len(USERS)
    assert result(parts[subtask_of_user("user-4", 3)], "user-4") == {"user-4": "((4,), [(0,)], [], [500])"}
    chunks = [chunk for part in parts for chunk in part.snapshot()]
    one = deploy(0, 1, as_restored(chunks), 1)
    assert set(result(one, *USERS).values()) == {f"(({n},), [(0,)], [], [500])" for n in range(len(USERS))}
    again = deploy(0, 1, as_restored(deploy(0, 1, (), 0).snapshot()), 1)
    assert result(again, "user-1") == {"user-1": "((1,), [(0,)], [], [500])"}


def test_new_key_groups_get_their_initial_state() -> None:
    """A checkpoint from before the operator was in the query holds nothing of it."""
    defined = msgspec.structs.replace(RESULT, initial_state=pa.table({"user": USERS, "amount": range(len(USERS))}))
    without = StatefulRun(Scripted(), RESULT)
    initial = lambda p, user, row, times: p.value.update((row.amount,))  # noqa: E731
    restored = StatefulRun(Scripted(initial=initial), defined, restored=as_restored(without.snapshot()), execution=1)
    assert not restored.operator._store.cells, "that checkpoint was after the first start"


class Other(Scripted):
    """Declares other states."""

    def init(self, handle: Any) -> None:
        """Call the function."""
        self.handle = handle
        self.initial(handle)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("init", "says"),
    [
        (lambda handle: handle.getValueState("value", columns(n=IntegerType())),
         r"state 'value' of 'stateful' was stored as value \(n long\); Other now declares value \(n integer\)"),
        (lambda handle: handle.getListState("value", LONG), r"'value'.* stored as value \(n long\).* list \(n long\)"),
        (lambda handle: handle.getMapState("map", columns(name=LongType()), LONG),
         r"'map' .* map of \(name string\) \(n long\); Other now declares map of \(name long\)"),
    ],
)  # fmt: skip
def test_a_state_that_changed_is_refused(init: Any, says: str) -> None:
    """The error names the state, and both declarations."""
    chunks = StatefulRun(Scripted(add_all), RESULT).snapshot()
    with pytest.raises(StoredStateError, match=says):
        StatefulRun(Other(initial=init), RESULT, restored=as_restored(chunks))


def test_other_keys_are_refused() -> None:
    """State of keys that there are no more cannot be found."""
    chunks = StatefulRun(Scripted(add_all), RESULT).snapshot()
    with pytest.raises(StoredStateError, match=r"other keys: user string; the query now groups by amount long"):
        StatefulRun(Scripted(add_all), msgspec.structs.replace(RESULT, keys=("amount",)), restored=as_restored(chunks))


def test_a_state_that_is_not_declared_is_kept_until_it_is_deleted() -> None:
    """It is there when it is declared again; deleteIfExists throws it away for good."""
    stateful = StatefulRun(Scripted(add_all), RESULT)
    stateful.rows(("a", 1, 10**9))
    chunks = as_restored(stateful.snapshot())

    def init(handle: Any) -> None:
        handle.getListState("new", columns(name=StringType()))

    other = StatefulRun(Other(initial=init), RESULT, restored=chunks, execution=1)
    back = StatefulRun(Scripted(), RESULT, restored=as_restored(other.snapshot(), whole=False), execution=2)
    assert result(back, "a") == {"a": "((1,), [(1,)], [(('1',), (1,))], [1000])"}

    def delete(handle: Any) -> None:
        handle.deleteIfExists("map")
        handle.deleteIfExists("never")

    other = StatefulRun(Other(initial=delete), RESULT, restored=chunks, execution=1)
    back = StatefulRun(Scripted(), RESULT, restored=as_restored(other.snapshot()), execution=2)
    assert result(back, "a") == {"a": "((1,), [(1,)], [], [1000])"}


def test_bytes_that_are_no_chunk_are_refused() -> None:
    """Neither garbage, nor another table, nor another version."""
    header = ChunkHeader(version=2, keys="", states=())
    with pytest.raises(UnsupportedVersionError, match="version 2; this Headgate reads version 1"):
        read_chunk(write_chunk(SCHEMA.empty_table(), header), "x")
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, INPUT).close()
    for data in (b"", b"garbage", bytes(sink.getvalue())):
        with pytest.raises(CorruptStateError, match="The chunk x of keyed state cannot be read"):
            read_chunk(data, "x")


def test_version_1_is_read() -> None:
    """A chunk that was stored by the first release."""
    data = GOLDEN.read_bytes()
    chunk = RestoredChunk(chunk_id="golden", whole=True, read=lambda: data)
    restored = StatefulRun(Scripted(), RESULT, restored=[chunk])
    assert result(restored, "user-1", "user-2") == {
        "user-1": "((11,), [(1,), (11,)], [(('1',), (11,))], [1000, 11000])",
        "user-2": "((2,), [(2,)], [(('2',), (2,))], [2000])",
    }
    restored.rows(("user-1", 0, 899))
    assert restored.operator.late_rows == 1
