"""``headgate doctor``: what it finds on hosts that have something wrong, and what it says to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headgate.cli.doctor import Finding, findings
from tests.unit.cli.stored_query import run_json


def found(name: str, **environment: str) -> Finding:
    """Return what is found with these variables, and no others but the path."""
    given = {"PATH": os.environ["PATH"], **environment}
    return next(each for each in findings(given) if each.name == name)


def program(path: Path, output: str) -> Path:
    """Make a program that writes this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)
    return path


def test_each_line_has_a_state_and_problems_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "no-python"))
    lines = run_json("doctor", exit_code=1)
    assert {each["state"] for each in lines} <= {"ok", "warning", "problem"}
    assert all(each["fix"] for each in lines if each["state"] == "problem")
    python = next(each for each in lines if each["name"] == "PYSPARK_PYTHON")
    assert python["state"] == "problem" and python["fix"] == f"export PYSPARK_PYTHON={sys.executable}"
    names = [each["name"] for each in lines]
    assert names[:4] == ["Python", "Java", "PySpark", "SPARK_HOME"]
    assert {"addresses", "ports", "temporary folder", "/dev/shm", "clock", "headgate[kafka]"} <= set(names)


@pytest.mark.parametrize(
    ("version", "state"), [("1.8.0_402", "problem"), ("11.0.2", "problem"), ("17.0.9", "ok"), ("24", "warning")]
)
def test_java_by_its_version(tmp_path: Path, version: str, state: str) -> None:
    program(tmp_path / "bin/java", f'openjdk version "{version}" 2023-10-17')
    finding = found("Java", JAVA_HOME=str(tmp_path))
    assert finding.state == state and bool(finding.fix) == (state != "ok")


def test_no_java(tmp_path: Path) -> None:
    assert "has no bin/java" in found("Java", JAVA_HOME=str(tmp_path)).text
    assert found("Java", PATH=str(tmp_path)).text == "not found"


def test_the_python_of_workers_is_this_one(tmp_path: Path) -> None:
    assert found("PYSPARK_PYTHON", PYSPARK_PYTHON=sys.executable).state == "ok"
    other = program(tmp_path / "python3", "3.8 3.5.1 12.0.0")
    finding = found("PYSPARK_PYTHON", PYSPARK_PYTHON=str(other))
    assert finding.state == "problem" and "Python 3.8 instead of" in finding.text and "pyspark 3.5.1" in finding.text
    unset = found("PYSPARK_PYTHON", PATH=str(tmp_path))
    assert unset.state == "problem" and str(other) in unset.text, "without it Spark starts python3"


@pytest.mark.parametrize(
    ("version", "state"), [("3.5.4", "problem"), ("4.0.5", "ok"), ("4.3.0.dev1", "ok"), ("4.9.0", "warning")]
)
def test_spark_by_its_version(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    finding = found("PySpark")
    assert finding.state == state and version in finding.text and bool(finding.fix) == (state != "ok")


def test_another_spark_in_spark_home(tmp_path: Path) -> None:
    assert found("SPARK_HOME").state == "ok"
    assert "has no jars" in found("SPARK_HOME", SPARK_HOME=str(tmp_path)).text
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-core_2.13-3.5.1.jar").touch()
    finding = found("SPARK_HOME", SPARK_HOME=str(tmp_path))
    assert finding.state == "problem" and "has Spark 3.5.1" in finding.text and "unset SPARK_HOME" in finding.fix


def test_addresses_that_are_not_ours() -> None:
    assert found("addresses", SPARK_LOCAL_IP="127.0.0.1").state == "warning"
    assert "not an address of this host" in found("addresses", SPARK_LOCAL_IP="192.0.2.1").text
    assert "cannot be resolved" in found("addresses", SPARK_LOCAL_IP="no.such.host.invalid").text


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    finding = found("SPARK_LOCAL_DIRS", SPARK_LOCAL_DIRS=f"{tmp_path}/missing")
    assert finding.state == "problem" and "TMPDIR" in finding.fix
    assert found("SPARK_LOCAL_DIRS", SPARK_LOCAL_DIRS=str(tmp_path)).state in ("ok", "warning")


def test_tokens_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    folder = tmp_path / "endpoints"
    folder.mkdir(mode=0o755)
    assert found("running queries").fix == f"chmod 700 {folder}"
    folder.chmod(0o700)
    assert found("running queries").state == "ok"
