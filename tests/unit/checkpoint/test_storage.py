"""Checkpoints on disks: complete or not there, whenever the process dies; damage is named; one owner."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import fs as pa_fs

from headgate.checkpoint import file_store
from headgate.checkpoint.coordinator import StoredCheckpoints
from headgate.checkpoint.file_store import FileStore
from headgate.checkpoint.manifest import Manifest, SourceEntry, serialize
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import INLINE_BYTES, CheckpointStorage, belongs_here
from headgate.errors import CorruptStateError, InternalError, OptionError, StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    FileState,
    InFlightRows,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    StateHandle,
    SubtaskState,
)

BIG = b"x" * (INLINE_BYTES + 1)


def manifest(checkpoint_id: int, run: int = 1, enumerator: bytes = b"{}", *items: StateHandle) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id, epoch=checkpoint_id, kind=CheckpointKind.CHECKPOINT, query_id="q", run=run,
        created_ms=0, parallelism=1, max_parallelism=128, stages=(("rides", "sink"),),
        sources={"rides": SourceEntry(name="numbers", enumerator=InlineState(enumerator))},
        subtasks=((SubtaskState(operators={"sink": OperatorState(items=items)}),),),
    )  # fmt: skip


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "rides"


@pytest.fixture(params=["local", "any file system of pyarrow's"])
def storage(request: pytest.FixtureRequest, location: Path) -> CheckpointStorage:
    if request.param == "local":
        return CheckpointStorage(str(location))
    location.parent.mkdir()
    file_system = pa_fs.SubTreeFileSystem(str(location.parent), pa_fs.LocalFileSystem())
    return CheckpointStorage("", FileStore(file_system, "rides"))


def test_what_is_written_is_read(storage: CheckpointStorage) -> None:
    assert storage.load_newest() is None
    small, big = storage.write_state(1, "sink/0", b"abc"), storage.write_state(1, "sink/1", BIG)
    assert small == InlineState(b"abc") and isinstance(big, FileState)
    first = manifest(1, 1, BIG, small, big)
    assert storage.write_manifest(first) > len(BIG)
    assert storage.load_newest() == first
    assert [storage.read_state(each) for each in (small, big)] == [b"abc", BIG]
    storage.write_state(2, "sink/0", BIG)
    assert storage.stored() == StoredCheckpoints((1,), (2,))
    storage.write_manifest(manifest(10))
    storage.write_manifest(manifest(9))
    loaded = storage.load_newest()
    assert loaded is not None and loaded.checkpoint_id == 10
    for each in (1, 2, 2, 10):
        storage.delete(each)
    assert storage.stored() == StoredCheckpoints((9,))


def test_large_states_stay_out_of_the_manifest(location: Path) -> None:
    storage = CheckpointStorage(f"file://{location}")
    storage.write_manifest(manifest(1, 1, BIG))
    assert (location / "chk-1/_metadata").stat().st_size < INLINE_BYTES
    assert (location / "chk-1/enumerator-0-rides-run-1").read_bytes() == BIG


def test_a_manifest_is_never_overwritten(storage: CheckpointStorage) -> None:
    storage.write_manifest(manifest(1))
    storage.write_manifest(manifest(1))  # the same again, after an answer that was lost
    with pytest.raises(StoredStateError, match=r"already in .*chk-1, .*chk-1/_metadata"):
        storage.write_manifest(manifest(1, 1, b'{"other":1}'))


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
@pytest.mark.parametrize("name", ["_metadata", "enumerator-0-rides-run-1", "sink"])
def test_damage_names_the_file_and_the_one_before_may_be_taken(location: Path, name: str, how: str) -> None:
    storage = CheckpointStorage(str(location))
    storage.write_manifest(manifest(1))
    storage.write_manifest(manifest(2, 1, BIG, storage.write_state(2, "sink", BIG)))
    damage(location / "chk-2" / name, how)
    if (name, how) == ("_metadata", "missing"):
        assert storage.stored() == StoredCheckpoints((1,), (2,))  # never completed, or half deleted
        return
    if (name, how) == ("sink", "changed"):
        with pytest.raises(CorruptStateError, match="chk-2/sink"):
            storage.read_state(storage.load(2).subtasks[0][0].operators["sink"].items[0])
        return
    with pytest.raises(CorruptStateError, match=f"chk-2/{name}") as caught:
        storage.load_newest()
    assert caught.value.path == str(location / "chk-2" / name)
    assert storage.load_newest(fall_back=True) == manifest(1)
    damage(location / "chk-1/_metadata", "cut")
    with pytest.raises(CorruptStateError, match="chk-2"):
        storage.load_newest(fall_back=True)


def test_a_savepoint_needs_nothing_outside_of_its_folder(location: Path, tmp_path: Path) -> None:
    storage = CheckpointStorage(str(location))
    made = manifest(3, 1, BIG, storage.write_state(3, "sink", BIG), InlineState(b"i"))
    storage.write_manifest(made, location=str(tmp_path / "first"))
    storage.write_manifest(made)
    chk = CheckpointStorage(str(location / "chk-3")).load_savepoint()
    assert [storage.read_state(each) for each in chk.subtasks[0][0].operators["sink"].items] == [BIG, b"i"]
    storage.delete(3)
    os.rename(tmp_path / "first", tmp_path / "moved")
    loaded = CheckpointStorage(f"{tmp_path}/moved/").load_savepoint()
    assert loaded.sources == made.sources
    elsewhere = CheckpointStorage(str(tmp_path / "other"))
    assert [elsewhere.read_state(each) for each in loaded.subtasks[0][0].operators["sink"].items] == [BIG, b"i"]
    with pytest.raises(StoredStateError, match="give another folder"):
        storage.write_manifest(manifest(4), location=str(tmp_path / "moved"))
    with pytest.raises(StoredStateError, match=r"There is no savepoint in .*/other"):
        elsewhere.load_savepoint()


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_second_savepoint_into_a_folder_leaves_the_first_as_it_was(location: Path, tmp_path: Path) -> None:
    storage, folder = CheckpointStorage(str(location)), tmp_path / "savepoint"
    first = manifest(3, 1, BIG, storage.write_state(3, "sink", BIG))
    storage.write_manifest(first, location=str(folder))
    before = everything_in(folder)
    storage.write_manifest(first, location=str(folder))  # the same again, after an answer that was lost
    other = manifest(4, 1, BIG[::-1] + b"y", storage.write_state(4, "sink", BIG + b"y"))
    with pytest.raises(StoredStateError, match=rf"already in {folder}, .*give another folder"):
        storage.write_manifest(other, location=str(folder))
    assert everything_in(folder) == before
    assert CheckpointStorage(str(folder)).load_savepoint().sources == first.sources


def test_a_savepoint_that_failed_is_deleted_whole_and_no_other(location: Path, tmp_path: Path) -> None:
    storage, folder = CheckpointStorage(str(location)), tmp_path / "savepoint"
    made = manifest(3, 1, BIG, storage.write_state(3, "sink", BIG))
    storage.delete_savepoint(made, str(folder))  # nothing of it was written
    storage.write_manifest(made, location=str(folder))
    (folder / "notes.txt").write_text("the user's")
    storage.delete_savepoint(made, str(folder))
    assert everything_in(folder) == {"notes.txt": b"the user's"}
    storage.write_manifest(made, location=str(folder))  # the next try
    before = everything_in(folder)
    storage.delete_savepoint(manifest(4), str(folder))  # it failed, since this one is there
    assert everything_in(folder) == before
    (folder / "_metadata").write_bytes(b"something else")
    storage.delete_savepoint(made, str(folder))
    assert everything_in(folder) == {"notes.txt": b"the user's", "_metadata": b"something else"}


def test_two_savepoints_that_are_written_into_a_folder_at_once_do_not_meet(tmp_path: Path) -> None:
    """Who looks first sees nothing of the other: only one may win, and all that it names is its own."""
    folder = str(tmp_path / "savepoint")
    storages = [CheckpointStorage(str(tmp_path / name)) for name in ("here", "there")]
    mine, other = (
        msgspec.structs.replace(
            manifest(3, 1, fill * len(BIG), storage.write_state(3, "sink", fill * len(BIG))), query_id=f"q{number}"
        )
        for number, (fill, storage) in enumerate(zip((b"m", b"o"), storages))
    )
    storages[1].write_manifest(other, location=folder)
    (tmp_path / "savepoint/_metadata").rename(tmp_path / "_metadata")  # the other one is not that far yet
    storages[0].write_manifest(mine, location=folder)
    loaded = CheckpointStorage(folder).load_savepoint()
    assert loaded.sources == mine.sources
    (item,) = loaded.subtasks[0][0].operators["sink"].items
    assert storages[1].read_state(item) == b"m" * len(BIG)
    (tmp_path / "_metadata").replace(tmp_path / "savepoint/_metadata")
    assert CheckpointStorage(folder).load_savepoint().sources == other.sources


# Keyed state, which checkpoints share, and channel state, which they never do.


def keyed(checkpoint_id: int, run: int, *chunks: StateHandle, channel: StateHandle | None = None) -> Manifest:
    states = tuple(
        ChunkState(chunk_id=f"c{number}", handle=handle, first_key_group=0, last_key_group=127)
        for number, handle in enumerate(chunks)
    )
    side: dict[str, Any] = {"exchange": "e", "producer": 0, "consumer": 0, "output": False}
    channels = () if channel is None else (
        ChannelState(**side, handle=channel, buffers=1, rows=1, size_bytes=1),
    )  # fmt: skip
    return msgspec.structs.replace(
        manifest(checkpoint_id, run),
        subtasks=((SubtaskState(keyed={"window": KeyedState(chunks=states)}),),), channels=channels,
        channels_parallelism=1,
    )  # fmt: skip


def shared(storage: CheckpointStorage) -> list[str]:
    return [name for uid in storage.store.names("shared") for name in storage.store.names(f"shared/{uid}")]


def test_a_shared_file_lives_as_long_as_a_manifest_names_it(storage: CheckpointStorage) -> None:
    """With several retained checkpoints, whatever the order in which they are deleted."""
    one, two, three, four = (storage.write_shared("window", f"w/{n}", bytes([n]) * 100, 10) for n in range(4))
    assert isinstance(storage.write_shared("window", "small", b"x" * 10, 10), InlineState)
    first = storage.write_manifest(keyed(1, 1, one, two))
    second = storage.write_manifest(keyed(2, 1, two, three))
    storage.write_manifest(keyed(3, 1, two, four))
    assert first - second == 100  # what is shared counts once
    storage.delete(2)
    assert shared(storage) == ["w%2F0", "w%2F1", "w%2F3"]
    again = CheckpointStorage(storage.location, storage.store)  # a new process knows what the manifests say
    again.delete(1)
    assert shared(storage) == ["w%2F1", "w%2F3"]
    assert again.load_newest() == keyed(3, 1, two, four)


def test_channel_state_goes_with_its_checkpoint(storage: CheckpointStorage) -> None:
    """It is in the checkpoint's folder, and is read from there."""
    channel = storage.write_state(1, "e-0-0", b"x" * 100, inline_bytes=10)
    made = keyed(1, 1, channel=channel)
    storage.write_manifest(made)
    loaded = storage.load_newest()
    assert loaded == made and storage.read_state(loaded.channels[0].handle) == b"x" * 100
    storage.delete(1)
    assert storage.store.names("chk-1") == []


