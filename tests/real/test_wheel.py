"""The wheel has everything: installed without this checkout, it runs the README's program."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from local import wheel

WAIT = "query.awaitTermination(15)"
UNTIL_ROWS = 'while not any(name.endswith(".parquet") for name in os.listdir("evens")): query.awaitTermination(0.1)'
"""What a test does instead of waiting as long as somebody who tries the program."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel alone; ``./run wheel`` builds it from the source distribution."""
    (found,) = wheel.build(tmp_path_factory.mktemp("dist"), "--wheel")
    return found


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    assert wheel.differences(built) == (set(), set())


def test_the_program_of_the_readme_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment: what is tried is the wheel. ``./run wheel`` installs them, too."""
    python = wheel.make_environment(tmp_path / "env", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", built], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # The .pth files of a folder that a .pth file names are not read: this checkout is not on the path.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = wheel.readme_program()
    assert WAIT in program
    program = program.replace(WAIT, UNTIL_ROWS)
    shown = wheel.run_apart(python, f"{program}\n    print(headgate.__file__)\n", tmp_path)
    rows, home = shown.splitlines()
    assert re.fullmatch(r"[1-9]\d* rows", rows)
    assert Path(home).is_relative_to(packages)
