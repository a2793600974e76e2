"""What the driver's threads answer the machine where storage fails."""

from __future__ import annotations

import logging
import queue
from pathlib import Path

import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.messages import CheckpointKind
from headgate.spark.continuous.driver import QueryDriver


def test_a_look_that_fails_does_not_say_that_all_files_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = QueryDriver.__new__(QueryDriver)
    driver._name, driver._inbox = "q", queue.SimpleQueue()
    driver._storage = CheckpointStorage(str(tmp_path))
    driver._ownership = Ownership.claim(driver._storage.store)
    manifest = Manifest(
        checkpoint_id=3, epoch=3, kind=CheckpointKind.CHECKPOINT, query_id="q", run=1, created_ms=0, parallelism=1,
        max_parallelism=8, stages=(), sources={}, subtasks=(),
    )  # fmt: skip
    (tmp_path / "chk-3").symlink_to(tmp_path / "chk-3")  # a folder that cannot be listed
    with caplog.at_level(logging.WARNING):
        driver._look_for_files(manifest)
    assert driver._inbox.empty()
    assert "could not be looked whether the files of checkpoint 3 are there" in caplog.text
    (tmp_path / "chk-3").unlink()
    driver._look_for_files(manifest)
    assert driver._inbox.get_nowait() == cp.FilesLooked(3, ("chk-3/_metadata",))
