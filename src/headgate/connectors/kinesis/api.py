"""The three calls of Kinesis that reading needs, by boto3, and what their errors mean.

Never: try again (that is decided by who calls, see `cursor`), or let an error of boto3 out: each becomes one of ours
here, with the fix in it, or a `Trouble` that says what kind of trying again helps. boto3 is imported when the first
client is made, which takes a second; clients are kept for the life of the process, since Spark reuses its workers.
"""

from __future__ import annotations

import datetime
import email.utils
import enum
import socket
import threading
import time
from typing import Any

import msgspec

from headgate.connectors.kinesis.options import NAME, StreamAddress
from headgate.connectors.kinesis.split import ShardPosition
from headgate.errors import DeploymentError, HeadgateError, OptionError, SourceError, SourceUnavailableError

MAX_RECORDS = 10_000
"""Kinesis returns so many records a call at most (and 10 MB)."""

_SHARDS_PER_PAGE = 1000
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 15
_THROTTLED = {
    "ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException", "Throttling",
    "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException",
    "TooManyRequestsException",
}  # fmt: skip
_CREDENTIALS = {
    "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch",
    "IncompleteSignature", "IncompleteSignatureException", "MissingAuthenticationToken",
    "MissingAuthenticationTokenException", "ExpiredTokenException", "ExpiredToken",
}  # fmt: skip


class TroubleKind(enum.Enum):
    """What helps when a call failed."""

    EXPIRED = "expired"
    """A new shard iterator, or listing from the beginning."""
    THROTTLED = "throttled"
    """Waiting, however long: Kinesis is there and answers."""
    UNAVAILABLE = "unavailable"
    """Waiting, for a while."""
    NO_POSITION = "no position"
    """Another position: the sequence number is none of the shard's."""
    NO_SHARD = "no shard"
    """Nothing: the shard is not there (any longer)."""


class Trouble(Exception):
    """A call failed in a way that its caller may know how to go on from."""

    def __init__(self, kind: TroubleKind, error: HeadgateError) -> None:
        super().__init__(kind, error)
        self.kind = kind
        self.error = error


class Shard(msgspec.Struct, frozen=True):
    """A shard as ListShards describes it."""

    shard_id: str
    parents: tuple[str, ...] = ()
    is_open: bool = True


class Got(msgspec.Struct, frozen=True):
    """An answer of GetRecords.

    Parameters
    ----------
    records
        As boto3 returns them, in the order of their sequence numbers.
    next_iterator
        None: the shard is closed and this was all of it.
    lag_ms
        How far the end of these records lags the newest of the shard, in milliseconds.
    answered_ms
        When Kinesis answered, by its own clock, in milliseconds since 1970-01-01 UTC.
    """

    records: list[dict[str, Any]]
    next_iterator: str | None
    lag_ms: int
    answered_ms: int


_clients: dict[StreamAddress, Any] = {}
_clients_lock = threading.Lock()


class KinesisApi:
    """Calls Kinesis about one stream. Any number of threads may use it at once."""

    def __init__(self, address: StreamAddress) -> None:
        self.address = address
        self._stream = {"StreamARN": address.arn} if address.arn else {"StreamName": address.name}

    def list_shards(self) -> tuple[list[Shard], int]:
        """Return all shards that Kinesis knows, closed ones included, and when it answered, by its own clock."""
        shards, answered_ms = [], 0
        request: dict[str, Any] = {**self._stream, "MaxResults": _SHARDS_PER_PAGE}
        while True:
            answer = self._call("list_shards", request)
            answered_ms = answered_ms or _answered_ms(answer)
            for each in answer["Shards"]:
                parents = (each.get("ParentShardId"), each.get("AdjacentParentShardId"))
                is_open = each["SequenceNumberRange"].get("EndingSequenceNumber") is None
                shards.append(Shard(each["ShardId"], tuple(filter(None, parents)), is_open))
            if not answer.get("NextToken"):
                return shards, answered_ms
            request = {"NextToken": answer["NextToken"], "MaxResults": _SHARDS_PER_PAGE}

    def shard_iterator(self, shard_id: str, position: ShardPosition) -> str:
        """Return an iterator that is good for five minutes."""
        request: dict[str, Any] = {**self._stream, "ShardId": shard_id, "ShardIteratorType": position.kind}
        if position.sequence_number is not None:
            request["StartingSequenceNumber"] = position.sequence_number
        if position.timestamp_ms is not None:
            request["Timestamp"] = datetime.datetime.fromtimestamp(position.timestamp_ms / 1000, datetime.UTC)
        iterator: str = self._call("get_shard_iterator", request, shard_id)["ShardIterator"]
        return iterator

    def get_records(self, shard_id: str, iterator: str, limit: int) -> Got:
        """Return the records at an iterator, at most ``limit`` (which is at most `MAX_RECORDS`)."""
        request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if self.address.arn:
            request["StreamARN"] = self.address.arn
        answer = self._call("get_records", request, shard_id)
        return Got(
            answer["Records"], answer.get("NextShardIterator"), answer.get("MillisBehindLatest") or 0,
            _answered_ms(answer),
        )  # fmt: skip

    def _call(self, operation: str, request: dict[str, Any], shard_id: str | None = None) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(_client(self.address), operation)(**request)
        except HeadgateError:
            raise
        except Exception as error:
            raise _translated(error, operation, self.address, shard_id) from error
        return answer


