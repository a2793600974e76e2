"""Decompresses files whose names end in a codec's extension, as one stream from the start.

Never: cut a compressed file, or guess a codec from the content where the name has none (Spark does not either).

Follows Hadoop's codecs by extension: ``.gz .bz2 .zst .deflate`` are what everybody writes; ``.lz4 .snappy`` are
Hadoop's own block format (two big-endian lengths before each block), which is not the frame format of the tools of
these names. LZ4 frames are known by their magic number and read too.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator

import pyarrow as pa

from headgate.errors import BadDataError

_CODECS = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".deflate": "gzip",  # zlib's header: the decompressor itself distinguishes it from gzip's
    ".bz2": "bz2",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".lz4": "lz4",
    ".snappy": "snappy",
}
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"


def codec_of(path: str) -> str | None:
    """Return the codec that the name of a file stands for, or None for a plain file."""
    return _CODECS.get(posixpath.splitext(path)[1].lower())


def open_decompressed(file: pa.NativeFile, path: str) -> pa.NativeFile:
    """Return the decompressed content of a file as a stream; the file itself if it is not compressed."""
    codec = codec_of(path)
    if codec is None:
        return file
    head = file.read(4)
    file.seek(0)
    if codec == "snappy" or (codec == "lz4" and head != _LZ4_FRAME_MAGIC):
        raw = "lz4_raw" if codec == "lz4" else codec
        return pa.PythonFile(_Chunks(_hadoop_blocks(file, pa.Codec(raw), path)), mode="r")
    return pa.CompressedInputStream(file, codec)


def _hadoop_blocks(file: pa.NativeFile, codec: pa.Codec, path: str) -> Iterator[bytes]:
    """Yield the chunks of a file in the format of Hadoop's ``BlockCompressorStream``."""
    while head := file.read(4):
        offset = file.tell() - len(head)
        wanted = _length(head, path, offset)
        while wanted > 0:
            length = _length(file.read(4), path, offset)
            compressed = file.read(length)
            # A block of several chunks is written only for input beyond the codec's buffer; each chunk but the last
            # then has an unknown size of its own, which snappy states in its first bytes and LZ4 does not.
            size = _snappy_size(compressed) if codec.name == "snappy" else wanted
            if len(compressed) < length or size > wanted:
                raise _corrupt(path, offset)
            try:
                chunk = codec.decompress(compressed, size, asbytes=True)
            except (pa.ArrowException, OSError) as error:
                raise _corrupt(path, offset) from error
            wanted -= len(chunk)
            yield chunk


def _length(data: bytes, path: str, offset: int) -> int:
    if len(data) != 4:
        raise _corrupt(path, offset)
    (length,) = struct.unpack(">I", data)
    return int(length)


def _snappy_size(data: bytes) -> int:
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size


def _corrupt(path: str, offset: int) -> BadDataError:
    return BadDataError(
        f"headgate.files: {path} is not a complete file of Hadoop's {codec_of(path)} codec at byte {offset}. Write it "
        "again, or compress it with gzip or zstd.",
        path=path, byte_offset=offset,
    )  # fmt: skip


class _Chunks:
    """The least of a Python file that pyarrow reads from."""

    closed = False

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Forget the rest."""
        self._rest = b""
