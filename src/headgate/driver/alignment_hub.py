"""Where the queries of one Spark application meet in an alignment group: each hears the minimum of the others.

Never: decide how far anybody may read, or for how long a query without readers counts (`headgate.coordinator.alignment`
does).

All queries of an application run in its driver process, so this is a table in memory. A query is a member from `join`
until `Membership.leave`, over all its runs: what it shared last counts, between two runs as well. Without having shared
anything it has no vote.

Follows FLIP-182 across queries (membership ends with the query).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

OnOthersMoved = Callable[[int | None], None]


class AlignmentHub:
    """The members of all groups of all applications. All methods may be called by any thread.

    Examples
    --------
    >>> hub = AlignmentHub()
    >>> first = hub.join("app", "g")
    >>> first.listen(print)
    >>> first.share(100)
    >>> second = hub.join("app", "g")
    >>> second.share(50)
    50
    >>> second.leave()
    None
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock, the members' fields too:
        self._groups: dict[tuple[str, str], list[Membership]] = {}

    def join(self, application: str, group: str) -> Membership:
        """Make a query a member of a group.

        Parameters
        ----------
        application
            The Spark application's id.
        group
            The group's name.
        """
        member = Membership(self, (application, group))
        with self._lock:
            self._groups.setdefault(member._key, []).append(member)
        return member

    def _listen(self, member: Membership, on_others_moved: OnOthersMoved) -> None:
        with self._lock:
            member._on_others_moved, member._sent_ms = on_others_moved, None
            if member in self._groups.get(member._key, ()):
                self._notify_locked(member._key)

    def _share(self, member: Membership, watermark_ms: int | None) -> None:
        with self._lock:
            if member in self._groups.get(member._key, ()):  # else it has left
                member._watermark_ms = watermark_ms
                self._notify_locked(member._key)

    def _leave(self, member: Membership) -> None:
        with self._lock:
            members = self._groups.get(member._key, [])
            if member in members:
                members.remove(member)
                self._notify_locked(member._key)
            if not members:
                self._groups.pop(member._key, None)

    def _notify_locked(self, key: tuple[str, str]) -> None:
        assert self._lock.locked()
        members = self._groups[key]
        for member in members:
            votes = [each._watermark_ms for each in members if each is not member and each._watermark_ms is not None]
            others_ms = min(votes, default=None)
            if others_ms != member._sent_ms and member._on_others_moved is not None:
                member._sent_ms = others_ms
                member._on_others_moved(others_ms)


class Membership:
    """One query in one group, made by `AlignmentHub.join`. All methods may be called by any thread."""

    def __init__(self, hub: AlignmentHub, key: tuple[str, str]) -> None:
        self._hub = hub
        self._key = key
        self._on_others_moved: OnOthersMoved | None = None
        self._watermark_ms: int | None = None
        self._sent_ms: int | None = None

    def listen(self, on_others_moved: OnOthersMoved) -> None:
        """Let a run hear of the other members, instead of the run before.

        Parameters
        ----------
        on_others_moved
            Called with the lowest watermark of the other members, in milliseconds (None: none of them has a vote),
            whenever that differs from the last call, at first None; by any thread, in order, under the hub's
            lock: it must not block, and not call the hub.
        """
        self._hub._listen(self, on_others_moved)

    def share(self, watermark_ms: int | None) -> None:
        """Share the lowest watermark of this query's readers, in milliseconds; None: they have no vote."""
        self._hub._share(self, watermark_ms)

    def leave(self) -> None:
        """End the membership: the others wait for this query no longer, and it hears nothing more."""
        self._hub._leave(self)


HUB = AlignmentHub()
"""The one of this process."""
