"""The place where an application's planners meet: a Unix socket in a folder of the application, in one of them.

Never: decide anything; `headgate.microbatch.alignment.group_membership` does. Nor listen to strangers: the folder is
0700, and whoever connects shows a token. Tasks on other machines report to a TCP port, which takes nothing but reports;
where the driver runs in local mode there is none.

One lock, of the machine; each connection has a daemon thread. The host lives and dies with its planner's process, whose
file lock says that there is one. The members' processes hold file locks too, so that the next host knows who lives.
"""

from __future__ import annotations

import fcntl
import hmac
import itertools
import os
import re
import secrets
import socket
import socketserver
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from headgate.microbatch.alignment import group_membership as machine
from headgate.microbatch.alignment.messages import (
    EventTimesSeen,
    HostEndpoint,
    Join,
    Message,
    Noted,
    Renew,
    Unknown,
    Vote,
    receive,
    send,
)
from headgate.private_files import LONGEST_SOCKET_PATH, FileLock

_LOCAL_MASTER = re.compile(rb"(?:^|\0)(?:spark\.master=|--master\0)local(?:\[|\0|$)")
_ENDS_S = 0.2
"""How long a process takes to close its files, one by one, when it ends."""
_STRANGER_S = 5.0
"""How long a task elsewhere may take over its report."""
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR
_LOCK, _ADDRESS, _MEMBER = "host.lock", "address.json", "member-"
_endpoints = msgspec.json.Decoder(HostEndpoint)


def folder_of_application() -> Path:
    """Return a folder that all planners of this Spark application see, and nobody else's."""
    local_dirs = os.environ.get("SPARK_LOCAL_DIRS", "")
    if local_dirs:
        # Of the driver's block manager: made for the application, deleted with it.
        return Path(local_dirs.split(",")[0]) / "headgate-alignment"
    return Path(tempfile.gettempdir()) / f"headgate-alignment-{os.getuid()}-{os.getppid()}"


def is_local() -> bool:
    """Return whether the driver, which started this process, says in its command line that all tasks run here."""
    with suppress(OSError):
        return _LOCAL_MASTER.search(Path(f"/proc/{os.getppid()}/cmdline").read_bytes()) is not None
    return False


