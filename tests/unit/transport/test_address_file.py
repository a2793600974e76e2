"""The file with the coordinator's address: replaced in one step, and refused when it is something else."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.transport.address_file import ADDRESS_SERIALIZER, CoordinatorAddress, read_address, write_address

FIRST = CoordinatorAddress(run=1, address="127.0.0.1:4000")
SECOND = CoordinatorAddress(run=2, address="[::1]:5000")
LOCAL = pa_fs.LocalFileSystem()


def test_version_1_is_read() -> None:
    golden = b'{"address":"127.0.0.1:4000","run":1,"v":1}'
    assert ADDRESS_SERIALIZER.serialize(FIRST) == golden
    assert ADDRESS_SERIALIZER.deserialize(golden) == FIRST


@pytest.mark.parametrize("file_system", [LOCAL, pa_fs.SubTreeFileSystem("/", LOCAL)], ids=["local", "any other"])
def test_what_was_written_last_is_read(tmp_path: Path, file_system: pa_fs.FileSystem) -> None:
    path = str(tmp_path / "coordinator.json")
    assert read_address(file_system, path) is None
    for address in (FIRST, SECOND):
        write_address(file_system, path, address)
        assert read_address(file_system, path) == address
    assert [each.name for each in tmp_path.iterdir()] == ["coordinator.json"], "nothing lies beside it"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(OSError):
        write_address(LOCAL, str(path), FIRST)
    assert [each.name for each in tmp_path.iterdir()] == ["coordinator.json"]
    assert path.is_dir()


@pytest.mark.parametrize("content", [b"", b"127.0.0.1:4000", b'{"address":"127.0.0.1:40', b'{"run":1,"v":1}'])
def test_something_else_in_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "coordinator.json"
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match="coordinator's address"):
        read_address(LOCAL, str(path))


def test_another_version(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.write_bytes(b'{"address":"127.0.0.1:4000","run":1,"v":2}')
    with pytest.raises(UnsupportedVersionError):
        read_address(LOCAL, str(path))
