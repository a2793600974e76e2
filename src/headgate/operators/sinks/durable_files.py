"""Makes what a files sink wrote survive a machine that loses power, where closing a file does not.

Never: wait for a disk on the mailbox thread.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pa_fs


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
    """Write a file that is there with all its bytes or not at all: beside its place first, under a hidden name."""
    folder, name = posixpath.split(path)
    hidden = posixpath.join(folder, f".{name}.tmp")
    with file_system.open_output_stream(hidden) as stream:
        for chunk in chunks:
            stream.write(pa.py_buffer(chunk))
    make_durable(file_system, hidden)
    file_system.move(hidden, path)
    make_durable(file_system, path)
