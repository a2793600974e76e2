"""Build the wheel and try it as somebody else would: ``./run wheel``.

Never: upload anything, or let the tried environment see this checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from headgate.versions import __version__

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def build(folder: Path, *kinds: str) -> list[Path]:
    """Build what the kinds say ("--wheel", "--sdist"), by default both, with the pinned tools of this environment.

    Both together are built one from the other, so that the source distribution is proven to be complete.
    """
    _run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", folder, ROOT)
    suffixes = {"--sdist": ".tar.gz", "--wheel": "-py3-none-any.whl"}
    return [folder / f"headgate-{__version__}{suffixes[kind]}" for kind in kinds or suffixes]


def differences(wheel: Path) -> tuple[set[str], set[str]]:
    """Return the files of ``src`` that the wheel lacks, and those in it that are neither there nor metadata."""
    src = ROOT / "src"
    files = {file.relative_to(src).as_posix() for file in src.rglob("*") if file.is_file()}
    wanted = {file for file in files if "__pycache__" not in file and ".egg-info" not in file}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.startswith(f"headgate-{__version__}.dist-info/")}
    return wanted - found, found - wanted


def readme_program() -> str:
    """Return the program of the README that runs as it is."""
    blocks = _BLOCK.findall((ROOT / "README.md").read_text())
    (program,) = [str(block) for block in blocks if "headgate.continuous(" in block]
    return program


def make_environment(folder: Path, *, with_pip: bool = True) -> Path:
    """Make an empty virtual environment, and return its Python."""
    venv.create(folder, with_pip=with_pip)
    return folder / "bin" / "python"


def run_apart(python: Path, program: str, folder: Path) -> str:
    """Run a program with another Python in another folder, without what this environment sets; return its output."""
    of_this = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in of_this}
    path = folder / "program.py"
    path.write_text(program)
    return _run(python, path, cwd=folder, env=environment)


def _run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _say(step: str) -> None:
    print(f"wheel: {step}", flush=True)


def main() -> None:
    """Build, check, install and run; stop at the first step that fails."""
    dist = ROOT / "dist"
    _say(f"building the source distribution, and the wheel from it, into {dist}")
    sdist, wheel = build(dist)
    _say("twine check --strict")
    _run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    _say("comparing the wheel with src/")
    lacking, surplus = differences(wheel)
    if lacking or surplus:
        raise SystemExit(f"the wheel lacks {sorted(lacking)} and has {sorted(surplus)} beside src/")
    with tempfile.TemporaryDirectory(prefix="headgate-wheel-") as temporary:
        folder = Path(temporary)
        _say("making an empty environment and installing the wheel into it, with PySpark (about 450 MB; some minutes)")
        python = make_environment(folder / "env")
        _run(python, "-m", "pip", "install", "--progress-bar", "off", wheel)
        _run(python, "-m", "pip", "check")
        _say("asking the command headgate of that environment for its version")
        version = _run(python.with_name("headgate"), "--version", cwd=folder)
        if __version__ not in version:
            raise SystemExit(f"headgate --version printed {version!r} instead of {__version__}")
        _say("running the README's program in another folder, from that environment (about half a minute)")
        shown = run_apart(python, readme_program(), folder).strip()
    if not re.fullmatch(r"[1-9]\d* rows", shown):
        raise SystemExit(f"the README's program printed {shown!r} instead of how many rows there are")
    _say(f"it printed: {shown}")
    _say(f"done: pip install {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
