"""The events of Nexmark: persons, auctions and bids in the proportions 1 : 3 : 46, the same for the same seed.

Never: use a clock or a random generator: what event n holds follows from n and the seed alone.

Follows the generator of nexmark/nexmark, whose constants these are: half of the bids are for one hot auction of the
last hundred, three of four by one hot bidder, half come through one of four channels, prices are spread over six powers
of ten. 10,000 events are a second of event time. Texts are drawn from a few thousand, so that making them costs little.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

import headgate

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

CYCLE, AUCTIONS, BIDS = 50, 3, 46
"""Of 50 events the first is a person, the next 3 are auctions, and 46 are bids."""
CHUNK = 20_000
"""A split reads so many events at once; the next so many are another split's."""
FIRST_ID = 1000
EVENT_US = 100
BEGIN_US = 1_767_225_600_000_000
HOT = 100
SPLITS = 2


def drawn(numbers: np.ndarray, field: int, seed: int, below: int) -> np.ndarray:
    """Return for each number what is as good as drawn from 0 to ``below`` - 1 (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(field * 1_000_003 + seed)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(below)).astype(np.int64)


@cache
def _texts(kind: str) -> pa.Array:
    """Return the texts that a column's values are drawn from."""
    signs = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    numbers = np.arange(4000)
    if kind == "words":  # of 20 to 100 characters
        drawn_signs = signs[drawn(np.arange(4000 * 100), 1, 0, len(signs))].reshape(4000, 100)
        lengths = 20 + drawn(numbers, 2, 0, 81)
        return pa.array(["".join(row[:length]) for row, length in zip(drawn_signs, lengths, strict=True)])
    if kind == "channel":
        return pa.array(["Google", "Facebook", "Baidu", "Apple", *(f"channel-{each}" for each in numbers)])
    if kind == "url":  # that of a channel that is not hot names it, but for one in ten
        ends = ["" if each % 10 == 0 else f"&channel_id={each}" for each in numbers]
        paths = [f"https://www.nexmark.com/{each % 97}/{each % 89}/{each}/item.htm?query=1" for each in range(4004)]
        return pa.array([path + end for path, end in zip(paths, ["", "", "", "", *ends], strict=True)])
    if kind == "state":
        return pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
    if kind == "city":
        return pa.array(["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle"])
    assert kind == "name"
    first = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
    last = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
    return pa.array([f"{one} {other}" for one in first for other in last])


def _taken(kind: str, indices: np.ndarray) -> pa.Array:
    return _texts(kind).take(pa.array(indices))


def _drawn_texts(kind: str, numbers: np.ndarray, field: int, seed: int) -> pa.Array:
    return _taken(kind, drawn(numbers, field, seed, len(_texts(kind))))


def _times(micros: np.ndarray) -> pa.Array:
    return pa.array(BEGIN_US + micros).cast(pa.timestamp("us", "UTC"))


def _prices(numbers: np.ndarray, field: int, seed: int) -> np.ndarray:
    return np.round(10.0 ** (drawn(numbers, field, seed, 1_000_000) / 1_000_000 * 6) * 100).astype(np.int64)


def _last_person(numbers: np.ndarray) -> np.ndarray:
    return numbers // CYCLE


