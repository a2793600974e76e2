"""A Java for expressions that does not start: who waits for it, for how long, and what is raised then."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.catalyst import helper_jvm
from headgate.catalyst.helper_jvm import HelperJvm
from headgate.errors import DeploymentError, HelperLostError, is_final
from headgate.private_files import FileLock, make_private
from tests.waiting import wait_until


class Clock:
    """What the module knows of time: a sleep takes none."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def time(self) -> float:
        return time.time()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], HelperJvm]]:
    """Return what makes a helper whose Java is a script."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)

        def make(script: str) -> HelperJvm:
            java.write_text(f"#!/bin/sh\n{script}\n")
            java.chmod(0o755)
            return HelperJvm(64 << 20)

        yield make


def test_one_that_greets_nobody_is_ended_and_reported(
    made: Callable[[str], HelperJvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart may help: the next try starts another one."""
    clock = Clock()
    monkeypatch.setattr(helper_jvm, "time", clock)
    helper = made("echo it hangs; exec sleep 1000")
    steps, log = 0, helper.folder / "log"
    with pytest.raises(HelperLostError, match=r"has not answered for 120 s.*It was ended") as raised:
        for _ in helper.started_in_steps():
            steps += 1
            if steps == 1:
                wait_until(lambda: log.read_text() == "it hangs\n")
    assert steps > 1000 and not is_final(raised.value) and "it hangs" in str(raised.value)
    wait_until(lambda: _is_free(helper))
    assert not Path(f"/proc/{raised.value.facts['pid']}/exe").exists()
    before_s = clock.now_s
    with pytest.raises(HelperLostError):
        helper.connect()
    assert clock.now_s - before_s >= 120, "it has as long"


def _is_free(helper: HelperJvm) -> bool:
    try:
        FileLock(helper.folder / "lock").release()
    except BlockingIOError:
        return False
    return True


def test_one_of_another_slot_that_greets_nobody_is_reported(
    made: Callable[[str], HelperJvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_jvm, "time", Clock())
    helper = made("exit 1")
    make_private(helper.folder)
    lock = FileLock(helper.folder / "lock")
    with pytest.raises(
        HelperLostError, match=f"with {helper.folder} at the end of its command, of another slot: if it h"
    ):
        helper.connect()
    lock.release()


@pytest.mark.parametrize(
    ("script", "is_retried"),
    [("kill -KILL $$", True), ("kill -TERM $$", True), ("exit 143", True), ("kill -SEGV $$", False), ("exit 1", False)],
)
def test_one_that_is_ended_from_outside_is_tried_again(
    made: Callable[[str], HelperJvm], script: str, is_retried: bool
) -> None:
    """By the system that has no memory left, for example: that says nothing of Java and its options."""
    with pytest.raises((HelperLostError, DeploymentError)) as raised:
        made(f"echo out of luck; {script}").connect()
    assert is_final(raised.value) != is_retried and "out of luck" in str(raised.value)
