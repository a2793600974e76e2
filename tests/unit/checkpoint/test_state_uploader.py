"""Uploads of a slot: what did not change is not uploaded again, and what failed is."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headgate.checkpoint.state_uploader import StateUploader, WorkerThreads
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import HeadgateError, StoredStateError
from headgate.protocol.lost_files import lost_files
from headgate.protocol.state import ChunkState, FileState, InlineState, KeyedState

WAIT_S = 60.0


class FakeChunk(msgspec.Struct, frozen=True):
    """A chunk of keyed state, as an operator gives it."""

    chunk_id: str
    serialize: Callable[[], bytes]
    first_key_group: int = 0
    last_key_group: int = 127


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path / "checkpoints"))


@pytest.fixture
def uploader(storage: CheckpointStorage) -> Iterator[StateUploader]:
    made = StateUploader(storage, "run-1-slot-0-attempt-0", WorkerThreads(2))
    yield made
    made.close()


def never() -> bytes:
    raise AssertionError("it is there already")


def test_a_chunk_is_uploaded_once_however_many_checkpoints_name_it(
    storage: CheckpointStorage, uploader: StateUploader
) -> None:
    """The second checkpoint names it without its content."""
    big, small = FakeChunk("w/1", lambda: b"x" * 5000), FakeChunk("w/2", lambda: b"y", 3, 4)
    first = uploader.store_keyed("window", [big, small]).result(WAIT_S)
    assert [type(each.handle) for each in first.chunks] == [FileState, InlineState]
    assert [(each.chunk_id, each.first_key_group, each.last_key_group) for each in first.chunks] == [
        ("w/1", 0, 127), ("w/2", 3, 4),
    ]  # fmt: skip
    assert [storage.read_state(each.handle) for each in first.chunks] == [b"x" * 5000, b"y"]
    again = uploader.store_keyed("window", [FakeChunk("w/2", never, 3, 4), FakeChunk("w/1", never)]).result(WAIT_S)
    assert again.chunks == first.chunks[::-1]
    assert uploader.store_keyed("window", []).result(WAIT_S) == KeyedState()


def test_of_a_large_state_of_which_little_changed_little_is_uploaded(
    storage: CheckpointStorage, uploader: StateUploader
) -> None:
    """1 GB with 1 % touched, in small: a checkpoint after the first uploads at most 5 %."""
    rng = random.Random(7)
    content = {f"base-{n}": rng.randbytes(40_000) for n in range(100)}
    names = list(content)
    total = 0
    for checkpoint in range(1, 6):
        chunks = [FakeChunk(name, lambda name=name: content[name]) for name in names]  # type: ignore[misc]
        stored = uploader.store_keyed("window", chunks).result(WAIT_S)
        on_disk = sum(path.stat().st_size for path in Path(storage.store.path("shared")).rglob("*") if path.is_file())
        if checkpoint == 1:
            assert on_disk == 4_000_000
        else:
            assert 0 < on_disk - total <= 0.05 * 4_000_000
        assert [storage.read_state(each.handle) for each in stored.chunks] == [content[name] for name in names]
        total = on_disk
        content[f"touched-{checkpoint}"] = rng.randbytes(40_000)  # 1 % of the keys: one new chunk beside the others
        names.append(f"touched-{checkpoint}")


def test_a_restored_chunk_is_named_again_unless_its_file_is_of_a_savepoint(uploader: StateUploader) -> None:
    """Otherwise the query would need the savepoint's folder for ever."""
    own = ChunkState(chunk_id="a", handle=FileState("shared/w/a", 9, 8), first_key_group=0, last_key_group=1)
    inline = ChunkState(chunk_id="b", handle=InlineState(b"b"), first_key_group=0, last_key_group=1)
    assert uploader.adopt("w", own) and uploader.adopt("w", inline)
    assert uploader.store_keyed("w", [FakeChunk("b", never), FakeChunk("a", never)]).result(WAIT_S).chunks == (
        inline,
        own,
    )
    for path in ("/savepoints/x/shared/w/a", "s3://bucket/savepoint/shared/w/a"):
        assert not uploader.adopt("w", msgspec.structs.replace(own, handle=FileState(path, 9, 8)))


