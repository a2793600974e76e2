"""Fetches Java libraries once, by Maven, into ``.cache/jars``: a folder for each POM beside this file.

Never: run at import, or name where Maven gets them from: that is the machine's setting.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
CACHE = _HERE.parent / ".cache"


def jars(pom: str) -> list[Path]:
    """Return the jars of ``local/POM.pom.xml``, fetched if they are not there yet.

    Raises
    ------
    SystemExit
        Maven is missing or failed: the message says what to type.
    """
    source = _HERE / f"{pom}.pom.xml"
    folder = CACHE / "jars" / f"{pom}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f"{pom}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fetch(source, folder)
    return sorted(folder.glob("*.jar"))


def java() -> str:
    """Return the Java to run them with: the one that ``./run`` chose for Spark, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _fetch(pom: Path, folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise SystemExit("Maven is missing. Please type: apt-get install -y maven   (or: brew install maven)")
    print(f"run: fetching the jars of {pom.name} by Maven (the first time: about 50 MB)", file=sys.stderr, flush=True)
    staged = folder.with_suffix(f".{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime",
               f"-DoutputDirectory={staged}"]  # fmt: skip
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as maven,
        ):
            while True:
                try:
                    code = maven.wait(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    print(f"run:   {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            if code != 0:
                output.seek(0)
                words = output.read().decode(errors="replace")
                raise SystemExit(f"Maven could not fetch the jars of {pom.name}:\n{words[-2000:]}")
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
