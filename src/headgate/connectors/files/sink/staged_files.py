"""What a files sink's writer reports to its committer about a staged file, and where staged files lie.

Never: reuse a name. It holds who staged the file, so that a file of a dead writer is known as such, and a random token,
so that a zombie, or another query that writes to the same folder, never hits upon it.

Durable: version 1, and version 2 for a file that belongs in a folder of a partition; golden bytes in
``tests/unit/connectors/files/sink``.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
from collections.abc import Iterable

import msgspec

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.protocol.operator_context import OperatorContext

FOLDER = "_staging"
"""Inside the output folder. Spark and Arrow list no names that begin with an underscore."""
_VERSION = 1
_PARTITIONED_VERSION = 2
_NAME = re.compile(
    r"(?P<query>[0-9a-f]{8})-(?P<run>\d+)-(?P<subtask>\d+)-(?P<attempt>\d+)-(?P<execution>\d+)-(?P<count>\d+)-[0-9a-f]{8}"
    r"\.[a-z0-9.]+"
)


class StagedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A staged file: a committable.

    Parameters
    ----------
    version
        Of this structure: 2 with a ``folder``.
    output
        The folder that it was staged for.
    name
        In the folder of staged files.
    rows, size
        What it holds; ``size`` in bytes.
    folder
        The partition's, below ``output``; empty: the rows are not partitioned.
    """

    version: int
    output: str
    name: str
    rows: int
    size: int
    folder: str = ""

    @classmethod
    def of(cls, output: str, name: str, rows: int, size: int, folder: str = "") -> StagedFile:
        """Return the committable of a staged file, of the oldest version that can say it."""
        version = _PARTITIONED_VERSION if folder else _VERSION
        return cls(version=version, output=output, name=name, rows=rows, size=size, folder=folder)

    def encode(self) -> bytes:
        """Return the committable."""
        return msgspec.json.encode(self)


class StagedName(msgspec.Struct, frozen=True, order=True):
    """Who staged a file, and its number among the files of that writer. Sorts as rows were written."""

    query: str
    run: int
    subtask: int
    execution: int
    attempt: int
    count: int

    @classmethod
    def parse(cls, name: str) -> StagedName:
        """Return what the name of a staged file says."""
        parsed = cls.try_parse(name)
        assert parsed is not None, f"{name!r} names no staged file"
        return parsed

    @classmethod
    def try_parse(cls, name: str) -> StagedName | None:
        """Return what a name says; None: it is not of a staged file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        numbers = {each: int(match[each]) for each in ("run", "subtask", "execution", "attempt", "count")}
        return cls(query=match["query"], **numbers)


class KnownWriters:
    """The newest writers of each query that committed: those of a run, with the execution of each subtask.

    Checkpoints complete in order, and a subtask has one writer at a time: once a writer's files are committed, no more
    come of those before it (they wait, or never will).
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, dict[int, int]]] = {}

    def note(self, staged: Iterable[StagedFile]) -> bool:
        """Note who staged; return whether there is a writer that was not known."""
        changed = False
        for each in staged:
            name = StagedName.parse(each.name)
            run, executions = self._newest.setdefault(name.query, (name.run, {}))
            if name.run > run:
                run, executions = self._newest[name.query] = name.run, {}
            if name.run == run and name.execution > executions.get(name.subtask, -1):
                executions[name.subtask] = name.execution
                changed = True
        return changed

    def is_dead(self, name: StagedName) -> bool:
        """Return whether a file that is not committed never will be."""
        if name.query not in self._newest:
            return False
        run, executions = self._newest[name.query]
        return (name.run, name.execution) < (run, executions.get(name.subtask, -1))


def decode_staged(committable: bytes) -> StagedFile:
    """Return what a committable says.

    Raises
    ------
    CorruptStateError, UnsupportedVersionError
        It is not ours, or of another version.
    """
    try:
        version = _versions.decode(committable).version
        staged = _staged_files.decode(committable) if version in (_VERSION, _PARTITIONED_VERSION) else None
    except msgspec.DecodeError as error:
        raise _corrupt(committable) from error
    if staged is None:
        raise UnsupportedVersionError(
            f"A checkpoint holds a committable of a files sink of version {version}; this Headgate knows "
            f"{_VERSION} and {_PARTITIONED_VERSION}.",
            what="committable of a files sink", expected=_PARTITIONED_VERSION, found=version,
        )  # fmt: skip
    is_folder = not staged.folder or all("=" in each for each in staged.folder.split("/"))
    if StagedName.try_parse(staged.name) is None or not is_folder:
        raise _corrupt(committable)
    return staged


class _Versioned(msgspec.Struct):
    version: int


_versions, _staged_files = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(StagedFile)


def _corrupt(committable: bytes) -> CorruptStateError:
    return CorruptStateError(
        f"A checkpoint holds a committable of a files sink that cannot be read: {committable[:200]!r}.",
        what="committable of a files sink", expected="JSON with version, output, name, rows and size",
        found=committable[:200],
    )  # fmt: skip


class StagedNames:
    """Makes the names of one writer's staged files.

    Parameters
    ----------
    context
        Who writes.
    extension
        What names end with, without a dot.
    """

    def __init__(self, context: OperatorContext, extension: str) -> None:
        query = hashlib.sha256(context.query_id.encode()).hexdigest()[:8]
        self._prefix = f"{query}-{context.execution_name}"
        self._suffix = f"{secrets.token_hex(4)}.{extension}"
        self._count = 0

    def next(self) -> str:
        """Return a name that no file has ever had."""
        self._count += 1
        return f"{self._prefix}-{self._count}-{self._suffix}"


def staged_path(output: str, name: str) -> str:
    """Return where a staged file lies."""
    return posixpath.join(output, FOLDER, name)
