"""Lists the files under paths, folders and globs, with their sizes, times and partition folders.

Never: open a file, remember a former listing, or run on the enumerator's thread: it blocks.

Follows Spark 4.3, "Generic File Source Options" and partition discovery (``InMemoryFileIndex``): names that begin with
``_`` or ``.`` are ignored, folders named ``key=value`` are partitions; files in other folders count only with
``recursiveFileLookup`` or beside partitions.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow.fs as pa_fs

from headgate.connectors.files.partitions import PartitionValues, partition_of_folder
from headgate.errors import BadDataError, OptionError, SourceUnavailableError
from headgate.formats.names import Names

_GLOB = re.compile(r"[*?\[\]{}\\]")
_PATTERN = re.compile(r"\\.|([*?\[{])", re.DOTALL)


class FileStatus(msgspec.Struct, frozen=True, gc=False):
    """One file as it was listed: path in its file system, bytes, milliseconds since 1970, partition values.

    ``nested``: it lies in a folder below the root, not in the root itself.
    """

    path: str
    size: int
    modified_ms: int
    partitions: PartitionValues = ()
    nested: bool = False


class _Folders(msgspec.Struct, frozen=True):
    """The partition values in a folder, and whether it is itself a partition folder (or a root)."""

    values: PartitionValues = ()
    open: bool = True

    def enter(self, name: str) -> _Folders:
        """Return what holds in a folder inside. As in Spark, the innermost unbroken run of ``key=value`` counts."""
        pair = partition_of_folder(name)
        if pair is None:
            return _Folders(self.values, False)
        return _Folders((*self.values, pair) if self.open else (pair,))


class FileListing(msgspec.Struct, frozen=True, kw_only=True):
    """What to list; the listing itself is `list_files`.

    Parameters
    ----------
    file_system
        Where all paths are.
    roots
        Files, folders and globs, in the file system's spelling.
    base_path
        The folder below which folders named ``key=value`` count as partitions; None: each root by itself.
    recursive
        Enter all folders, and see no partitions.
    name_filter
        A glob that the names of files must match, or None.
    modified_after_ms, modified_before_ms
        Only files modified after and before, in milliseconds since 1970-01-01 UTC, or None.
    globs_may_be_empty
        A glob that matches nothing is not an error: files may come.
    case_sensitive
        Whether partition folders whose names differ only in case are of two columns.
    """

    file_system: pa_fs.FileSystem
    roots: tuple[str, ...]
    base_path: str | None = None
    recursive: bool = False
    name_filter: str | None = None
    modified_after_ms: int | None = None
    modified_before_ms: int | None = None
    globs_may_be_empty: bool = False
    case_sensitive: bool = False

    def list_files(self) -> list[FileStatus]:
        """Return all files with content, in the order of modification time, then path. Blocks.

        Raises
        ------
        OptionError
            A path does not exist, or files lie at different depths of partition folders.
        SourceUnavailableError
            The file system does not answer.
        """
        lister: _Lister = (
            _LocalLister() if isinstance(self.file_system, pa_fs.LocalFileSystem) else _RemoteLister(self.file_system)
        )
        try:
            found: dict[str, FileStatus] = {}
            for root in self._expanded_roots(lister):
                for status in self._list_root(lister, root):
                    found[status.path] = status
        except OSError as error:
            raise SourceUnavailableError(
                f"headgate.files cannot list {', '.join(self.roots)}: {error}.", source="headgate.files"
            ) from error
        files = [status for status in found.values() if status.size > 0]
        if not self.recursive and not any(status.partitions for status in files):
            files = [status for status in files if not status.nested]
        _check_same_partition_columns(files, Names(self.case_sensitive))
        files.sort(key=lambda status: (status.modified_ms, status.path))
        return files

    def _expanded_roots(self, lister: _Lister) -> Iterator[str]:
        for root in self.roots:
            if not _GLOB.search(root):
                yield root
                continue
            matches = [match for pattern in _expand_braces(root) for match in _glob(lister, pattern)]
            if not matches and not self.globs_may_be_empty:
                raise _missing(root, "No file or folder matches it")
            yield from matches

    def _list_root(self, lister: _Lister, root: str) -> Iterator[FileStatus]:
        kind = lister.kind(root)
        if kind is None:
            raise _missing(root, "It does not exist")
        wanted = self._wanted()
        base = self.base_path if self.base_path is not None else (root if kind == "folder" else posixpath.dirname(root))
        if kind == "file":
            folders = _Folders() if self.recursive else _folders_below(base, posixpath.dirname(root))
            statuses: Iterator[FileStatus] = iter([lister.file(root, folders.values)])
        else:
            folders = _Folders() if self.recursive else _folders_below(base, root)
            statuses = lister.walk(root, folders, self.recursive)
        return (status for status in statuses if wanted(status))

    def _wanted(self) -> Callable[[FileStatus], bool]:
        name_matches = None if self.name_filter is None else _glob_regex(self.name_filter).fullmatch
        after, before = self.modified_after_ms, self.modified_before_ms

        def wanted(status: FileStatus) -> bool:
            name = posixpath.basename(status.path)
            return (
                not is_hidden(name)
                and (name_matches is None or name_matches(name) is not None)
                and (after is None or status.modified_ms > after)
                and (before is None or status.modified_ms < before)
            )

        return wanted


def is_hidden(name: str) -> bool:
    """Return whether Spark ignores a file or folder of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


