"""How a slot's Python starts: PySpark out of its zip, and nothing else is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.spark.continuous import worker_start

HERE = str(Path(worker_start.__file__).parent)


def started(*arguments: str, path: list[str] | None = None) -> str:
    """Return what a Python with the folder on its path prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *(path or [])])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("home", "package", "expected"),
    [
        ("site-packages/pyspark", "site-packages/pyspark", "site-packages"),
        ("spark-4.3.0", "spark-4.3.0/python/pyspark", "spark-4.3.0/python"),
        ("spark-4.3.0", "pyspark", None),
        ("spark-4.3.0", "elsewhere/pyspark", None),
    ],
    ids=["pip", "distribution", "another one beside it", "nothing beside it"],
)
def test_a_zip_is_replaced_by_what_it_was_made_of(
    tmp_path: Path, home: str, package: str, expected: str | None
) -> None:
    zipped = tmp_path / home / "python" / "lib" / "pyspark.zip"
    zipped.parent.mkdir(parents=True)
    zipped.touch()
    (tmp_path / package).mkdir(parents=True, exist_ok=True)
    (tmp_path / package / "daemon.py").touch()
    # Not imported by its name: a system that has a `sitecustomize` of its own, as Debian does, is given that one.
    load = f"sys.path.insert(0, {HERE!r}); start = runpy.run_path({HERE + '/sitecustomize.py'!r})"
    found = started("-c", f"import runpy, sys; {load}; print(start['unzipped']({str(zipped)!r}))")
    assert found == (str(zipped) if expected is None else str(tmp_path / expected))


def test_a_sitecustomize_that_is_hidden_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.was_here = True")
    assert started(
        "-c", "import sys; print(sys.was_here, sys.modules['sitecustomize'].__file__)", path=[str(tmp_path)]
    ) == (f"True {tmp_path / 'sitecustomize.py'}")


def test_what_the_user_s_code_starts_does_not_notice(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['PYTHONPATH'], 'headgate' in sys.modules, sys.path[1])"
    assert started("-c", code, path=[str(tmp_path)]) == f"{tmp_path} False {tmp_path}"
