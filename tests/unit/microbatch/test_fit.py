"""Whatever a source yields, Spark gets exactly the columns it was promised, in batches of bounded size."""

from __future__ import annotations

import pickle

import msgspec
import pyarrow as pa
import pytest

from headgate.errors import ConnectorContractError, DeploymentError
from headgate.microbatch.task import BATCH_BYTES, fit
from headgate.versions import Versions, check_versions

SCHEMA = pa.schema([pa.field("a", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])


def one(batch: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    pieces = list(fit(batch, schema, "demo"))
    assert len(pieces) == 1
    return pieces[0]


def test_columns_are_reordered_cast_and_left_out() -> None:
    batch = pa.record_batch(
        {"extra": ["x"], "at": pa.array([5], pa.timestamp("s", "UTC")), "a": pa.array([1], pa.int16())}
    )
    assert one(batch).to_pylist() == one(pa.record_batch({"a": [1], "at": batch["at"]})).to_pylist()
    assert one(batch).schema == SCHEMA


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.record_batch({"a": [1]}), r"'at' should be timestamp\[us, tz=UTC\], but it has only \['a'\]"),
        (pa.record_batch({"a": ["one"], "at": [None]}), r"'a' should be int64, but it has string"),
        (pa.record_batch({"a": [2**40], "at": [None]}), r"'a' should be int8"),
        (pa.record_batch({"a": pa.array([None], pa.int8()), "at": [None]}), r"it has nulls\. Declare"),
    ],
)
def test_a_column_that_does_not_fit_is_named(batch: pa.RecordBatch, message: str) -> None:
    schema = SCHEMA
    if "int8" in message:
        schema = pa.schema([pa.field("a", pa.int8()), SCHEMA.field("at")])
    elif "nulls" in message:
        schema = pa.schema([pa.field("a", pa.int8(), nullable=False), SCHEMA.field("at")])
    with pytest.raises(ConnectorContractError, match=message):
        list(fit(batch, schema, "demo"))


def test_large_batches_are_cut_and_nothing_is_lost() -> None:
    batch = pa.record_batch({"a": range(1_000_000), "at": pa.nulls(1_000_000, pa.timestamp("us", "UTC"))})
    pieces = list(fit(batch, SCHEMA, "demo"))
    assert len(pieces) > 1
    assert max(piece.nbytes for piece in pieces) < 1.1 * BATCH_BYTES
    assert pa.Table.from_batches(pieces)["a"].to_pylist() == list(range(1_000_000))


def test_empty_batches_are_left_out() -> None:
    assert list(fit(pa.record_batch({"a": pa.array([], pa.int64())}), SCHEMA, "demo")) == []


def test_an_executor_with_other_versions_learns_both() -> None:
    here = Versions.here()
    check_versions(pickle.loads(pickle.dumps(here)))
    with pytest.raises(DeploymentError, match=r"the driver has headgate 9\.9\.9.*docs/deploy\.md") as caught:
        check_versions(msgspec.structs.replace(here, headgate="9.9.9"))
    assert caught.value.driver["headgate"] == "9.9.9"
    assert pickle.loads(pickle.dumps(caught.value)).executor == msgspec.to_builtins(here)