def parts(storage: CheckpointStorage, checkpoint_id: int, *states: bytes) -> list[FileState]:
    """Return the parts of a file that holds the states of several channels."""
    file = storage.write_state(checkpoint_id, "0-1-output-0", b"".join(states), inline_bytes=0)
    assert isinstance(file, FileState)
    begins = itertools.accumulate(map(len, states), initial=0)
    return [FileState(file.path, len(each), zlib.crc32(each), begin) for begin, each in zip(begins, states)]


def with_parts(checkpoint_id: int, handles: Iterable[StateHandle]) -> Manifest:
    (channel,) = keyed(checkpoint_id, 1, channel=InlineState(b"")).channels
    channels = (msgspec.structs.replace(channel, producer=n, handle=each) for n, each in enumerate(handles))
    return msgspec.structs.replace(keyed(checkpoint_id, 1), channels=tuple(channels), channels_parallelism=3)


STATES = (b"first" * 10, b"second" * 1000, b"x" * (3 << 20))


def test_the_state_of_many_channels_is_one_file_of_the_checkpoint(storage: CheckpointStorage) -> None:
    """It counts once, is read part by part, and goes with the checkpoint."""
    made = with_parts(1, reversed(parts(storage, 1, *STATES)))
    size_bytes = storage.write_manifest(made)
    (manifest_bytes,) = storage.store.sizes(["chk-1/_metadata"])
    assert size_bytes == sum(map(len, STATES)) + (manifest_bytes or 0)
    loaded = CheckpointStorage(storage.location, storage.store).load_newest()
    assert loaded == made
    for state, channel in zip(reversed(STATES), loaded.channels):
        assert storage.read_state(channel.handle) == state
        assert storage.open_state(channel.handle).read() == state
    storage.delete(1)
    assert storage.store.names("chk-1") == []


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_a_damaged_part_is_named_and_the_others_can_be_read(location: Path, how: str) -> None:
    storage = CheckpointStorage(str(location))
    handles = parts(storage, 1, *STATES)
    storage.write_manifest(with_parts(1, handles))
    damage(location / "chk-1/0-1-output-0", how)
    for read in (storage.read_state, storage.open_state):
        with pytest.raises(CorruptStateError, match=r"chk-1/0-1-output-0 belongs to a checkpoint and is damaged"):
            read(handles[2])
    if how != "missing":
        assert [storage.read_state(each) for each in handles[:2]] == [*STATES[:2]]
    if how != "changed":  # sizes are looked at before anything is deployed
        with pytest.raises(CorruptStateError, match=r"chk-1/0-1-output-0 .* from byte 6050 on, found: "):
            storage.load_newest()
    if how == "cut":
        assert storage.open_state(handles[1]).read() == STATES[1]
    with pytest.raises(CorruptStateError, match="chk-1/0-1-output-0"):
        storage.write_manifest(with_parts(1, handles), location=str(location / "savepoint"))