def addresses_here() -> list[str]:
    """Return the IPv4 addresses of this machine that are not loopback, as far as they are known."""
    found = []
    if sys.platform == "linux":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # one without an address
                    asked = struct.pack("256s", name.encode()[:15])
                    found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, asked)[20:24]))
    else:
        with suppress(OSError):
            found = [str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def member_lock(folder: Path, member: str) -> FileLock:
    """Take the lock that says that a member's process lives."""
    path = folder / f"{_MEMBER}{member}"
    while not (lock := FileLock(path)).is_at(path):
        lock.release()  # a new host took it for one that a dead process left, and deleted it
    return lock


def endpoint_in(folder: Path) -> HostEndpoint | None:
    """Return where the newest host of an application is, or None when there never was one."""
    try:
        return _endpoints.decode((folder / _ADDRESS).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class Host:
    """The host of an application's alignment groups, from construction until `close`.

    Parameters
    ----------
    folder
        `folder_of_application`, private.
    local
        Whether all tasks run on this machine.

    Raises
    ------
    BlockingIOError
        There is a host already.
    """

    def __init__(self, folder: Path, *, local: bool = True) -> None:
        self._folder = folder
        self._file_lock = FileLock(folder / _LOCK)
        self._reports: _ReportServer | None = None
        self._lock = threading.Lock()
        self._machine = machine.GroupMembership(_alive(folder), _now_ms())  # by _lock
        self._connections = itertools.count()
        self._token = secrets.token_hex(16)
        self._path = folder / f"{secrets.token_hex(4)}.sock"
        self._own_folder: Path | None = None
        if len(os.fsencode(self._path)) > LONGEST_SOCKET_PATH:
            self._own_folder = Path(tempfile.mkdtemp(prefix="headgate-"))
            self._path = self._own_folder / "sock"
        try:
            self._server = _Server(self, str(self._path))
            addresses: list[tuple[str, int]] = []
            if not local:
                self._reports = _ReportServer(self)
                port = int(self._reports.server_address[1])
                addresses = [(each, port) for each in addresses_here() or ["127.0.0.1"]]
            endpoint = HostEndpoint(str(self._path), self._token, tuple(addresses))
            address = folder / f".{self._path.name}"
            address.touch(mode=0o600)
            address.write_bytes(msgspec.json.encode(endpoint))
            address.replace(folder / _ADDRESS)
        except BaseException:
            self._file_lock.release()
            raise
        for server in self._servers():
            threading.Thread(target=server.serve_forever, name="headgate-alignment-host", daemon=True).start()

    def _servers(self) -> list[_Server | _ReportServer]:
        return [self._server] if self._reports is None else [self._server, self._reports]

    def close(self) -> None:
        """Stop: another member takes over."""
        for server in self._servers():
            server.shutdown()
            server.close_all()
        with suppress(OSError):
            self._path.unlink()
            if self._own_folder is not None:
                self._own_folder.rmdir()
        self._file_lock.release()

    def serve(self, connection: Any) -> None:
        """Talk to a member, until its connection ends, or to a task, once. On the connection's own thread."""
        first = receive(connection)
        if not isinstance(first, (Join, EventTimesSeen)) or not hmac.compare_digest(first.token, self._token):
            return
        if isinstance(first, EventTimesSeen):
            self._note(connection, first)
            return
        member, number = first.member, next(self._connections)
        try:
            send(connection, self._answer(machine.MemberJoined(member=member, connection=number, group=first.group)))
            while True:
                message = receive(connection)
                if isinstance(message, Vote):
                    send(connection, self._answer(machine.VoteCast(member=member, connection=number, vote=message)))
                elif isinstance(message, Renew):
                    send(connection, self._answer(machine.Renewed(member=member, connection=number)))
                else:
                    return
        finally:
            # A connection may break because one of both stood still: the vote of who comes back counts meanwhile.
            if not (_lives(self._folder, member) and _lives(self._folder, member, after_s=_ENDS_S)):
                self._handle(machine.MemberLeft(member=member, connection=number))

    def serve_stranger(self, connection: Any) -> None:
        """Take a report of a task on another machine. On the connection's own thread."""
        connection.settimeout(_STRANGER_S)
        first = receive(connection)
        if isinstance(first, EventTimesSeen) and hmac.compare_digest(first.token, self._token):
            self._note(connection, first)

    def _note(self, connection: Any, report: EventTimesSeen) -> None:
        self._handle(machine.EventTimesReported(member=report.member, event_times=report.event_times))
        send(connection, Noted())

    def _answer(self, event: machine.MemberEvent) -> Message:
        (action,) = self._handle(event)
        return action.standing if isinstance(action, machine.Answer) else Unknown()

    def _handle(self, event: machine.Event) -> list[machine.Action]:
        with self._lock:
            return self._machine.handle(event, _now_ms())


class _Threads(socketserver.ThreadingMixIn, socketserver.BaseServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Any, serve: Callable[[Any], None]) -> None:
        self._serve = serve
        self._open: set[Any] = set()
        self._closing = False
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            if not self._closing:  # asked only now: `close_all` sees this connection, or is seen here
                self._serve(request)
        except (EOFError, OSError):
            pass  # the member, or the task, is gone
        finally:
            self._open.discard(request)

    def close_all(self) -> None:
        """Close the server's socket and all connections: members look for the next host at once."""
        self._closing = True
        self.server_close()
        for request in list(self._open):
            self.shutdown_request(request)


class _Server(_Threads, socketserver.UnixStreamServer):
    def __init__(self, host: Host, path: str) -> None:
        super().__init__(path, host.serve)


class _ReportServer(_Threads, socketserver.TCPServer):
    def __init__(self, host: Host) -> None:
        super().__init__(("", 0), host.serve_stranger)


class _Handler(socketserver.BaseRequestHandler):
    """Never made: `_Threads.finish_request` does all."""


def _lives(folder: Path, member: str, after_s: float = 0) -> bool:
    """Return whether a member's process lives, and it has not left; after some seconds, for it may be ending."""
    time.sleep(after_s)
    try:
        FileLock(folder / f"{_MEMBER}{member}").release()
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _alive(folder: Path) -> list[str]:
    """Return the members whose processes live, and clean up after the others.

    The one that becomes the host is among them: another may have joined it before it does so itself.
    """
    alive = []
    for path in folder.glob(f"{_MEMBER}*"):
        try:
            lock = FileLock(path)
        except OSError:
            alive.append(path.name.removeprefix(_MEMBER))
        else:
            with suppress(OSError):
                path.unlink()
            lock.release()
    return alive


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
