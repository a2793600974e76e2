"""The file through which slots find the coordinator when its endpoint moved.

Never: hold the query's secret. The file is replaced in one step: a reader sees the old address or the new one.
"""

from __future__ import annotations

import uuid

import msgspec
import pyarrow.fs as pa_fs

from headgate.source.serialization import VersionedSerializer


class CoordinatorAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the coordinator of a run can be reached.

    Parameters
    ----------
    run
        The run epoch of the query at its checkpoint location.
    address
        ``host:port``.
    """

    run: int
    address: str


ADDRESS_SERIALIZER: VersionedSerializer[CoordinatorAddress] = VersionedSerializer(
    CoordinatorAddress, version=1, what="the coordinator's address"
)
"""Version 1 since 0.3.0."""


def write_address(file_system: pa_fs.FileSystem, path: str, address: CoordinatorAddress) -> None:
    """Write or replace the file. The folder must exist. Blocks.

    Raises
    ------
    OSError
        It could not be written; the old file, if any, is as it was.
    """
    data = ADDRESS_SERIALIZER.serialize(address)
    if not isinstance(file_system, pa_fs.LocalFileSystem):
        _write(file_system, path, data)  # an object store shows the new object when it is closed, not before
        return
    beside = f"{path}.{uuid.uuid4().hex}"
    try:
        _write(file_system, beside, data)
        file_system.move(beside, path)
    except OSError:
        if file_system.get_file_info(beside).type == pa_fs.FileType.File:
            file_system.delete_file(beside)
        raise


def read_address(file_system: pa_fs.FileSystem, path: str) -> CoordinatorAddress | None:
    """Return what the file says; None: there is no file. Blocks.

    Raises
    ------
    CorruptStateError, UnsupportedVersionError
        It holds something else.
    OSError
        It cannot be read.
    """
    try:
        with file_system.open_input_file(path) as file:
            data = file.readall()
    except FileNotFoundError:
        return None
    return ADDRESS_SERIALIZER.deserialize(data)


def _write(file_system: pa_fs.FileSystem, path: str, data: bytes) -> None:
    with file_system.open_output_stream(path) as file:
        file.write(data)