def test_a_savepoint_has_the_file_of_all_channels_once(location: Path, tmp_path: Path) -> None:
    storage = CheckpointStorage(str(location))
    made = with_parts(3, parts(storage, 3, *STATES))
    storage.write_manifest(made, location=str(tmp_path / "savepoint"))
    storage.write_manifest(made)
    storage.delete(3)
    loaded = CheckpointStorage(str(tmp_path / "savepoint")).load_savepoint()
    elsewhere = CheckpointStorage(str(tmp_path / "other"))
    assert [elsewhere.read_state(each.handle) for each in loaded.channels] == [*STATES]
    assert [elsewhere.open_state(each.handle).read() for each in loaded.channels] == [*STATES]
    assert sorted(path.name for path in (tmp_path / "savepoint").rglob("*") if path.is_file()) == [
        "0-1-output-0",
        "_metadata",
    ]


def test_a_checkpoint_of_version_2_with_a_file_for_each_channel_is_restored(location: Path) -> None:
    """Its channels are read from the files that they were stored in, and it is deleted with them."""
    storage = CheckpointStorage(str(location))
    handles = [storage.write_state(1, f"e-{n}-0-input-w", state, inline_bytes=100) for n, state in enumerate(STATES)]
    made = with_parts(1, handles)
    (line, body) = serialize(with_parts(1, ())).split(b"\n", 1)
    channels = [
        {name: value for name, value in msgspec.to_builtins(each).items() if name != "relocated"}
        for each in made.channels
    ]
    old = {**json.loads(body), "channels": channels}
    del old["channel_files"]
    body = json.dumps(old).encode()
    line = f"headgate-manifest v=2 run=1 bytes={len(body):012d} crc32={zlib.crc32(body):08x}\n".encode()
    storage.store.write("chk-1/_metadata", line + body)
    loaded = CheckpointStorage(str(location)).load_newest()
    assert loaded == made
    for state, channel in zip(STATES, loaded.channels):
        assert storage.open_state(channel.handle).read() == state
    storage.delete(1)
    assert storage.store.names("chk-1") == []


