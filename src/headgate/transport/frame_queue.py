"""In which order the frames of many channels leave on one connection.

Never: change the order of one channel's frames, touch a socket, or take a lock.

What is small goes first: events and credits do not wait for the rows of other channels, except for the one buffer that
is being written. Large frames take turns, one for each channel. So that endless small ones do not stop them, a large
one goes after `_MOST_PASSED` bytes. The connection's own frames, of number 0, precede all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

LARGE = 16 << 10
"""Rows of more bytes are."""
_MOST_PASSED = 256 << 10


class OutgoingFrame(NamedTuple):
    """A frame: its head with metadata, its body in parts, and whether small ones of other channels may pass it."""

    head: bytes
    body: Sequence[Any] = ()
    size: int = 0
    is_large: bool = False


class FrameQueue:
    """Frames that wait, by the number of their channel."""

    def __init__(self) -> None:
        self._frames: dict[int, deque[OutgoingFrame]] = {}
        self._small: deque[int] = deque()  # channels whose next frame is small, each once
        self._large: deque[int] = deque()  # the others
        self._passed = 0  # bytes of small frames since the last large one, while one waits

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(self, number: int, frame: OutgoingFrame) -> None:
        """Add a frame after those of its channel."""
        frames = self._frames.get(number)
        if frames is None:
            self._frames[number] = deque((frame,))
            self._line_up(number, frame)
        else:
            frames.append(frame)

    def take(self, most_bytes: int, most_frames: int) -> list[OutgoingFrame]:
        """Remove and return what goes next: at least one frame, if there is any; at most one large one, the last."""
        taken: list[OutgoingFrame] = []
        size = 0
        while self._frames and size < most_bytes and len(taken) < most_frames:
            frame = self._next()
            taken.append(frame)
            if frame.is_large:
                break
            size += frame.size
        return taken

    def discard(self, number: int) -> None:
        """Forget the frames of a channel, which nobody wants any more."""
        frames = self._frames.pop(number, None)
        if frames is not None:
            (self._large if frames[0].is_large else self._small).remove(number)

    def clear(self) -> None:
        """Forget all."""
        self._frames.clear()
        self._small.clear()
        self._large.clear()

    def _next(self) -> OutgoingFrame:
        large = bool(self._large) and (not self._small or self._passed >= _MOST_PASSED)
        number = (self._large if large else self._small).popleft()
        frames = self._frames[number]
        frame = frames.popleft()
        if large:
            self._passed = 0
        elif self._large:
            self._passed += frame.size
        if frames:
            self._line_up(number, frames[0])
        else:
            del self._frames[number]
        return frame

    def _line_up(self, number: int, frame: OutgoingFrame) -> None:
        if number:
            (self._large if frame.is_large else self._small).append(number)
        else:
            self._small.appendleft(number)
