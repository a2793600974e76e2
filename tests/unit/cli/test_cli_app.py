"""The command as a whole: what it imports, what it shows without being asked for anything, how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headgate.cli import app
from headgate.cli.app import exit_code_of
from headgate.errors import CorruptStateError, HeadgateError, OptionError, SourceUnavailableError, StoredStateError
from headgate.versions import __version__
from tests.unit.cli.stored_query import run, stored_query

COMMANDS = [
    *(f"checkpoints {name}" for name in ("list", "show", "verify", "diff")),
    *(f"positions {name}" for name in ("show", "set")),
    "state read",
    "savepoint copy",
    *(f"query {name}" for name in ("list", "status", "checkpoint", "savepoint", "rescale", "stop")),
    "sources check",
    "sources new",
    "doctor",
]
PROGRAM = """
import sys
from typer.testing import CliRunner
from headgate.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
print(result.exit_code, sorted(set(sys.modules) & {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "rich.table"}))
"""


def imported(*arguments: object) -> str:
    """Return how a command ends in a process of its own, and what it imported of what is large."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_needs_no_state_imports_neither_arrow_nor_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    assert imported("--version") == "0 []"
    assert imported("query", "list") == "3 []"
    assert imported("sources", "new", "weather", "--folder", tmp_path / "weather") == "0 []"


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "headgate", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"headgate {__version__}\n"


def test_no_command_imports_spark(tmp_path: Path) -> None:
    location = stored_query(tmp_path)
    for arguments in (
        ("checkpoints", "verify", location),
        ("positions", "set", location, "--set", "rides-0=1", "--to", tmp_path / "new"),
        ("state", "read", location, "--operator", "window", "--json"),
        ("sources", "check", "headgate.datagen", "-o", "numRows=1"),
    ):
        code, _, modules = imported(*arguments).partition(" ")
        assert code == "0" and "pyarrow" in modules, arguments
        assert "pyspark" not in modules and "py4j" not in modules, arguments


def test_every_command_is_there_with_examples_and_json() -> None:
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found += [f"{name} {sub}" for sub in command.commands] if hasattr(command, "commands") else [name]
    assert sorted(found) == sorted(COMMANDS)
    for command in COMMANDS:
        text = run(*command.split(), "--help").output
        assert "Examples" in text and "--json" in text, command


def test_the_version_and_no_command() -> None:
    assert run("--version").output == f"headgate {__version__}\n"
    result = run()
    assert result.exit_code == 2 and "checkpoints" in result.output
    assert run("checkpoints", "what").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("checkpoints", "list"), ". See 'headgate checkpoints list --help'."),
        (("checkpoints", "what"), "No such command 'what'. See 'headgate checkpoints --help'."),
        (("checkpoints", "show", "/x", "--idd", "3"), "No such option: --idd"),
        (("checkpoints", "show", "/x", "--id", "-1"), "Invalid value for '--id': "),
        (("query", "rescale", "many", "rides"), "a valid integer"),
        (("savepoint", "copy", "/a", "/b", "/c"), "unexpected extra argument"),
        (("--wrong",), "No such option: --wrong"),
    ],
)
def test_a_command_line_that_is_wrong_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="headgate")
    assert result.exit_code == 2 and not result.stdout
    assert message in result.stderr and result.stderr.startswith("headgate: ")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("--help'.\n")


def test_the_shell_is_given_completions() -> None:
    command = [sys.executable, "-c", "from headgate.cli import main; main()"]
    environment = {"_HEADGATE_COMPLETE": "complete_bash", "COMP_WORDS": "headgate check", "COMP_CWORD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path), **environment}
    )
    assert done.stdout.split() == ["checkpoints"]


def caused(error: HeadgateError, cause: BaseException) -> HeadgateError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("o"), 2),
        (CorruptStateError("c"), 1),
        (SourceUnavailableError("s"), 3),
        (caused(StoredStateError("s", path="bucket/a"), OSError("cannot connect")), 3),
        (caused(StoredStateError("s", path="bucket/a"), FileNotFoundError()), 2),
        (caused(StoredStateError("s", path="/data/a"), OSError("input/output error")), 2),
        (StoredStateError("there is none", path="bucket/a"), 2),
    ],
)
def test_who_must_act_decides_the_exit_code(error: HeadgateError, code: int) -> None:
    assert exit_code_of(error) == code


def test_every_command_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/cli.md").read_text()
    usage = page.partition("```")[2].partition("```")[0]
    for command in COMMANDS:
        group, _, name = command.partition(" ")
        line = next(line for line in usage.splitlines() if line.startswith(f"headgate {group}"))
        assert name in line.split()[2 if name else 1], command