def test_a_run_deletes_what_earlier_ones_left_and_nothing_that_a_manifest_names(storage: CheckpointStorage) -> None:
    """Of failed checkpoints and dead processes; if a manifest cannot be read, nobody knows what it names."""
    storage.delete_orphans()
    kept, lost = (storage.write_shared("window", f"{n}", b"x" * 100, 10) for n in range(2))
    storage.write_shared("other", "2", b"x" * 100, 10)
    storage.write_manifest(keyed(1, 1, kept))
    storage.store.write("chk-2/_metadata", b"damaged")
    CheckpointStorage(storage.location, storage.store).delete_orphans()
    assert shared(storage) == ["2", "0", "1"]
    storage.delete(1)
    assert shared(storage) == ["2", "0", "1"]
    storage.write_manifest(keyed(1, 1, kept))
    storage.delete(2)
    storage.delete_orphans()
    assert shared(storage) == ["0"]
    with pytest.raises(CorruptStateError, match="shared/window/1"):
        storage.read_state(lost)


def test_what_a_failed_checkpoint_left_is_deleted_when_nobody_can_name_it_any_more(storage: CheckpointStorage) -> None:
    """The next checkpoint names all of it that is still in use, also what was uploaded for the one after that."""
    first, used, unused, later = (storage.write_shared("window", f"{n}", b"x" * 100, 10) for n in range(4))
    storage.write_manifest(keyed(1, 1, first))
    storage.write_state(2, "x", BIG)  # it fails
    storage.write_manifest(keyed(3, 1, first, used))
    for each in (2, 1):
        storage.delete(each)
    assert shared(storage) == ["0", "1", "2", "3"]  # 2 and 3 may be of the checkpoint that is under way
    storage.write_manifest(keyed(4, 1, used, later))
    storage.delete(3)
    assert shared(storage) == ["1", "3"]
    assert isinstance(unused, FileState)


