"""What runs beside a query of the bench latency: who produces and consumes, the bare loop, the count of processor time.

Never: let a record's time be that of anything but its own production, or count what is beside the query as its own.
"""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
import uuid
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from bench.frame import worker_seconds
from local.kafka import Broker

PARTITIONS = 2
WARM_UP_S = 6.0
WINDOW_NS = 100_000_000
"""How long windows are of which each ends with a row for each key."""
UNDERWAY_S = 3
"""How long records that are under way at the end may take to arrive."""
_QUEUED = 1_000_000
"""So many records may wait in a client: a broker that stops for a moment is late, and no error."""


@dataclass(frozen=True)
class Load:
    """What is produced: so many records a second, for so many seconds after the warm-up.

    ``windows``: what comes out are ends of windows, and a row's time is from when its window could end.
    """

    rate: int = 5_000
    seconds: float = 20.0
    windows: bool = False


@dataclass
class WindowEnds:
    """Knows when windows could end: a window's end is passed once each partition has a record of that time or later.

    A record's event time is the time of its production, and rises in each partition.
    """

    partitions: int = PARTITIONS
    window_ns: int = WINDOW_NS
    _last: dict[int, int] = field(default_factory=dict)
    _passed_ns: dict[int, int] = field(default_factory=dict)

    def add(self, partition: int, stamp_ns: int) -> None:
        """Take note of a record: it ends the windows that no other one of its partition has ended."""
        now = stamp_ns // self.window_ns
        last = self._last.get(partition, now)
        for window in range(last + 1, now + 1):  # the last partition to have one is the one that counts
            self._passed_ns[window * self.window_ns] = stamp_ns
        self._last[partition] = now

    def passed_ns(self, end_ns: int) -> int:
        """Return when the record was produced that let the window of this end be over."""
        return self._passed_ns[end_ns]


def through(brokers: str, topics: tuple[str, str], load: Load, answers: Any) -> None:
    """Produce at an even pace, consume, and answer.

    First comes None, when a record has come out; then the latencies in milliseconds, and how many records a second were
    produced.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 1, "acks": "1", "queue.buffering.max.messages": _QUEUED}
    )
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 5,
         "enable.auto.commit": False, "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topics[1], number, 0) for number in range(PARTITIONS)])
    latencies = array("d")
    ends = WindowEnds()
    begun_ns = ends.passed_ns if load.windows else int

    def consume(wait_s: float, since_ns: int) -> bool:
        """Note what has come out; return whether anything has."""
        first = consumer.poll(wait_s)
        messages = [] if first is None else [first, *consumer.consume(500, 0)]
        now_ns = time.time_ns()
        values = [each.value() or b"0" for each in messages if each.error() is None]
        stamps = [int(value.partition(b" ")[0]) for value in values]
        latencies.extend((now_ns - begun_ns(stamp)) / 1e6 for stamp in stamps if stamp >= since_ns)
        return bool(stamps)

    sent = 0
    while not consume(0.2, 1 << 62):  # starting a query is not what is measured
        for partition in range(PARTITIONS):
            producer.produce(topics[0], b"%d" % time.time_ns(), partition=partition)
        producer.flush(10)
    answers.put(None)
    begin, since_ns = time.perf_counter(), time.time_ns() + int(WARM_UP_S * 1e9)
    while (passed := time.perf_counter() - begin) < WARM_UP_S + load.seconds:
        while sent < passed * load.rate:
            stamp_ns = time.time_ns()
            producer.produce(topics[0], b"%d" % stamp_ns, partition=sent % PARTITIONS)
            if load.windows:
                ends.add(sent % PARTITIONS, stamp_ns)
            sent += 1
        producer.poll(0)
        consume(0.001, since_ns)
    offered = sent / (time.perf_counter() - begin)
    producer.flush(10)
    while time.perf_counter() - begin < WARM_UP_S + load.seconds + UNDERWAY_S:  # what is under way arrives
        consume(0.02, since_ns)
    consumer.close()
    answers.put((latencies, offered))


def _bare(brokers: str, topics: tuple[str, str], settings: Mapping[str, Any], done: Any) -> None:
    """Produce what is consumed, as the least that any engine has to do."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 1, "acks": "all", "queue.buffering.max.messages": _QUEUED,
         **settings}
    )  # fmt: skip
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topics[0], number, 0) for number in range(PARTITIONS)])
    while not done.is_set():
        first = consumer.poll(0.1)
        for each in [] if first is None else [first, *consumer.consume(500, 0)]:
            if each.error() is None:
                producer.produce(topics[1], each.value())
        producer.poll(0)
    consumer.close()


