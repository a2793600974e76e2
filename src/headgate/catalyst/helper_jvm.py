"""The Java process that evaluates expressions: one per host, of all slots of an application that ask for the same.

Those who need it meet in a folder that only this user can enter. Whoever gets the lock there starts the process, which
inherits the lock and holds it as long as it lives; all connect to its socket. Each user has a connection to it open on
which nothing is sent. When there has been none for a minute, as long as Spark keeps an idle Python worker, it renames
the folder, deletes it and ends, so whoever comes at that moment makes a new folder and starts a new process. A process
that is killed leaves the folder, with its log. One that greets nobody for two minutes has failed to start, and whoever
started it kills it.

Never: know what is evaluated.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headgate.catalyst.class_archive import ClassArchive, delete_unused
from headgate.errors import DeploymentError, HelperLostError
from headgate.private_files import LONGEST_SOCKET_PATH, FileLock, close_in_forks, make_private

_HERE: Final = Path(__file__).parent
_OPENS: Final = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")
_STEP_S: Final = 0.05
_GREETING_S: Final = 0.5
_START_S: Final = 120.0
"""How long one is waited for that greets nobody."""
_KEPT_S: Final = 86400
_ENDED_FROM_OUTSIDE: Final = {
    each
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for each in (-number, 128 + number)
}
"""How a process ends that somebody else ended, the system for want of memory among them: by the signal, or as Java or a
shell report it."""
_NAMES: Final = 100
"""So many names are tried for the folder of a user, one of which another user would have."""
_SHOWN: Final = 2000
"""So many characters of the end of its log are in an error's message."""


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
    """A Java process with Spark's jars, which evaluates expressions for those who connect. For one thread.

    It is started if there is none when one connects, and outlives whoever started it while others use it.

    Parameters
    ----------
    memory_bytes
        Its largest heap; Arrow's buffers beside it have as much again at most.
    java_options
        Further options, as a shell would split them.
    application
        Whose it is: it is shared by those of this host and user with the same application, memory and options.
    on_evaluated
        Called with the rows of each batch that was evaluated, and how long that took, in milliseconds.

    Raises
    ------
    DeploymentError
        Spark's jars or Java are not there.
    """

    def __init__(
        self,
        memory_bytes: int,
        java_options: str = "",
        application: str = "",
        *,
        on_evaluated: Callable[[int, float], None] = lambda rows, took_ms: None,
    ) -> None:
        self.on_evaluated = on_evaluated
        options = shlex.split(java_options)
        self._command = _command(memory_bytes, options)
        name = hashlib.sha256("\0".join([application, *self._command]).encode()).hexdigest()[:16]
        of_user = _folder_of_user()
        self.folder: Final = of_user / name
        self._archive = ClassArchive(of_user, self._command[0], spark_jars(), options)
        self._archived: list[str] = []
        self._log = self.folder / "log"
        self._started: subprocess.Popen[bytes] | None = None
        self._asked_s: float | None = None
        """Since when there has been no greeting."""

    def connect(self) -> tuple[socket.socket, int]:
        """Return a new connection, and the id of the process; if there is none, start it and wait for it.

        Raises
        ------
        DeploymentError
            It cannot be started.
        HelperLostError
            It was ended from outside while it started, or greets nobody.
        """
        while (found := self._connected()) is None:
            time.sleep(_STEP_S)
        return found

    def started_in_steps(self) -> Iterator[None]:
        """Start it if there is none, in steps well below a second each.

        On a busy machine it takes longer than a task may be stuck.

        Raises
        ------
        DeploymentError
            It cannot be started.
        HelperLostError
            It was ended from outside while it started, or greets nobody.
        """
        while (found := self._connected()) is None:
            time.sleep(_STEP_S)
            yield
        found[0].close()

    def lost(self, pid: int) -> HelperLostError:
        """Return the error for whoever needed the process when it ended."""
        return HelperLostError(
            f"The Java process {pid}, which evaluates expressions of this query, ended while it was needed. If it ran "
            f"out of memory, give it more: catalyst.memory. {self._output()}",
            pid=pid,
        )  # fmt: skip

    def _connected(self) -> tuple[socket.socket, int] | None:
        """Return a new connection; if it cannot be had yet, see to it that there will be one."""
        connection = socket.socket(socket.AF_UNIX)
        close_in_forks(connection)
        connection.settimeout(_GREETING_S)
        try:
            connection.connect(str(self.folder / "socket"))
            greeting = connection.recv(4, socket.MSG_WAITALL)
        except OSError:  # nobody listens, or not any more
            greeting = b""
        if len(greeting) == 4:
            connection.settimeout(None)
            self._started = self._asked_s = None
            return connection, int.from_bytes(greeting)
        connection.close()
        self._check()
        self._check_time()
        self._start()
        return None

    def _check_time(self) -> None:
        """Raise an error if there has been no greeting for too long; the process that this has started is killed."""
        if self._asked_s is None:
            self._asked_s = time.monotonic()
        waited_s = time.monotonic() - self._asked_s
        if waited_s < _START_S:
            return
        own, self._started, self._asked_s = self._started, None, None
        if own is None or own.poll() is not None:
            pid, which = None, f"with {self.folder} at the end of its command, of another slot: if it hangs, end it."
        else:
            own.kill()
            pid, which = own.pid, f"{own.pid}. It was ended: the next try starts another one."
        raise HelperLostError(
            f"The Java process for expressions of this query has not answered for {waited_s:.0f} s. It is the process "
            f"{which} {self._output()}",
            pid=pid,
        )

    def _check(self) -> None:
        """Raise an error if the process that this has started never listened.

        One that did may have ended by now: by what others asked of it, or with 0, as nobody connected in time.
        """
        status = self._started and self._started.poll()
        if not status:
            return
        pid = self._started and self._started.pid
        self._started = None  # whatever is in the folder from now on may be another one's
        if (self.folder / "socket").exists():
            return
        if status in _ENDED_FROM_OUTSIDE:
            raise HelperLostError(
                f"The Java process {pid} for expressions of this query was ended from outside while it started (status "
                f"{status}): if by the system, the host has too little memory. {self._output()}",
                pid=pid,
            )  # fmt: skip
        if self._archived:
            self._archive.discard()
        else:
            raise DeploymentError(
                f"The Java process for expressions of this query did not start: it ended with {status}. "
                f"{self._output()}",
                command=shlex.join(self._command),
            )  # fmt: skip

    def _start(self) -> None:
        """Start the process, unless another one lives or is being started."""
        try:
            make_private(self.folder)
            lock = FileLock(self.folder / "lock")
        except (BlockingIOError, FileNotFoundError):  # the latter: one that ends took the folder away
            return
        try:
            if lock.is_at(self.folder / "lock"):
                (self.folder / "socket").unlink(missing_ok=True)
                self._archived = self._archive.options()
                java, *rest = self._command
                command = [java, f"-XX:ErrorFile={self.folder}/crash-%p", *self._archived, *rest, str(self.folder)]
                with self._log.open("ab") as log:
                    # In a session of its own: signals to the group of whoever happened to start it are not for it.
                    self._started = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        pass_fds=[lock.fileno()], start_new_session=True,
                    )  # fmt: skip
                _remember(self._started)
        finally:
            lock.release()
        _delete_old(self.folder.parent)
        delete_unused(self.folder.parent)

    def _output(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return f"Its log {self._log} is gone: it ended because nobody seemed to use it."
        end = "\n".join(each for each in lines if not each.startswith("\tat "))[-_SHOWN:]
        return f"Its log is {self._log} on {socket.gethostname()}" + (f", and ends so:\n{end}" if end else ".")


def _command(memory_bytes: int, options: Sequence[str]) -> list[str]:
    """Return the command, but for the folder, which is its last argument."""
    mebibytes = max(memory_bytes >> 20, 64)
    # What Spark makes for a row is garbage at once (8 KiB for a JSON text): it stays in the processor's cache if its
    # place is used again soon, which saves a quarter of the time.
    young = min(max(16, 8 * (os.cpu_count() or 1)), mebibytes // 3)
    return [
        _java(), f"-Xmx{mebibytes}m", f"-Xmn{young}m", f"-XX:MaxDirectMemorySize={mebibytes}m", "-XX:+UseSerialGC",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS),
        *options,
        "-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
        "-cp", str(spark_jars() / "*"),
        "org.codehaus.janino.SimpleCompiler", str(_HERE / "Evaluator.java"), "headgate.Evaluator",
    ]  # fmt: skip


def _folder_of_user() -> Path:
    """Return the folder for this user's processes on this host: the first of some names that no other user has.

    Raises
    ------
    DeploymentError
        Others have all of them, or none can be made.
    """
    place = tempfile.gettempdir()
    if len(f"{place}/headgate-{os.getuid()}-{_NAMES}/0123456789abcdef/socket") > LONGEST_SOCKET_PATH:
        place = "/tmp"
    for number in range(_NAMES):
        folder = Path(place) / (f"headgate-{os.getuid()}" + (f"-{number}" if number else ""))
        with suppress(OSError):
            make_private(folder)
            return folder
    raise DeploymentError(
        "Expressions of this query are evaluated by Spark's own code, whose process needs a folder that only this user "
        f"can enter. None can be made: {place}/headgate-{os.getuid()} and its like belong to others, or nobody may "
        "write there. Set TMPDIR to a folder of this user's.",
        folder=place,
    )  # fmt: skip


def _delete_old(of_user: Path) -> None:
    """Delete what processes that were killed have left, once it is too old to be looked at."""
    for folder in of_user.iterdir():
        with suppress(OSError):  # another one deletes it, or a process of that place lives
            if folder.is_dir() and folder.stat().st_mtime < time.time() - _KEPT_S:
                lock = FileLock(folder / "lock")
                try:
                    if lock.is_at(folder / "lock"):
                        shutil.rmtree(folder.rename(f"{folder}.old-{os.getpid()}"))
                finally:
                    lock.release()


_remembering = threading.Lock()
_children: list[subprocess.Popen[bytes]] = []


def _remember(process: subprocess.Popen[bytes]) -> None:
    """Keep a process until it ends, whoever uses it by then; forget those that have ended."""
    with _remembering:
        _children[:] = [*(each for each in _children if each.poll() is None), process]