def test_what_a_process_was_writing_when_it_died_is_deleted(location: Path) -> None:
    """Its temporary file has no name that anybody looks for."""
    storage = CheckpointStorage(str(location))
    storage.write_shared("window", "0", b"x" * 100, 10)
    (location / "shared/window/.part-0").write_bytes(b"half")
    storage.delete_orphans()
    assert list((location / "shared/window").iterdir()) == []


def test_a_savepoint_has_copies_of_shared_files_and_outlives_the_location(location: Path, tmp_path: Path) -> None:
    """Its chunks are read where they are, by whoever begins with it, and belong to nobody's location."""
    storage = CheckpointStorage(str(location))
    chunks = [storage.write_shared("window", f"{n}", bytes([n]) * 100, 10) for n in range(9)]
    made = keyed(3, 1, *chunks, InlineState(b"i"))
    storage.write_manifest(made, location=str(tmp_path / "savepoint"))
    storage.write_manifest(made)
    before = everything_in(tmp_path / "savepoint")
    storage.delete(3)
    storage.delete_orphans()
    assert everything_in(tmp_path / "savepoint") == before and shared(storage) == []
    os.rename(tmp_path / "savepoint", tmp_path / "moved")
    loaded = CheckpointStorage(str(tmp_path / "moved")).load_savepoint()
    elsewhere = CheckpointStorage(str(tmp_path / "other"))
    handles = [chunk.handle for chunk in loaded.subtasks[0][0].keyed["window"].chunks]
    assert [elsewhere.read_state(each) for each in handles] == [*(bytes([n]) * 100 for n in range(9)), b"i"]
    assert [belongs_here(each) for each in handles] == [False] * 9 + [True]
    with pytest.raises(InternalError, match="names a file elsewhere"):
        elsewhere.write_manifest(msgspec.structs.replace(loaded, run=1))


def test_the_folder_of_a_checkpoint_leads_to_the_files_that_it_shares(location: Path, tmp_path: Path) -> None:
    """`fromSavepoint` takes a checkpoint's folder as well: its files are named from its location on."""
    storage = CheckpointStorage(str(location))
    storage.write_manifest(keyed(3, 1, storage.write_shared("window", "0", b"x" * 100, 10)))
    loaded = CheckpointStorage(str(location / "chk-3")).load_savepoint()
    (chunk,) = loaded.subtasks[0][0].keyed["window"].chunks
    assert CheckpointStorage(str(tmp_path / "other")).read_state(chunk.handle) == b"x" * 100


def test_the_query_id_stays(storage: CheckpointStorage) -> None:
    assert storage.query_id("first") == "first"
    assert storage.query_id("second") == "first"


def test_a_scheme_that_nobody_knows_is_an_option_error_without_its_key() -> None:
    with pytest.raises(OptionError, match="'checkpointLocation' is 'nothing://host/x'") as caught:
        CheckpointStorage("nothing://KEY:SECRET@host/x")
    assert "SECRET" not in f"{caught.value} {caught.value.facts}"


# One owner.


