"""Finds the file system of a path, and the path's spelling in it.

Never: list or open a file. Whatever pyarrow opens by URI is read; parameters are those of pyarrow
(``s3://bucket/folder?endpoint_override=...``). Splits and messages hold paths only, never a URI, which may hold a key.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.errors import OptionError

_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<authority>[^/?]*)(?P<path>[^?]*|.*?)(?P<query>\?\w+=.*)?")
_LOCAL = re.compile(r"file:(//)?(?=/)")


def resolve_paths(paths: Sequence[str], option: str) -> tuple[pa_fs.FileSystem, tuple[str, ...]]:
    """Return the file system of all paths, and the paths without scheme and parameters.

    Raises
    ------
    OptionError
        The paths lie in different file systems, or pyarrow does not know the scheme.
    """
    resolved = [_resolve(path, option) for path in paths]
    file_system = resolved[0][0]
    for path, (other, _) in zip(paths, resolved):
        if not other.equals(file_system):
            raise OptionError(
                f"headgate.files: the paths {_shown(paths[0])!r} and {_shown(path)!r} lie in different file systems. "
                "Read them with two DataFrames and unite those.",
                source="headgate.files", option=option, value=_shown(path),
            )  # fmt: skip
    return file_system, tuple(path for _, path in resolved)


def _shown(path: str) -> str:
    """Return a path for messages: without what precedes ``@``, which may be a key and its secret."""
    return re.sub(r"://[^/?]*@", "://", path)


def _resolve(path: str, option: str) -> tuple[pa_fs.FileSystem, str]:
    local = _LOCAL.match(path)
    match = _URI.fullmatch(path)
    if local or match is None:
        bare = path[local.end() :] if local else path
        return pa_fs.LocalFileSystem(), posixpath.normpath(os.path.abspath(bare))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(match["scheme"], match["scheme"])
    try:
        # The path is kept out of the URI: it may hold the signs of a glob.
        file_system, base = pa_fs.FileSystem.from_uri(f"{scheme}://{match['authority']}/{match['query'] or ''}")
    except (pa.ArrowException, OSError, ValueError) as error:
        secret, at, host = match["authority"].rpartition("@")
        raise OptionError(
            f"headgate.files: no file system for {scheme}://{host}: {str(error).replace(secret + at, '')}.",
            source="headgate.files", option=option, value=None,
        ) from (None if secret else error)  # fmt: skip
    return file_system, posixpath.join(base, match["path"].strip("/")).rstrip("/")
