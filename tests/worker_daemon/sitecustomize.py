"""Makes Spark's Python processes start at once: each Python imports this module first.

A process of Spark's (a daemon of workers, the planner of a stream) replaces itself by a fork of one that has imported
what it needs, `headgate_tests_imported`, where `HEADGATE_TESTS_IMPORTED` says. It stays until the fork that goes on in
its place, and what that forked, have ended.

Spark puts an archive of PySpark's modules in front of the installed ones, of which every process compiles what it
imports: that takes longer than all else at its start.
"""

import contextlib
import json
import os
import signal
import socket
import sys

LIB = os.path.join("pyspark", "python", "lib", "")
sys.path[:] = [each for each in sys.path if not (LIB in each and each.endswith(".zip"))]


def replace_process(folder: str) -> None:
    """Let a fork go on in the place of this process."""
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    process = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "module": sys.orig_argv[2],
        "arguments": sys.orig_argv[2:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": [each for each in path if each in sys.path and not each.endswith(".jar")],
    }
    imported = socket.socket(socket.AF_UNIX)
    imported.connect(os.path.join(folder, "socket"))
    try:
        fork = 0

        def pass_on(number: int, frame: object) -> None:
            if fork:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(fork, number)
            else:
                os._exit(1)

        signal.signal(signal.SIGTERM, pass_on)
        socket.send_fds(imported, [json.dumps(process).encode()], [0, 1, 2])
        imported.shutdown(socket.SHUT_WR)
        fork = int(imported.recv(16) or 0)
        imported.recv(1)  # until the fork has ended
    finally:
        os._exit(0)


if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark.") and "HEADGATE_TESTS_IMPORTED" in os.environ:
    replace_process(os.environ["HEADGATE_TESTS_IMPORTED"])
