"""A checkpoint location as a query leaves it: a topic's partitions, windows by key, a file, and an older checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from typer.testing import CliRunner, Result

from headgate.checkpoint.manifest import Manifest, SourceEntry
from headgate.checkpoint.storage import INLINE_BYTES, CheckpointStorage
from headgate.cli import app
from headgate.connectors.kafka.split import SPLIT_SERIALIZER, STATE_SERIALIZER, KafkaSplit, KafkaState
from headgate.coordinator.sources.source_state import SourceState, encode_source_state
from headgate.expressions.expressions import Bound
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import TimeWindow
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChunkState,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)
from headgate.protocol.state_schema import StateColumn, StateSchema
from tests.unit.operators.windows.window_world import SCHEMA, Subtasks, batch, made

WINDOW = TimeWindow(Bound(0, "at"), 10_000_000, 10_000_000)
COUNT = Aggregate("count")
SUM = Aggregate("sum", Bound(2, "v"))
STATE_SCHEMA = StateSchema(
    window=WINDOW.text,
    keys=(StateColumn(name="k", kind="int64"),),
    aggregates=(COUNT.state_column(None), SUM.state_column(pa.int64())),
)


def run(*arguments: object) -> Result:
    """Run the command line."""
    return CliRunner().invoke(app, [str(each) for each in arguments])


def run_json(*arguments: object, exit_code: int = 0) -> Any:
    """Run a command with ``--json``, and return the document that it writes."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def split(partition: int, position: int, **facts: Any) -> KafkaSplit:
    return KafkaSplit(split_id=f"rides-{partition}", topic="rides", partition=partition, position=position, **facts)


def window_chunks(folder: Path) -> tuple[list[ChunkState], StateSchema]:
    """Return the state of windows: of key 1 two rows and of key 2 one; those of the first window were emitted."""

    def operator() -> Any:
        operator = made(SCHEMA, WINDOW, ["k"], [COUNT, SUM])
        operator.state_schema = STATE_SCHEMA
        return operator

    world = Subtasks(operator, folder)
    world.process(batch((1, 1, 100), (11, 1, 5), (12, 1, 7), (13, 2, 11)))
    world.watermark(10_000)
    chunks = world.operators[0].snapshot_keyed(1)
    return [
        ChunkState(chunk_id=each.chunk_id, handle=InlineState(each.serialize()), first_key_group=0, last_key_group=7)
        for each in chunks
    ], STATE_SCHEMA


def checkpoint(storage: CheckpointStorage, folder: Path, checkpoint_id: int, **facts: Any) -> Manifest:
    """Return a checkpoint whose large state is written."""
    chunks, schema = window_chunks(folder / f"spill-{checkpoint_id}")
    large = storage.write_state(checkpoint_id, "sink", b"x" * (INLINE_BYTES + 1))
    enumerator = KafkaState(
        initial_discovery_finished=True,
        unassigned=(split(0, 1), split(2, 30)),
        assigned={"rides": ((0, 0), (1, 0))},
        parallelism=1,
    )
    # The enumerator's copy of what was assigned after its state was taken does not count.
    state = SourceState(STATE_SERIALIZER.serialize(enumerator), assigned=("rides-0",))
    given = [split(0, 10 * checkpoint_id), split(1, 500, stop=1000)]
    manifest = Manifest(
        checkpoint_id=checkpoint_id, epoch=checkpoint_id, kind=CheckpointKind.CHECKPOINT, query_id="q", run=1,
        created_ms=1_790_000_000_000 + checkpoint_id, parallelism=1, max_parallelism=8,
        stages=(("rides",), ("window", "sink")),
        sources={
            "rides": SourceEntry(name="headgate.kafka", enumerator=InlineState(encode_source_state(state)))
        },
        subtasks=(
            (
                SubtaskState(
                    readers={
                        "rides": ReaderState(
                            splits=tuple(SplitState(each.split_id, SPLIT_SERIALIZER.serialize(each)) for each in given)
                        )
                    }
                ),
            ),
            (
                SubtaskState(
                    operators={"sink": OperatorState(items=(large,))},
                    keyed={"window": KeyedState(chunks=tuple(chunks))},
                ),
            ),
        ),
        signatures={"window": f"count(1), sum(v) in {WINDOW.text} by k int64"},
        state_schemas={"window": schema},
    )  # fmt: skip
    return msgspec.structs.replace(manifest, **facts)


def stored_query(folder: Path) -> Path:
    """Return a location with the checkpoints 1 and 2."""
    location = folder / "checkpoints"
    storage = CheckpointStorage(str(location))
    for checkpoint_id in (1, 2):
        storage.write_manifest(checkpoint(storage, folder, checkpoint_id))
    return location
