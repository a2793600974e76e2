"""``headgate checkpoints``: what is at a location, whether it is whole, and what changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.cli.stored_query import run, run_json, stored_query

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return stored_query(tmp_path)


def test_the_newest_is_listed_first_with_its_size(location: Path) -> None:
    newest, older = run_json("checkpoints", "list", location)
    assert [newest["id"], older["id"]] == [2, 1]
    assert newest["splits"] == 2 and newest["kind"] == "checkpoint" and newest["problem"] is None
    on_disk = sum(each.stat().st_size for each in (location / "chk-2").iterdir())
    assert newest["sizeBytes"] == on_disk
    shown = run("checkpoints", "list", location).output.splitlines()
    assert shown[0].split()[0] == "checkpoint" and shown[2].split()[:2] == ["chk-2", "checkpoint"]


def test_one_that_cannot_be_read_is_listed_with_what_is_wrong(location: Path) -> None:
    (location / "chk-2/_metadata").write_bytes(b"?")
    damaged, whole = run_json("checkpoints", "list", location)
    assert damaged["id"] == 2 and "not a manifest" in damaged["problem"] and damaged["sizeBytes"] is None
    assert whole["problem"] is None


def test_a_checkpoint_is_shown_by_its_number_or_its_folder(location: Path) -> None:
    shown = run_json("checkpoints", "show", location, "--id", 1)
    assert shown == run_json("checkpoints", "show", location / "chk-1")
    assert [(each["uid"], each["format"], each["splits"]) for each in shown["sources"]] == [
        ("rides", "headgate.kafka", 2)
    ]
    window, sink = shown["operators"]
    assert window["keyedBytes"] > 0 and "sum(v)" in window["signature"] and sink["items"] == 1
    text = run("checkpoints", "show", location).output
    assert "chk-2" in text and "headgate.kafka" in text


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_of_every_version_are_shown(tmp_path: Path, version: int) -> None:
    (tmp_path / "chk-17").mkdir()
    shutil.copy(GOLDEN / f"manifest-v{version}", tmp_path / "chk-17/_metadata")
    shown = run_json("checkpoints", "show", tmp_path)
    assert shown["id"] == 17 and [each["uid"] for each in shown["sources"]] == ["rides", "big"]
    (found,) = run_json("checkpoints", "verify", tmp_path, exit_code=1)
    assert any("enumerator-1-big" in each and "missing" in each for each in found["damages"])


def test_what_is_whole_is_verified_and_a_changed_byte_is_named(location: Path) -> None:
    assert run("checkpoints", "verify", location, "--all").output.splitlines() == ["chk-2: whole", "chk-1: whole"]
    state = location / "chk-1/sink"
    state.write_bytes(state.read_bytes()[:-1] + b"y")
    assert run("checkpoints", "verify", location).exit_code == 0, "the newest is another one"
    result = run("checkpoints", "verify", location, "--all")
    assert result.exit_code == 1
    assert "chk-1: 1 damaged" in result.output and str(state) in result.output


def test_a_manifest_that_is_damaged_fails_to_verify(location: Path) -> None:
    manifest = location / "chk-2/_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    (found,) = run_json("checkpoints", "verify", location, "--id", 2, exit_code=1)
    assert "promises" in found["damages"][0]


def test_two_checkpoints_differ_in_positions(location: Path) -> None:
    found = run_json("checkpoints", "diff", location)
    assert found["splits"] == [{"what": "rides / rides-0", "first": 10, "second": 20, "change": 10}]
    assert {each["what"] for each in found["facts"]} == {"id", "epoch", "createdMs"}
    same = run("checkpoints", "diff", location / "chk-1", location / "chk-1")
    assert "no difference" in same.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("checkpoints", "list", "{}/nothing"), "There is no checkpoint in"),
        (("checkpoints", "show", "{}", "--id", "7"), "There is no checkpoint 7 in"),
        (("checkpoints", "verify", "{}", "--id", "1", "--all"), "exclude each other"),
        (("checkpoints", "list", "what://x"), "cannot be opened"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(location: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(*(each.format(location) for each in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith("headgate: ") and message in result.stderr
    assert result.stderr.count("\n") == 1 and result.stdout == ""


def test_a_savepoint_in_a_checkpoint_location_does_not_hide_newer_checkpoints(location: Path, tmp_path: Path) -> None:
    """Older versions wrote one there."""
    assert run("savepoint", "copy", location, tmp_path / "saved", "--id", 1).exit_code == 0
    shutil.copy(tmp_path / "saved/_metadata", location)
    assert [each["name"] for each in run_json("checkpoints", "list", location)] == ["chk-2", "chk-1", "savepoint"]
    assert run_json("checkpoints", "show", location)["name"] == "chk-2"
    assert run_json("savepoint", "copy", location, tmp_path / "newest")["id"] == 2
