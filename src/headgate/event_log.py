"""What Headgate logs: one line per event in the life of a query, with where it happened; as text or as JSON.

Never: touch the root logger, or logging in a process that is not ours, unless the option asks for it.

Each record has the attribute ``context``: a mapping with what is known of ``query``, ``slot``, ``stage`` and
``subtask``, or of ``source``. That is where PySpark's own structured logs have it (`pyspark.logger`), and the JSON is
theirs, too: the lines can be read with `pyspark.logger.SPARK_LOG_SCHEMA`. What is handled has no traceback.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any, TextIO

import msgspec

OPTION = "log.structuredLogging.enabled"
"""The option of a query that asks for JSON; as Spark's ``spark.log.structuredLogging.enabled``."""

_process: dict[str, Any] = {}  # what is true of all that this process logs
_thread = threading.local()


def set_process_context(**context: Any) -> None:
    """Let all records of this process that are formatted here have this context. A slot's own process has one query."""
    _process.clear()
    _process.update(context)


def set_thread_context(**context: Any) -> None:
    """Let the records of the current thread have this context."""
    _thread.context = context


def thread_context() -> dict[str, Any]:
    """Return the context of the current thread, for one that it starts."""
    return dict(getattr(_thread, "context", {}))


def context_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what is known of where a record was made; on the thread that made it."""
    return {**_process, **getattr(_thread, "context", {}), **getattr(record, "context", {})}


def describe(error: BaseException) -> str:
    """Return an error in one line, for an event that is handled."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def log_event(logger: logging.Logger, level: int, query: str, text: str, **where: Any) -> None:
    """Log an event in the life of a query as one line, whatever a cause in it has."""
    if logger.isEnabledFor(level):
        context = {"query": query, **where}
        logger.log(level, "query %s: %s", query, " ".join(text.split()), extra={"context": context}, stacklevel=2)


class TextFormatter(logging.Formatter):
    """Formats a record as one line, with its context before the message."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        where = ", ".join(f"{name} {value}" for name, value in context_of(record).items())
        record.where = f" [{where}]" if where else ""
        return super().format(record)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(where)s %(message)s")


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON with the fields of Spark's structured logs."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields: dict[str, Any] = {
            "ts": self.formatTime(record),
            "level": record.levelname,
            "msg": record.getMessage(),
            "context": {name: str(value) for name, value in context_of(record).items()},
            "logger": record.name,
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _exception(record.exc_info[1])
        return msgspec.json.encode(fields).decode()


def configure(*, structured: bool, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Write what Headgate logs to a stream, in this process, in place of what an earlier call set up.

    Parameters
    ----------
    structured
        Whether as JSON.
    level
        From which level on.
    stream
        Where to; None: standard error.
    """
    logger = logging.getLogger("headgate")
    for handler in list(logger.handlers):
        if isinstance(handler.formatter, TextFormatter | JsonFormatter):
            logger.removeHandler(handler)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if structured else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _exception(error: BaseException) -> dict[str, Any]:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append({"class": None, "method": code.co_name, "file": code.co_filename, "line": str(trace.tb_lineno)})
        trace = trace.tb_next
    return {"class": type(error).__name__, "msg": str(error), "stacktrace": frames}
