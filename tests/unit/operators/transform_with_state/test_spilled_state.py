"""State beyond ``memory_bytes``: what functions see of it is the same, in snapshots too, and memory is bounded."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stateful_processors import Scripted, state_of
from stateful_runs import StatefulRun, for_subtask
from test_stateful_snapshots import RESULT, STEP, add_all, subtask_of_user

HERE = Path(__file__).parent


@settings(max_examples=20)
@given(life=st.lists(STEP, max_size=25), memory_bytes=st.sampled_from([1, 700, 3000]))
def test_any_life_is_as_in_memory(life: list[Any], memory_bytes: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("spilled")
    made = iter(range(10**6))

    def part(**facts: Any) -> StatefulRun:
        bounded = {"memory_bytes": memory_bytes, "spill_folder": str(folder / str(next(made)))}
        return StatefulRun(Scripted(add_all), RESULT, **bounded, **facts)

    model, parts, execution = StatefulRun(Scripted(add_all), RESULT), [part()], 0
    for step in life:
        if step == "lost":
            for each in parts:
                each.snapshot()
        elif step == "snapshot" or isinstance(step, int):
            chunks = [chunk for each in parts for chunk in each.snapshot()]
            parallelism = step if isinstance(step, int) else len(parts)
            execution += 1
            before, parts = parts, []
            for n in range(parallelism):
                facts: dict[str, Any] = {"subtask": n, "parallelism": parallelism}
                restored = for_subtask(chunks, before[0].context_with(**facts))
                parts.append(part(execution=execution, restored=restored, **facts))
            for each in before:
                each.operator.close()
        else:
            rows = [(user, amount, 10**9) for user, amount in step]
            assert Counter(model.rows(*rows)) == Counter(
                row
                for n, each in enumerate(parts)
                if (own := [row for row in rows if subtask_of_user(row[0], len(parts)) == n])
                for row in each.rows(*own)
            )
    at_ms = 10**8
    assert sorted(model.watermark(at_ms)) == sorted(row for each in parts for row in each.watermark(at_ms))


def test_what_expires_and_what_is_cleared_is_forgotten_on_the_disk(tmp_path: Path) -> None:
    defined = msgspec.structs.replace(RESULT, time_mode="processingtime", event_time=None)

    def keep(p: Any, user: Any, rows: Any, times: Any) -> Any:
        if rows[0].amount:
            p.value.update((1,)), p.list.appendValue((1,)), p.map.updateValue(("x",), (1,))
            return None
        return state_of(p)

    run = StatefulRun(Scripted(keep, ttl_ms=60_000), defined, memory_bytes=1, spill_folder=str(tmp_path))
    run.rows(*((f"user {n}", 1, 0) for n in range(50)))
    store = run.operator._store
    older = sum(map(len, store._older))
    assert (len(store.cells), older + len(store._spilled)) == (0, 50)  # type: ignore[arg-type]
    assert 0 < older < 5, "those that were used last are in memory"
    run.time(run.now_ms + 200_000)
    assert len(store._spilled) == sum(map(len, (store.cells, *store._older))) == 0  # type: ignore[arg-type]
    assert run.rows(("user 7", 0, 0)) == [("user 7", "(None, [], [], [])")]
    run.operator.close()
    assert not list(tmp_path.glob("cells-*")), "files have no names"


PROGRAM = """
import gc, sys
sys.path.insert(0, {here!r})
from stateful_processors import Scripted, columns
from stateful_runs import StatefulRun, as_restored, definition, events
from pyspark.sql.types import StringType
import pyarrow as pa
from stateful_processors import LONG

MEMORY = 8 << 20
KEYS = 18_000

def anonymous():
    gc.collect()
    pa.default_memory_pool().release_unused()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

class Texts(Scripted):
    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("value", columns(text=StringType(), n=LONG["n"].dataType))

def add(p, user, rows, times):
    known = p.value.get() or ("", 0)
    p.value.update((user * 400, known[1] + len(rows)))
    return None

def read(p, user, rows, times):
    text, n = p.value.get()
    assert text == user * 400
    return n

defined = definition([("user", pa.string()), ("result", pa.string())])
run = StatefulRun(Texts(add), defined, memory_bytes=MEMORY, spill_folder=sys.argv[1] + "/first")
run.rows(*(("warm %08d" % n, 1, 0) for n in range(2_500)))
run.operator.snapshot_keyed(0)
most = first = anonymous()
stored = {{}}
for turn in range(2):
    for begin in range(0, KEYS, 2000):
        run.rows(*(("user %08d" % n, 1, 0) for n in range(begin, begin + 2000)))
        if begin % 4_000 == 0:
            for chunk in run.snapshot():
                if chunk.chunk_id not in stored:
                    path = sys.argv[1] + "/" + str(len(stored))
                    stored[chunk.chunk_id] = path
                    with open(path, "wb") as file:
                        file.write(chunk.serialize())
            most = max(most, anonymous())
chunks = run.snapshot()
size = 0
for chunk in chunks:
    if chunk.chunk_id not in stored:
        stored[chunk.chunk_id] = sys.argv[1] + "/" + str(len(stored))
        with open(stored[chunk.chunk_id], "wb") as file:
            file.write(chunk.serialize())
most = max(most, anonymous())
state = sum(each.table().nbytes for each in run.operator._runs.runs)
from headgate.state.chunks import RestoredChunk
found = [
    RestoredChunk(chunk_id=each.chunk_id, whole=True, read=open(stored[each.chunk_id], "rb").read) for each in chunks
]
run.operator.close()
del run, chunks
before = anonymous()
again = StatefulRun(Texts(read), defined, restored=found, memory_bytes=MEMORY, spill_folder=sys.argv[1] + "/second")
grown = anonymous() - before
results = {{}}
for begin in range(0, KEYS, 2000):
    results.update(again.rows(*(("user %08d" % n, 1, 0) for n in range(begin, begin + 2000))))
assert set(results.values()) == {{"2"}} and len(results) == KEYS, set(results.values())
print(state, most - first, grown, MEMORY, len(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured by /proc")
def test_ten_times_the_memory(tmp_path: Path) -> None:
    """The state is ten times as large as it may be in memory; what is allocated is a small multiple of that."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(here=str(HERE)))
    done = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state, grown, grown_by_restore, memory, _ = map(int, done.stdout.split())
    assert state > 10 * memory
    assert grown < 5 * memory, f"{grown >> 20} MiB"
    assert grown_by_restore < 5 * memory, f"{grown_by_restore >> 20} MiB"
