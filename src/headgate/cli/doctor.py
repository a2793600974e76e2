"""``headgate doctor``: whether this host can run queries: Java, Python, Spark, addresses, folders; with the fix.

Never: change anything, start Spark, or import pyspark: its version is read from what is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from headgate.cli.app import BAD, AsJson, bytes_text, epilog, time_text, write_json, write_lines
from headgate.versions import NEWEST_SPARK, OLDEST_SPARK, __version__

EXAMPLES = epilog(
    """
    headgate doctor

    headgate doctor --json
    """
)
_EXTRAS = {
    "kafka": ("confluent_kafka", "numba"),
    "kinesis": ("boto3",),
    "pulsar": ("pulsar",),
    "metrics": ("prometheus_client", "opentelemetry.sdk"),
}
_LEAST_FREE_BYTES = 1 << 30
_LEAST_SHM_BYTES = 64 << 20
_PYTHON_SAYS = (
    "import sys, importlib.metadata as m\n"
    "def v(n):\n"
    "    try: return m.version(n)\n"
    "    except m.PackageNotFoundError: return '-'\n"
    "print('%d.%d' % sys.version_info[:2], v('pyspark'), v('pyarrow'))"
)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Parameters
    ----------
    name
        What was looked at.
    state
        ``ok``; ``warning``: it may work; ``problem``: it will not.
    text
        What was found.
    fix
        What to do about it.
    """

    name: str
    state: Literal["ok", "warning", "problem"]
    text: str
    fix: str = ""


def doctor(as_json: AsJson = False) -> None:
    """Check that this host can run queries. The exit code is 1 if there is a problem."""
    found = findings()
    if as_json:
        write_json([vars(each) for each in found])
    else:
        width = max(len(each.name) for each in found)
        for each in found:
            write_lines(f"{each.state:<8} {each.name:<{width}}  {each.text}")
            if each.fix:
                write_lines(f"{'':<8} {'':<{width}}  -> {each.fix}")
    if any(each.state == "problem" for each in found):
        raise typer.Exit(BAD)


def findings(environment: dict[str, str] | None = None) -> list[Finding]:
    """Look at everything, and return what was found, in the order in which a query needs it."""
    environment = dict(os.environ) if environment is None else environment
    looks: list[Callable[[dict[str, str]], Iterator[Finding]]] = [
        _python, _java, _spark, _spark_home, _worker_python, _extras, _addresses, _ports, _temporary, _shared_memory,
        _clock, _endpoints,
    ]  # fmt: skip
    return [each for look in looks for each in look(environment)]


def _python(_: dict[str, str]) -> Iterator[Finding]:
    text = f"{platform.python_version()} ({sys.executable}), headgate {__version__}, pyarrow {_version('pyarrow')}"
    is_known = (3, 11) <= sys.version_info[:2] <= (3, 13)
    fix = "" if is_known else "Headgate is tested with Python 3.11 to 3.13: make an environment with one of them."
    yield Finding("Python", "ok" if is_known else "warning", text, fix)


def _java(environment: dict[str, str]) -> Iterator[Finding]:
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    install = "Install Java 17 (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME to where it is."
    if java is None or not os.access(java, os.X_OK):
        yield Finding(
            "Java", "problem", f"JAVA_HOME is {home}, which has no bin/java" if home else "not found", install
        )
        return
    printed = _output([java, "-version"])
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    if match is None:
        yield Finding("Java", "problem", f"{java} -version says {printed[:100]!r}", install)
        return
    release = int(match[1])
    if release < 17:
        yield Finding("Java", "problem", f"{release} ({java}); Spark 4 needs 17 or later", install)
    elif release not in (17, 21):
        fix = "If Spark fails to start, take Java 17 or 21: those Spark is released for."
        yield Finding("Java", "warning", f"{release} ({java})", fix)
    else:
        yield Finding("Java", "ok", f"{release} ({java})")


