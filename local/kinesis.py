"""Kinesis and S3 of one's own on loopback: moto's server in a process, and a proxy that makes it fail on command.

Never: leave a process running (it is stopped by its process id), or ask a real AWS.

moto is not Kinesis in three ways that a reader meets, which the server process mends before it starts: a closed shard
never ends (the iterator goes on for ever); records go to closed shards, and those of a shard that is split or merged
are given new numbers or copied; and `ListShards` does not find the stream again by ``NextToken`` alone. It throttles
nothing and loses nothing, which is what the proxy is for.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from local.ports import free_ports

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "AKIAHEADGATETESTS000", "s3cret-of-the-canal"
"""Who talks to moto. It accepts anybody; tests look for these where they must not be."""

ROOT = Path(__file__).resolve().parent.parent


class MotoServer:
    """moto's server in a process of its own, on a free port. Start it, stop it."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: dict[str, Any] = {}

    def start(self, timeout_s: float = 120) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "local.kinesis", "--port", str(self.port)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/moto-api/")
                connection.getresponse().read()
                connection.close()
                return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"moto's server did not answer at {self.url} within {timeout_s} s.")

    def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def send(self, number: signal.Signals) -> None:
        """Stop it where it is (SIGSTOP), or let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def client(self, service: str) -> Any:
        """Return the client of boto3 for a service, made when it is first asked for."""
        if service not in self._clients:
            import boto3

            session = boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
            self._clients[service] = session.client(service, endpoint_url=self.url)
        return self._clients[service]


@contextlib.contextmanager
def running_moto() -> Iterator[MotoServer]:
    """Run moto's server."""
    server = MotoServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Stream:
    """A stream on a server, made at once."""

    def __init__(self, server: MotoServer, name: str, shards: int = 1) -> None:
        self.name = name
        self.kinesis = server.client("kinesis")
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)

    def shards(self) -> list[dict[str, Any]]:
        """Return its shards, in the order of their ids."""
        found = self.kinesis.list_shards(StreamName=self.name)["Shards"]
        return sorted(found, key=lambda shard: shard["ShardId"])

    def put(self, texts: Iterable[object], shard: int | None = None) -> list[str]:
        """Put a record for each text, which is its partition key as well, into a shard by number; None: by hash."""
        hash_key = {}
        if shard is not None:
            hash_key = {"ExplicitHashKey": self.shards()[shard]["HashKeyRange"]["StartingHashKey"]}
        entries = [{"Data": str(each).encode(), "PartitionKey": str(each), **hash_key} for each in texts]
        numbers: list[str] = []
        for start in range(0, len(entries), 500):
            answer = self.kinesis.put_records(StreamName=self.name, Records=entries[start : start + 500])
            assert not answer["FailedRecordCount"], answer
            numbers += [each["SequenceNumber"] for each in answer["Records"]]
        return numbers

    def split(self, shard: int) -> None:
        """Split a shard, given by its number, in the middle."""
        chosen = self.shards()[shard]
        middle = sum(map(int, chosen["HashKeyRange"].values())) // 2
        self.kinesis.split_shard(
            StreamName=self.name, ShardToSplit=chosen["ShardId"], NewStartingHashKey=str(middle)
        )  # fmt: skip

    def merge(self, first: int, second: int) -> None:
        """Merge two adjacent shards, given by their numbers."""
        ids = [shard["ShardId"] for shard in self.shards()]
        self.kinesis.merge_shards(
            StreamName=self.name, ShardToMerge=ids[first], AdjacentShardToMerge=ids[second]
        )  # fmt: skip

    def recreate(self, shards: int = 1) -> None:
        """Delete it, and make it again without its records."""
        self.kinesis.delete_stream(StreamName=self.name)
        self.kinesis.create_stream(StreamName=self.name, ShardCount=shards)