def _last_auction(numbers: np.ndarray) -> np.ndarray:
    return np.maximum(numbers // CYCLE * AUCTIONS + np.clip(numbers % CYCLE, 1, AUCTIONS) - 1, 0)


def _one_of(last: np.ndarray, numbers: np.ndarray, field: int, seed: int, hot_in: int, offset: int) -> np.ndarray:
    """Return the hot one of the last hundred, but in one of ``hot_in`` events any of them."""
    any_of_them = np.maximum(last - drawn(numbers, field, seed, HOT), 0)
    is_hot = drawn(numbers, field + 1, seed, hot_in) > 0
    return FIRST_ID + np.where(is_hot, np.minimum(last // HOT * HOT + offset, last), any_of_them)


class Events(headgate.SimpleSource):
    """The events of one kind among the first ``events``."""

    finite_splits = True
    of_cycle: ClassVar[tuple[int, int]]
    """Which of 50 events are of this kind: from, to."""

    def splits(self) -> list[str]:
        """Return the splits, which take turns in event time."""
        return [str(each) for each in range(SPLITS)]

    def latest(self, split_id: str) -> int | None:
        """Return the position at the end."""
        chunks = range(int(split_id), -(-int(self.options["events"]) // CHUNK), SPLITS)
        return chunks[-1] + 1 if chunks else None

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield a chunk at a time; the position is the number of the next chunk that there is."""
        events, seed = int(self.options["events"]), int(self.options.get("seed", 0))
        begin, end = self.of_cycle
        for chunk in range(int(split_id), -(-events // CHUNK), SPLITS):
            if position is not None and chunk < position:
                continue
            numbers = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, events))
            of_cycle = numbers % CYCLE
            yield self.rows(numbers[(of_cycle >= begin) & (of_cycle < end)], seed), chunk + 1

    def rows(self, numbers: np.ndarray, seed: int) -> pa.RecordBatch:
        """Return the events of these numbers."""
        raise NotImplementedError


class Persons(Events):
    """Who sells and bids."""

    name = "nexmark.person"
    schema = (
        "id long, name string, emailAddress string, creditCard string, city string, state string, dateTime timestamp, "
        "extra string"
    )
    of_cycle = (0, 1)

    def rows(self, numbers: np.ndarray, seed: int) -> pa.RecordBatch:
        """See `Events.rows`."""
        ids = FIRST_ID + _last_person(numbers)
        return pa.record_batch({
            "id": ids,
            "name": _drawn_texts("name", numbers, 1, seed),
            "emailAddress": pa.array([f"{each}@example.org" for each in ids], pa.string()),
            "creditCard": pa.array([f"{each:016d}" for each in drawn(numbers, 2, seed, 10**16)], pa.string()),
            "city": _drawn_texts("city", numbers, 3, seed),
            "state": _drawn_texts("state", numbers, 4, seed),
            "dateTime": _times(numbers * EVENT_US),
            "extra": _drawn_texts("words", numbers, 5, seed),
        })  # fmt: skip


class Auctions(Events):
    """What is sold; it ends after a second to twenty."""

    name = "nexmark.auction"
    schema = (
        "id long, itemName string, description string, initialBid long, reserve long, dateTime timestamp, "
        "expires timestamp, seller long, category long, extra string"
    )
    of_cycle = (1, 1 + AUCTIONS)

    def rows(self, numbers: np.ndarray, seed: int) -> pa.RecordBatch:
        """See `Events.rows`."""
        first = _prices(numbers, 11, seed)
        return pa.record_batch({
            "id": FIRST_ID + _last_auction(numbers),
            "itemName": _drawn_texts("words", numbers, 12, seed),
            "description": _drawn_texts("words", numbers, 13, seed),
            "initialBid": first,
            "reserve": first + _prices(numbers, 14, seed),
            "dateTime": _times(numbers * EVENT_US),
            "expires": _times(numbers * EVENT_US + 1_000_000 + drawn(numbers, 15, seed, 19_000_000)),
            "seller": _one_of(_last_person(numbers), numbers, 16, seed, 4, 0),
            "category": 10 + drawn(numbers, 18, seed, 5),
            "extra": _drawn_texts("words", numbers, 19, seed),
        })  # fmt: skip


class Bids(Events):
    """Who offers how much for which auction."""

    name = "nexmark.bid"
    schema = "auction long, bidder long, price long, channel string, url string, dateTime timestamp, extra string"
    of_cycle = (1 + AUCTIONS, CYCLE)

    def rows(self, numbers: np.ndarray, seed: int) -> pa.RecordBatch:
        """See `Events.rows`."""
        is_hot = drawn(numbers, 21, seed, 2) == 0
        channels = np.where(is_hot, drawn(numbers, 22, seed, 4), 4 + drawn(numbers, 23, seed, 4000))
        return pa.record_batch({
            "auction": _one_of(_last_auction(numbers), numbers, 24, seed, 2, 0),
            "bidder": _one_of(_last_person(numbers), numbers, 26, seed, 4, 1),
            "price": _prices(numbers, 28, seed),
            "channel": _taken("channel", channels),
            "url": _taken("url", channels),
            "dateTime": _times(numbers * EVENT_US),
            "extra": _drawn_texts("words", numbers, 29, seed),
        })  # fmt: skip


SOURCES: tuple[type[Events], ...] = (Persons, Auctions, Bids)
