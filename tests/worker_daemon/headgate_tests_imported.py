"""A process that has imported what Spark's Python processes need, and forks into them.

Spark starts a daemon for each of its kinds of workers, in each session, and a planner for each stream; importing is
most of what these do. Its argument is a folder, where it listens: a process that connects (``sitecustomize``) hands
over its arguments, environment and files, a fork goes on in its place, and a file named by the one's process id holds
the other's. It ends when its standard input does.

Each fork collects garbage after each task: what is imported is none. It looks for modules in its first task, which
reads jars on the path again: they are off it.

Never: fork with threads about; those of the libraries are off before these are imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

_INSTALLED = [each for each in sys.path[1:] if each not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
MODULES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "headgate.microbatch.alignment.planning",
    "headgate.runtime.slot",
    "headgate.microbatch.stream_plan",
    "headgate.operators.map_in_arrow",
    "headgate.connectors.debug.memory",
    "headgate.operators.windows.operator",
    "headgate.connectors.datagen.source",
    "headgate.connectors.simple.split_reader",
    "headgate.connectors.files.source",
    "headgate.connectors.kafka.source",
)


def import_all() -> None:
    """Import what workers need, without a thread."""
    os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    for name in MODULES:
        with contextlib.suppress(ImportError):  # of a client that is not installed
            importlib.import_module(name)
    threads = Path("/proc/self/task")
    assert not threads.exists() or len(list(threads.iterdir())) == 1, "a module started a thread; forks have none"
    gc.collect()
    gc.freeze()


def listen(folder: Path) -> socket.socket:
    """Return a socket to which daemons may connect from now on."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen()
    print("listening", flush=True)
    return listener


def serve(listener: socket.socket, folder: Path) -> str:
    """Fork for each process that connects; return in forks only, the module that they go on with."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    while 0 not in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        files: list[int] = []
        try:
            sent, files, *_ = socket.recv_fds(connection, 1 << 16, 3)
            while more := connection.recv(1 << 16):
                sent += more
            process = json.loads(sent)
        except (OSError, ValueError):
            process = None  # it was killed while it asked
        if process is not None:
            if not (fork := os.fork()):
                listener.close()
                return _become(process, files, connection.detach())
            with contextlib.suppress(OSError):
                written = folder / f"{process['pid']}.new"
                written.write_text(str(fork))
                written.replace(folder / str(process["pid"]))
                connection.sendall(str(fork).encode())
        connection.close()
        for each in files:
            os.close(each)
    sys.exit()


def _become(process: dict[str, Any], files: list[int], kept: int) -> str:
    """Go on in the place of a process, and return its module. That one waits for as long as ``kept`` is open."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    sys.argv = process["arguments"]
    os.environ.clear()
    os.environ.update(process["environment"])
    time.tzset()
    os.chdir(process["folder"])
    sys.path[:] = [process["folder"], *process["path"], *_INSTALLED]
    module: str = process["module"]
    if module != "pyspark.daemon":  # whose forks have it as their parent
        os.getppid = partial(int, process["parent"])  # Spark's Java, as `headgate.microbatch.alignment.host` expects
        # A planner that is killed with its group is gone at once: SIGIO ends this process when that one is no more.
        fcntl.fcntl(kept, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(kept, fcntl.F_SETFL, os.O_ASYNC)
        gone = select.poll()
        gone.register(kept, 0)
        if gone.poll(0):
            sys.exit()  # it was no more before that
    return module


def daemon_of(worker: int) -> int:
    """Return the process that Spark's Java started as a daemon, and whose fork is the parent of a Python worker."""
    import psutil

    fork = str(psutil.Process(worker).ppid())
    files = Path(os.environ["HEADGATE_TESTS_IMPORTED"]).glob("[0-9]*")
    asked = [int(each.name) for each in files if each.name.isdigit() and each.read_text() == fork]
    return next(each for each in asked if psutil.pid_exists(each))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    listener = listen(folder)
    import_all()
    runpy.run_module(serve(listener, folder), run_name="__main__", alter_sys=True)