class BareLoop:
    """The bare loop, with what of a query's interface is needed; ``settings`` are those of its producer."""

    def __init__(self, broker: Broker, topics: tuple[str, str], settings: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._done = context.Event()
        self._process = context.Process(
            target=_bare, args=(broker.plain, topics, settings, self._done), daemon=True
        )  # fmt: skip
        self._process.start()

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._process.pid

    def exception(self) -> str | None:
        """Return why it ended."""
        return None if self._process.is_alive() else f"exit code {self._process.exitcode}"

    def stop(self) -> None:
        """End."""
        self._done.set()
        self._process.join()


@dataclass(frozen=True)
class Spent:
    """Cores that were busy with a side, those of its slots, and microseconds of these for each fetch; nan: no slots."""

    cores: float
    slot_cores: float
    fetch_us: float


class Processor:
    """Counts what a query takes of the processor, from one moment to another.

    That is this process, its Java and Spark's Python workers, or the bare loop's process. ``beside`` are the processes
    that are not the query's: the broker, and who produces and consumes.
    """

    def __init__(self, query: Any, beside: Iterable[int | None]) -> None:
        self._query = query
        self._beside = set(beside)
        self._began = self._count()

    def _count(self) -> tuple[float, dict[int, float], dict[int, float], float]:
        snapshot = self._query.snapshot() if hasattr(self._query, "snapshot") else {"sources": []}
        metrics = [each["metrics"] for each in snapshot["sources"]]
        fetches = sum(each["fetches"]["value"] for each in metrics if "fetches" in each)
        return time.monotonic(), self._seconds(), worker_seconds(), fetches

    def _seconds(self) -> dict[int, float]:
        """Return the processor time of each process of the query."""
        if isinstance(self._query, BareLoop):
            processes = [psutil.Process(self._query.pid)]
        else:
            own = psutil.Process()
            children = [each for each in own.children() if each.pid not in self._beside]
            processes = [own, *children, *(below for each in children for below in _below(each))]
        return {each.pid: seconds for each in processes if (seconds := _seconds(each)) is not None}

    def spent(self) -> Spent:
        """Return what it took since."""
        (then, processes_then, slots_then, fetches_then), (now, processes, slots, fetches) = self._began, self._count()
        cores, fetched = used(processes_then, processes) / (now - then), fetches - fetches_then
        if not fetched:
            return Spent(cores, math.nan, math.nan)
        of_slots = used(slots_then, slots)
        return Spent(cores, of_slots / (now - then), 1e6 * of_slots / fetched)


def used(then: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Return what processes have used since, in seconds; what one that ended had used before is no part of it."""
    return sum(seconds - then.get(pid, 0.0) for pid, seconds in now.items())


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _seconds(process: psutil.Process) -> float | None:
    """Return a process's time, without that of the thread that watches memory for the benches; None if it ended."""
    try:
        times = process.cpu_times()
        watching: set[int | None] = set()
        if process == psutil.Process():
            watching = {each.native_id for each in threading.enumerate() if each.name == "worker-memory"}
        threads = process.threads() if watching else []
    except psutil.Error:
        return None
    return times.user + times.system - sum(each.user_time + each.system_time for each in threads if each.id in watching)
