"""An HTTP server for a few pages of people who look at a query: the standard library's, with limits.

Never: let a client, however slow, hold up the query or another client: threads, sizes and times are bounded.

    thread                       what it does
    ---------------------------  ------------------------------------------------------------
    headgate-dashboard           accepts; closes connections whose request does not come
    headgate-dashboard-N         one connection: a request, its response. All are daemons
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from typing import Any

from headgate.errors import HeadgateError, TransportError
from headgate.monitor.endpoint.registry import ServedEntry
from headgate.monitor.endpoint.routes import MAX_BODY, SECURITY_HEADERS, Events, Request, Response, error

_log = logging.getLogger(__name__)

_CONNECTIONS = 64
_STREAMS = 24
"""Of the connections: a page has one for as long as it is open."""
_REQUEST_S = 10.0
"""How long a request may take to come, or a piece of a response to be taken."""
_EVENT_EVERY_S = 1.0
_LOOK_EVERY_S = 0.5

Handle = Callable[[Request], Response | Events]


class Server:
    """A server at one address, from the construction until `close`.

    Parameters
    ----------
    host, port
        Where to listen; port 0: any that is free.
    handle
        Returns what a request is answered, on the thread of its connection.
    look
        Called twice a second, on the server's thread: must not block.

    Raises
    ------
    TransportError
        It cannot listen there.
    """

    def __init__(self, host: str, port: int, handle: Handle, look: Callable[[], None] = lambda: None) -> None:
        try:
            self._http = _Http(host, port, handle, look)
        except (OSError, OverflowError) as failed:
            raise TransportError(
                f"The dashboard cannot listen at {host}:{port}: {failed}. Set dashboard.host to an address of this "
                "machine, and dashboard.port to one that is free, or to 0.",
                address=f"{host}:{port}", reason="listen",
            ) from failed  # fmt: skip
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_LOOK_EVERY_S,), name="headgate-dashboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all responses. Any thread but one that serves a request."""
        self._http.closing.set()
        if threading.current_thread() is not self._thread:
            self._http.shutdown()
            self._thread.join(5.0)
        self._http.server_close()
        self._http.close_all()


class _Http(HTTPServer):
    request_queue_size = 32
    allow_reuse_address = True  # of a driver that was stopped a moment ago

    def __init__(self, host: str, port: int, handle: Handle, look: Callable[[], None]) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        self.address_family = family
        self.handle, self.look = handle, look
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(_STREAMS)
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._due_s: dict[
            socket.socket, float
        ] = {}  # guarded by _lock: of each connection when its request must be there
        super().__init__((host, port), _Connection)

    def server_bind(self) -> None:  # HTTPServer's own asks the name service for the host's name, which may take seconds
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._due_s) >= _CONNECTIONS
            if not full:
                self._due_s[request] = time.monotonic() + _REQUEST_S
        if full:
            with suppress(OSError):
                request.setblocking(False)
                request.send(b"HTTP/1.1 503 Too many connections\r\nRetry-After: 5\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        name = f"headgate-dashboard-{next(self._numbers)}"
        threading.Thread(target=self._serve, args=(request, client_address), name=name, daemon=True).start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # the client is gone, or was too slow
            _log.debug("a connection of the dashboard ended", exc_info=True)
        finally:
            with self._lock:
                self._due_s.pop(request, None)
            self.shutdown_request(request)

    def came(self, request: socket.socket) -> None:
        """Note that a request is there: from now on only its response's pieces have a time limit."""
        with self._lock:
            if request in self._due_s:
                self._due_s[request] = float("inf")

    def service_actions(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = [each for each, due_s in self._due_s.items() if due_s <= now_s]
        self._shut(late)
        try:
            self.look()
        except Exception:
            _log.exception("the dashboard's endpoint failed")

    def close_all(self) -> None:
        """End all connections."""
        with self._lock:
            open_ = list(self._due_s)
        self._shut(open_)

    def _shut(self, connections: list[socket.socket]) -> None:
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Headgate"
    sys_version = ""
    timeout = _REQUEST_S  # of each read, and of each write as a whole
    server: _Http

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.close_connection = True
        self._send(error(int(code), f"The request cannot be understood: {message or explain or code}."))

    def _answer(self) -> None:
        self.close_connection = True
        headers = {name.lower(): value for name, value in self.headers.items()}
        sent = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not sent.isdecimal():
            self._send(error(411, "The request's body needs a Content-Length."))
            return
        if int(sent) > MAX_BODY:
            self._send(error(413, f"The request's body has {int(sent):,} bytes; {MAX_BODY:,} is the most."))
            return
        body = self.rfile.read(int(sent))
        if len(body) < int(sent):
            return
        self.server.came(self.connection)
        try:
            answer = self.server.handle(Request(self.command, self.path.partition("?")[0], headers, body))
        except Exception as failed:
            _log.exception("the dashboard cannot answer %s %s", self.command, self.path)
            kind = "" if isinstance(failed, HeadgateError) else f"{type(failed).__name__}: "
            answer = error(500, f"The driver failed to answer: {kind}{failed}")
        if isinstance(answer, Events):
            self._stream(answer.entry)
        else:
            self._send(answer)

    def _send(self, answer: Response) -> None:
        self._begin(answer.status, answer.content_type, {**answer.headers, "Content-Length": str(len(answer.body))})
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _begin(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        for name, value in {**SECURITY_HEADERS, **headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, entry: ServedEntry) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._send(error(503, f"{_STREAMS} pages follow queries of this driver already: close one."))
            return
        try:
            self._begin(200, "text/event-stream; charset=utf-8", {"X-Accel-Buffering": "no"})
            if self.command == "HEAD":
                return
            self.wfile.write(b"retry: 2000\n\n")
            shown = b""
            while not self.server.closing.is_set():
                made = entry.snapshot_bytes()
                event = b"event: alive\ndata: {}\n\n" if made == shown else b"event: snapshot\ndata: " + made + b"\n\n"
                self.wfile.write(event)
                self.wfile.flush()
                shown = made
                self.server.closing.wait(_EVENT_EVERY_S)
        except OSError:
            _log.debug("a page that followed a query is gone")
        finally:
            self.server.streams.release()
