"""Where a query starts in each partition, and where a batch read ends: the options, and their offsets.

Never: resolve the same start twice: the enumerator keeps what `StartingPositions.resolve` returned (FLINK-38453).

Follows Spark 4.2, ``KafkaSourceProvider.getKafkaOffsetRangeLimit`` and ``KafkaOffsetReaderAdmin``: one time stamp for
all goes before time stamps by partition, and these before offsets; offsets and time stamps by partition must name
exactly the partitions that are read. Unlike there, an offset out of the available range is found out before reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypedDict

import msgspec

from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, OptionError
from headgate.source.enumerator import Boundedness
from headgate.source.options import Options

_EARLIEST, _LATEST = -2, -1  # in Spark's JSON
_SHOWN = 10


class Earliest(msgspec.Struct, frozen=True):
    """The first record there is."""


class Latest(msgspec.Struct, frozen=True):
    """After the last record there is."""


class Offset(msgspec.Struct, frozen=True):
    """A record by its offset."""

    offset: int


class Timestamp(msgspec.Struct, frozen=True):
    """The first record with this time stamp or a later one, in milliseconds since 1970-01-01 UTC."""

    timestamp_ms: int


Position = Earliest | Latest | Offset | Timestamp


class Offsets(Protocol):
    """What resolving asks the brokers; `cluster.KafkaCluster` answers."""

    def earliest(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the first offset there is."""

    def latest(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record that may be read."""

    def ends(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record, whether or not its transaction is committed."""

    def at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset of a time or later; None: no record is that late."""


class _Positions(msgspec.Struct, frozen=True, kw_only=True):
    """One position for all partitions, or one for each.

    Parameters
    ----------
    everywhere
        The position for all.
    by_partition
        The positions one by one, by partition, sorted.
    option
        The option that says so, for errors.
    source
        The source's name, for errors.
    fail_on_data_loss
        Whether an offset that is not available is an error.
    """

    everywhere: Earliest | Latest | Timestamp | None
    by_partition: tuple[tuple[TopicPartition, Position], ...] = ()
    option: str
    source: str
    fail_on_data_loss: bool

    def wanted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the position of each partition that is read.

        Raises
        ------
        OptionError
            The option names other partitions than are read.
        """
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        named = dict(self.by_partition)
        absent, extra = sorted(set(partitions) - named.keys()), sorted(named.keys() - set(partitions))
        if absent or extra:
            wrong = []
            if absent:
                wrong.append(f"it does not name {_listed(absent)}")
            if extra:
                wrong.append(f"it names {_listed(extra)}, not read or not there")
            advice = "" if "Timestamp" in self.option else " Where you do not care, write -2 (earliest) or -1 (latest)."
            raise OptionError(
                f"{self.source}: the option {self.option!r} must name exactly the partitions that are read: "
                f"{' and '.join(wrong)}.{advice}",
                source=self.source, option=self.option, missing=absent, extra=extra,
            )  # fmt: skip
        return named

    def _data_loss(self, partition: TopicPartition, wanted: int, first: int, end: int) -> DataLossError:
        return DataLossError(
            f"{self.source}: {self.option} wants offset {wanted} of {partition}, but there are {first} to {end} "
            f"({end} is that of the next record). Correct the option, or set failOnDataLoss to false to read what "
            "there is.",
            source=self.source, split=str(partition), wanted=wanted, available=(first, end),
        )  # fmt: skip


class StartingPositions(_Positions, frozen=True, kw_only=True):
    """Where a new query starts. `of` makes it."""

    latest_if_none: bool

    @classmethod
    def of(cls, options: Options, boundedness: Boundedness) -> StartingPositions:
        """Return what the options say.

        Raises
        ------
        OptionError
            A batch read is to start at the latest offset.
        """
        bounded = boundedness is Boundedness.BOUNDED
        everywhere, by_partition, option = _chosen(options, "starting", Earliest() if bounded else Latest())
        if bounded and (everywhere == Latest() or any(each == Latest() for _, each in by_partition)):
            raise options.error(option, "cannot be latest in a batch read: there would be nothing to read.")
        return cls(
            everywhere=everywhere, by_partition=by_partition, option=option, source=options.source,
            fail_on_data_loss=options["failOnDataLoss"],
            latest_if_none=options["startingOffsetsByTimestampStrategy"] == "latest",
        )  # fmt: skip

    def resolve(self, cluster: Offsets, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record to read of each partition. Blocks.

        A partition that vanished meanwhile is left out.

        Raises
        ------
        OptionError
            The option names other partitions, or there is no record as late as its time (and the strategy is error).
        DataLossError
            An offset is not available.
        """
        wanted = self.wanted(partitions)
        return self.choose(wanted, **_ask(cluster, wanted))

    def choose(
        self, wanted: Mapping[TopicPartition, Position], *, earliest: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int],
        at_times: Mapping[TopicPartition, int | None],
    ) -> dict[TopicPartition, int]:  # fmt: skip
        """Return the offset for each position, given the brokers' answers; raises as `resolve`."""
        found: dict[TopicPartition, int | None] = {}
        for partition, position in wanted.items():
            match position:
                case Earliest():
                    found[partition] = earliest.get(partition)
                case Latest():
                    found[partition] = latest.get(partition)
                case Offset(offset=offset):
                    if partition in earliest and partition in ends:
                        first, end = earliest[partition], ends[partition]
                        if self.fail_on_data_loss and not first <= offset <= end:
                            raise self._data_loss(partition, offset, first, end)
                        found[partition] = min(max(offset, first), end)
                case Timestamp(timestamp_ms=time):
                    found[partition] = at_times.get(partition)
                    if partition in at_times and found[partition] is None:
                        if not self.latest_if_none:
                            raise OptionError(
                                f"{self.source}: the option {self.option!r} is {time} for {partition}, which has no "
                                "record that late. Choose an earlier time, or set "
                                "startingOffsetsByTimestampStrategy to latest.",
                                source=self.source, option=self.option, value=time, split=str(partition),
                            )  # fmt: skip
                        found[partition] = latest.get(partition)
        return {partition: offset for partition, offset in found.items() if offset is not None}


class EndingPositions(_Positions, frozen=True, kw_only=True):
    """Where a batch read ends. `of` makes it."""

    @classmethod
    def of(cls, options: Options, boundedness: Boundedness) -> EndingPositions:
        """Return what the options say.

        Raises
        ------
        OptionError
            A stream has an end, a batch read is to end at the earliest offset, or ends for other partitions or before
            it starts.
        """
        if boundedness is not Boundedness.BOUNDED:
            for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
                if options.is_set(name):
                    raise options.error(name, "is for batch reads (spark.read): a stream has no end. Leave it out.")
        everywhere, by_partition, option = _chosen(options, "ending", Latest())
        if everywhere == Earliest() or any(each == Earliest() for _, each in by_partition):
            raise options.error(option, "cannot be earliest: there would be nothing to read.")
        made = cls(
            everywhere=everywhere, by_partition=by_partition, option=option, source=options.source,
            fail_on_data_loss=options["failOnDataLoss"],
        )  # fmt: skip
        if boundedness is Boundedness.BOUNDED:
            made._check_against(options, StartingPositions.of(options, boundedness))
        return made

    def _check_against(self, options: Options, starts: StartingPositions) -> None:
        """Check that both name the same partitions, and that no start is after its end."""
        ends, named = dict(self.by_partition), dict(starts.by_partition)
        if ends and named and ends.keys() != named.keys():
            raise options.error(
                self.option,
                f"must name the partitions that {starts.option} names; these are in one only: "
                f"{_listed(sorted(ends.keys() ^ named.keys()))}.",
            )
        for partition in ends.keys() & named.keys():
            match named[partition], ends[partition]:
                case (Offset(offset=start), Offset(offset=end)) | (
                    Timestamp(timestamp_ms=start),
                    Timestamp(timestamp_ms=end),
                ) if start > end:
                    raise options.error(
                        self.option, f"ends {partition} at {end}, but {starts.option} starts it at {start}."
                    )

    def resolve(self, cluster: Offsets, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that is not read of each partition. Blocks.

        Resolve the starts before, so that none is after its end. A partition that vanished meanwhile is left out.

        Raises
        ------
        OptionError
            The option names other partitions.
        DataLossError
            An offset is after the last record.
        """
        wanted = self.wanted(partitions)
        return self.choose(wanted, **_ask(cluster, wanted))

    def choose(
        self, wanted: Mapping[TopicPartition, Position], *, earliest: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int],
        at_times: Mapping[TopicPartition, int | None],
    ) -> dict[TopicPartition, int]:  # fmt: skip
        """Return the offset for each position, given the brokers' answers; raises as `resolve`."""
        found: dict[TopicPartition, int | None] = {}
        for partition, position in wanted.items():
            match position:
                case Offset(offset=offset):
                    if partition in ends:
                        if self.fail_on_data_loss and offset > ends[partition]:
                            raise self._data_loss(partition, offset, earliest.get(partition, 0), ends[partition])
                        found[partition] = min(offset, ends[partition])
                case Timestamp():
                    at_time = at_times.get(partition)
                    found[partition] = latest.get(partition) if at_time is None else at_time
                case _:
                    found[partition] = latest.get(partition)
        return {partition: offset for partition, offset in found.items() if offset is not None}


class _Answers(TypedDict):
    """The brokers' answers, as far as the wanted positions need it."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    at_times: Mapping[TopicPartition, int | None]


def _ask(cluster: Offsets, wanted: Mapping[TopicPartition, Position]) -> _Answers:
    # The latest first: what is written between two questions must not be passed over.
    latest = cluster.latest(_which(wanted, Latest, Timestamp))
    at_times = cluster.at_timestamps(_times(wanted))
    earliest = cluster.earliest(_which(wanted, Earliest, Offset))
    return _Answers(latest=latest, at_times=at_times, earliest=earliest, ends=cluster.ends(_which(wanted, Offset)))


def check_ranges(
    starts: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int], *, source: str
) -> None:  # fmt: skip
    """Check that no partition of a batch read ends before it starts.

    Raises
    ------
    OptionError
        One does. Its starting and ending options are of different kinds, else they would have been compared before.
    """
    for partition, start in sorted(starts.items()):
        stop = stops.get(partition, start)
        if stop < start:
            raise OptionError(
                f"{source}: {partition} would start at offset {start} and end at {stop}. Make the ending option later "
                "than the starting option.",
                source=source, option="endingOffsets", split=str(partition), start=start, stop=stop,
            )  # fmt: skip


def _chosen(
    options: Options, which: str, default: Earliest | Latest
) -> tuple[Earliest | Latest | Timestamp | None, tuple[tuple[TopicPartition, Position], ...], str]:
    """Return the position for all, those one by one, and the option they come from."""
    option = f"{which}Timestamp"
    if options[option] is not None:
        return Timestamp(options[option]), (), option
    option = f"{which}OffsetsByTimestamp"
    if options[option] is not None:
        return None, tuple(sorted((each, Timestamp(time)) for each, time in options[option].items())), option
    option = f"{which}Offsets"
    match options[option]:
        case None:
            return default, (), option
        case "earliest":
            return Earliest(), (), option
        case "latest":
            return Latest(), (), option
        case by_partition:
            return None, tuple((each, _position(by_partition[each])) for each in sorted(by_partition)), option


def _position(number: int) -> Position:
    if number == _EARLIEST:
        return Earliest()
    return Latest() if number == _LATEST else Offset(number)


def _which(wanted: Mapping[TopicPartition, Position], *kinds: type[Position]) -> list[TopicPartition]:
    return [partition for partition, position in wanted.items() if isinstance(position, kinds)]


def _times(wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    return {each: position.timestamp_ms for each, position in wanted.items() if isinstance(position, Timestamp)}


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = ", ".join(map(str, list(partitions)[:_SHOWN]))
    return shown if len(partitions) <= _SHOWN else f"{shown} and {len(partitions) - _SHOWN} more"