def test_what_failed_fails_its_checkpoint_and_is_uploaded_with_the_next(
    uploader: StateUploader, storage: CheckpointStorage
) -> None:
    """What was uploaded beside it is not uploaded again."""
    failing = True

    def sometimes() -> bytes:
        if failing:
            raise StoredStateError("no space left", what="a file", path="x")
        return b"z" * 5000

    stored = uploader.store_keyed("w", [FakeChunk("ok", lambda: b"o" * 5000), FakeChunk("bad", sometimes)])
    with pytest.raises(StoredStateError, match="no space left"):
        stored.result(WAIT_S)
    failing = False
    chunks = uploader.store_keyed("w", [FakeChunk("ok", never), FakeChunk("bad", sometimes)]).result(WAIT_S).chunks
    assert [storage.read_state(each.handle) for each in chunks] == [b"o" * 5000, b"z" * 5000]


def test_channel_state_is_stored_with_its_checkpoint_under_a_name_of_this_process(
    uploader: StateUploader, storage: CheckpointStorage
) -> None:
    """Never shared: a checkpoint of the same number, by a run that was taken over from, has other files."""
    handle = uploader.store_rows(7, "0/3/output/0", lambda: iter((b"c" * 5_000,) * 4), 2_000).result(WAIT_S)
    assert isinstance(handle, FileState)
    assert handle.path == "chk-7/0_3_output_0-run-1-slot-0-attempt-0"
    assert storage.read_state(handle) == b"c" * 20_000
    assert uploader.store_rows(7, "x", lambda: iter((b"c",)), 2_000).result(WAIT_S) == InlineState(b"c")


def test_channel_state_of_a_checkpoint_that_is_given_up_is_not_stored_to_its_end(
    uploader: StateUploader, storage: CheckpointStorage
) -> None:
    """Else uploads that nobody wants would hold up those of the next one."""
    given_up: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 5_000
            uploader.give_up(3)
            given_up.append(3)
            assert len(given_up) < 3

    for stored in (
        uploader.store_rows(3, "a", endless, 2_000),
        uploader.store_rows(2, "b", lambda: iter((b"b",)), 2_000),
    ):
        with pytest.raises(HeadgateError, match="given up"):
            stored.result(WAIT_S)
    assert uploader.store_rows(4, "c", lambda: iter((b"c",)), 2_000).result(WAIT_S) == InlineState(b"c")
    assert storage.store.names("chk-3", temporary=True) == []


def test_nobody_waits_for_ever_for_an_uploader_that_is_closed(uploader: StateUploader) -> None:
    """What waits and what comes later fails; what is under way ends."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        begun.set()
        assert go_on.wait(WAIT_S)
        yield b"s"

    under_way = uploader.store_rows(1, "slow", slow, 2_000)
    assert begun.wait(WAIT_S)
    uploader.store_rows(1, "other", lambda: iter((os.urandom(1),)), 2_000).result(WAIT_S)
    uploader.close()
    with pytest.raises(HeadgateError, match="is ending"):
        uploader.store_keyed("w", [FakeChunk("late", never)]).result(WAIT_S)
    go_on.set()
    assert under_way.result(WAIT_S) == InlineState(b"s")


def test_what_is_gone_is_uploaded_again_and_nothing_else(storage: CheckpointStorage, uploader: StateUploader) -> None:
    chunks = [FakeChunk(name, lambda name=name: name.encode() * 2000) for name in ("w/1", "w/2")]  # type: ignore[misc]
    first = uploader.store_keyed("window", chunks).result(WAIT_S)
    paths = [each.handle.path for each in first.chunks if isinstance(each.handle, FileState)]
    storage.store.delete(paths[0])
    lost = lost_files([paths[0], "shared/window/of-another-slot"])
    again = uploader.store_keyed("window", [chunks[0], FakeChunk("w/2", never)], lost).result(WAIT_S)
    assert again == first and [storage.read_state(each.handle) for each in again.chunks] == [
        b"w/1" * 2000, b"w/2" * 2000,
    ]  # fmt: skip
