"""Any Python data source that is registered with Spark and has a ``streamWriter``, as the sink of a continuous query.

Never: let a writer's ``write`` end as if its rows were complete when they are not; wait for it on the mailbox thread.

PySpark's ``write(iterator)`` is one call for each task and epoch. Here it runs on a thread, one call from a
barrier to the next: it begins with the first row, or at the barrier if there was none, and the barrier ends its
iterator. What it returns is carried in checkpoints until one completes, so that ``commit`` may get more
messages than there are tasks. ``commit`` runs on the driver, with batch numbers from 0 without a gap; after a crash it
may run twice for one batch, and must notice.

Follows PySpark 4.3, ``pyspark/sql/worker/write_into_data_source.py``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError, HeadgateError, OptionError, SinkError, UserFunctionError
from headgate.operators.user_functions import in_zone
from headgate.pickling import dumps, loads
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.sink import Sink, SinkCommitter, SinkWriter
from headgate.sink.writer_thread import WriterThread
from headgate.source.serialization import VersionedSerializer
from headgate.spark.compatibility import DataSourceStreamArrowWriter, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_QUEUE_BYTES = 4 * 1024 * 1024
"""How much may wait for a writer before the source is asked to pause."""
_CLOSE_S = 5.0
"""How long `close` waits for a writer to notice that its iterator failed, in seconds."""


def make_python_sink(name: str, options: Mapping[str, str], schema: pa.Schema, spark: SparkSession) -> PythonSink:
    """Return the sink for a Python data source's name. On the driver: it makes the data source and its writer.

    Parameters
    ----------
    name
        What the user gave to ``format``.
    options
        Those of ``writeStream``.
    schema
        The columns that are written.
    spark
        The session that the data source is registered with. Sources that Spark finds automatically (a module
        ``pyspark_*`` with a ``DefaultSource``) are known to it as well.

    Raises
    ------
    OptionError
        There is no such data source, or it cannot be written as a stream.
    UserFunctionError
        Its code raised.
    """
    from pyspark.errors import PySparkNotImplementedError
    from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamWriter

    from headgate.spark.compatibility import from_arrow_schema

    data_source = registered_class(name, spark)
    struct = from_arrow_schema(schema)
    try:
        writer = data_source(options=CaseInsensitiveDict(options)).streamWriter(struct, False)
    except PySparkNotImplementedError as error:
        raise OptionError(
            f"The format {name!r} has no streamWriter: {data_source.__name__} cannot be written as a stream. "
            "Implement DataSource.streamWriter.",
            option="format", value=name,
        ) from error  # fmt: skip
    except HeadgateError:
        raise
    except Exception as error:
        raise _user_error(f"{data_source.__name__}.streamWriter", error) from error
    if not isinstance(writer, DataSourceStreamWriter):
        raise OptionError(
            f"The format {name!r}: {data_source.__name__}.streamWriter returned {type(writer).__name__}, not a "
            "DataSourceStreamWriter.",
            option="format", value=name,
        )  # fmt: skip
    return PythonSink.of(name, writer, schema, spark)


def registered_class(name: str, spark: SparkSession) -> type[DataSource]:
    """Return the class that Spark knows under a name.

    Spark's registry is on the Java side and holds pickles, as its own workers get them.

    Raises
    ------
    OptionError
        Spark knows no Python data source of that name.
    """
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        raise OptionError(
            f"There is no sink {name!r}: no Python data source of that name is registered with Spark. Register it "
            "with spark.dataSource.register(...), or use parquet, json, csv, kafka, console or memory.",
            option="format", value=name,
        )  # fmt: skip
    pickled = manager.lookupDataSource(name).dataSourceCls().command().unsafeArray()
    try:
        found: type[DataSource] = loads(bytes(pickled))
    except Exception as error:
        raise OptionError(
            f"The class of the data source {name!r} cannot be loaded: {type(error).__name__}: {error}. Put it into a "
            "module that can be imported; one from a notebook must take less than 1 MiB with all that it refers to.",
            option="format", value=name,
        ) from error  # fmt: skip
    return found


class StoredMessage(msgspec.Struct, frozen=True):
    """A commit message as checkpoints store it.

    Parameters
    ----------
    message_class
        Its class, for errors.
    pyspark
        The version of PySpark that pickled it.
    pickled
        The message.
    """

    message_class: str
    pyspark: str
    pickled: bytes


MESSAGE_SERIALIZER: VersionedSerializer[StoredMessage] = VersionedSerializer(
    StoredMessage, version=1, what="a commit message of a Python data source"
)
"""Version 1 since 0.3.0."""


class PythonSink(Sink):
    """Writes by a data source's stream writer. Made by `make_python_sink`.

    Parameters
    ----------
    name
        The format.
    writer
        Made on the driver; its copies write on the slots, the original commits.
    struct
        The rows' columns as Spark's.
    schema
        The same as Arrow's, as Spark hands them to writers.
    binary_as_bytes
        As the session says: otherwise binary values are bytearrays.
    """

    def __init__(
        self, name: str, writer: DataSourceStreamWriter, struct: StructType, schema: pa.Schema, binary_as_bytes: bool
    ) -> None:
        self.name = name
        self._writer = writer
        self._struct = struct
        self._schema = schema
        self._binary_as_bytes = binary_as_bytes

    @classmethod
    def of(cls, name: str, writer: DataSourceStreamWriter, schema: pa.Schema, spark: SparkSession) -> Self:
        """Return the sink of a writer whose rows are as the session says."""
        from headgate.spark.compatibility import from_arrow_schema, to_arrow_schema

        struct = from_arrow_schema(schema)
        time_zone = str(spark.conf.get("spark.sql.session.timeZone"))
        binary_as_bytes = spark.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
        return cls(name, writer, struct, in_zone(to_arrow_schema(struct), time_zone), binary_as_bytes)

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer."""
        write: Callable[[Iterator[pa.RecordBatch]], Any]
        write = self._writer.write if isinstance(self._writer, DataSourceStreamArrowWriter) else self._write_rows
        function = f"{type(self._writer).__name__}.write"
        return PythonSinkWriter(write, self._schema, function, f"headgate-sink-{self.name}-{context.subtask}")

    def create_committer(self, checkpoint_location: str) -> SinkCommitter:
        """Return what calls the writer's ``commit``."""
        return PythonSinkCommitter(self._writer)

    def _write_rows(self, batches: Iterator[pa.RecordBatch]) -> Any:
        return self._writer.write(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        """Yield rows as Spark's own worker makes them."""
        from pyspark.sql.types import _create_row

        names = self._struct.fieldNames()
        for batch in batches:
            columns = [
                values_of(column, field.dataType, binary_as_bytes=self._binary_as_bytes)
                for column, field in zip(batch.columns, self._struct.fields)
            ]
            for values in zip(*columns):
                yield _create_row(names, list(values))


class _Epoch:
    """The batches from one barrier to the next, on their way to one call of ``write``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._changed = threading.Condition(self._lock)
        self._batches: deque[pa.RecordBatch] = deque()
        self._ended = False
        self._failure: HeadgateError | None = None
        self._room: Future[None] | None = None
        self._returned = False

    @property
    def returned(self) -> bool:
        """Whether the call is over, or never came."""
        with self._lock:
            return self._returned

    def put(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        with self._lock:
            self._batches.append(batch)
            self._changed.notify_all()

    def end(self) -> None:
        """No rows follow."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: HeadgateError) -> None:
        """Let the iterator raise, whatever is still in it."""
        with self._lock:
            self._failure = error
            self._changed.notify_all()

    def room(self) -> Future[None] | None:
        """Return None if no rows wait, else a future that is done when the call has taken them."""
        with self._lock:
            if self._returned or not self._batches:
                return None
            self._room = self._room or Future()
            return self._room

    def close(self, error: BaseException | None) -> None:
        """Let go of who waits for room: the call is over."""
        with self._lock:
            self._returned = True
            room, self._room = self._room, None
        if room is not None:
            _resolve(room, error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            while not (self._batches or self._ended or self._failure):
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            if not self._batches:
                raise StopIteration
            batch = self._batches.popleft()
            room = None
            if not self._batches:
                room, self._room = self._room, None
        if room is not None:
            _resolve(room, None)
        return batch


def _resolve(room: Future[None], error: BaseException | None) -> None:
    if error is None:
        room.set_result(None)
    else:
        room.set_exception(error)


class PythonSinkWriter(SinkWriter):
    """One subtask's end: calls ``write`` once for each epoch, on its thread.

    Parameters
    ----------
    write
        Takes batches, returns a commit message.
    schema
        The batches' columns as ``write`` wants them.
    function
        What ``write`` is, for errors.
    thread_name
        The thread's name.
    """

    waits_for_rows = True

    def __init__(
        self, write: Callable[[Iterator[pa.RecordBatch]], Any], schema: pa.Schema, function: str, thread_name: str
    ) -> None:
        self._write = write
        self._schema = schema
        self._function = function
        self._thread = WriterThread(thread_name)
        self._epoch: _Epoch | None = None  # the one that rows go to; None: it has had none
        self._message: Future[bytes] | None = None
        self._begun: list[_Epoch] = []  # those whose call has not returned, as far as is known
        self._carried: list[tuple[int, Future[bytes]]] = []  # with the checkpoint in which each stood first

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows.

        Raises
        ------
        UserFunctionError
            The data source's writer raised.
        """
        self._thread.raise_failure()
        if batch.num_rows:
            epoch, _ = self._current()
            epoch.put(batch if batch.schema.equals(self._schema) else batch.cast(self._schema))

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when the writer took some."""
        self._thread.raise_failure()
        return None if self._epoch is None else self._epoch.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """End the iterator; the future is done when ``write`` has returned."""
        self._thread.raise_failure()
        epoch, message = self._current()
        epoch.end()
        self._epoch = self._message = None
        self._carried.append((checkpoint_id, message))
        messages = [carried for _, carried in self._carried]
        # Calls of `write` run one after another on one thread: when this has its turn, all have returned.
        return self._thread.submit(lambda: OperatorState(committables=tuple(each.result(0) for each in messages)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Carry no longer what is to be committed now."""
        self._carried = [each for each in self._carried if each[0] > checkpoint_id]

    def close(self) -> None:
        """Let ``write`` fail if it is running: what it has is in no checkpoint."""
        closed = SinkError(f"{self._function}: the subtask ended before the barrier; these rows will come again.")
        for epoch in self._begun:
            epoch.fail(closed)
        if not self._thread.stop(_CLOSE_S):
            _log.warning("%s does not end though its iterator failed; its thread is abandoned.", self._function)

    def _current(self) -> tuple[_Epoch, Future[bytes]]:
        if self._epoch is None or self._message is None:
            epoch = self._epoch = _Epoch()
            self._begun = [epoch, *(each for each in self._begun if not each.returned)]
            self._message = self._thread.submit(lambda: self._call(epoch))
            self._message.add_done_callback(lambda done: epoch.close(done.exception()))
        return self._epoch, self._message

    # From here on: on the thread.

    def _call(self, epoch: _Epoch) -> bytes:
        try:
            message = self._write(epoch)
            for _ in epoch:
                pass  # a writer may leave rows, as in Spark
            return _stored(message, self._function)
        except HeadgateError:
            raise
        except BaseException as error:
            raise _user_error(self._function, error) from error


def _user_error(function: str, error: BaseException) -> UserFunctionError:
    return UserFunctionError(f"{function} failed: {type(error).__name__}: {error}", function=function)


def _stored(message: Any, function: str) -> bytes:
    from pyspark import __version__
    from pyspark.sql.datasource import WriterCommitMessage

    if not isinstance(message, WriterCommitMessage):
        raise UserFunctionError(
            f"{function} returned {type(message).__name__}: it must return a WriterCommitMessage.", function=function
        )
    return MESSAGE_SERIALIZER.serialize(StoredMessage(_class_name(message), __version__, dumps(message)))


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _loaded(data: bytes) -> Any:
    from pyspark import __version__

    stored = MESSAGE_SERIALIZER.deserialize(data)
    try:
        return loads(stored.pickled)
    except Exception as error:
        raise CorruptStateError(
            f"A commit message of class {stored.message_class}, pickled with PySpark {stored.pyspark}, cannot be read "
            f"with PySpark {__version__}: {type(error).__name__}: {error}. Restart with the program that wrote it.",
            what=stored.message_class, expected=stored.pyspark, found=__version__,
        ) from error  # fmt: skip


class PythonSinkCommitter(SinkCommitter):
    """Calls the writer's ``commit``. Batches count from 0, as in Spark, where epochs count from 1.

    Never ``abort``: it is about a whole batch, and here a batch goes on when one of its writers starts again. What the
    others wrote, and what is in a manifest that nobody heard of, is committed under the same number.
    """

    def __init__(self, writer: DataSourceStreamWriter) -> None:
        self._writer = writer

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """Commit a batch, perhaps for the second time.

        Raises
        ------
        UserFunctionError
            The writer raised.
        StoredStateError
            A message cannot be read.
        """
        messages = [_loaded(each) for each in committables]
        try:
            self._writer.commit(messages, epoch - 1)
        except HeadgateError:
            raise
        except Exception as error:
            raise _user_error(f"{type(self._writer).__name__}.commit", error) from error
        return ()