def test_a_newer_run_fences_the_older(storage: CheckpointStorage) -> None:
    old = Ownership.claim(storage.store)
    old.check()
    storage.write_manifest(manifest(1, old.run))
    new = Ownership.claim(storage.store)
    assert (old.run, new.run) == (1, 2)
    with pytest.raises(StoredStateError, match=r"Run 2 has taken over .* run 1, may not write") as caught:
        old.check()
    assert caught.value.newer_run == 2
    with pytest.raises(StoredStateError, match="taken over"):
        storage.write_manifest(manifest(2, old.run))
    assert storage.stored().complete == (1,)
    new.check()


def test_what_an_older_run_wrote_in_the_instant_of_the_takeover_does_not_count(storage: CheckpointStorage) -> None:
    class TakenOver(FileStore):
        def write_if_absent(self, name: str, data: bytes) -> bool:
            done = storage.store.write_if_absent(name, data)
            if name == "chk-2/_metadata":
                new = Ownership.claim(storage.store)
                storage.write_manifest(manifest(1, new.run))
            return done

        def sizes(self, names: Any) -> list[int | None]:
            return storage.store.sizes(names)

        def names(self, folder: str = "") -> list[str]:
            return storage.store.names(folder)

        def read(self, name: str, size_bytes: int | None = None) -> bytes:
            return storage.store.read(name, size_bytes)

    zombie = CheckpointStorage("", TakenOver(pa_fs.LocalFileSystem(), ""))
    old = Ownership.claim(storage.store)
    with pytest.raises(StoredStateError, match="taken over"):
        zombie.write_manifest(manifest(2, old.run))
    assert storage.stored().complete == (1, 2)
    newest = storage.load_newest()
    assert newest is not None and (newest.run, newest.checkpoint_id) == (2, 1)


def test_files_of_old_runs_do_not_pile_up(location: Path) -> None:
    storage = CheckpointStorage(str(location))
    storage.query_id("q")
    (location / "runs").mkdir()
    for run in range(1, 150):
        (location / "runs" / str(run)).touch()
    assert Ownership.claim(storage.store).run == 150
    assert len(storage.store.names("runs")) == 100


# Crashes.


class Crash(BaseException):
    """The process dies here."""


class DyingOs:
    """The system calls of the module; the process dies in number ``dies_at``, a write halfway through."""

    def __init__(self, dies_at: int) -> None:
        self.calls = 0
        self.dies_at = dies_at

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "link", "replace", "unlink", "mkdir"):
            return real

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self.dies_at:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise Crash(name)
            if name == "write":
                return real(arguments[0], bytes(arguments[1])[:40_000])  # short writes are allowed
            return real(*arguments)

        return call


def test_a_crash_at_any_system_call_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = manifest(1), manifest(2, 1, BIG)
    outcomes = []
    for dies_at in range(1, 1000):
        storage = CheckpointStorage(str(tmp_path / str(dies_at)))
        storage.write_manifest(old)
        dying = DyingOs(dies_at)
        with monkeypatch.context() as patch:
            patch.setattr(file_store, "os", dying)
            try:
                storage.write_manifest(new)
                storage.delete(1)
                completed = True
            except Crash:
                completed = False
        again = CheckpointStorage(str(tmp_path / str(dies_at)))
        newest = again.load_newest()
        assert newest in (old, new)
        outcomes.append(newest == new)
        again.write_manifest(manifest(3))  # what is left over is in nobody's way
        for each in (1, 2):
            again.delete(each)
        assert sorted(again.store.names()) == ["chk-3"]
        if completed:
            break
    assert completed and outcomes == sorted(outcomes) and len(outcomes) > 15