def _spark(_: dict[str, str]) -> Iterator[Finding]:
    version = _version("pyspark")
    if version == "-":
        fix = "pip install pyspark, the version that your cluster has."
        yield Finding("PySpark", "problem", "not installed", fix)
        return
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST_SPARK, NEWEST_SPARK))
    release = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if version.split(".")[0] != "4":
        yield Finding("PySpark", "problem", f"{version}; Headgate needs PySpark 4", "pip install 'pyspark>=4,<5'")
    elif not OLDEST_SPARK <= release <= NEWEST_SPARK:
        fix = f"Headgate is tested with Spark {oldest} to {newest}: take one of those if something fails."
        yield Finding("PySpark", "warning", version, fix)
    else:
        yield Finding("PySpark", "ok", version)


def _spark_home(environment: dict[str, str]) -> Iterator[Finding]:
    home, version = environment.get("SPARK_HOME"), _version("pyspark")
    if not home:
        yield Finding("SPARK_HOME", "ok", "not set: the Spark of the installed PySpark is used")
        return
    fix = "unset SPARK_HOME, or install the PySpark of that version."
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        yield Finding("SPARK_HOME", "problem", f"{home} has no jars/spark-core_*.jar", fix)
        return
    found = jars[0].stem.rpartition("-")[2]
    state: Literal["ok", "problem"] = "ok" if found == version else "problem"
    text = f"{home} has Spark {found}" + ("" if found == version else f", the installed PySpark is {version}")
    yield Finding("SPARK_HOME", state, text, "" if found == version else fix)


def _worker_python(environment: dict[str, str]) -> Iterator[Finding]:
    """Compare the Python that Spark starts on this host with this one."""
    named = environment.get("PYSPARK_PYTHON")
    path = shutil.which(named or "python3", path=environment.get("PATH"))
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    name = "PYSPARK_PYTHON"
    what = named or "not set: Spark starts python3"
    if path is None:
        yield Finding(name, "problem", f"{what}, which is not there", fix)
        return
    printed = _output([path, "-c", _PYTHON_SAYS]).split()
    if len(printed) != 3:
        yield Finding(name, "problem", f"{path} does not run: {' '.join(printed)[:100]!r}", fix)
        return
    mine = [".".join(platform.python_version_tuple()[:2]), _version("pyspark"), _version("pyarrow")]
    compared = zip(("Python", "pyspark", "pyarrow"), printed, mine)
    different = [f"{what} {theirs} instead of {own}" for what, theirs, own in compared if theirs != own]
    if different:
        yield Finding(name, "problem", f"{path} has {', '.join(different)}", fix)
    else:
        yield Finding(
            name, "ok", f"{path}, the same Python {printed[0]}, pyspark {printed[1]} and pyarrow {printed[2]} as here"
        )
    driver = environment.get("PYSPARK_DRIVER_PYTHON")
    if driver and shutil.which(driver, path=environment.get("PATH")) is None:
        yield Finding("PYSPARK_DRIVER_PYTHON", "problem", f"{driver} is not there", "unset PYSPARK_DRIVER_PYTHON")


