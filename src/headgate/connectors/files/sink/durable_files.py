"""Makes what a files sink wrote survive a machine that loses power, where closing a file does not.

Never: wait for a disk on the mailbox thread.
"""

from __future__ import annotations

import contextlib
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


def write_at_once(file_system: pa_fs.FileSystem, path: str, chunks: Iterator[bytes]) -> None:
    """Write a file that is there with all its bytes or not at all: beside its place first, as ``.<name>.<token>.tmp``.

    Raises
    ------
    FileExistsError
        The file is there already. On a local disk nobody can come between looking and writing.
    """
    folder, name = posixpath.split(path)
    # It may be the same file as the one at its place, if a crash left both: nobody opens it again to write.
    hidden = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    with file_system.open_output_stream(hidden) as stream:
        for chunk in chunks:
            stream.write(pa.py_buffer(chunk))
    make_durable(file_system, hidden)
    _name_new(file_system, hidden, path)
    make_durable(file_system, path)


def copy_new(file_system: pa_fs.FileSystem, source: str, target: str) -> None:
    """Make a closed file be there under a second name as well, which nobody has used; its bytes stay where they can."""
    if isinstance(file_system, pa_fs.LocalFileSystem):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    file_system.copy_file(source, target)


def delete_if_there(file_system: pa_fs.FileSystem, path: str) -> None:
    """Delete a file that may be gone, or that somebody else deletes at this moment."""
    if file_system.get_file_info(path).type != pa_fs.FileType.NotFound:
        with contextlib.suppress(FileNotFoundError):
            file_system.delete_file(path)


def _name_new(file_system: pa_fs.FileSystem, hidden: str, path: str) -> None:
    """Give a file its name, unless there is one of that name."""
    if isinstance(file_system, pa_fs.LocalFileSystem):
        try:
            os.link(hidden, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            with contextlib.suppress(FileNotFoundError):  # somebody else saw that it has its name
                os.unlink(hidden)
            return
    if file_system.get_file_info(path).type != pa_fs.FileType.NotFound:
        raise FileExistsError(errno.EEXIST, "somebody else wrote it", path)
    file_system.move(hidden, path)
