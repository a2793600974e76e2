"""The one tree of errors, sorted by who must act on them.

Never: raise a bare ``RuntimeError`` elsewhere in the package, or let a foreign library's error reach the user
without one of these around it (the original stays as ``__cause__``).

    HeadgateError
      OptionError (and ValueError)     the user: an option, its value, what is allowed
      DeploymentError                  the user: executors run other code than the driver
      UserFunctionError                the user: a function of theirs raised
      ExpressionError                  the user: an expression of theirs failed on a value, in Spark's own code
      HelperLostError                  the world outside: the Java process for expressions ended
      SourceError                      the world outside
        BadDataError                   data that contradicts its format or schema: file and byte offset
        DataLossError                  data that was there is gone: a deleted, shrunken or replaced file
        SourceUnavailableError         the system does not answer; trying again may help
      SinkError                        the system that is written to failed or refused
        SinkUnavailableError           it does not answer; trying again may help
      TransportError                   the network between driver and slots, or who listens there
      StoredStateError                 stored bytes of ours
        CorruptStateError              they cannot be read
        UnsupportedVersionError        they were written by another version
      ConnectorContractError           the connector's author: a promise of the contract is broken
        UnsupportedOperationError      the source cannot do what was asked
      InternalError                    us: never caught
        InvalidTransitionError         a state machine was given what its table does not have
"""

from __future__ import annotations

from typing import Any


class HeadgateError(Exception):
    """Root of all errors that Headgate raises on purpose.

    Parameters
    ----------
    message
        What happened, where, and what to do about it: one sentence each.
    **facts
        The same facts as values. They become attributes of the error and survive pickling, so that a
        program can act on them without reading the message.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(cls: type[HeadgateError], message: str, facts: dict[str, Any]) -> HeadgateError:
    return cls(message, **facts)


class OptionError(HeadgateError, ValueError):
    """An option has an unknown name, a bad value, or a value that may not change. Facts: option, value."""


class DeploymentError(HeadgateError):
    """An executor runs another Headgate, Python or Arrow than the driver. Facts: driver, executor."""


class UserFunctionError(HeadgateError):
    """A function of the user's raised. Facts: function; the original is ``__cause__``."""


class ExpressionError(HeadgateError):
    """Spark's own code failed on an expression's values. Facts: condition, which is Spark's name of it; java_class."""


class HelperLostError(HeadgateError):
    """The Java process that evaluates expressions of a query has ended. Facts: pid."""


class SourceError(HeadgateError):
    """The system that is read from failed. Facts: source, split, position where known."""

    retryable = False


class BadDataError(SourceError):
    """Data contradicts its format or the schema. Facts: path and byte_offset, or partition and offset."""


class DataLossError(SourceError):
    """Data that was promised is no longer there. Facts: path or split, wanted and available range."""


class SourceUnavailableError(SourceError):
    """The system does not answer or refuses for now. Facts: source, address; final: trying again is not worth it."""

    retryable = True


class SinkError(HeadgateError):
    """The system that is written to failed or refused. Facts: sink, and topic and partition where known."""

    retryable = False


class SinkUnavailableError(SinkError):
    """The system that is written to does not answer for now. Facts: sink, address."""

    retryable = True


class TransportError(HeadgateError):
    """Processes of a query cannot talk. Facts: address; reason: listen, refused, tls, broken, silent or failed."""


class StoredStateError(HeadgateError):
    """Stored bytes of Headgate's own cannot be used. Facts: what, path where known."""


class CorruptStateError(StoredStateError):
    """Stored bytes cannot be read: truncated, changed, or not ours. Facts: what, expected, found."""


class UnsupportedVersionError(StoredStateError):
    """Stored bytes have a version that this Headgate does not know. Facts: what, expected, found."""


class ConnectorContractError(HeadgateError):
    """A connector broke a promise of the contract. Facts: connector, method."""


class UnsupportedOperationError(ConnectorContractError):
    """A source was asked for something that it cannot do. Facts: source, operation."""


class InternalError(HeadgateError):
    """A bug in Headgate. Please report it with the message."""


class InvalidTransitionError(InternalError):
    """A state machine got an event that its state does not allow. Facts: state, event, history."""


_FINAL = (
    OptionError, DeploymentError, UnsupportedOperationError, UnsupportedVersionError, BadDataError, DataLossError,
)  # fmt: skip


def is_final(error: BaseException, *, is_new: bool = False) -> bool:
    """Return whether only the user can mend an error, so that the query ends: a restart would meet it again.

    Parameters
    ----------
    error
        Of a reader, an operator, an enumerator, a commit.
    is_new
        Whether what failed never worked before. What the system refuses is final only then: later it may be an outage.
    """
    refused = is_new and isinstance(error, SourceError) and not error.retryable
    says_so = isinstance(error, HeadgateError) and error.facts.get("final") is True
    return refused or says_so or isinstance(error, _FINAL)
