"""Keeps what is too large for Spark's offset log in files under ``stateLocation``, named by their content.

Never: change or reuse a file. A file is complete and durable before an offset names it, and is deleted only when no
offset that Spark may still restart from names it.

Long texts, lists and tables in an offset are moved out: ``{"$file": "<sha256>"}`` takes their place. Equal content
has an equal name, so what did not change is not written again.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable
from typing import Any

import msgspec
from pyarrow import fs

from headgate.errors import CorruptStateError, OptionError

INLINE_BYTES = 1024
"""Text up to this length stays in the offset."""
_REFERENCE = "$file"


class StateStore:
    """The folder of one query under ``stateLocation``.

    Parameters
    ----------
    location
        A path or URI that pyarrow can open, shared by the driver and every machine it may be restarted on.
    state_id
        The query's own folder in it, so that several queries may share a location.
    """

    def __init__(self, location: str, state_id: str) -> None:
        self._fs, root = _open(location)
        self._folder = posixpath.join(root, state_id)
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._written: set[str] = set()
        self._inside: dict[str, set[str]] = {}
        self._fs.create_dir(self._folder, recursive=True)

    def move_out(self, value: Any) -> Any:
        """Return ``value`` (JSON) with its long parts in files, all of them durable."""
        if isinstance(value, dict):
            is_nested = any(isinstance(each, (dict, list, tuple)) for each in value.values())
            value = {key: self.move_out(each) for key, each in value.items()}
            if is_nested:
                return value
        elif isinstance(value, (list, tuple)):
            # A list of objects, such as a plan of 100,000 files, goes as one: it is not searched for long parts.
            if not any(isinstance(each, dict) for each in value):
                value = [self.move_out(each) for each in value]
        elif not isinstance(value, str) or len(value) <= INLINE_BYTES:
            return value
        text = msgspec.json.encode(value, order="sorted")
        return {_REFERENCE: self._write(text)} if len(text) > INLINE_BYTES else value

    def bring_in(self, value: Any) -> Any:
        """Return ``value`` with the files it names in their places again.

        Raises
        ------
        CorruptStateError
            A file is missing or its content does not match its name.
        """
        if isinstance(value, list):
            return [each if _is_object(each) else self.bring_in(each) for each in value]
        if not isinstance(value, dict):
            return value
        if _REFERENCE in value:
            return self.bring_in(msgspec.json.decode(self._read(value[_REFERENCE])))
        return {key: self.bring_in(each) for key, each in value.items()}

    def prune(self, offsets: Iterable[Any]) -> None:
        """Delete the files that none of ``offsets`` names, those named inside other files included."""
        keep: set[str] = set()
        for offset in offsets:
            self._collect(offset, keep)
        for info in self._fs.get_file_info(fs.FileSelector(self._folder)):
            name = info.base_name
            if info.is_file and name not in keep:
                self._fs.delete_file(info.path)
        self._written &= keep
        self._inside = {name: inside for name, inside in self._inside.items() if name in keep}

    def _collect(self, value: Any, names: set[str]) -> None:
        if isinstance(value, list):
            for each in value:
                if not _is_object(each):
                    self._collect(each, names)
        elif isinstance(value, dict) and _REFERENCE in value:
            name = value[_REFERENCE]
            if name not in self._inside:
                inside: set[str] = set()
                self._collect(msgspec.json.decode(self._read(name)), inside)
                self._inside[name] = inside
            names |= {name, *self._inside[name]}
        elif isinstance(value, dict):
            for each in value.values():
                self._collect(each, names)

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, name)

    def _write(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        if name not in self._written:
            if self._local:
                _write_durably(self._path(name), data)
            else:
                # Object stores show a file only when it is closed, whole.
                with self._fs.open_output_stream(self._path(name)) as stream:
                    stream.write(data)
            self._written.add(name)
        return name

    def _read(self, name: str) -> bytes:
        path = self._path(name)
        try:
            with self._fs.open_input_file(path) as file:
                data: bytes = file.read()
        except (FileNotFoundError, OSError) as error:
            raise CorruptStateError(
                f"The offset of this query needs the file {path}, which cannot be read: {error}. Restore the folder "
                "of 'stateLocation', or start the query with a new checkpoint.",
                what="a file of stateLocation",
                path=path,
            ) from error
        found = hashlib.sha256(data).hexdigest()
        if found != name:
            raise CorruptStateError(
                f"The file {path} has changed since it was written: its content has the hash {found}.",
                what="a file of stateLocation",
                path=path,
                expected=name,
                found=found,
            )
        return data


def _is_object(value: Any) -> bool:
    """Return whether a value is a JSON object that stands for itself, not for a file."""
    return isinstance(value, dict) and _REFERENCE not in value


def _open(location: str) -> tuple[fs.FileSystem, str]:
    try:
        if "://" in location:
            filesystem, path = fs.FileSystem.from_uri(location)
            return filesystem, path
        return fs.LocalFileSystem(), os.path.abspath(location)
    except (ValueError, OSError) as error:
        raise OptionError(
            f"The option 'stateLocation' is {location!r}, which cannot be opened: {error}.",
            option="stateLocation",
            value=location,
        ) from error


def _write_durably(path: str, data: bytes) -> None:
    """Write a local file so that a crash leaves the whole file or none."""
    if os.path.exists(path):
        return
    temporary = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(posixpath.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
