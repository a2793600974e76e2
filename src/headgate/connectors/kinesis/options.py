"""The options of `headgate.kinesis`: those of the well-known Spark connectors, supported or refused by name.

Never: open a connection, or look at the environment. Credentials go into `StreamAddress`, which shows none of them.

Follows the options of AWS' own Spark connector (there with ``kinesis.`` before them) and of Databricks'.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Literal

import msgspec

from headgate.errors import OptionError
from headgate.source.enumerator import Boundedness
from headgate.source.options import Options, OptionSpec, boolean, choice, duration_ms, integer, text

NAME = "headgate.kinesis"

_ARN = re.compile(r"arn:[\w-]+:kinesis:(?P<region>[\w-]+):\d{12}:stream/(?P<name>[\w.-]+)")


class StartingPosition(msgspec.Struct, frozen=True):
    """Where shards that are there at the start are read from; a time is in milliseconds since 1970-01-01 UTC."""

    kind: Literal["latest", "trim_horizon", "at_timestamp"]
    timestamp_ms: int | None = None


def starting_position(value: str) -> StartingPosition:
    """Parse ``latest``, ``trim_horizon``, ``earliest``, a time, or ``{"at_timestamp": time}``."""
    word = value.strip().lower()
    if word == "latest":
        return StartingPosition("latest")
    if word in ("trim_horizon", "earliest"):
        return StartingPosition("trim_horizon")
    given: Any = value.strip()
    try:
        if given.startswith("{"):
            ((name, given),) = json.loads(given).items()
            if name.lower().replace("_", "") != "attimestamp":
                raise ValueError
        moment = datetime.datetime.fromisoformat(str(given))
    except (ValueError, AttributeError):
        raise ValueError(
            "latest, trim_horizon, earliest, or a time like 2026-01-31T12:00:00Z, which may also be written as "
            '{"at_timestamp": "2026-01-31T12:00:00Z"}'
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return StartingPosition("at_timestamp", int(moment.timestamp() * 1000))


def stream_arn(value: str) -> str:
    """Parse the ARN of a stream."""
    if _ARN.fullmatch(value.strip()) is None:
        raise ValueError("an ARN like 'arn:aws:kinesis:us-east-1:123456789012:stream/rides'")
    return value.strip()


def _rejected(name: str, why: str) -> OptionSpec:
    return OptionSpec(name, text, status="rejected", why=why)


def _no_op(name: str, why: str) -> OptionSpec:
    return OptionSpec(name, text, status="no-op", why=why)


OPTION_SPECS: tuple[OptionSpec, ...] = (
    OptionSpec("streamName", text, None, "the stream; this or streamARN is required", False),
    OptionSpec("streamARN", stream_arn, None, "the stream by its ARN, also one of another account", False),
    OptionSpec("region", text, None, "the stream's region; else that of the ARN, else boto3's default"),
    OptionSpec("endpointUrl", text, None, "another address than that of AWS: a VPC endpoint, a local server"),
    OptionSpec(
        "startingPosition", starting_position, None,
        "where a query starts: latest (default of a stream), trim_horizon or earliest (default of a batch), or a time",
    ),
    OptionSpec("maxFetchRecordsPerShard", integer(1), None, "most records of a shard in a micro-batch"),
    OptionSpec("discoveryInterval", duration_ms, 10_000, "time between two looks for new shards"),
    OptionSpec("fetchThreads", integer(1, 64), 4, "threads of a task, or of the planner, that read shards"),
    OptionSpec("requestTimeout", duration_ms, 60_000, "how long to go on trying when Kinesis does not answer"),
    OptionSpec("failOnDataLoss", boolean, True, "fail when records may have expired unread; else warn and go on"),
    OptionSpec("consumerType", choice("GetRecords"), "GetRecords", "the only one supported"),
    OptionSpec("awsAccessKey", text, None, "an access key; without it boto3's chain of credentials is used"),
    OptionSpec("awsSecretKey", text, None, "its secret"),
    OptionSpec("awsSessionToken", text, None, "its session token, for temporary credentials"),
    _rejected("initialPosition", "use 'startingPosition'."),
    _rejected("endpoint", "use 'endpointUrl'."),
    _rejected("shardFetchInterval", "use 'discoveryInterval'."),
    _rejected("describeShardInterval", "use 'discoveryInterval'."),
    _rejected("shardsPerTask", "use 'fetchThreads' for the threads of a task; shards are spread over all cores."),
    _rejected("consumerMode", "shards are polled ('GetRecords'); enhanced fan-out is not supported."),
    _rejected("consumerName", "it names a consumer of enhanced fan-out, which is not supported."),
    _rejected("roleArn", "assume the role by a profile in AWS' configuration file, or pass temporary credentials."),
    _rejected("stsRoleArn", "assume the role by a profile in AWS' configuration file, or pass temporary credentials."),
    _no_op("maxFetchDuration", "a plan reads ahead for a second at most; limit it with maxRowsPerTrigger"),
    _no_op("maxFetchTimePerShardSec", "a plan reads ahead for a second at most; limit it with maxRowsPerTrigger"),
    _no_op("maxRecordsPerFetch", "each call asks for what is needed, at most 10,000 records"),
    _no_op("maxFetchRate", "Kinesis itself throttles a shard at 2 MB a second, which is answered by backing off"),
    _no_op("minFetchPeriod", "a shard is asked every 200 ms at most, and an idle one once a second"),
    _no_op("fetchBufferSize", "nothing is prefetched in the background"),
    _no_op("avoidEmptyBatches", "a micro-batch is planned only when there are records, or a shard ended"),
)  # fmt: skip
"""All options; those of every source are added by `Options.parse`."""


class StreamAddress(msgspec.Struct, frozen=True):
    """Which stream is read, where, and as whom. Hashable; pickles to tasks; its text shows no secret."""

    name: str
    arn: str | None
    region: str | None
    endpoint_url: str | None
    access_key: str | None
    secret_key: str | None
    session_token: str | None

    @classmethod
    def of(cls, options: Options) -> StreamAddress:
        """Return the address that the options name.

        Raises
        ------
        OptionError
            Not exactly one of ``streamName`` and ``streamARN`` is set, another region than the ARN's, or a part of a
            pair of credentials.
        """
        name, arn, region = options["streamName"], options["streamARN"], options["region"]
        if (name is None) == (arn is None):
            raise OptionError(
                f"{NAME} needs {'one' if name is None else 'only one'} of the options 'streamName' and 'streamARN'.",
                source=NAME, option="streamName", value=name,
            )  # fmt: skip
        if arn is not None:
            match = _ARN.fullmatch(arn)
            assert match is not None, arn
            name = match["name"]
            if region not in (None, match["region"]):
                raise options.error("region", f"is {region!r}, but 'streamARN' names {match['region']!r}.")
            region = match["region"]
        access, secret, token = options["awsAccessKey"], options["awsSecretKey"], options["awsSessionToken"]
        if (access is None) != (secret is None) or (token is not None and access is None):
            raise OptionError(
                f"{NAME}: the options 'awsAccessKey' and 'awsSecretKey' are set together (with 'awsSessionToken' for "
                "temporary credentials), or none of them.",
                source=NAME, option="awsAccessKey", value=None,
            )  # fmt: skip
        return cls(name, arn, region, options["endpointUrl"], access, secret, token)

    def __str__(self) -> str:
        where = self.endpoint_url or self.region
        return f"stream {self.name!r}" + (f" at {where}" if where else "")

    __repr__ = __str__


def start_of(options: Options, boundedness: Boundedness) -> StartingPosition:
    """Return where shards are read from at the start.

    Raises
    ------
    OptionError
        A batch that starts at ``latest``: it would always be empty.
    """
    chosen: StartingPosition | None = options["startingPosition"]
    bounded = boundedness is Boundedness.BOUNDED
    if chosen is None:
        return StartingPosition("trim_horizon" if bounded else "latest")
    if bounded and chosen.kind == "latest":
        raise options.error(
            "startingPosition", "is 'latest', so that a batch would be empty. Use 'trim_horizon' or a time."
        )
    return chosen
