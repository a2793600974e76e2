"""A planner as a member of its alignment group: casts its vote, and receives the others' and what its tasks read.

Never: fail a query. Without a host that can be reached a source is aligned alone, and a warning says so.

One lock, of the connection. A daemon thread renews the lease, so that a planner which is busy with a long batch keeps
its vote; if the host died, it finds the next one or becomes it. A process that ends is gone for the others at once.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from headgate.microbatch.alignment.host import Host, endpoint_in, is_local, member_lock
from headgate.microbatch.alignment.messages import Join, Message, Renew, ReportTo, Standing, Vote, receive, send
from headgate.private_files import FileLock, make_private

logger = logging.getLogger(__name__)

RENEW_S = 1.0
"""How often a member gives a sign of life, and finds that its host is gone."""
_ANSWER_S = 5.0
_GIVE_UP_S = 15.0
"""How long to look for a host at most: machines are slow at times, and alone is not aligned."""
_RETRY_S = 0.05
_POLL_S = 0.1


class Group(Protocol):
    """The other members of an alignment group, as a planner sees them."""

    def exchange(self, vote: Vote) -> Standing:
        """Vote, and return what is known of the others. May block for as long as it takes to find a host."""
        ...

    def wait(self, standing: Standing, timeout_ms: int) -> Standing:
        """Return what is known of the others as soon as it is something else, or as it is after a time. Blocks."""
        ...


class Member:
    """A planner in an alignment group, from `join` to `leave`.

    Parameters
    ----------
    group
        The group's name.
    folder
        Where the application's planners meet: `headgate.microbatch.alignment.host.folder_of_application`.
    """

    def __init__(self, group: str, folder: Path) -> None:
        self._group = group
        self._folder = folder
        self._name = secrets.token_hex(8)
        self._lock = threading.Lock()
        # By _lock:
        self._connection: socket.socket | None = None
        self._host: Host | None = None
        self._vote: Vote | None = None
        self._seen = 0
        self._warned = False
        self._renewing: threading.Thread | None = None
        self._left = threading.Event()
        self._alive: FileLock | None = None
        self._report_to: ReportTo | None = None

    def join(self) -> None:
        """Become a member, before any member reads: until the first vote nobody reads ahead. May block."""
        with self._lock:
            self._say_locked(Renew())
            if self._renewing is None:
                self._renewing = threading.Thread(target=self._renew, name="headgate-alignment", daemon=True)
                self._renewing.start()

    @property
    def report_to(self) -> ReportTo | None:
        """Where this planner's tasks report; None while there is no host."""
        return self._report_to

    def exchange(self, vote: Vote) -> Standing:
        """Vote, and return what is known of the others. Alone if no host can be found."""
        with self._lock:
            self._vote = vote
            standing = self._say_locked(vote)
            self._seen = standing.seen
            return standing

    def wait(self, standing: Standing, timeout_ms: int) -> Standing:
        """Return what is known of the others as soon as it is something else, or as it is after a time. Blocks."""
        until = time.monotonic() + timeout_ms / 1000
        now = standing
        while now.others == standing.others and not self._left.wait(min(_POLL_S, max(0.0, until - time.monotonic()))):
            with self._lock:
                now = self._say_locked(self._vote or Renew())
            if time.monotonic() >= until:
                break
        return now

    def leave(self) -> None:
        """Hold nobody any longer. Called once."""
        self._left.set()
        with self._lock:
            if self._alive is not None:  # first: by it the host sees that this is not a broken connection
                self._alive.release()
                self._alive = None
            self._disconnect_locked()
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def _renew(self) -> None:
        while not self._left.wait(RENEW_S):
            with self._lock:
                if not self._left.is_set():
                    self._say_locked(Renew())

    def _say_locked(self, message: Message) -> Standing:
        """Say something to the host, whichever it is by now, and return its answer."""
        assert self._lock.locked()
        # Where no host could be found before, none is waited for: a planner is asked a hundred times a second.
        until = time.monotonic() + (0.0 if self._warned else _GIVE_UP_S)
        while True:
            try:
                if self._connection is None:
                    answer = self._connect_locked()
                    if self._vote is not None:
                        answer = self._ask_locked(self._vote)
                    self._warned = False
                    if isinstance(message, Renew):
                        return answer
                return self._ask_locked(message)
            except (OSError, EOFError) as error:
                self._disconnect_locked()
                no_place = isinstance(error, PermissionError | NotADirectoryError | FileExistsError)
                if no_place or time.monotonic() >= until or self._left.is_set():
                    self._warn(error)
                    return Standing()
                time.sleep(_RETRY_S)

    def _ask_locked(self, message: Message) -> Standing:
        assert self._connection is not None
        if isinstance(message, Vote):
            message = msgspec.structs.replace(message, seen=self._seen)
        send(self._connection, message)
        answer = receive(self._connection)
        if not isinstance(answer, Standing):
            raise ConnectionResetError("the lease ran out")
        return answer

    def _connect_locked(self) -> Standing:
        """Connect to the host, becoming it if there is none."""
        make_private(self._folder)
        if self._alive is None:
            self._alive = member_lock(self._folder, self._name)
        with suppress(BlockingIOError):
            if self._host is None:
                self._host = Host(self._folder, local=is_local())
        endpoint = endpoint_in(self._folder)
        if endpoint is None:
            raise ConnectionRefusedError(f"there is no host in {self._folder} yet")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_S)
            connection.connect(endpoint.path)
        except BaseException:
            connection.close()
            raise
        self._connection, self._seen = connection, 0
        answer = self._ask_locked(Join(endpoint.token, self._name, self._group))
        self._report_to = ReportTo(endpoint, self._name)
        return answer

    def _disconnect_locked(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _warn(self, error: Exception) -> None:
        if not self._warned and not self._left.is_set():
            self._warned = True
            logger.warning(
                "The alignment group %r cannot be joined through %s (%s): for now this source is aligned alone, "
                "not with others.",
                self._group, self._folder, error,
            )  # fmt: skip
