"""Frames out of the bytes of a connection, each body in a buffer of its own, which Arrow can use as it is.

Never: allocate what a length promises, or take anything but a greeting, before `trusted` is set; touch a socket.

Where to read the next bytes is asked for (`room`): while a large body comes, that is the body itself, so nothing is
copied. Else it is a space that all connections of a thread share: what is left in it is kept elsewhere before the next
one reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headgate.protocol.data_frames import FAMILY, GREETINGS, HEAD, MAX_HELLO, MAX_METADATA, PREAMBLE, IllegalFrame, Kind

SHARED_BYTES = 64 << 10
_KINDS = {kind.value: kind for kind in Kind}


class Frame(NamedTuple):
    """A frame that came."""

    kind: Kind
    number: int
    metadata: bytes
    body: pa.Buffer | None


class OtherVersion(IllegalFrame):
    """It is a data plane, but of another version."""


class FrameReader:
    """The bytes of one connection.

    Parameters
    ----------
    shared
        `SHARED_BYTES` that all readers of the thread use.
    """

    def __init__(self, shared: memoryview) -> None:
        self.trusted = False
        """The other side has shown that it is of this query."""
        self.is_deaf = False
        """What comes does not matter."""
        self._shared = shared
        self._rest = b""  # the beginning of what follows
        self._greeted = False
        self._coming: Frame | None = None  # whose body is not complete
        self._space: memoryview | None = None  # what is missing of it

    @property
    def missing(self) -> int:
        """How many bytes of a body are still to come."""
        return 0 if self._space is None else len(self._space)

    def room(self) -> memoryview:
        """Return where the next bytes belong; `take` must follow before another reader of the thread is used."""
        if self._space is not None:
            return self._space
        if self.is_deaf:
            return self._shared
        kept = len(self._rest)
        self._shared[:kept] = self._rest
        return self._shared[kept:]

    def take(self, size: int) -> Iterator[Frame]:
        """Give the frames that so many more bytes complete.

        Raises
        ------
        IllegalFrame
            What came is not from a slot of this version, or a stranger sends too much.
        """
        if self.is_deaf:
            return
        if self._space is not None:
            self._space = self._space[size:]
            if not self._space:
                complete, self._coming, self._space = self._coming, None, None
                assert complete is not None
                yield complete
            return
        there = self._shared[: len(self._rest) + size]
        self._rest = b""
        if not self._greeted:
            if not self._greeting_is_right(there):
                self._rest = bytes(there)
                return
            self._greeted = True
            there = there[len(PREAMBLE) :]
        while len(there) >= HEAD.size and not self.is_deaf:  # the frame before may have made it so
            kind, number, metadata_size, body_size = self._head(there)
            end = HEAD.size + metadata_size
            if len(there) < end:
                break
            metadata = bytes(there[HEAD.size : end])
            there = there[end:]
            if not body_size:
                yield Frame(kind, number, metadata, None)
                continue
            body = pa.allocate_buffer(body_size)
            space = memoryview(body).cast("B")
            found = min(body_size, len(there))
            space[:found] = there[:found]
            there = there[found:]
            frame = Frame(kind, number, metadata, body)
            if found < body_size:
                self._coming, self._space = frame, space[found:]
                return
            yield frame
        self._rest = bytes(there)

    def _head(self, there: memoryview) -> tuple[Kind, int, int, int]:
        number_of_kind, number, metadata_size, body_size = HEAD.unpack_from(there)
        kind = _KINDS.get(number_of_kind)
        if kind is None:
            raise IllegalFrame(f"there is no frame of kind {number_of_kind}")
        if metadata_size > MAX_METADATA:
            raise IllegalFrame(f"{kind.name} has {metadata_size} bytes of metadata")
        if not self.trusted and (kind not in GREETINGS or metadata_size + body_size > MAX_HELLO):
            raise IllegalFrame(f"it begins with {kind.name} of {metadata_size + body_size} bytes")
        return kind, number, metadata_size, body_size

    def _greeting_is_right(self, there: memoryview) -> bool:
        """Return whether the preamble is complete."""
        found = bytes(there[: len(PREAMBLE)])
        if found.startswith(FAMILY) and len(found) == len(PREAMBLE) and found != PREAMBLE:
            raise OtherVersion(f"it speaks version {int.from_bytes(found[len(FAMILY) :], 'big')}")
        if not PREAMBLE.startswith(found) and not (FAMILY.startswith(found) or found.startswith(FAMILY)):
            raise IllegalFrame("it does not speak as a slot does")
        return found == PREAMBLE
