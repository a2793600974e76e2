"""The package in examples/own_connector, as whoever makes one uses it: installed, tested, found and read by Spark."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import headgate
from headgate.cli.new_source import write_package
from headgate.testing.conformance import PROMISES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_connector"
PAGE = ROOT / "docs" / "own-source.md"


def run_pytest(package: Path, sources: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a package's tests, with its modules from a folder."""
    path = [str(sources), str(Path(headgate.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=package,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )


def test_it_is_installed_and_its_tests_pass(tmp_path: Path) -> None:
    """Its last test reads it with Spark, in a session that nobody has registered it with.

    A Java of its own: Spark looks for formats once, when the first one is asked for.
    """
    package, installed = tmp_path / "package", tmp_path / "installed"
    shutil.copytree(EXAMPLE, package, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", installed, package], check=True)
    shutil.rmtree(package / "src")  # what is tested is what was installed
    done = run_pytest(package, installed, "-v", "-rs")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    verdicts = dict(re.findall(r"^tests/test_own_connector\.py::(\S+) (\w+)", done.stdout, re.MULTILINE))
    assert verdicts.pop("test_spark_finds_and_reads_it") == "PASSED"
    assert verdicts.keys() == {f"test_promise[{promise.name}]" for promise in PROMISES}
    assert verdicts["test_promise[restore-at-every-step]"] == "PASSED"
    assert verdicts["test_promise[new-rows-are-found]"] == "PASSED"


def test_the_broken_promise_that_the_page_shows() -> None:
    """The page's ``read`` in a new package: its tests fail with the report on the page."""
    page = PAGE.read_text(encoding="utf-8").partition("## A promise that is broken\n")[2]
    (read,) = re.findall(r"^```python\n( +def read.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ((command, report),) = re.findall(r"^```text\n\$ pytest (.*?)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:  # a short path, because a report breaks long lines
        package = Path(folder).resolve() / "weather"
        write_package("weather", package)
        module = package / "src" / "weather" / "__init__.py"
        begin, _, _ = module.read_text(encoding="utf-8").partition("    def read(")
        module.write_text(begin + read, encoding="utf-8")
        done = run_pytest(package, package / "src", *shlex.split(command))
    shown = done.stdout.replace(f"{package}/", "")
    assert words_of(report) in words_of(shown), shown
    assert "1 failed, 1 passed" in shown, "a read from beginning to end shows nothing"


def words_of(text: str) -> str:
    """Return a text in one line; without which restore it was that failed: fetchers' threads decide."""
    return re.sub(r"After \d+ restores, (.*?) with \d+ readers", r"After some restores, \1", " ".join(text.split()))
