"""Topics whose partitions are out of step in event time: the shapes that ``./run bench align`` reads.

Never: use a clock or an unseeded generator. The truth (every event time of every partition, in the order of offsets) is
made anew from the seed whenever it is asked for; only the topics are kept.

Each partition holds what one producer wrote over the span, record by record as they happened, each up to `DISORDER_MS`
late; the record's time stamp is its event time. The names of shapes say what is wrong with partition 0; the others
are alike and even. In `lagging` partition 0 begins and ends two tenths of the span earlier than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from local.kafka import Broker

SEED = 217
PARTITIONS = 4
BEGIN_MS = 1_767_247_200_000
"""2026-01-01, 6 o'clock."""
DISORDER_MS = 2000
"""How much earlier a record may be than the latest one before it in its partition."""

# The query: windows of a minute, and a watermark of a minute that has room for the drift.
WINDOW_MS = 60_000
MAX_DRIFT_MS = 50_000
DELAY_MS = 10_000
WATERMARK_MS = MAX_DRIFT_MS + DELAY_MS

EventTimes = npt.NDArray[np.int64]

SHAPES = {
    "burst": "partition 0 has four times the rows of each other, three quarters of them within a tenth of the time",
    "lagging": "partition 0's producer was two tenths of the time late",
    "silent": "partition 0 was silent for a tenth of the time, then back",
}
_QUIET_OR_LOUD = (0.4, 0.5)
"""When the burst, or the silence, is: a part of the span."""
_WEIGHTS = {"burst": (4.0, 1.0, 1.0, 1.0), "lagging": (1.0, 1.0, 1.0, 1.0), "silent": (0.9, 1.0, 1.0, 1.0)}


@dataclass(frozen=True)
class Topic:
    """A topic of one shape.

    Parameters
    ----------
    shape
        One of `SHAPES`.
    rows
        Over all partitions.
    span_ms
        How much event time each partition covers, in milliseconds.
    """

    shape: str
    rows: int
    span_ms: int

    @property
    def name(self) -> str:
        """The topic's name: all that decides what is in it."""
        return f"align-{self.shape}-{self.rows}-{self.span_ms // 1000}-s-seed-{SEED}"

    @property
    def covers_ms(self) -> int:
        """How much event time there is over all partitions, about, in milliseconds."""
        return self.span_ms + (self._lag_ms if self.shape == "lagging" else 0)

    @property
    def _lag_ms(self) -> int:
        return self.span_ms // 5

    def event_times(self) -> list[EventTimes]:
        """Return the event times of each partition in milliseconds, in the order of offsets."""
        random = np.random.default_rng((SEED, sorted(SHAPES).index(self.shape), self.rows, self.span_ms))
        counts = _shares(self.rows, _WEIGHTS[self.shape])
        made = []
        for partition, count in enumerate(counts):
            arrivals = random.random(count)
            odd = partition == 0
            low, high = _QUIET_OR_LOUD
            if odd and self.shape == "burst":
                loud = count * 3 // 4
                arrivals[:loud] = low + arrivals[:loud] * (high - low)
            elif odd and self.shape == "silent":
                arrivals *= 1 - (high - low)
                arrivals[arrivals >= low] += high - low
            at = BEGIN_MS + (np.sort(arrivals) * self.span_ms).astype(np.int64)
            if odd and self.shape == "lagging":
                at -= self._lag_ms
            made.append(at - random.integers(0, DISORDER_MS, count, endpoint=True))
        return made

    def fill(self, broker: Broker) -> str:
        """Write the topic, if it is not there yet, and return its name."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from rich.progress import Progress

        from bench.frame import console
        from local.topics import create_topic, delete_topic

        done = broker.folder / f"{self.name}.done"
        if done.exists():
            return self.name
        console.print(f"filling the topic {self.name} (kept in {broker.folder})", soft_wrap=True)
        admin = AdminClient({"bootstrap.servers": broker.plain})
        if self.name in admin.list_topics(timeout=30).topics:  # of a run that was interrupted
            delete_topic(broker.plain, self.name)
        create_topic(broker.plain, self.name, PARTITIONS)
        producer = Producer(
            {"bootstrap.servers": broker.plain, "compression.type": "lz4", "linger.ms": 50, "enable.idempotence": True,
             "batch.num.messages": 20_000, "queue.buffering.max.messages": 500_000}
        )  # fmt: skip
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("records", total=self.rows)
            for partition, times in enumerate(self.event_times()):
                for begin in range(0, len(times), 10_000):
                    for number, at_ms in enumerate(times[begin : begin + 10_000].tolist(), begin):
                        while True:
                            try:
                                producer.produce(self.name, b"%d" % number, partition=partition, timestamp=at_ms)
                                break
                            except BufferError:
                                producer.poll(0.05)
                    producer.poll(0)
                    progress.advance(bar, min(10_000, len(times) - begin))
            if producer.flush(60):
                raise SystemExit("the broker did not take all records")
        done.touch()
        return self.name


def _shares(rows: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers in these proportions that sum up to ``rows``."""
    ends = np.round(np.cumsum(weights) / np.sum(weights) * rows).astype(int)
    return [int(each) for each in np.diff(ends, prepend=0)]
