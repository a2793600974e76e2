"""Locks and connections that end with their process, also where it has forked others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headgate.private_files import FileLock
from tests.waiting import wait_until

FORKS = """
import os, socket, sys
from pathlib import Path
from headgate.private_files import FileLock, close_in_forks

lock = FileLock(Path(sys.argv[1]) / "lock")
released = FileLock(Path(sys.argv[1]) / "released")
released.release()
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1] + "/socket")
close_in_forks(connection)
child = os.fork()
if child == 0:
    sys.stdin.read()  # until the test ends it
    os._exit(0)
print(child, flush=True)
connection.sendall(b"here")
sys.stdin.readline()
os._exit(0)
"""


def test_a_fork_that_outlives_its_parent_holds_nothing_of_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        command = [sys.executable, "-c", FORKS, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdin is not None and parent.stdout is not None
            connection, _ = server.accept()
            child = int(parent.stdout.readline())
            assert connection.recv(4) == b"here", "the parent's is open"
            with pytest.raises(BlockingIOError):
                FileLock(Path(folder) / "lock")
            parent.kill()
            parent.wait()
            assert connection.recv(1) == b""
            FileLock(Path(folder) / "lock").release()
            os.kill(child, 0)
            parent.stdin.close()
            wait_until(lambda: not Path(f"/proc/{child}/exe").exists())
            connection.close()