def _extras(_: dict[str, str]) -> Iterator[Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [module for module in modules if not _is_installed(module)]
        text = "installed" if not missing else f"{', '.join(missing)} not installed"
        fix = f"If you use it: pip install 'headgate[{extra}]'" if missing else ""
        yield Finding(f"headgate[{extra}]", "ok", text, fix)


def _addresses(environment: dict[str, str]) -> Iterator[Finding]:
    name, set_address = socket.gethostname(), environment.get("SPARK_LOCAL_IP")
    fix = "Add this host's name and address to /etc/hosts, or set SPARK_LOCAL_IP to the address that executors reach."
    try:
        addresses = sorted({str(each[4][0]) for each in socket.getaddrinfo(set_address or name, None)})
    except OSError as error:
        yield Finding("addresses", "problem", f"{set_address or name} cannot be resolved: {error}", fix)
        return
    shown = f"{'SPARK_LOCAL_IP ' + set_address if set_address else name} is {', '.join(addresses)}"
    if set_address and not _can_listen(set_address):
        yield Finding("addresses", "problem", f"{shown}, which is not an address of this host", fix)
    elif all(each.startswith("127.") or each == "::1" for each in addresses):
        yield Finding("addresses", "warning", f"{shown}: only this host can reach it", f"For a cluster: {fix}")
    else:
        yield Finding("addresses", "ok", shown)


def _ports(_: dict[str, str]) -> Iterator[Finding]:
    if not _can_connect():
        fix = "A firewall or a sandbox forbids connections on 127.0.0.1: driver, workers and JVM need them."
        yield Finding("ports", "problem", "a connection to 127.0.0.1 does not work", fix)
        return
    free = _can_listen("127.0.0.1", 4040)
    text = "connections on 127.0.0.1 work; " + ("4040 is free for Spark's UI" if free else "4040 is taken: Spark's UI "
                                                "gets the next one")  # fmt: skip
    yield Finding("ports", "ok", text)


def _temporary(environment: dict[str, str]) -> Iterator[Finding]:
    folders = [("temporary folder", tempfile.gettempdir())]
    folders += [("SPARK_LOCAL_DIRS", each) for each in environment.get("SPARK_LOCAL_DIRS", "").split(",") if each]
    for name, folder in folders:
        fix = "Set TMPDIR (Spark: spark.local.dir) to a folder on a local disk with room for spilled state."
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
            yield Finding(name, "problem", f"{folder} cannot be written", fix)
            continue
        free = shutil.disk_usage(folder).free
        is_enough = free >= _LEAST_FREE_BYTES
        yield Finding(
            name, "ok" if is_enough else "warning", f"{folder}, {bytes_text(free)} free", "" if is_enough else fix
        )


def _shared_memory(_: dict[str, str]) -> Iterator[Finding]:
    folder = "/dev/shm"
    if not os.path.isdir(folder):
        state: Literal["ok", "warning"] = "warning" if sys.platform == "linux" else "ok"
        yield Finding(folder, state, "not there", "" if state == "ok" else "Mount it: containers have it by default.")
        return
    size = shutil.disk_usage(folder).total
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(folder, "warning", "cannot be written", "chmod 1777 /dev/shm")
    elif size < _LEAST_SHM_BYTES:
        yield Finding(folder, "warning", bytes_text(size), "docker run --shm-size=256m, or an emptyDir in memory.")
    else:
        yield Finding(folder, "ok", bytes_text(size))


def _clock(_: dict[str, str]) -> Iterator[Finding]:
    """Compare the clock with that of the temporary folder's file system, and with when this Headgate was installed."""
    now = time.time()
    fix = "Set the clock (systemctl start systemd-timesyncd, chronyd): event times, time-outs and S3 requests need it."
    with tempfile.NamedTemporaryFile() as file:
        apart = os.stat(file.name).st_mtime - now
    built = os.stat(__file__).st_mtime
    text = f"{time_text(int(now * 1000))}, local time zone {time.strftime('%Z')}"
    if now < built - 86_400:
        yield Finding("clock", "problem", f"{text}: before this Headgate was installed", fix)
    elif abs(apart) > 5:
        yield Finding("clock", "warning", f"{text}; files are dated {apart:+.0f} s off", fix)
    else:
        yield Finding("clock", "ok", text)


def _endpoints(_: dict[str, str]) -> Iterator[Finding]:
    from headgate.cli.endpoints import endpoints, home

    folder = home()
    if folder.is_dir() and folder.stat().st_mode & 0o077:
        text = f"{folder} can be read by others, and holds tokens"
        yield Finding("running queries", "problem", text, f"chmod 700 {folder}")
        return
    found = endpoints()
    text = "none with an endpoint" if not found else ", ".join(f"{each.url} (process {each.pid})" for each in found)
    yield Finding("running queries", "ok", text)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _output(command: list[str]) -> str:
    """Return what a program writes, or why it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{done.stdout}{done.stderr}".strip()


def _can_listen(address: str, port: int = 0) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, port))
        except OSError:
            return False
    return True


def _can_connect() -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                return True
        except OSError:
            return False
