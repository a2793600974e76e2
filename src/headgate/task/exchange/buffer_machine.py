"""The base of the machines that are given each buffer: `headgate.machine.Machine` with a shorter way through `handle`.

Never: anything that the base does not: table, errors and the form of the history are its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.machine import Machine
from headgate.protocol.channels import Buffer


class BufferMachine(Machine):
    """A machine whose events are what the table calls them, and whose state is its own.

    Its handlers refuse by raising `invalid`, before they change anything.
    """

    UNRECORDED: ClassVar[frozenset[type]] = frozenset()
    """Events that come with each buffer: the history would hold nothing else. All others are in it."""

    def handle(self, event: Any, now_ms: int) -> list[Any]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            It cannot have happened. Nothing has changed.
        """
        # The base calls seven methods that may be overridden: more work than most buffers are.
        was, kind = self.state, type(event)
        try:
            handler = self._DISPATCH[was, kind]
        except KeyError:
            raise self.invalid(event) from None
        actions = [] if handler is None else handler(self, event, now_ms)
        if kind not in self.UNRECORDED:
            self._history.append((now_ms, was, self.brief(event, kind), self.state))
        return actions

    def invalid(self, event: Any, why: str = "the table has no such row") -> InvalidTransitionError:
        """Return the error for an event that cannot have happened, without the event's rows."""
        return super().invalid(_without_rows(event), why)


def _without_rows(event: Any) -> Any:
    if isinstance(event, Buffer):
        return msgspec.structs.replace(event, rows=None)
    for field in ("buffer", "element"):
        if isinstance(getattr(event, field, None), Buffer):
            return msgspec.structs.replace(event, **{field: _without_rows(getattr(event, field))})
    return event
