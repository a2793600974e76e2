"""PyFlink's SQL as a peer of ``./run bench keyed --peer flink``: its environment, its process, and what it wrote.

Never: put anything of Flink into Headgate's own environment: PyFlink pins other packages, and brings 500 MB.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from bench.frame import CACHE, console
from bench.keyed_rows import BEGIN_MS, KEYS, MULTIPLIER, PRIME, ROW_US, Answer, check, over_us

VERSION = "2.3.0"
_ENVIRONMENT = CACHE.parent / f"flink-{VERSION}"
_JOB = Path(__file__).with_name("keyed_flink_job.py")


class Flink:
    """A process that runs jobs one after the other. Made by `running_flink`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, log: Path) -> None:
        self._process = process
        self._folder = folder
        self._log = log
        self._checked: set[tuple[str | None, int]] = set()

    def rate(self, rows: int, *, servers: str = "", topic: str | None = None, jars: Sequence[Path] = ()) -> float:
        """Return rows/s, from the job's start to its end by Flink's own count. The first time, check the windows."""
        if (topic, rows) not in self._checked:
            self._checked.add((topic, rows))
            self._check(rows, servers, topic, jars)
        return rows / self._run(rows, servers, topic, jars, None)

    def _check(self, rows: int, servers: str, topic: str | None, jars: Sequence[Path]) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as written:
            self._run(rows, servers, topic, jars, written)
            columns = ["start", "end", "key", "total", "n"]
            options = pa.csv.ReadOptions(column_names=columns)
            types = pa.csv.ConvertOptions(column_types={"end": pa.timestamp("ms"), "total": pa.int64()})
            form = pa.dataset.CsvFileFormat(read_options=options, convert_options=types)
            files = [str(each) for each in Path(written).rglob("*") if each.is_file()]
            windows = pa.dataset.dataset(files, format=form).to_table(columns=["end", "total"])
        over_ms = (over_us(rows) // 1000) + (0 if topic is None else BEGIN_MS)
        totals = windows.filter(pc.less_equal(windows["end"], pa.scalar(over_ms, pa.timestamp("ms"))))["total"]
        check("Flink", rows, Answer(len(totals), pc.sum(totals).as_py()))

    def _run(self, rows: int, servers: str, topic: str | None, jars: Sequence[Path], csv: str | None) -> float:
        with tempfile.TemporaryDirectory(dir=self._folder) as checkpoints:
            job = {
                "rows": rows, "servers": servers, "topic": topic, "jars": [str(each) for each in jars], "csv": csv,
                "folder": checkpoints, "multiplier": MULTIPLIER, "prime": PRIME, "keys": KEYS, "row_us": ROW_US,
            }  # fmt: skip
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("RESULT "):
                    return float(json.loads(line.removeprefix("RESULT "))["seconds"])
        raise SystemExit(f"Flink's process ended: {self._log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def running_flink() -> Iterator[Flink]:
    """Return a process for Flink's jobs; the first time, its environment is made."""
    python = _environment()
    log = CACHE / "flink.log"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="flink-") as folder, log.open("wb") as errors:
        process = subprocess.Popen(
            [python, _JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
        )
        try:
            yield Flink(process, Path(folder), log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> Path:
    """Return the Python that has PyFlink."""
    python, stamp = _ENVIRONMENT / "bin" / "python", _ENVIRONMENT / ".complete"
    if not stamp.exists():
        console.print(f"run: installing PyFlink {VERSION} into {_ENVIRONMENT} (the first time: about 500 MB)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", _ENVIRONMENT], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"apache-flink=={VERSION}"], check=True)
        stamp.touch()
    return python
