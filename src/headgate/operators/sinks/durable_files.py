"""Makes what a files sink wrote survive a machine that loses power, where closing a file does not.

Never: wait for a disk on the mailbox thread.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pa_fs

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def make_durable(file_system: pa_fs.FileSystem, path: str) -> None:
    """Wait until a closed or moved file, and its name, are on the disk. Object stores have done so when they answer."""
    if isinstance(file_system, pa_fs.LocalFileSystem):
        for each in (path, posixpath.dirname(path)):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_at_once(file_system: pa_fs.FileSystem, path: str, chunks: Iterator[bytes], *, replaces: bool = False) -> None:
    """Write a file that is there with all its bytes or not at all: beside its place first, under a hidden name.

    Raises
    ------
    FileExistsError
        The file is there, and is not to be replaced. On a local disk nobody can come between looking and writing.
    """
    folder, name = posixpath.split(path)
    # Unless it is moved away it may be the same file as the one at its place: then nobody must open it to write.
    token = "" if replaces else f".{secrets.token_hex(4)}"
    hidden = posixpath.join(folder, f".{name}{token}.tmp")
    with file_system.open_output_stream(hidden) as stream:
        for chunk in chunks:
            stream.write(pa.py_buffer(chunk))
    make_durable(file_system, hidden)
    if replaces:
        file_system.move(hidden, path)
    else:
        _name_new(file_system, hidden, path)
    make_durable(file_system, path)


def _name_new(file_system: pa_fs.FileSystem, hidden: str, path: str) -> None:
    """Give a file its name, unless there is one of that name."""
    if isinstance(file_system, pa_fs.LocalFileSystem):
        try:
            os.link(hidden, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            os.unlink(hidden)
            return
    if file_system.get_file_info(path).type != pa_fs.FileType.NotFound:
        raise FileExistsError(errno.EEXIST, "somebody else wrote it", path)
    file_system.move(hidden, path)