class FaultyProxy:
    """Stands before a server, counts what is asked, and fails on command.

    Attributes
    ----------
    url
        Its address.
    calls
        How often each operation was asked for, failures included.
    """

    def __init__(self, server: MotoServer) -> None:
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        # Guarded by _lock: what the next calls of an operation meet; an empty queue means: the server.
        self._faults: dict[str, deque[tuple[str, Any]]] = {}
        proxy = self

        class Handler(_ProxyHandler):
            target = server.port

            def fault(self, operation: str) -> tuple[str, Any] | None:
                return proxy._next_fault(operation)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def answer_with(self, operation: str, error: str, times: int = 1, status: int = 400) -> None:
        """Let the next calls of an operation (``GetRecords``) fail with an error of Kinesis'."""
        self._add(operation, ("error", (status, error)), times)

    def drop(self, operation: str, times: int = 1) -> None:
        """Close the connection without an answer."""
        self._add(operation, ("drop", None), times)

    def slow(self, operation: str, seconds: float, times: int = 1) -> None:
        """Answer late."""
        self._add(operation, ("slow", seconds), times)

    @property
    def faults_left(self) -> int:
        """How many of the faults have not happened yet."""
        with self._lock:
            return sum(map(len, self._faults.values()))

    def let_pass(self, operation: str, times: int = 1) -> None:
        """Let the next calls of an operation succeed, before the faults that are ordered from here on."""
        self._add(operation, ("", None), times)

    def forgive(self) -> None:
        """Let nothing fail any longer."""
        with self._lock:
            self._faults.clear()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _add(self, operation: str, fault: tuple[str, Any], times: int) -> None:
        with self._lock:
            self._faults.setdefault(operation, deque()).extend([fault] * times)

    def _next_fault(self, operation: str) -> tuple[str, Any] | None:
        with self._lock:
            self.calls[operation] += 1
            faults = self._faults.get(operation)
            return faults.popleft() if faults else None


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in two small packets would wait 40 ms for the first to be acknowledged
    target: ClassVar[int]

    def fault(self, operation: str) -> tuple[str, Any] | None:
        raise NotImplementedError

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        kind, what = self.fault(operation) or ("", None)
        if kind == "drop":
            self.close_connection = True
            return
        if kind == "error":
            status, error = what
            answer = json.dumps({"__type": error, "message": f"{error} made by the proxy"}).encode()
            self._send(status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": error}, answer)
            return
        if kind == "slow":
            time.sleep(what)
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        connection.request("POST", self.path, body, dict(self.headers))
        response = connection.getresponse()
        answer = response.read()
        self._send(response.status, dict(response.getheaders()), answer)
        connection.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        with contextlib.suppress(OSError):  # whoever asked may be gone
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            if "Date" not in headers:
                self.send_header("Date", self.date_time_string())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _mend_moto() -> None:
    """Let moto do as Kinesis does where a reader would notice the difference; see the module's docstring."""
    from moto.kinesis import models

    get_records = models.KinesisBackend.get_records

    def get_records_to_an_end(self: Any, stream_arn: str | None, shard_iterator: str, limit: int | None) -> Any:
        iterator, records, lag_ms = get_records(self, stream_arn, shard_iterator, limit)
        stream_name, shard_id, last = models.decompose_shard_iterator(iterator)
        shard = self.describe_stream(stream_arn, stream_name).get_shard(shard_id)
        is_over = not shard.is_open and int(last) >= shard.get_max_sequence_number()
        return None if is_over else iterator, records, lag_ms

    def shard_for_key(self: Any, partition_key: str, explicit_hash_key: str) -> Any:
        key = int(explicit_hash_key) if explicit_hash_key else None
        if key is None:
            key = int(models.md5_hash(partition_key.encode()).hexdigest(), 16)
        open_shards = [shard for shard in self.shards.values() if shard.is_open]
        return next(shard for shard in open_shards if shard.starting_hash <= key <= shard.ending_hash)

    def keeping_records(change: Any) -> Any:
        def changed(self: Any, *arguments: Any) -> None:
            before = {shard_id: (shard, shard.records) for shard_id, shard in self.shards.items()}
            for shard, _ in before.values():
                shard.records = models.OrderedDict()  # what is not there is not moved
            change(self, *arguments)
            for shard, records in before.values():
                shard.records = records

        return changed

    list_shards = models.KinesisBackend.list_shards

    def list_shards_by_token(self: Any, **arguments: Any) -> Any:
        stream = {name: arguments[name] for name in ("stream_arn", "stream_name")}
        if arguments.get("next_token"):
            stream, arguments["next_token"] = json.loads(arguments["next_token"])
        shards, token = list_shards(self, **arguments | stream)
        return shards, token and json.dumps([stream, token])

    models.KinesisBackend.get_records = get_records_to_an_end
    models.KinesisBackend.list_shards = list_shards_by_token
    models.Stream.get_shard_for_key = shard_for_key
    models.Stream.split_shard = keeping_records(models.Stream.split_shard)
    models.Stream.merge_shards = keeping_records(models.Stream.merge_shards)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m local.kinesis", description="moto's server: Kinesis and S3.")
    parser.add_argument("--port", type=int, default=5000, help="the port on 127.0.0.1 (5000)")
    chosen = parser.parse_args()
    from moto.server import ThreadedMotoServer

    _mend_moto()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=chosen.port, verbose=False)
    server.start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
