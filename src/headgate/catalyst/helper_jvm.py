"""The Java process that evaluates expressions: found, started once per process, ended with it.

It is this process's own, not one for all slots of a host: a slot that ends, however it ends, takes nobody else's
expressions with it, and what it may use is bounded per slot's process, as its other memory is.

Never: know what is evaluated.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.errors import DeploymentError, HelperLostError

_HERE: Final = Path(__file__).parent
_OPENS: Final = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")
_LONGEST_ADDRESS: Final = 100
_STEP_S: Final = 0.05


def spark_jars() -> Path:
    """Return the folder of Spark's jars, without importing Spark.

    Raises
    ------
    DeploymentError
        There is none.
    """
    spec = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), *((spec and spec.submodule_search_locations) or ())]
    for home in homes:
        if home and (jars := Path(home) / "jars").is_dir():
            return jars
    raise DeploymentError(
        "Expressions of this query are evaluated by Spark's own code, and Spark's jars are not found on this host. Set "
        "SPARK_HOME to the folder that has them in jars/.",
        spark_home=homes[0],
    )  # fmt: skip


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        raise DeploymentError(
            "Expressions of this query are evaluated by Spark's own code, and no Java is found on this host. Set "
            "JAVA_HOME to a Java 17 or later.",
            java_home=home,
        )  # fmt: skip
    return found


class HelperJvm:
    """A Java process with Spark's jars, which evaluates expressions for those who connect.

    It ends when this process does, with SIGKILL too: it watches a pipe that only this process holds open.

    Parameters
    ----------
    memory_bytes
        Its largest heap; Arrow's buffers beside it have as much again at most.
    java_options
        Further options, as a shell would split them: an archive of classes halves its start.

    Raises
    ------
    DeploymentError
        Spark's jars or Java are not there.
    """

    def __init__(self, memory_bytes: int, java_options: str = "") -> None:
        folder = tempfile.mkdtemp(prefix="headgate-jvm-")
        if len(folder) > _LONGEST_ADDRESS:  # than a socket's address may be
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="headgate-jvm-", dir="/tmp")
        self._folder = folder
        self._address = os.path.join(folder, "socket")
        mebibytes = max(memory_bytes >> 20, 64)
        command = [
            _java(), f"-Xmx{mebibytes}m", f"-XX:MaxDirectMemorySize={mebibytes}m", "-XX:+UseSerialGC",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS),
            *shlex.split(java_options),
            "-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
            "-cp", str(spark_jars() / "*"),
            "org.codehaus.janino.SimpleCompiler", str(_HERE / "Evaluator.java"), "headgate.Evaluator", self._address,
        ]  # fmt: skip
        self._command = " ".join(command)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.owner: Final = os.getpid()
        self._listens = False
        self._waiting = threading.Lock()  # _listens

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it can be connected to, this long in seconds at most; return whether it can. Any thread.

        Raises
        ------
        DeploymentError
            It ended before.
        """
        with self._waiting:
            if self._listens:
                return True
            assert self._process.stdout is not None
            if not select.select([self._process.stdout], [], [], timeout_s)[0]:
                return False
            self._listens = bool(self._process.stdout.read(1))
            if self._listens:
                self._process.stdout.close()
                return True
        status = self._process.wait()
        raise DeploymentError(
            f"The Java process for expressions of this query did not start: it ended with {status}. Its output is "
            "in this process's.",
            command=self._command,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def connect(self) -> socket.socket:
        """Return a new connection; if it has just been started, wait for it.

        Raises
        ------
        DeploymentError
            It did not start.
        HelperLostError
            It has ended.
        """
        self.wait()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._address)
        except OSError as error:
            connection.close()
            raise self.lost() from error
        return connection

    def lost(self) -> HelperLostError:
        """Return the error for whoever needed it when it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # who killed it may be quicker than the system
            self._process.wait(1)
        status = self._process.poll()
        return HelperLostError(
            f"The Java process {self.pid}, which evaluates expressions of this query, ended with {status} while it was "
            "needed. If it ran out of memory, give it more: catalyst.memory.",
            pid=self.pid, status=status,
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


_starting = threading.Lock()
_shared: HelperJvm | None = None


def shared_helper(memory_bytes: int, java_options: str = "") -> HelperJvm:
    """Return the helper of this process, started if there is none that lives. Any thread."""
    global _shared
    with _starting:
        if _shared is None or _shared.owner != os.getpid() or not _shared.is_alive:
            _shared = HelperJvm(memory_bytes, java_options)
        return _shared


def started_in_steps(memory_bytes: int, java_options: str = "") -> Iterator[None]:
    """Start the helper of this process if it has none, in steps well below a second each.

    On a busy machine it takes longer than a task may be stuck.
    """
    helper = shared_helper(memory_bytes, java_options)
    while not helper.wait(_STEP_S):
        yield
