"""Opens a checkpoint location, and makes single files in it durable.

Never: know what the files hold. A file is there whole or not at all, whenever the process dies.

Local folders are written by system calls (a temporary file, fsync, a name for it, fsync of the folder). Amazon S3 is
written by boto3, one PUT a file, since pyarrow cannot put conditionally. On any other file system of pyarrow's two
drivers that start in the same instant may both believe to be the first; everything else holds there as well.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import socket
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from typing import IO, Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa
from pyarrow import fs as pa_fs

from headgate.errors import DeploymentError, HeadgateError, OptionError, StoredStateError
from headgate.formats.file_systems import resolve_paths

_TEMPORARY = ".part-"
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_ATTEMPTS = 5
_WHOLE_WHEN_CLOSED = {"gcs", "abfs"}  # object stores, by pyarrow's names


def open_store(location: str, option: str = "checkpointLocation") -> FileStore:
    """Return the files under a path or URI.

    Raises
    ------
    OptionError
        pyarrow knows no such file system.
    """
    try:
        file_system, (base,) = resolve_paths([location], option)
    except OptionError as error:
        shown = re.sub(r"://[^/?]*@", "://", location)
        raise OptionError(
            f"The option {option!r} is {shown!r}, which cannot be opened: {error.message}", option=option, value=shown
        ) from error
    if isinstance(file_system, pa_fs.LocalFileSystem):
        return LocalStore(file_system, base)
    if file_system.type_name == "s3":
        return S3Store(file_system, base, location)
    return FileStore(file_system, base)


class FileStore:
    """Files under a folder of any file system of pyarrow's; names are relative to it.

    All methods may block, and may be called on any thread. They raise `FileNotFoundError` where a file is missing, and
    `StoredStateError` naming the file for everything else that goes wrong.
    """

    def __init__(self, file_system: pa_fs.FileSystem, base: str) -> None:
        self.base = base
        self._fs = file_system

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this host, or one that is mounted."""
        return False

    @property
    def file_system(self) -> pa_fs.FileSystem:
        """Where the files are, for what has a format of its own; with `path`."""
        return self._fs

    def path(self, name: str) -> str:
        """Return the full path of a name."""
        return posixpath.join(self.base, name)

    def read(self, name: str, size_bytes: int | None = None, offset: int = 0) -> bytes:
        """Return the content of a file, or only so many bytes of it, from an offset on."""
        path = self.path(name)
        try:
            with self._fs.open_input_file(path) as file:
                file.seek(offset)
                data: bytes = file.read() if size_bytes is None else file.read(size_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("read", path, error) from error
        return data

    def write(self, name: str, data: bytes) -> None:
        """Make a file durable; one that is there already is replaced."""
        path = self.path(name)
        try:
            self._write(path, data)
        except OSError as error:
            raise failed("written", path, error) from error

    def open(self, name: str, offset: int | None = None, size_bytes: int = 0) -> pa.NativeFile:
        """Open a file, to be read from its beginning; or so many bytes of it from an offset on, and no others."""
        path = self.path(name)
        try:
            if offset is None:
                return self._fs.open_input_stream(path)
            return self._fs.open_input_file(path).get_stream(offset, size_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("read", path, error) from error

    def write_chunks(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Make a file durable that is made piece by piece, none of which is held; one that is there is replaced."""
        path = self.path(name)
        try:
            self._write_chunks(path, chunks)
        except OSError as error:
            raise failed("written", path, error) from error

    def write_if_absent(self, name: str, data: bytes) -> bool:
        """Make a file durable unless one is there; return whether the content that is there now is this."""
        path = self.path(name)
        try:
            return self._write_if_absent(path, data) or self.read(name) == data
        except OSError as error:
            raise failed("written", path, error) from error

    def names(self, folder: str = "", *, temporary: bool = False) -> list[str]:
        """Return the names in a folder, nothing if there is no such folder.

        ``temporary``: those too of files that somebody is writing, or was when it died.
        """
        return sorted(name for name in self.types(folder) if temporary or not name.startswith(_TEMPORARY))

    def types(self, folder: str = "") -> dict[str, pa_fs.FileType]:
        """Return what there is in a folder, by name, nothing if there is no such folder."""
        path = self.path(folder) if folder else self.base
        try:
            found = self._fs.get_file_info(pa_fs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise failed("listed", path, error) from error
        return {info.base_name: info.type for info in found}

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return the sizes of files in bytes; None for each that is missing."""
        try:
            return [info.size for info in self._fs.get_file_info([self.path(name) for name in names])]
        except OSError as error:
            raise failed("listed", self.base, error) from error

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        path = self.path(name)
        try:
            self._delete(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise failed("deleted", path, error) from error

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, if it is there."""
        path = self.path(folder)
        try:
            self._fs.delete_dir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise failed("deleted", path, error) from error

    def _write(self, path: str, data: bytes) -> None:
        self._write_chunks(path, (data,))

    def _write_chunks(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        self._fs.create_dir(posixpath.dirname(path), recursive=True)
        if self._fs.type_name in _WHOLE_WHEN_CLOSED:
            with self._fs.open_output_stream(path) as stream:
                for chunk in chunks:
                    stream.write(chunk)
            return
        temporary = _temporary(path)
        with self._fs.open_output_stream(temporary) as stream:
            for chunk in chunks:
                stream.write(chunk)
        self._fs.move(temporary, path)

    def _write_if_absent(self, path: str, data: bytes) -> bool:
        if self._fs.get_file_info(path).type != pa_fs.FileType.NotFound:
            return False
        self._write(path, data)
        return True

    def _delete(self, path: str) -> None:
        self._fs.delete_file(path)


class LocalStore(FileStore):
    """Files under a local folder, or one that is mounted."""

    is_local = True

    def _write_chunks(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        temporary = self._write_temporary(path, chunks)
        os.replace(temporary, path)
        _sync_folder(posixpath.dirname(path))

    def _write_if_absent(self, path: str, data: bytes) -> bool:
        if os.path.exists(path):
            return False
        temporary = self._write_temporary(path, (data,))
        try:
            os.link(temporary, path)  # unlike a rename it fails when somebody else was faster
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.replace(temporary, path)
        else:
            os.unlink(temporary)
        _sync_folder(posixpath.dirname(path))
        return True

    def _delete(self, path: str) -> None:
        os.unlink(path)
        _sync_folder(posixpath.dirname(path))

    def _write_temporary(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> str:
        _make_folder(posixpath.dirname(path))
        temporary = _temporary(path)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        return temporary


class S3Store(FileStore):
    """Files under a prefix of a bucket: read by pyarrow, written by boto3."""

    def __init__(self, file_system: pa_fs.FileSystem, base: str, location: str) -> None:
        super().__init__(file_system, base)
        self._location = location
        self._client: Any = None

    def _write(self, path: str, data: bytes) -> None:
        self._put(path, data, {})

    def _write_chunks(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        with tempfile.TemporaryFile() as file:  # one PUT, which must know the length
            for chunk in chunks:
                file.write(chunk)
            file.seek(0)
            self._put(path, file, {})

    def _write_if_absent(self, path: str, data: bytes) -> bool:
        return self._put(path, data, {"IfNoneMatch": "*"})

    def _delete(self, path: str) -> None:
        bucket, _, key = path.partition("/")
        self._call("delete_object", path, Bucket=bucket, Key=key)

    def _put(self, path: str, data: bytes | IO[bytes], condition: dict[str, str]) -> bool:
        """Return False if the condition did not hold."""
        bucket, _, key = path.partition("/")
        return self._call("put_object", path, Bucket=bucket, Key=key, Body=data, **condition) is not None

    def _call(self, operation: str, path: str, **request: Any) -> Any:
        """Call S3; None if a condition did not hold."""
        client = self._client = self._client or _s3_client(self._location)
        from botocore.exceptions import BotoCoreError, ClientError

        attempts = 0
        while True:
            attempts += 1
            try:
                return getattr(client, operation)(**request)
            except (BotoCoreError, ClientError) as error:
                code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else None
                if code == "PreconditionFailed":
                    return None
                if code == "ConditionalRequestConflict" and attempts < _ATTEMPTS:
                    continue  # somebody puts the same file at this very moment: ask who was first
                raise failed("deleted" if operation == "delete_object" else "written", path, error) from error


def _s3_client(location: str) -> Any:
    """Return boto3's client for a location, with what pyarrow takes from the same URI."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise DeploymentError(
            f"A checkpoint location on S3 needs boto3, which cannot be imported on {socket.gethostname()} ({error}). "
            "Install it on the driver: pip install 'headgate[kinesis]'."
        ) from error
    before, _, query = location.partition("?")
    parameters = {name: values[-1] for name, values in parse_qs(query).items()}
    authority = before.partition("://")[2].partition("/")[0]
    key, _, secret = authority.rpartition("@")[0].partition(":")
    endpoint = parameters.get("endpoint_override")
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"{parameters.get('scheme', 'https')}://{endpoint}"
    return boto3.client(
        "s3",
        region_name=parameters.get("region"),
        endpoint_url=endpoint,
        aws_access_key_id=unquote(key) or None,
        aws_secret_access_key=unquote(secret) or None,
        # A PUT that succeeded, but whose answer was lost, is put again: `write_if_absent` compares the content.
        config=Config(retries={"mode": "standard", "total_max_attempts": _ATTEMPTS}, user_agent_extra="headgate"),
    )


def _temporary(path: str) -> str:
    return posixpath.join(posixpath.dirname(path), f"{_TEMPORARY}{uuid.uuid4().hex}")


def _make_folder(folder: str) -> None:
    """Make a folder and those above it durable."""
    if os.path.isdir(folder):
        return
    _make_folder(posixpath.dirname(folder))
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    _sync_folder(posixpath.dirname(folder))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failed(done: str, path: str, error: Exception) -> HeadgateError:
    """Return the error for a file that could not be ``read``, ``written``, ``listed`` or ``deleted``."""
    return StoredStateError(
        f"The file {path} of the checkpoint location could not be {done}: {error}. Check the storage and the "
        "permissions of this process.",
        what="a file of the checkpoint location", path=path,
    )  # fmt: skip
