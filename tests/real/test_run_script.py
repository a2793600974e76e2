"""The commands of ./run that need nothing installed, help and an unknown one; and the broker that it starts."""

from __future__ import annotations

import signal
import subprocess
import sys
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
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help_names_every_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Help works from any folder and without a terminal."""
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    commands = {line.split()[0] for line in done.stdout.splitlines() if line[:2] == "  " != line[1:3]}
    assert commands == {"demo", "test", "bench", "simulate", "kafka", "shell", "help"}


def test_help_works_with_stdin_closed() -> None:
    done = run("help", stdin_closed=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_named_and_fails() -> None:
    done = run("dmeo")
    assert done.returncode == 2
    assert "there is no command 'dmeo'" in done.stderr
    assert "usage: ./run COMMAND" in done.stderr
    assert done.stdout == ""


def test_kafka_runs_until_ctrl_c_and_leaves_nothing_behind(tmp_path: Path) -> None:
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
        assert process.wait(90) == 0
        assert not broker.is_running()
    finally:
        process.kill()


def test_ci_only_runs_the_tests() -> None:
    """What CI runs is what a developer runs."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line.strip() and not line.startswith(("#", "set "))]
    assert commands == ['exec "$(dirname "$0")/../run" test']


def test_constraints_pin_everything_and_name_no_registry() -> None:
    """A pin without an exact version, or an address of a registry, does not belong there."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    names = {line.partition("==")[0].lower() for line in lines}
    assert {"pyspark", "pyarrow", "msgspec", "numpy", "pandas", "grpcio", "pytest", "ruff", "mypy"} <= names
    assert "://" not in (ROOT / "constraints.txt").read_text()
