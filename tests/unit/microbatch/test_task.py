"""What a Spark task leaves for the next one in its process."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from headgate.microbatch import task


def test_modules_are_kept_out_of_garbage_collections_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_modules", 0)
    frozen = gc.get_freeze_count()
    try:
        task.keep_modules()
        assert gc.get_freeze_count() > 0
        gc.unfreeze()
        task.keep_modules()
        assert gc.get_freeze_count() == 0, "nothing was imported since"
        monkeypatch.setitem(sys.modules, "imported_by_a_later_task", types.ModuleType("imported_by_a_later_task"))
        task.keep_modules()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        if frozen:  # all that was collected for this run: without it each later test would be searched for garbage
            gc.freeze()
