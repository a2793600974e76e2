"""The commands of ./run that need nothing installed, help and an unknown one; and the brokers that it starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from local.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, stdin_closed: bool = False, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run ./run as from a shell; optionally with its standard input closed."""
    command = [str(ROOT / "run"), *arguments]
    if stdin_closed:
        command = ["bash", "-c", 'exec "$@" <&-', "bash", *command]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help_names_every_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Help works from any folder and without a terminal."""
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    commands = {line.split()[0] for line in done.stdout.splitlines() if line[:2] == "  " != line[1:3]}
    assert commands == {
        "demo", "test", "bench", "simulate", "fuzz", "conformance", "docs", "wheel", "new-source", "kafka", "pulsar",
        "shell", "help",
    }  # fmt: skip


def test_help_works_with_stdin_closed() -> None:
    done = run("help", stdin_closed=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_named_and_fails() -> None:
    done = run("dmeo")
    assert done.returncode == 2
    assert "there is no command 'dmeo'" in done.stderr
    assert "usage: ./run COMMAND" in done.stderr
    assert done.stdout == ""


def test_kafka_runs_until_ctrl_c_and_cleans_up(tmp_path: Path) -> None:
    """What ``./run kafka`` starts once everything is set up."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "local.kafka", "--port", str(port), "--folder", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert f"Kafka listens on 127.0.0.1:{port}" in process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        assert AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=60).brokers
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0
        assert not broker.is_running()
    finally:
        process.kill()


def test_pulsar_runs_until_ctrl_c_and_cleans_up(tmp_path: Path) -> None:
    """What ``./run pulsar`` starts once everything is set up."""
    port, web_port = free_ports(2)
    command = [sys.executable, "-m", "local.pulsar", "--port", str(port), "--web-port", str(web_port)]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"Pulsar listens on pulsar://127.0.0.1:{port}, its admin API on http://127.0.0.1:{web_port};" in line
        (broker,) = psutil.Process(process.pid).children()
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/admin/v2/namespaces/public") as answer:
            assert "public/default" in json.load(answer)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0
        assert not broker.is_running()
    finally:
        process.kill()


def test_ci_sets_up_from_nothing_and_runs_the_tests() -> None:
    """What CI runs is what a developer runs, and no cache hides a step that the set-up lacks."""
    script = (ROOT / ".ci" / "run").read_text()
    assert script.splitlines()[-1] == "exec ./run test --all"
    assert "rm -rf .venv .cache" in script
    assert "PIP_NO_CACHE_DIR=1" in script
    assert "maven.repo.local" in script


def set_up_with(
    tmp_path: Path, pip: str, *arguments: str, folder: Path | None = None, runs: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ./run of a project of its own, whose Python is a script that makes environments with another such script.

    ``runs`` is what that does with ruff, mypy and pytest.
    """
    project = tmp_path / "project"
    for folder_name in ("src", ".cache/jars"):
        (project / folder_name).mkdir(parents=True, exist_ok=True)
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, project)
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/bash
[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"
mkdir -p "$4/bin"
printf '#!/bin/bash\n%s\n[ "$1 $2" = "-m pip" ] || exec {sys.executable} "$@"\n%s\n' \\
    {shlex.quote(f'case "$2" in ruff|mypy|pytest) {runs} ;; esac' * bool(runs))} {shlex.quote(pip)} >"$4/bin/python"
chmod +x "$4/bin/python"
""")
    python.chmod(0o755)
    return subprocess.run(
        [project / "run", *(arguments or ("test", "--version"))],
        cwd=folder or project,
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


LINT = ["ruff check .", "ruff format --check .", "mypy --strict src"]
FIRST, REST, ALL = (
    f"pytest {tier} --numprocesses 4 --dist loadfile --durations=10"
    for tier in ("--tier=first", "--tier=rest", "--exhaustive")
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [*LINT, FIRST]),
        (["--all"], [*LINT, FIRST, REST]),
        (["--exhaustive"], [*LINT, ALL]),
        (["--exhaustive", "--all"], [*LINT, ALL]),
        (["--all", "--cost"], [*LINT, f"{FIRST} --cost", f"{REST} --cost"]),
        (["tests/unit", "-k", "offsets"], ["pytest tests/unit -k offsets"]),
        (["--cost", "tests/unit"], ["pytest --cost tests/unit"]),
    ],
    ids=["first", "all", "exhaustive", "both of them", "cost", "a folder", "the cost of a folder"],
)
def test_each_tier_is_a_command_that_says_how_long_its_parts_took(
    tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    log = tmp_path / "log"
    done = set_up_with(tmp_path, "exit 0", "test", *arguments, runs=f'echo "${{@:2}}" >>{log}; exit 0')
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == expected
    assert re.findall(r"^run: \d+ s: (.*)", done.stderr, re.MULTILINE) == expected[:-1], "pytest itself says the last's"


def test_a_tier_that_fails_ends_the_tests(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failing = f'echo "${{@:2}}" >>{log}; [[ "$*" != *first* ]] || exit 5; exit 0'
    assert set_up_with(tmp_path, "exit 0", "test", "--all", runs=failing).returncode == 5
    assert log.read_text().splitlines() == [*LINT, FIRST]


def test_a_set_up_that_failed_says_why_and_the_next_one_begins_afresh(tmp_path: Path) -> None:
    failed = set_up_with(tmp_path, 'echo "no such package as $8"; exit 3')
    assert failed.returncode == 3
    assert "no such package as setuptools" in failed.stderr
    assert "failed with exit code 3: installing what builds packages" in failed.stderr
    assert "./run test --version tries it again" in failed.stderr
    assert "making .venv" in set_up_with(tmp_path, "exit 0").stderr
    again = set_up_with(tmp_path, "exit 4")
    assert "making .venv" not in again.stderr, "it was complete"
    assert "installing" not in again.stderr


def test_a_long_step_of_the_set_up_shows_that_it_lives(tmp_path: Path) -> None:
    done = set_up_with(tmp_path, 'echo "Collecting $8"; [ "$8" != setuptools ] || sleep 6')
    assert re.search(r"run:   [5-9]\d* s: Collecting setuptools", done.stderr)


def test_a_new_source_is_made_where_the_command_was_typed(tmp_path: Path) -> None:
    done = set_up_with(tmp_path, "exit 0", "new-source", "weather", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "made weather:" in done.stdout
    assert (tmp_path / "weather" / "src" / "pyspark_weather" / "__init__.py").exists()
    again = set_up_with(tmp_path, "exit 0", "new-source", "weather", folder=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "weather exists already" in again.stderr


def test_constraints_pin_everything_and_name_no_registry() -> None:
    """A pin without an exact version, or an address of a registry, does not belong there."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    names = {line.partition("==")[0].lower() for line in lines}
    assert {"pyspark", "pyarrow", "msgspec", "numpy", "pandas", "grpcio", "pytest", "ruff", "mypy"} <= names
    assert "://" not in (ROOT / "constraints.txt").read_text()
