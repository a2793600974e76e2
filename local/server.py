"""The process of a server on this machine: ended by its process id, in order or not, or stopped where it is.

Never: start it; each server knows how.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


class Server:
    """A server that is a process of this one.

    Attributes
    ----------
    process
        The process; None: it does not run.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it by SIGKILL, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it is, and wait until all its threads stand: until then some of them may answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