def test_a_crash_at_any_system_call_of_a_claim_leaves_a_location_that_can_be_claimed(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(str(location))
    runs = []
    for dies_at in range(1, 12):
        with monkeypatch.context() as patch:
            patch.setattr(file_store, "os", DyingOs(dies_at))
            with pytest.raises(Crash):
                Ownership.claim(storage.store)
                raise Crash
        runs.append(Ownership.claim(storage.store).run)
    assert runs == sorted(set(runs))


def test_folders_that_know_no_links_work_as_well(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: str) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", no_link)
    storage = CheckpointStorage(str(location))
    assert [Ownership.claim(storage.store).run for _ in range(3)] == [1, 2, 3]
    storage.write_manifest(manifest(1, 3))
    assert storage.load_newest() == manifest(1, 3)


def test_what_the_storage_refuses_names_the_file(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = CheckpointStorage(str(location))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoredStateError, match=r"chk-1/_metadata .* could not be written: .*No space left"):
        storage.write_manifest(manifest(1))


def with_rows(checkpoint_id: int, in_reader: StateHandle, unassigned: StateHandle) -> Manifest:
    """Return a manifest with rows in flight of a split that a reader has, and of one that nobody has."""

    def split(split_id: str, handle: StateHandle) -> SplitState:
        return SplitState(split_id, b"{}", InFlightRows(handle=handle, buffers=1, rows=1, size_bytes=8))

    made = manifest(checkpoint_id)
    reader = ReaderState(splits=(split("a", in_reader),))
    return msgspec.structs.replace(
        made,
        subtasks=((msgspec.structs.replace(made.subtasks[0][0], readers={"rides": reader}),),),
        sources={"rides": msgspec.structs.replace(made.sources["rides"], unassigned=(split("b", unassigned),))},
    )  # fmt: skip


def rows_of(storage: CheckpointStorage, of: Manifest) -> list[bytes]:
    return [storage.read_state(each.handle) for each in of.in_flight]


def test_rows_in_flight_of_splits_live_as_long_as_a_checkpoint_names_them(storage: CheckpointStorage) -> None:
    first, second = (storage.write_shared("rides", f"in-flight-{n}", bytes([n]) * 100, 10) for n in range(2))
    storage.write_manifest(with_rows(1, first, second))
    storage.write_manifest(with_rows(2, InlineState(b"new"), second))
    storage.delete(1)
    assert rows_of(storage, storage.load(2)) == [b"new", bytes([1]) * 100]
    assert shared(storage) == ["in-flight-1"]
    storage.write_manifest(with_rows(3, InlineState(b"a"), InlineState(b"b")))
    storage.delete(2)
    assert shared(storage) == []


def test_rows_in_flight_of_a_savepoint_are_copied_when_a_query_starts_from_it(location: Path, tmp_path: Path) -> None:
    """Checkpoints name them until somebody has processed them, and name no file elsewhere."""
    storage = CheckpointStorage(str(location))
    files = [storage.write_shared("rides", f"in-flight-{n}", bytes([n]) * 100, 10) for n in range(2)]
    storage.write_manifest(with_rows(1, *files), str(tmp_path / "savepoint"))
    other = CheckpointStorage(str(tmp_path / "other"))
    found = CheckpointStorage(str(tmp_path / "savepoint")).load_savepoint()
    adopted = other.adopt_rows(found)
    shutil.rmtree(tmp_path / "savepoint")
    other.write_manifest(msgspec.structs.replace(adopted, checkpoint_id=2))
    assert rows_of(other, other.load(2)) == [bytes([0]) * 100, bytes([1]) * 100]
    assert other.adopt_rows(adopted) == adopted


def test_what_is_missing_of_a_checkpoint_is_found_by_a_listing(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [storage.write_shared("window", f"w/{number}", BIG, 0) for number in range(5)]
    taken = manifest(7, 1, BIG, storage.write_state(7, "sink", BIG), InlineState(b"i"), *chunks)
    assert storage.missing(taken) == ("chk-7/_metadata",)
    storage.write_manifest(taken)
    lists = []
    names = FileStore.names
    monkeypatch.setattr(
        FileStore, "names", lambda store, folder="", **more: lists.append(folder) or names(store, folder, **more)
    )
    assert storage.missing(taken) == () and sorted(lists) == ["chk-7", "shared/window"]
    for handle in (chunks[1], chunks[4]):
        assert isinstance(handle, FileState)
        storage.store.delete(handle.path)
    assert storage.missing(taken) == ("shared/window/w%2F1", "shared/window/w%2F4")
    storage.store.delete_folder("")
    assert len(storage.missing(taken)) == 7


def test_who_owns_a_location_that_was_cleared_is_fenced_by_the_next_run_all_the_same(location: Path) -> None:
    storage = CheckpointStorage(str(location))
    owner = [Ownership.claim(storage.store) for _ in range(3)][-1]
    shutil.rmtree(location)
    owner.keep()
    owner.keep()
    assert Ownership.claim(storage.store).run == 4
    with pytest.raises(StoredStateError, match="taken over"):
        owner.check()
