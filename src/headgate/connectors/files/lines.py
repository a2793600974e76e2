r"""Cuts files into blocks of whole lines, at byte offsets that any reader finds again.

Never: decode a line. Offsets are those of the decompressed file.

A range ``[start, end)`` of a file holds the lines whose first byte lies in it. Both ends are moved to the first line
that starts there or later, by the same function, so neighbouring ranges meet whatever the cuts. A position after a
block is the start of a line and stays where it is.

Follows FLIP-27, "Implementation Plan"; Hadoop's ``LineRecordReader`` for what ends a line (``\n``, ``\r\n``, ``\r``, or
the user's separator) and for the byte order mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from headgate.errors import BadDataError, DataLossError

ReadAt = Callable[[int, int], bytes]
"""Returns the bytes from an offset on, fewer than asked for only at the end of the file."""

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 32 << 20
_PROBE_BYTES = 64 << 10
_ANY_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def can_be_cut(separator: bytes | None) -> bool:
    """Return whether a line's start can be found from the middle of a file.

    It cannot if the separator's end is its beginning, as in ``||``: of three bars nothing says, without all that
    precedes them, which two are the separator.
    """
    return separator is None or not any(separator.endswith(separator[:n]) for n in range(1, len(separator)))


class LineCutter:
    """Cuts one file.

    Parameters
    ----------
    read_at
        Reads the file; `plain_reader` or `Window.read_at`.
    path
        For messages.
    separator
        What ends a line; None: any of the three.
    block_bytes
        How much is read at once.
    max_line_bytes
        The longest line, in bytes, that is not an error.
    """

    def __init__(
        self, read_at: ReadAt, path: str, separator: bytes | None,
        block_bytes: int = BLOCK_BYTES, max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:  # fmt: skip
        self._read_at = read_at
        self._path = path
        self._separator = separator
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes

    def line_start(self, offset: int) -> int:
        """Return the start of the first line that starts at ``offset`` or later; the file's size if none does."""
        if offset <= 0:
            return 0
        return self.line_end(max(0, offset - len(self._separator or b"\n")))

    def line_end(self, offset: int) -> int:
        """Return the offset after the first separator that begins at ``offset`` or later, or the file's size."""
        size = _PROBE_BYTES
        while True:
            data = self._read_at(offset, size)
            at_end = len(data) < size
            found = self._first_line_end(data, at_end)
            if found is not None:
                return offset + found
            if at_end:
                return offset + len(data)
            if size > self._max_line_bytes:
                raise self._line_too_long(offset)
            size *= 4

    def first_line(self, is_header: Callable[[bytes], bool]) -> tuple[bytes, int]:
        """Return the first line that is a header, without its end, and where the next line starts."""
        start = self.text_start()
        while True:
            end = self.line_end(start)
            line = self._read_at(start, end - start)
            bare = line.rstrip(b"\r\n") if self._separator is None else line.removesuffix(self._separator)
            if not line or is_header(bare):
                return bare, end
            start = end

    def text_start(self) -> int:
        """Return the offset after a UTF-8 byte order mark: 3 or 0."""
        return len(_BYTE_ORDER_MARK) if self._read_at(0, len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0

    def blocks(self, position: int, stop: int | None) -> Iterator[tuple[bytes | memoryview, int]]:
        """Yield blocks of whole lines and the offset after each, from a line's start to a line's start.

        Parameters
        ----------
        position
            The start of a line.
        stop
            The start of a line, or the end of the file; None: to the end of a stream of unknown length.

        Raises
        ------
        BadDataError
            A line is longer than allowed.
        DataLossError
            The file ends before ``stop``: it has shrunk.
        """
        wanted = self._block_bytes
        while stop is None or position < stop:
            size = wanted if stop is None else min(wanted, stop - position)
            data = self._read_at(position, size)
            if len(data) < size and stop is not None:
                raise _shrunk(self._path, stop, position + len(data))
            at_end = len(data) < size or position + size == stop
            cut = len(data) if at_end else self._last_line_end(data)
            if cut == 0 and at_end:
                return
            if cut == 0:
                if wanted >= self._max_line_bytes:
                    raise self._line_too_long(position)
                wanted = min(wanted * 2, self._max_line_bytes)
                continue
            position += cut
            yield (data if cut == len(data) else memoryview(data)[:cut]), position
            wanted = self._block_bytes

    def _first_line_end(self, data: bytes, at_end: bool) -> int | None:
        if self._separator is not None:
            found = data.find(self._separator)
            return None if found < 0 else found + len(self._separator)
        match = _ANY_LINE_END.search(data)
        if match is None or (match.end() == len(data) and match[0] == b"\r" and not at_end):
            return None  # a \n may follow
        return match.end()

    def _last_line_end(self, data: bytes) -> int:
        """Return the offset after the last separator of a block that others follow; 0 if there is none."""
        separator = self._separator
        if separator is None:
            found = data.rfind(b"\n")
            # A \r at the very end may be half of a \r\n.
            return found + 1 if found >= 0 else data.rfind(b"\r", 0, len(data) - 1) + 1
        if can_be_cut(separator):
            found = data.rfind(separator)
            return found + len(separator) if found >= 0 else 0
        return len(data) - len(data.split(separator)[-1])

    def _line_too_long(self, offset: int) -> BadDataError:
        return BadDataError(
            f"headgate.files: the line at byte {offset} of {self._path} is longer than {self._max_line_bytes} bytes. "
            "Is 'lineSep' or 'fileFormat' right? Longer lines cannot be read in bounded memory.",
            path=self._path, byte_offset=offset,
        )  # fmt: skip


def plain_reader(file: pa.NativeFile, size: int) -> ReadAt:
    """Return a `ReadAt` of an uncompressed file that never reads beyond ``size``, should the file have grown."""

    def read_at(offset: int, wanted: int) -> bytes:
        wanted = min(wanted, size - offset)
        data: bytes = file.read_at(wanted, offset) if wanted > 0 else b""
        return data

    return read_at


class Window:
    """Gives a stream's bytes by offset, as long as nobody goes back before the last offset asked for.

    Parameters
    ----------
    stream
        Read from its start, once.
    """

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._data = b""
        self._offset = 0

    def read_at(self, offset: int, wanted: int) -> bytes:
        """Return ``wanted`` bytes from ``offset`` on, fewer only at the end."""
        assert offset >= self._offset, "a stream cannot go back"
        kept = offset - self._offset
        self._data = self._data[kept:] if kept < len(self._data) else self._skip(kept - len(self._data))
        self._offset = offset
        missing = wanted - len(self._data)
        if missing > 0:
            parts = [self._data]
            while missing > 0 and (part := self._stream.read(missing)):
                parts.append(part)
                missing -= len(part)
            self._data = b"".join(parts)
        return self._data[:wanted]

    def _skip(self, left: int) -> bytes:
        while left > 0 and (part := self._stream.read(min(left, BLOCK_BYTES))):
            left -= len(part)
        return b""


def _shrunk(path: str, wanted: int, found: int) -> DataLossError:
    return DataLossError(
        f"headgate.files: {path} has {found} bytes, but {wanted} were listed: it has shrunk since. Restore it, or set "
        "'ignoreMissingFiles' to true to go on without the rest of it.",
        path=path, wanted=wanted, available=found,
    )  # fmt: skip