class _Lister:
    """The three questions that listing asks a file system."""

    def kind(self, path: str) -> str | None:
        """Return ``file``, ``folder``, or None if there is nothing."""
        raise NotImplementedError

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, none if there is no such folder."""
        raise NotImplementedError

    def file(self, path: str, partitions: PartitionValues) -> FileStatus:
        """Return one file."""
        raise NotImplementedError

    def walk(self, folder: str, outer: _Folders, blind: bool) -> Iterator[FileStatus]:
        """Return the files below a folder; ``blind``: folders' names mean nothing."""
        raise NotImplementedError


class _LocalLister(_Lister):
    def kind(self, path: str) -> str | None:
        return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else None

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def file(self, path: str, partitions: PartitionValues) -> FileStatus:
        stat = os.stat(path)
        return FileStatus(path, stat.st_size, stat.st_mtime_ns // 1_000_000, partitions)

    def walk(self, folder: str, outer: _Folders, blind: bool) -> Iterator[FileStatus]:
        folders = [(folder, outer)]
        while folders:
            current, inside = folders.pop()
            values, nested = inside.values, current is not folder
            try:
                scanned = os.scandir(current)
            except FileNotFoundError:
                if not nested:
                    raise
                continue  # it vanished since the folder around it was read
            with scanned as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if not entry.name.isascii():
                        _check_name(entry.path)
                    if entry.is_dir():
                        folders.append((entry.path, inside if blind else inside.enter(entry.name)))
                        continue
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:
                        continue  # it vanished since the folder was read, or is a link to nothing
                    yield FileStatus(entry.path, stat.st_size, stat.st_mtime_ns // 1_000_000, values, nested)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path)
        raise BadDataError(
            f"headgate.files: the name {shown!r} is not UTF-8, so that it cannot be remembered. Rename the file; "
            "names that begin with '_' are ignored.",
            path=repr(shown), byte_offset=0,
        ) from error  # fmt: skip


class _RemoteLister(_Lister):
    def __init__(self, file_system: pa_fs.FileSystem) -> None:
        self._file_system = file_system

    def kind(self, path: str) -> str | None:
        found = self._file_system.get_file_info(path).type
        return {pa_fs.FileType.File: "file", pa_fs.FileType.Directory: "folder"}.get(found)

    def names(self, folder: str) -> list[str]:
        selector = pa_fs.FileSelector(folder, allow_not_found=True)
        return [info.base_name for info in self._file_system.get_file_info(selector)]

    def file(self, path: str, partitions: PartitionValues) -> FileStatus:
        return _status(self._file_system.get_file_info(path), partitions)

    def walk(self, folder: str, outer: _Folders, blind: bool) -> Iterator[FileStatus]:
        # One recursive listing is one request per thousand objects; a walk would be one per folder.
        selector = pa_fs.FileSelector(folder, recursive=True)
        root = folder.rstrip("/")
        below: dict[str, _Folders | None] = {root: outer}

        def folders_of(current: str) -> _Folders | None:
            if current not in below:
                parent, name = posixpath.split(current)
                inside = folders_of(parent)
                if inside is None or is_hidden(name):
                    below[current] = None
                else:
                    below[current] = inside if blind else inside.enter(name)
            return below[current]

        for info in self._file_system.get_file_info(selector):
            if info.type == pa_fs.FileType.File:
                parent = posixpath.dirname(info.path)
                inside = folders_of(parent)
                if inside is not None:
                    yield _status(info, inside.values, parent != root)


def _status(info: pa_fs.FileInfo, partitions: PartitionValues, nested: bool = False) -> FileStatus:
    return FileStatus(info.path, info.size or 0, (info.mtime_ns or 0) // 1_000_000, partitions, nested)


def _folders_below(base: str, folder: str) -> _Folders:
    relative = posixpath.relpath(folder or ".", base or ".")
    if relative.startswith(".."):
        raise OptionError(
            f"headgate.files: the option 'basePath' is {base!r}, but the path {folder!r} does not lie below it. "
            "Give a folder that holds all paths.",
            source="headgate.files", option="basePath", value=base,
        )  # fmt: skip
    folders = _Folders()
    for name in [] if relative == "." else relative.split("/"):
        folders = folders.enter(name)
    return folders


def _check_same_partition_columns(files: Sequence[FileStatus], names: Names) -> None:
    first_by_keys: dict[tuple[str, ...], str] = {}
    keys_by_values: dict[int, tuple[str, ...]] = {}
    for status in files:
        # Files of a folder share one tuple, so its identity saves the work for all but the first of them.
        keys = keys_by_values.get(id(status.partitions))
        if keys is None:
            keys = keys_by_values[id(status.partitions)] = tuple(names.key(column) for column, _ in status.partitions)
            first_by_keys.setdefault(keys, status.path)
    if len(first_by_keys) > 1:
        (keys, path), (other_keys, other_path) = list(first_by_keys.items())[:2]
        raise OptionError(
            f"headgate.files: files lie in different partition folders: {path} in {list(keys)}, {other_path} in "
            f"{list(other_keys)}. Read them one by one, or set 'recursiveFileLookup' to true to see no partitions.",
            source="headgate.files", option="path", value=path,
        )  # fmt: skip


def _missing(path: str, reason: str) -> OptionError:
    return OptionError(
        f"headgate.files: the path {path!r} cannot be read. {reason}. Give the path of a file, a folder or a glob.",
        source="headgate.files", option="path", value=path, missing=True,
    )  # fmt: skip


def _glob(lister: _Lister, pattern: str) -> Iterator[str]:
    """Yield the existing paths that match a glob without braces, folder by folder, sorted."""
    head = "/" if pattern.startswith("/") else ""
    found = [head]
    for component in [part for part in pattern.split("/") if part]:
        if any(match[1] for match in _PATTERN.finditer(component)):
            matches = _glob_regex(component).fullmatch
            found = [
                posixpath.join(folder, name)
                for folder in found
                for name in sorted(lister.names(folder or "."))
                if matches(name)
            ]
        else:
            found = [posixpath.join(folder, re.sub(r"\\(.)", r"\1", component)) for folder in found]
    for path in found:
        if lister.kind(path) is not None:
            yield path


def _expand_braces(pattern: str) -> list[str]:
    """Return the patterns that ``{a,b}`` stands for, as Hadoop's globs do."""
    depth, opening, begin, parts = 0, 0, 0, []
    for match in re.finditer(r"\\.|[{,}]", pattern, re.DOTALL):  # what follows a backslash means itself
        index = match.start()
        if match[0] == "{":
            depth += 1
            if depth == 1:
                opening, begin = index, index + 1
        elif match[0] == "," and depth == 1:
            parts.append(pattern[begin:index])
            begin = index + 1
        elif match[0] == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                parts.append(pattern[begin:index])
                tail = pattern[index + 1 :]
                return [each for part in parts for each in _expand_braces(pattern[:opening] + part + tail)]
    if depth > 0:
        raise _missing(pattern, "Its '{' has no '}'")
    return [pattern]


def _glob_regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a Hadoop glob for one name: ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b}``."""
    return re.compile("|".join(_one_glob_regex(each) for each in _expand_braces(pattern)), re.DOTALL)


def _one_glob_regex(pattern: str) -> str:
    out, index = [], 0
    while index < len(pattern):
        char = pattern[index]
        closing = pattern.find("]", index + 2) if char == "[" else -1
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif closing > 0:
            inner = pattern[index + 1 : closing]
            negated = inner[0] in "^!"
            body = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[negated:])
            out.append(f"[{'^' if negated else ''}{body}]")
            index = closing
        elif char == "\\" and index + 1 < len(pattern):
            index += 1
            out.append(re.escape(pattern[index]))
        else:
            out.append(re.escape(char))
        index += 1
    return "".join(out)
