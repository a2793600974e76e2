"""A standalone Spark cluster of several hosts on one machine: each a network namespace with an address.

Never: touch the machine's own network, or a process of anybody else's: everything is in namespaces that only this run
has, named after its process, and what is left in them at the end is stopped by its process id. Two runs do not meet.

    host      address       what runs there
    --------  ------------  ------------------------------------------------------------
    m         10.77.0.2     the master, and what a test starts: driver programs, a broker
    w1 ... wN 10.77.0.11 …  a worker, its executors, their Python workers

A bridge in a namespace of its own joins the hosts. Needs Linux, root and ``ip`` (iproute2); no container engine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from local.jars import java

DRIVER = "m"
"""The host of master and driver programs."""
_NAMES = Path("/etc/netns")
"""`ip netns exec` shows a host the files in its folder here as those of ``/etc``."""
_START_S = 120.0
_UNKNOWN = "02:00:00:00:00:fe"
"""The hardware address of nobody: what is sent there is lost without a word."""


def why_not() -> str | None:
    """Return why such a cluster cannot run here; None: it can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "there is no `ip` command (iproute2)"
    name = f"hg{os.getpid()}-probe"
    made = _ip("netns", "add", name, check=False)
    if made.returncode == 0:
        made = _ip("-n", name, "link", "add", "br0", "type", "bridge", check=False)
        _ip("netns", "del", name)
    return None if made.returncode == 0 else f"network namespaces are not permitted here: {made.stderr.strip()}"


class Cluster:
    """Hosts, a master and workers, from `start` to `stop`; use `running_cluster`.

    Parameters
    ----------
    folder
        For logs and what the workers unpack.
    workers, cores
        How many hosts with a worker, and how many cores each offers.
    """

    def __init__(self, folder: Path, workers: int = 3, cores: int = 2) -> None:
        self.folder = folder
        self.workers = tuple(f"w{number}" for number in range(1, workers + 1))
        self._cores = cores
        self._prefix = f"hg{os.getpid()}"
        self._net = f"{self._prefix}-net"
        self.addresses = {DRIVER: "10.77.0.2", **{name: f"10.77.0.1{name[1:]}" for name in self.workers}}
        self.master = f"spark://{self.addresses[DRIVER]}:7077"

    def start(self) -> None:
        """Make the hosts, and start master and workers."""
        _ip("netns", "add", self._net)
        _ip("-n", self._net, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._net, "link", "set", "br0", "up")
        for name, address in self.addresses.items():
            space = self._space(name)
            (_NAMES / space).mkdir(parents=True, exist_ok=True)
            _ip("netns", "add", space)
            _ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", self._net)
            _ip("-n", self._net, "link", "set", "dev", name, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        self.know_names(False)
        master = self._daemon(DRIVER, "master.Master", "--host", self.addresses[DRIVER], "--port", "7077")
        _await(master, "New state: ALIVE")
        logs = [self._start_worker(name) for name in self.workers]
        for log in logs:
            _await(log, "Successfully registered with master")

    def stop(self) -> None:
        """End whatever runs on the hosts, and take them down."""
        for name in self.addresses:
            for process in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            _ip("netns", "del", self._space(name), check=False)
            shutil.rmtree(_NAMES / self._space(name), ignore_errors=True)
        _ip("netns", "del", self._net, check=False)

    def know_names(self, known: bool) -> None:
        """Let hosts resolve one another's names, or only their own, as pods on Kubernetes do."""
        for name in self.addresses:
            lines = [f"{address} {each}-host" for each, address in self.addresses.items() if known or each == name]
            # In place: processes have the file mounted, and another one would not be theirs.
            (_NAMES / self._space(name) / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def run(
        self, host: str, command: list[str], environment: Mapping[str, str] = {}, **options: object
    ) -> subprocess.Popen[str]:
        """Start a command on a host, with the host's name; the process is the command's own."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"{host}-host", *command]
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            ["ip", "netns", "exec", self._space(host), *inside],
            env={**os.environ, "SPARK_LOCAL_IP": self.addresses[host], **environment},
            text=True, start_new_session=True, **options,
        )  # fmt: skip

    # What can happen to a network.

    def cut(self, host: str) -> None:
        """Pull the cable of a host: nothing reaches it, and nobody is notified."""
        _ip("-n", self._net, "link", "set", host, "down")

    def heal(self, host: str) -> None:
        """Plug the cable in again."""
        _ip("-n", self._net, "link", "set", host, "up")

    def part(self, one: str, other: str) -> None:
        """Let two hosts lose what they send to one another; both reach everybody else."""
        for here, there in ((one, other), (other, one)):
            neighbour = (
                "neigh",
                "replace",
                self.addresses[there],
                "lladdr",
                _UNKNOWN,
                "dev",
                "eth0",
                "nud",
                "permanent",
            )
            _ip("-n", self._space(here), *neighbour)

    def join(self, one: str, other: str) -> None:
        """Let them reach one another again."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._space(here), "neigh", "del", self.addresses[there], "dev", "eth0", check=False)

    # What runs.

    def processes(self, host: str, what: str = "") -> list[int]:
        """Return the ids of a host's processes that have a text in their command line."""
        found = _ip("netns", "pids", self._space(host), check=False).stdout.split()
        return [int(each) for each in found if what in _command_line(each)]

    def executors(self, host: str) -> list[int]:
        """Return the ids of a host's executors."""
        return self.processes(host, "CoarseGrainedExecutorBackend")

    def slots(self, host: str) -> list[int]:
        """Return the ids of a host's Python workers: what an executor's daemon has forked."""
        daemons = self.processes(host, "pyspark.daemon")
        return [each for each in daemons if _parent(each) in daemons]

    def _start_worker(self, name: str) -> Path:
        memory = f"{1024 * self._cores}m"
        return self._daemon(
            name, "worker.Worker", "--host", self.addresses[name], "-c", str(self._cores), "-m", memory,
            "--work-dir", str(self.folder / name), self.master,
        )  # fmt: skip

    def _daemon(self, host: str, kind: str, *arguments: str) -> Path:
        import pyspark

        home = os.path.dirname(pyspark.__file__)
        log = self.folder / f"{host}.log"
        command = [
            java(), "-Xmx256m", "-cp", f"{home}/jars/*", "-Dspark.ui.enabled=false",
            f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *arguments,
        ]  # fmt: skip
        with open(log, "ab") as output:
            self.run(
                host, command, {"SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13", "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        return log

    def _space(self, host: str) -> str:
        return f"{self._prefix}-{host}"


@contextlib.contextmanager
def running_cluster(folder: Path, workers: int = 3, cores: int = 2) -> Iterator[Cluster]:
    """Run a cluster; nothing of it is left afterwards."""
    cluster = Cluster(folder, workers, cores)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done


def _await(log: Path, text: str) -> None:
    deadline = time.monotonic() + _START_S
    while text not in (seen := log.read_text(errors="replace")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{log} does not say {text!r} after {_START_S} s:\n{seen[-2000:]}")
        time.sleep(0.1)


def _parent(process: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command_line(process: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
