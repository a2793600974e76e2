"""Copies of keyed state on a slot's host: read instead of the store, never trusted, and gone when nobody names them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from headgate.checkpoint.local_copies import LocalCopies
from headgate.checkpoint.state_uploader import StateUploader, WorkerThreads
from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.state import FileState, StateHandle
from tests.unit.checkpoint.test_state_uploader import FakeChunk

WAIT_S = 60.0
UID = "counts by/user.2"


class Slot:
    """An attempt of a slot, which stores chunks and reads them."""

    def __init__(self, folder: Path, attempt: int = 0) -> None:
        self.storage = CheckpointStorage(str(folder / "checkpoints"))
        self.read: list[str] = []  # from the store
        self.copies = LocalCopies(str(folder / "copies"), self._from_store)
        self.uploader = StateUploader(self.storage, f"1-0-{attempt}", WorkerThreads(1), self.copies)

    def snapshot(self, *names: str) -> list[FileState]:
        chunks = [FakeChunk(name, lambda name=name: content(name)) for name in names]  # type: ignore[misc]
        stored = self.uploader.store_keyed(UID, chunks).result(WAIT_S)
        return [each.handle for each in stored.chunks if isinstance(each.handle, FileState)]

    def restored(self, handles: Sequence[FileState]) -> list[bytes]:
        return [self.copies.read_state(each) for each in handles]

    def _from_store(self, handle: FileState) -> bytes:
        self.read.append(handle.path)
        return self.storage.read_state(handle)


def content(name: str) -> bytes:
    return name.encode() * 3000


def copied(folder: Path) -> set[str]:
    return {name for _, _, names in os.walk(folder / "copies") for name in names}


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    made = Slot(tmp_path)
    yield made
    made.uploader.close()


def test_the_attempt_after_it_reads_what_a_slot_copied(slot: Slot, tmp_path: Path) -> None:
    handles = slot.snapshot("w/1", "w 2")
    again = Slot(tmp_path, attempt=1)
    assert again.restored(handles) == [content("w/1"), content("w 2")] and not again.read
    assert slot.restored(handles) == again.restored(handles) and not slot.read, "and one that lived"
    again.copies.delete()
    assert not copied(tmp_path)
    assert again.restored(handles) == [content("w/1"), content("w 2")]
    assert again.read == [each.path for each in handles], "on another host it reads the store, and copies what it read"
    assert again.restored(handles) and len(again.read) == 2


def test_a_copy_goes_when_two_snapshots_do_not_name_it(slot: Slot, tmp_path: Path) -> None:
    """The one before may be that of the last completed checkpoint."""
    (tmp_path / "copies/shared/counts_by_user.2").mkdir(parents=True)
    for left in ("old", "old.part"):
        (tmp_path / "copies/shared/counts_by_user.2" / left).write_bytes(b"of an attempt that was killed")
    seen = []
    for names in (["a", "b"], ["b", "c"], ["c"], ["c", "d"]):
        slot.snapshot(*names)
        slot.uploader.load(lambda: None).result(WAIT_S)  # after the deletions
        seen.append(copied(tmp_path))
    assert seen == [{"a", "b"}, {"a", "b", "c"}, {"b", "c"}, {"c", "d"}]


@pytest.mark.parametrize("damage", [b"", content("b"), content("a") + b"a"])
def test_a_damaged_copy_is_not_used(slot: Slot, tmp_path: Path, damage: bytes) -> None:
    (handle,) = slot.snapshot("a")
    (copy,) = (path for path in (tmp_path / "copies").rglob("*") if path.is_file())
    copy.write_bytes(damage)
    assert slot.restored([handle]) == [content("a")] and slot.read == [handle.path]
    assert copy.read_bytes() == content("a")


def test_only_chunks_of_the_location_are_copied(slot: Slot, tmp_path: Path) -> None:
    """Names of other files come again with another content, and those of another location lead anywhere."""
    items: StateHandle = slot.storage.write_state(1, "sink", b"x" * 100, 0)
    assert isinstance(items, FileState)
    elsewhere = msgspec.structs.replace(items, path=f"{tmp_path}/checkpoints/{items.path}")
    assert slot.restored([items, elsewhere, items, elsewhere]) == [b"x" * 100] * 4
    assert len(slot.read) == 4 and not copied(tmp_path)


def test_a_disk_without_room_is_no_failure(slot: Slot, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "copies").write_bytes(b"a file where the folder should be")
    handles = slot.snapshot("a", "b")
    assert slot.restored(handles) == [content("a"), content("b")]
    assert [each.levelname for each in caplog.records] == ["WARNING"], "once"
