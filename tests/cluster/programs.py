"""A driver program on the cluster, as a test sees it: its last state, its result, and the commands it gets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local.cluster import DRIVER, Cluster

_SCRIPT = Path(__file__).with_name("program.py")
_PATIENCE_S = 400.0
"""How long anything may take where machines are slow; nothing is asserted about it."""


class Program:
    """A run of ``program.py`` on the driver's host.

    Parameters
    ----------
    cluster, folder
        Where it runs, and where its checkpoints and output are: a second program goes on with those.
    what, settings
        What to run.
    """

    def __init__(self, cluster: Cluster, folder: Path, what: str, settings: Mapping[str, object]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._log = folder / f"{what}-{time.monotonic_ns()}.log"
        given = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
        command = [sys.executable, str(_SCRIPT), what, str(folder), cluster.master, cluster.addresses[DRIVER], *given]
        with open(self._log, "wb") as log:
            self.process = cluster.run(DRIVER, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, command: str) -> None:
        """Write a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    @property
    def state(self) -> dict[str, Any]:
        """Its last report of the query."""
        return next((line for line in reversed(self.lines) if "state" in line), {"checkpoint": 0, "hosts": []})

    def wait(self, holds: Callable[[], Any], seconds: float = _PATIENCE_S) -> float:
        """Wait for something while the query runs, and return how long that took, in seconds."""
        begin = time.monotonic()
        while not holds():
            assert self.process.poll() is None, f"the query ended too early: {self.lines[-1:]}\n{self.log}"
            assert time.monotonic() - begin < seconds, f"not within {seconds} s: {self.lines[-1:]}\n{self.log}"
            time.sleep(0.05)
        return time.monotonic() - begin

    def flows(self, slots: int | None = None) -> float:
        """Wait until rows pass through all slots, and return how long that took, in seconds.

        Two checkpoints that begin and complete from now on say so: their barriers passed every channel.
        """
        before = self.state["checkpoint"]
        return self.wait(lambda: self.state["checkpoint"] >= before + 2 and slots in (None, len(self.state["hosts"])))

    def result(self) -> Any:
        """Wait for the end, and return the result."""
        self._reader.join(_PATIENCE_S)
        last = self.lines[-1] if self.lines else {}
        assert "result" in last, f"{last}\n{self.log}"
        self.process.wait(60)
        return last["result"]

    def kill(self) -> None:
        """End it by SIGKILL, with its JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        """The end of what it logged."""
        return self._log.read_text(errors="replace")[-4000:]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # Spark prints, too
                self.lines.append(json.loads(line))
