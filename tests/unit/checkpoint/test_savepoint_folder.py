"""A savepoint gets a folder of its own: no checkpoint location, nor one in or above it, whatever way leads there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs as pa_fs

from headgate.checkpoint import savepoint_folder
from headgate.checkpoint.file_store import FileStore
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.savepoint_folder import check_savepoint_folder
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import OptionError, StoredStateError


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Return the checkpoint location of a query that was just started: it has no checkpoint yet."""
    storage = CheckpointStorage(str(tmp_path / "data/rides/checkpoints"))
    Ownership.claim(storage.store)
    storage.query_id("q")
    return tmp_path / "data/rides/checkpoints"


def test_no_folder_in_or_above_a_checkpoint_location_is_taken(location: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(location)
    (tmp_path / "link-above").symlink_to(location.parent)
    for folder in (
        f"{location}", f"{location}/", f"file:{location}", f"file://{location}/", f"{location}/chk-1/deep/saved",
        f"{location.parent}", os.path.relpath(location), f"{location}/../../rides", f"{tmp_path}/link",
        f"{tmp_path}/link/saved", f"{tmp_path}/link-above/checkpoints",
    ):  # fmt: skip
        with pytest.raises(OptionError, match="a query's checkpoint location, which the query owns") as caught:
            check_savepoint_folder(folder, "--to")
        assert caught.value.facts["option"] == "--to"
    check_savepoint_folder(f"{location}-saved", "--to")
    check_savepoint_folder(f"{location.parent}/saved", "--to")


def test_a_known_location_is_protected_however_far_above_the_folder_is(location: Path, tmp_path: Path) -> None:
    known = [f"{tmp_path}/elsewhere/", f"{location}/"]  # the first is not made yet
    for folder in (tmp_path, tmp_path / "data", location / "a/b", tmp_path / "elsewhere/saved"):
        with pytest.raises(OptionError, match="checkpoint location, which the query owns"):
            check_savepoint_folder(str(folder), "location", known)
    check_savepoint_folder(str(tmp_path / "data/ride"), "location", known)
    check_savepoint_folder(str(tmp_path / "elsewhere-saved"), "location", known)


def test_a_folder_that_is_taken_or_would_pass_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/_metadata").touch()
    with pytest.raises(StoredStateError, match=r"savepoint already in .*taken, which is never overwritten"):
        check_savepoint_folder(str(tmp_path / "taken"), "--to")
    for folder in ("chk-7", "chk-7/"):
        with pytest.raises(OptionError, match="a query's checkpoint location"):
            check_savepoint_folder(f"{tmp_path}/{folder}", "--to")
    (tmp_path / "copied/chk-3").mkdir(parents=True)  # checkpoints that were copied there by hand
    with pytest.raises(OptionError, match="a query's checkpoint location"):
        check_savepoint_folder(str(tmp_path / "copied"), "--to")
    # What a savepoint that failed has left, and folders that only have one of the names, are in nobody's way.
    for folder in ("left/q-1-2/shared", "runs/1", "saved"):
        (tmp_path / folder).mkdir(parents=True)
    check_savepoint_folder(str(tmp_path / "left"), "--to")
    check_savepoint_folder(str(tmp_path / "saved"), "--to")


def test_folders_above_that_may_not_be_looked_at_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidding:
        def get_file_info(self, paths: list[str]) -> None:
            raise PermissionError("Access Denied")

    class Store(FileStore):
        file_system = Forbidding()  # type: ignore[assignment]

        def types(self, folder: str = "") -> dict[str, pa_fs.FileType]:
            return {}

    monkeypatch.setattr(savepoint_folder, "open_store", lambda location, option: Store(None, "bucket/mine/saved"))
    check_savepoint_folder("s3://bucket/mine/saved", "--to")
    with pytest.raises(OptionError, match="in or above bucket/mine/"):
        check_savepoint_folder("s3://bucket/mine/saved", "--to", ["bucket/mine/"])


def test_the_store_is_asked_no_more_often_the_more_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Counting:
        def get_file_info(self, what: object) -> object:
            asked.append(what)
            return pa_fs.LocalFileSystem().get_file_info(what)

    store = FileStore(Counting(), str(tmp_path))  # type: ignore[arg-type]
    monkeypatch.setattr(savepoint_folder, "open_store", lambda *_: store)
    (tmp_path / "a").mkdir()
    for name in "bcd":
        (tmp_path / name).touch()
        check_savepoint_folder(str(tmp_path), "--to")
    _, paths = asked[-2:]
    assert len(asked) == 2 * 3 and not any(f"{tmp_path}/{name}/" in str(paths) for name in "bcd"), "files have no marks"