def _client(address: StreamAddress) -> Any:
    """Return this process' client for an address; making one is not safe on several threads, using it is."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise DeploymentError(
            f"{NAME} needs boto3, which cannot be imported on {socket.gethostname()} ({error}). Install it on driver "
            "and executors: pip install 'headgate[kinesis]'."
        ) from error
    with _clients_lock:
        client = _clients.get(address)
        if client is None:
            config = Config(
                retries={"total_max_attempts": 1},
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                max_pool_connections=64,
                user_agent_extra="headgate",
            )
            # The default session keeps what it has read of boto3's description of AWS, which takes most of the time.
            client = _clients[address] = boto3.client(
                "kinesis",
                region_name=address.region,
                endpoint_url=address.endpoint_url,
                aws_access_key_id=address.access_key,
                aws_secret_access_key=address.secret_key,
                aws_session_token=address.session_token,
                config=config,
            )
    return client


def _answered_ms(answer: dict[str, Any]) -> int:
    """Return the time in an answer's head; this machine's, which may be wrong, if there is none."""
    date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    if date is None:
        return time.time_ns() // 1_000_000
    return int(email.utils.parsedate_to_datetime(date).timestamp() * 1000)


def _translated(error: Exception, operation: str, address: StreamAddress, shard_id: str | None) -> Exception:
    """Return the error to raise instead of one of boto3's."""
    from botocore import exceptions as boto

    doing = f"{NAME}: {operation} of {address}" + (f", {shard_id}," if shard_id else "")
    facts: dict[str, Any] = {"source": NAME, "stream": address.name, "operation": operation}
    if shard_id:
        facts["split"] = shard_id
    if isinstance(error, boto.ClientError):
        return _of_answer(error, doing, facts, address)
    if isinstance(error, boto.NoRegionError):
        return OptionError(
            f"{NAME} cannot determine the region of {address}. Set the option 'region', or AWS_DEFAULT_REGION.",
            option="region", value=None, **facts,
        )  # fmt: skip
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError):
        return OptionError(
            f"{NAME} found no AWS credentials for {address} ({error}). Give driver and executors a role or a profile, "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the options 'awsAccessKey' and 'awsSecretKey'.",
            option="awsAccessKey", value=None, **facts,
        )  # fmt: skip
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError):  # nobody there, silence, a broken answer
        return Trouble(TroubleKind.UNAVAILABLE, _unavailable(f"{doing} got no answer: {error}", address, facts))
    if isinstance(error, boto.BotoCoreError | ValueError):  # an endpoint or a region that is none, parameters
        return OptionError(
            f"{doing} cannot be requested: {error}. Check the options 'endpointUrl' and 'region'.",
            option="endpointUrl", value=address.endpoint_url, **facts,
        )  # fmt: skip
    return SourceError(f"{doing} failed: {type(error).__name__}: {error}", **facts)


def _of_answer(error: Any, doing: str, facts: dict[str, Any], address: StreamAddress) -> Exception:
    """Return the error for an answer of Kinesis that is none of data."""
    code = error.response.get("Error", {}).get("Code", "")
    message = error.response.get("Error", {}).get("Message", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = f"{doing} failed with {code}: {message}"
    if code in ("ExpiredIteratorException", "ExpiredNextTokenException"):
        return Trouble(TroubleKind.EXPIRED, SourceError(text, **facts))
    if code in _THROTTLED or status == 429:
        return Trouble(TroubleKind.THROTTLED, _unavailable(text, address, facts))
    if status >= 500:
        return Trouble(TroubleKind.UNAVAILABLE, _unavailable(text, address, facts))
    if code == "ResourceNotFoundException":
        if "split" in facts and "shard" in message.partition(" in stream ")[0].lower():
            return Trouble(TroubleKind.NO_SHARD, SourceError(text, **facts))
        return SourceError(
            f"{NAME}: there is no {address} (Kinesis says: {message}). Check the options 'streamName' or "
            "'streamARN', 'region' and 'endpointUrl', and the account that the credentials belong to.",
            **facts,
        )
    if code == "InvalidArgumentException" and facts["operation"] == "get_shard_iterator":
        return Trouble(TroubleKind.NO_POSITION, SourceError(text, **facts))
    if code in ("AccessDeniedException", "AccessDenied", "KMSAccessDeniedException"):
        return SourceError(
            f"{text}. Allow kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords on the stream (and "
            "kms:Decrypt, if it is encrypted) to the role of driver and executors.",
            **facts,
        )
    if code in _CREDENTIALS:
        return SourceError(
            f"{text}. Kinesis does not accept the credentials: check the options 'awsAccessKey', 'awsSecretKey' and "
            "'awsSessionToken', or what boto3 finds without them. Temporary ones expire.",
            **facts,
        )
    return SourceError(text, **facts)


def _unavailable(text: str, address: StreamAddress, facts: dict[str, Any]) -> SourceUnavailableError:
    where = address.endpoint_url or address.region
    return SourceUnavailableError(
        f"{text.rstrip('.')}. Check the network and the options 'region' and 'endpointUrl'; the query may be "
        "started again from its checkpoint.",
        address=where,
        **facts,
    )
