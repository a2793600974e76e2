"""``headgate positions``: a new savepoint reads on elsewhere, and all else in it stays."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.state import SubtaskState
from tests.unit.cli.stored_query import run, run_json, stored_query


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return stored_query(tmp_path)


def positions(location: Path) -> dict[str, int]:
    return {each["split"]: each["position"] for each in run_json("positions", "show", location)["splits"]}


def test_splits_of_readers_and_of_the_enumerator_are_shown(location: Path) -> None:
    splits = run_json("positions", "show", location)["splits"]
    assert [(each["split"], each["position"], each["subtask"]) for each in splits] == [
        ("rides-0", 20, 0),
        ("rides-1", 500, 0),
        ("rides-2", 30, None),
    ]
    assert splits[1]["stored"]["stop"] == 1000
    assert "the enumerator" in run("positions", "show", location, "--source", "rides").output


def test_a_row_is_skipped_in_a_new_savepoint_and_the_old_one_stays(location: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in location.rglob("*") if path.is_file()}
    old = CheckpointStorage(str(location)).load(2)
    found = run_json("positions", "set", location, "--set", "rides-0=+1", "--to", tmp_path / "mended")
    assert found["moves"] == [{"split": "rides-0", "before": 20, "after": 21}]
    assert any("skipped" in each for each in found["notes"])
    assert positions(tmp_path / "mended") == {"rides-0": 21, "rides-1": 500, "rides-2": 30}
    assert {path: path.read_bytes() for path in location.rglob("*") if path.is_file()} == before
    storage = CheckpointStorage(str(tmp_path / "mended"))
    new = storage.load(None)
    assert new.subtasks[1][0].keyed == old.subtasks[1][0].keyed and new.query_id == old.query_id
    (item,) = new.subtasks[1][0].operators["sink"].items
    assert storage.read_state(item) == b"x" * 65537, "it needs nothing but its own folder"


def test_a_topic_is_read_again_from_its_beginning(location: Path, tmp_path: Path) -> None:
    result = run("positions", "set", location, "--source", "rides", "--set", "rides-*=0", "--to", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert positions(tmp_path / "again") == {"rides-0": 0, "rides-1": 0, "rides-2": 0}, "the enumerator's as well"
    assert "read again are written again" in result.output and "'window'" in result.output


def test_the_position_of_an_id_counts_and_not_that_of_a_pattern(location: Path, tmp_path: Path) -> None:
    run_json("positions", "set", location, "--set", "rides-?=5", "--set", "rides-1=-10", "--to", tmp_path / "new")
    assert positions(tmp_path / "new") == {"rides-0": 5, "rides-1": 490, "rides-2": 5}
    run_json("positions", "set", location, "--set", "rides-1=-10", "--set", "rides-?=5", "--to", tmp_path / "same")
    assert positions(tmp_path / "same") == positions(tmp_path / "new")


@pytest.mark.parametrize(("first", "second"), [("rides-1", "rides-1"), ("rides-*", "rides-?"), ("*-1", "*-1")])
def test_two_positions_for_a_split_are_refused(location: Path, tmp_path: Path, first: str, second: str) -> None:
    result = run("positions", "set", location, f"--set={first}=1", f"--set={second}=2", "--to", tmp_path / "new")
    assert result.exit_code == 2 and not (tmp_path / "new").exists()
    split = "rides-0" if first == "rides-*" else "rides-1"
    assert f"The split '{split}' is given two positions, by '{first}' and '{second}'" in result.stderr


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("rides-9=1", "no split 'rides-9'"),
        ("rides-0=-21", "must lie from 0"),
        ("rides-1=1001", "from 0 to 1000"),
        ("rides-0=soon", "Write SPLIT=POSITION"),
        ("rides-0", "Write SPLIT=POSITION"),
        ('rides-0={"offset":1}', "is a whole number"),
        ("rides-0=true", "is a whole number"),
    ],
)
def test_a_position_that_cannot_be_is_refused_and_nothing_written(
    location: Path, tmp_path: Path, position: str, message: str
) -> None:
    result = run("positions", "set", location, "--set", position, "--to", tmp_path / "new")
    assert result.exit_code == 2 and message in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_savepoint_is_not_written_where_a_query_is_at_home(location: Path, tmp_path: Path) -> None:
    storage = CheckpointStorage(str(location))
    Ownership.claim(storage.store)
    storage.query_id("q")
    for target in (location, location / "chk-3", location / "mended"):
        result = run("positions", "set", location, "--set", "rides-0=1", "--to", target)
        assert result.exit_code == 2 and "a query's checkpoint location" in result.stderr
    assert not (location / "chk-3").exists()
    run_json("positions", "set", location, "--set", "rides-0=1", "--to", tmp_path / "new")
    again = run("positions", "set", location, "--set", "rides-0=2", "--to", tmp_path / "new")
    assert again.exit_code == 2 and "never overwritten" in again.stderr
    assert positions(tmp_path / "new")["rides-0"] == 1


def test_a_savepoint_is_copied_and_the_copy_stands_alone(location: Path, tmp_path: Path) -> None:
    first = run_json("savepoint", "copy", location, tmp_path / "one", "--id", 1)
    assert first["id"] == 1
    assert run("savepoint", "copy", tmp_path / "one", tmp_path / "two").exit_code == 0
    original = run_json("checkpoints", "show", location, "--id", 1)
    for name in ("one", "two"):
        shown = run_json("checkpoints", "show", tmp_path / name)
        assert {**shown, "folder": "", "name": "", "sizeBytes": 0} == {
            **original, "folder": "", "name": "", "sizeBytes": 0,
        }  # fmt: skip
        assert str(location) not in json.dumps(shown)
    assert run("checkpoints", "diff", tmp_path / "one", location / "chk-1").output.endswith("no difference\n")


def test_a_savepoint_is_not_copied_onto_itself(location: Path, tmp_path: Path) -> None:
    storage = CheckpointStorage(str(location))
    small = msgspec.structs.replace(storage.load(1), subtasks=((SubtaskState(),), (SubtaskState(),)))
    storage.copy_savepoint(small, str(tmp_path / "one"))  # all of it is in the manifest
    for to in (tmp_path / "one", f"file://{tmp_path}/one/"):
        result = run("savepoint", "copy", tmp_path / "one", to)
        assert result.exit_code == 2 and "never overwritten" in result.stderr and not result.stdout


def test_a_damaged_savepoint_is_not_copied(location: Path, tmp_path: Path) -> None:
    (location / "chk-2/sink").write_bytes(b"x" * 65536 + b"y")
    result = run("savepoint", "copy", location, tmp_path / "copy")
    assert result.exit_code == 1 and "is damaged" in result.stderr
    assert not (tmp_path / "copy/_metadata").exists()
