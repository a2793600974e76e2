"""Checkpoints on S3, over moto's server: one PUT a file, and one owner of a location."""

from __future__ import annotations

import itertools
import uuid
import zlib
from typing import Any

import msgspec
import pytest

from headgate.checkpoint.coordinator import StoredCheckpoints
from headgate.checkpoint.file_store import S3Store
from headgate.checkpoint.manifest import Manifest, SourceEntry
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import INLINE_BYTES, CheckpointStorage
from headgate.errors import CorruptStateError, StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChannelState,
    FileState,
    InlineState,
    OperatorState,
    StateHandle,
    SubtaskState,
)
from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, MotoServer

BIG = b"x" * (INLINE_BYTES + 1)


class Bucket:
    """A bucket of a test's own."""

    def __init__(self, server: MotoServer) -> None:
        self.name = f"checkpoints-{uuid.uuid4().hex[:8]}"
        self.s3: Any = server.client("s3")
        self.s3.create_bucket(Bucket=self.name)
        self.endpoint = server.url

    def storage(self, path: str, scheme: str = "s3") -> CheckpointStorage:
        return CheckpointStorage(self.address(path, scheme))

    def address(self, path: str, scheme: str = "s3") -> str:
        parameters = f"region={REGION}&endpoint_override={self.endpoint}"
        return f"{scheme}://{ACCESS_KEY}:{SECRET_KEY}@{self.name}/{path}?{parameters}"

    def listed(self) -> list[str]:
        found = self.s3.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(each["Key"] for each in found)


@pytest.fixture
def bucket(aws: MotoServer) -> Bucket:
    return Bucket(aws)


def manifest(checkpoint_id: int, run: int, enumerator: bytes = b"{}", *items: StateHandle) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id, epoch=1, kind=CheckpointKind.CHECKPOINT, query_id="q", run=run, created_ms=0,
        parallelism=1, max_parallelism=128, stages=(("rides", "sink"),),
        sources={"rides": SourceEntry(name="numbers", enumerator=InlineState(enumerator))},
        subtasks=((SubtaskState(operators={"sink": OperatorState(items=items)}),),),
    )  # fmt: skip


def test_checkpoints_are_written_read_and_deleted(bucket: Bucket) -> None:
    storage = bucket.storage("rides")
    assert storage.load_newest() is None and storage.query_id("q") == "q" and storage.query_id("r") == "q"
    big = storage.write_state(1, "sink", BIG)
    assert isinstance(big, FileState) and storage.read_state(big) == BIG
    first = manifest(1, 1, BIG, big)
    storage.write_manifest(first)
    storage.write_manifest(first)  # the answer to the first PUT was lost
    with pytest.raises(StoredStateError, match="never overwritten"):
        storage.write_manifest(manifest(1, 1))
    storage.write_state(2, "sink", BIG)
    again = bucket.storage("rides", "s3a")
    assert again.load_newest() == first
    assert again.stored() == StoredCheckpoints((1,), (2,))
    for each in (1, 2):
        again.delete(each)
    assert [each for each in bucket.listed() if "chk-" in each] == []


def test_a_damaged_file_is_named_without_the_key(bucket: Bucket) -> None:
    storage = bucket.storage("rides")
    storage.write_manifest(manifest(1, 1, BIG))
    bucket.s3.put_object(Bucket=bucket.name, Key="rides/chk-1/enumerator-0-rides-run-1", Body=BIG[:-1])
    with pytest.raises(CorruptStateError, match=f"{bucket.name}/rides/chk-1/enumerator-0-rides-run-1") as caught:
        storage.load_newest()
    assert SECRET_KEY not in f"{caught.value} {caught.value.facts}"


def test_a_savepoint_elsewhere_is_restored_from(bucket: Bucket) -> None:
    storage = bucket.storage("rides")
    made = manifest(1, 1, BIG, storage.write_state(1, "sink", BIG))
    storage.write_manifest(made, location=bucket.address("savepoints/one"))
    storage.delete(1)
    loaded = bucket.storage("savepoints/one/").load_savepoint()
    assert loaded.sources == made.sources
    assert bucket.storage("other").read_state(loaded.subtasks[0][0].operators["sink"].items[0]) == BIG


def test_parts_of_a_file_are_read_by_themselves(bucket: Bucket) -> None:
    """The state of many channels is one object; who takes on one of them asks for its bytes only."""
    storage = bucket.storage("rides")
    states = (b"first" * 10, b"second" * 1000, b"x" * (3 << 20))
    file = storage.write_state(1, "0-1-output-0", iter(states), inline_bytes=0)
    assert isinstance(file, FileState)
    begins = itertools.accumulate(map(len, states), initial=0)
    parts = [FileState(file.path, len(each), zlib.crc32(each), begin) for begin, each in zip(begins, states)]
    channels = tuple(
        ChannelState(
            exchange="e", producer=n, consumer=0, output=True, handle=part, buffers=1, rows=1, size_bytes=1
        )
        for n, part in enumerate(parts)
    )  # fmt: skip
    made = msgspec.structs.replace(manifest(1, 1), channels=channels, channels_parallelism=3)
    storage.write_manifest(made)
    storage.write_manifest(made, location=bucket.address("savepoints/one"))
    assert bucket.storage("rides").load_newest() == made
    loaded = bucket.storage("savepoints/one/").load_savepoint()
    for of in (made, loaded):
        handles = [each.handle for each in of.channels]
        assert [storage.read_state(each) for each in handles] == [*states]
        assert [storage.open_state(each).read() for each in handles] == [*states]
    bucket.s3.put_object(Bucket=bucket.name, Key="rides/chk-1/0-1-output-0", Body=b"".join(states)[:-1] + b"y")
    assert storage.open_state(parts[1]).read() == states[1]
    for read in (storage.read_state, storage.open_state):
        with pytest.raises(CorruptStateError, match=f"{bucket.name}/rides/chk-1/0-1-output-0 .* from byte 6050 on"):
            read(parts[2])
    storage.delete(1)
    assert [each for each in bucket.listed() if "rides/chk-" in each] == []


def test_two_starts_in_one_instant_get_two_runs_and_the_older_one_is_fenced(bucket: Bucket) -> None:
    first, second = bucket.storage("rides"), bucket.storage("rides")
    names = second.store.names
    runs: list[Ownership] = []

    def names_before_the_other_start(folder: str = "") -> list[str]:
        found = names(folder)
        if not runs:
            runs.append(Ownership.claim(first.store))
        return found

    second.store.names = names_before_the_other_start  # type: ignore[method-assign]
    new = Ownership.claim(second.store)
    assert (runs[0].run, new.run) == (1, 2)
    with pytest.raises(StoredStateError, match="Run 2 has taken over"):
        first.write_manifest(manifest(1, 1))
    assert "rides/chk-1/_metadata" not in bucket.listed()
    second.write_manifest(manifest(1, 2))


def test_two_puts_of_one_file_at_once_are_settled(bucket: Bucket) -> None:
    """Amazon answers 409 to the slower one, which has to ask again."""
    from botocore.exceptions import ClientError

    class Busy:
        calls = 0

        def put_object(self, **request: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                bucket.s3.put_object(Bucket=bucket.name, Key="rides/runs/1", Body=b'{"by":"the other"}')
                raise ClientError({"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject")
            return bucket.s3.put_object(**request)

    storage = bucket.storage("rides")
    assert isinstance(storage.store, S3Store)
    storage.store._client = Busy()
    assert Ownership.claim(storage.store).run == 2
