"""What differs between the versions of Spark that Headgate runs on: which version can what, and how each one spells it.

Never: import anything of Headgate's but its errors, or anything at module level but PySpark and the standard library:
Spark imports this to find formats. Let another module compare versions: it asks `supports`, or calls `require`.

`FEATURES` is the list; docs/spark-versions.md has the same, and tests are marked with its names. Below it is what
PySpark's own code is called in each version.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import getclosurevars
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark
import pyspark.sql.datasource as _datasource
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from headgate.errors import OptionError, UnsupportedOperationError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Feature(NamedTuple):
    """What not every version can do.

    Parameters
    ----------
    since
        The first version of Spark that can.
    what
        What it is, as the subject of a sentence.
    before
        What an earlier version does instead, as a sentence.
    """

    since: tuple[int, int]
    what: str
    before: str


FEATURES: dict[str, Feature] = {
    "stream-arrow-writer": Feature(
        (4, 1),
        "Writing a Structured Streaming query to headgate.kafka",
        "It is an error. Use foreachBatch with batch.write.format('headgate.kafka'), or a continuous query.",
    ),
    "transform-with-state-rows": Feature(
        (4, 1),
        "transformWithState, whose processors get rows",
        "PySpark does not have the method. Use transformWithStateInPandas.",
    ),
    "arrow-udf": Feature((4, 1), "arrow_udf", "PySpark does not have the decorator. Use pandas_udf."),
    "repartition-by-id": Feature((4, 1), "repartitionById", "PySpark does not have the method."),
    "corr-of-constants": Feature(
        (4, 3),
        "corr and regr_slope of columns of which one has a single value",
        "Spark fails with DIVIDE_BY_ZERO in ANSI mode, or gives what rounding leaves.",
    ),
    "join-in-update-mode": Feature(
        (4, 2),
        "An inner join of two streams in the output mode update",
        "Spark refuses it, and so do continuous queries.",
    ),
    "zstandard": Feature((4, 1), "Reading CSV, JSON and text of .zst files with Spark's own formats", "Spark fails."),
    "orc-instants": Feature(
        (4, 2),
        "Inferring the type of ORC's instants with Spark's own format",
        "Spark fails. headgate.files reads them.",
    ),
    "log-context": Feature(
        (4, 1),
        "The query, slot and subtask of an event in JSON that PySpark's own formatter makes",
        "It leaves them out. headgate's own, log.structuredLogging.enabled, has them.",
    ),
    "time-type": Feature((4, 1), "The type time, and current_time", "Spark does not have the type."),
    "read-limits": Feature(
        (4, 2),
        "Limiting a micro-batch (maxFilesPerTrigger, maxBytesPerTrigger, maxRowsPerTrigger, maxOffsetsPerTrigger, "
        "minOffsetsPerTrigger)",
        "It is an error: a micro-batch reads all that is there, and Trigger.AvailableNow is one micro-batch.",
    ),
    "micro-batch-alignment": Feature(
        (4, 2),
        "Watermark alignment in micro-batches (scan.watermark.alignment.group)",
        "It is an error in Structured Streaming: Spark has no read limits. Continuous queries align.",
    ),
    "lag-of-micro-batches": Feature(
        (4, 2),
        "The lag of a source in lastProgress of a Structured Streaming query (latestOffset)",
        "Spark does not ask for it.",
    ),
    "available-now": Feature(
        (4, 2),
        "Trigger.AvailableNow in several micro-batches",
        "It is one micro-batch, which reads all that is known to be there: of a SimpleSource without latest(), a page. "
        "Of a query that ended inside a micro-batch it is that one: what came since is read at the next start. "
        "With spark.sql.streaming.triggerAvailableNowWrapper.enabled a query that starts again ends with an error.",
    ),
    "python-udf-on-arrow": Feature(
        (4, 2),
        "udf that runs on Arrow unless useArrow=False is given",
        "Continuous queries need udf(..., useArrow=True), or spark.sql.execution.pythonUDF.arrow.enabled.",
    ),
    "rows-in-states": Feature(
        (4, 2),
        "A Row in a struct of a processor's state, in micro-batches",
        "Spark fails with a PicklingError.",
    ),
    "variant-changes": Feature(
        (4, 3),
        "Changing a variant (variant_set, variant_insert, variant_delete, variant_strip_nulls and so on)",
        "Spark does not have the functions.",
    ),
    "ceil-overflow": Feature(
        (4, 3),
        "An error of ceil and floor for what does not fit a long, and with it their evaluation on Arrow",
        "Spark gives the nearest long, and its own code evaluates the two.",
    ),
}
"""By name: what the first of these versions cannot do."""


def spark_version() -> tuple[int, int]:
    """Return the version of PySpark, without the patch release."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def supports(feature: str) -> bool:
    """Return whether this Spark has a feature."""
    return spark_version() >= FEATURES[feature].since


def missing(feature: str) -> str:
    """Return a sentence about a feature that this Spark does not have."""
    found = FEATURES[feature]
    since = ".".join(map(str, found.since))
    return f"{found.what} needs Spark {since} or later; this is Spark {pyspark.__version__}. {found.before}"


def require(feature: str) -> None:
    """Check that this Spark has a feature.

    Raises
    ------
    UnsupportedOperationError
        It does not; the message says which version does.
    """
    if not supports(feature):
        raise UnsupportedOperationError(missing(feature), operation=feature)


# Data sources.

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
else:
    if supports("stream-arrow-writer"):
        DataSourceStreamArrowWriter = _datasource.DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(DataSourceStreamWriter):
            """In the place of a class that this PySpark does not have: nothing of the user's is one."""

    if supports("read-limits"):
        SupportsTriggerAvailableNow = import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow
    else:

        class SupportsTriggerAvailableNow:
            """In the place of a class that this PySpark does not have."""


_LIMITS = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
)


def check_stream_options(source: str, options: Mapping[str, Any]) -> None:
    """Check that this Spark can do for a stream what its options say.

    Parameters
    ----------
    source
        The name of the format.
    options
        What `Source.options` holds.

    Raises
    ------
    OptionError
        It cannot; the message says which version can.
    """
    asked = dict.fromkeys(_LIMITS, "read-limits") | {"scan.watermark.alignment.group": "micro-batch-alignment"}
    for option, feature in asked.items():
        if options.get(option) is not None and not supports(feature):
            raise OptionError(
                f"{source}: the option {option!r} is not possible here. {missing(feature)}",
                option=option, value=options[option],
            )  # fmt: skip


def read_limit(kind: str | None = None, most: int = 0) -> Any:
    """Return a read limit of PySpark's by the last part of its name: ``MaxRows``, ``MinRows``, ``MaxFiles`` and so on.

    None is all that is there. Only a Spark that has them asks for one.
    """
    limits = import_module("pyspark.sql.streaming.datasource")
    return limits.ReadAllAvailable() if kind is None else getattr(limits, f"Read{kind}")(most)


def is_unlimited(limit: Any) -> bool:
    """Return whether a limit that Spark gave is none."""
    return limit is None or isinstance(limit, type(read_limit()))


def stream_reader(reader: Any) -> DataSourceStreamReader:
    """Return a reader as this Spark calls it."""
    return reader if supports("read-limits") else _ReaderWithoutLimits(reader)


class _ReaderWithoutLimits(DataSourceStreamReader):
    """Knows after which offset the next micro-batch begins, which Spark does not pass.

    Spark calls ``initialOffset`` when a query starts for the first time. When it starts again, it first calls
    ``partitions`` with the offset of the last micro-batch as both ends, and then with those of one that it repeats;
    after that once for each micro-batch. Its wrapper for ``Trigger.AvailableNow`` calls ``latestOffset`` before, and
    takes what that returns for the end of the next micro-batch: of a query that starts again, a plan of all rows.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._start: dict[str, Any] | None = None
        self._too_early = False

    def initialOffset(self) -> dict[str, Any]:
        self._start = self._reader.initialOffset()
        self._too_early = False
        return dict(self._start)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self._too_early = self._start is None
        start = self._reader.initialOffset() if self._start is None else self._start
        return dict(self._reader.latestOffset(start, None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._too_early:
            raise UnsupportedOperationError(
                "A query that starts again cannot have spark.sql.streaming.triggerAvailableNowWrapper.enabled before "
                "Spark 4.2: it would read all rows again. Set it to false. Nothing was read, and nothing is lost.",
                operation="available-now",
            )
        self._start = end
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)  # type: ignore[no-any-return]

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


def values_of(column: pa.Array, data_type: DataType, *, binary_as_bytes: bool) -> list[Any]:
    """Return the values of a column as a data source's writer gets them in rows."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    conversion: Any = ArrowTableToRowsConversion
    if spark_version() < (4, 1):
        convert = conversion._create_converter(data_type)
    else:
        convert = conversion._create_converter(data_type, binary_as_bytes=binary_as_bytes)
    to_list = getattr(conversion, "_to_pylist", None)  # since 4.2
    return [convert(value) for value in (column.to_pylist() if to_list is None else to_list(column))]


# Types.


def to_arrow_type(data_type: DataType) -> pa.DataType:
    """Return a type of Spark's as Arrow's; moments are of UTC."""
    from pyspark.sql.pandas import types

    of_moments: Any = {"timezone": "UTC"} if spark_version() >= (4, 2) else {}
    return types.to_arrow_type(data_type, **of_moments)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return columns of Spark's as Arrow's; moments are of UTC."""
    from pyspark.sql.pandas import types

    of_moments: Any = {"timezone": "UTC"} if spark_version() >= (4, 2) else {}
    return types.to_arrow_schema(schema, **of_moments)


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """Return columns of Arrow's as Spark's; moments without a zone are ``TimestampNTZType``."""
    from pyspark.sql.pandas import types

    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


# Plans.

TRANSFORM_WITH_STATE = ("TransformWithStateInPySpark", "TransformWithStateInPandas")
"""The names of the node of a processor: the second one in Spark 4.0, of which all processors get frames."""


def is_of_frames(node: Any, name: str) -> bool:
    """Return whether a node of a processor, which has this name, gives it frames."""
    return name == TRANSFORM_WITH_STATE[1] or str(node.userFacingDataType().toString()) == "pandas"


def stateful_processor(function: Any) -> Any:
    """Return the processor in a function that PySpark pickled for Spark."""
    if hasattr(function, "__self__"):
        return function.__self__._stateful_processor
    return getclosurevars(function).nonlocals["statefulProcessor"]  # Spark 4.0


def join_helper() -> str:
    """Return the name of Spark's helper for joins of streams, below ``org.apache.spark.sql``."""
    package = "execution.streaming" if spark_version() < (4, 1) else "execution.streaming.operators.stateful.join"
    return f"{package}.StreamingSymmetricHashJoinHelper"


def eval_mode(expression: Any, name: str) -> str:
    """Return in which mode an expression of this name treats errors: ``ANSI``, ``TRY`` or ``LEGACY``."""
    of = expression.evalContext() if name == "Sum" and spark_version() >= (4, 1) else expression
    return str(of.evalMode().toString())


def skips_null(aggregate: Any, name: str) -> bool:
    """Return whether an aggregate of this name leaves nulls out; until Spark 4.1 ``collect_list`` always does."""
    return bool((name == "CollectList" and spark_version() < (4, 2)) or aggregate.ignoreNulls())


def ceil_fails(expression: Any) -> bool:
    """Return whether ``ceil``, or ``floor``, of what does not fit a long is an error."""
    return bool(supports("ceil-overflow") and expression.failOnError())


def interval_added() -> str:
    """Return the name of the expression that adds an interval to a moment."""
    return "TimeAdd" if spark_version() < (4, 1) else "TimestampAddInterval"


def has_key_search() -> bool:
    """Return whether that helper says which key of a join is the event time."""
    return spark_version() >= (4, 2)


# pandas.


class WorkerSettings(NamedTuple):
    """The settings of a session that say how frames are made, and columns of them.

    Parameters
    ----------
    safecheck, assign_cols_by_name, int_to_decimal_coercion_enabled, prefer_int_ext_dtype, arrow_max_records_per_batch,
    arrow_max_bytes_per_batch
        As the properties of PySpark's ``RunnerConf``.
    """

    safecheck: bool = True
    assign_cols_by_name: bool = True
    int_to_decimal_coercion_enabled: bool = False
    prefer_int_ext_dtype: bool = False
    arrow_max_records_per_batch: int = 10_000
    arrow_max_bytes_per_batch: int = 2**31 - 1

    @classmethod
    def of(cls, conf: Mapping[str, str]) -> WorkerSettings:
        """Return those of the settings that Spark gives to its Python workers."""

        def is_on(name: str, default: str = "false") -> bool:
            return conf.get(f"spark.sql.{name}", default).lower() == "true"

        return cls(
            safecheck=is_on("execution.pandas.convertToArrowArraySafely"),
            assign_cols_by_name=is_on("legacy.execution.pandas.groupedMap.assignColumnsByName", "true"),
            int_to_decimal_coercion_enabled=is_on("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
            prefer_int_ext_dtype=is_on("execution.pythonUDF.pandas.preferIntExtensionDtype"),
            arrow_max_records_per_batch=int(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)),
            arrow_max_bytes_per_batch=int(conf.get("spark.sql.execution.arrow.maxBytesPerBatch", 2**31 - 1)),
        )

    def rows_of_a_frame(self, rows: pa.Table) -> int:
        """Return how many of these rows a frame may have: a worker ends one that has as many, or as many bytes."""
        most = self.arrow_max_records_per_batch
        most = most if most > 0 else 2**31 - 1
        if self.arrow_max_bytes_per_batch == 2**31 - 1 or not rows.nbytes:
            return most
        return max(1, min(most, -(-self.arrow_max_bytes_per_batch * int(rows.num_rows) // int(rows.nbytes))))


def to_pandas(rows: pa.Table, time_zone: str, settings: WorkerSettings | None = None) -> list[pd.Series]:
    """Return the columns of rows as Spark's Python workers make them: moments in a time zone, structs as dicts."""
    import pandas as pd

    if spark_version() < (4, 2):
        serializer = _pandas_serializer(time_zone, WorkerSettings())
        place = () if spark_version() < (4, 1) else (0,)
        return [
            pd.Series(serializer.arrow_to_pandas(column, *place), name=name)
            for name, column in zip(rows.schema.names, rows.columns)
        ]
    from pyspark.sql.conversion import ArrowBatchTransformer

    made: list[pd.Series] = ArrowBatchTransformer.to_pandas(
        rows,
        timezone=time_zone,
        prefer_int_ext_dtype=settings is not None and settings.prefer_int_ext_dtype,
    )
    return made


def to_arrow(
    frame: pd.DataFrame, schema: StructType, time_zone: str, settings: WorkerSettings | None = None
) -> pa.RecordBatch:
    """Return a frame in the columns of a schema, as Spark's Python workers do; without settings strictly, by name."""
    import pyarrow as pa

    given = settings or WorkerSettings()
    if spark_version() < (4, 2):
        kind = pa.struct(list(to_arrow_schema(schema)))
        return pa.RecordBatch.from_struct_array(_pandas_serializer(time_zone, given)._create_struct_array(frame, kind))
    from pyspark.sql.conversion import PandasToArrowConversion

    return PandasToArrowConversion.convert(
        frame,
        schema,
        timezone=time_zone,
        safecheck=given.safecheck,
        arrow_cast=True,
        assign_cols_by_name=given.assign_cols_by_name,
        int_to_decimal_coercion_enabled=given.int_to_decimal_coercion_enabled,
    )


def _pandas_serializer(time_zone: str, settings: WorkerSettings) -> Any:
    serializers = import_module("pyspark.sql.pandas.serializers")
    newer = (
        {}
        if spark_version() < (4, 1)
        else {"int_to_decimal_coercion_enabled": settings.int_to_decimal_coercion_enabled}
    )
    return serializers.ArrowStreamPandasUDFSerializer(
        time_zone, settings.safecheck, settings.assign_cols_by_name, arrow_cast=True, **newer
    )


# Python workers.


class Call(NamedTuple):
    """A function of the user's, or several that are called one on the result of the other.

    Parameters
    ----------
    functions
        What was pickled for Spark: functions with the types of their results, the first one first.
    arguments, named
        The places of its arguments; the latter by the parameter's name.
    """

    functions: Sequence[tuple[Any, Any]]
    arguments: Sequence[int]
    named: Mapping[str, int]


Batches = Callable[[int, Iterator["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


def worker_function(
    calls: Sequence[Call], eval_type: int, conf: Mapping[str, str], argument_types: Sequence[str]
) -> Batches:
    """Return what a worker calls with a partition's number and its batches, and which yields those of the results.

    Parameters
    ----------
    calls
        The functions, all of one kind.
    eval_type
        Which kind: one of ``pyspark.util.PythonEvalType``.
    conf
        The session's settings that Spark gives to its Python workers.
    argument_types
        The types of the columns, as Spark's JSON.
    """
    fields = [
        {"name": f"_{place}", "type": json.loads(each), "nullable": True, "metadata": {}}
        for place, each in enumerate(argument_types)
    ]
    given = json.dumps({"type": "struct", "fields": fields})
    worker: Any = import_module("pyspark.worker")
    if spark_version() < (4, 3):
        return _function_of_streams(worker, calls, eval_type, dict(conf), given)
    infos = [
        import_module("pyspark.worker_message").UDFInfo(
            udfs=list(each.functions), args=list(each.arguments), kwargs=dict(each.named), result_id=number
        )
        for number, each in enumerate(calls)
    ]
    settings = worker.RunnerConf(dict(conf)), worker.EvalConf({"input_type": given})
    function, *_ = worker.read_udfs(_Loaded(), infos, eval_type, *settings)
    return function  # type: ignore[no-any-return]


class _Loaded:
    """Takes the place of a serializer, for functions that are no bytes any more: as values, or one after the other."""

    def __init__(self, functions: Iterable[Any] | None = None) -> None:
        self._functions = None if functions is None else iter(functions)

    def _read_with_length(self, function: Any) -> Any:
        return function if self._functions is None else next(self._functions)


def _function_of_streams(
    worker: Any, calls: Sequence[Call], eval_type: int, conf: dict[str, str], argument_types: str
) -> Batches:
    """Return the same where a worker reads all it is to know from a stream, and serializers convert the batches."""
    from pyspark.util import PythonEvalType

    of_maps = eval_type == PythonEvalType.SQL_MAP_PANDAS_ITER_UDF
    marked = spark_version() >= (4, 2) or not of_maps  # whether arguments say that they are named
    sent = io.BytesIO()
    settings: tuple[Any, ...] = ()
    if spark_version() >= (4, 2):
        evaluation = {"input_type": argument_types}
        settings = worker.RunnerConf(io.BytesIO(_map(conf))), worker.EvalConf(io.BytesIO(_map(evaluation)))
    else:
        sent.write(_map(conf))
        if spark_version() >= (4, 1) and eval_type == PythonEvalType.SQL_ARROW_BATCHED_UDF:
            sent.write(_text(argument_types))
        sent.write(b"\0")  # not profiled
    sent.write(_int(len(calls)))
    for each in calls:
        positions = each.arguments or ((0,) if of_maps else ())
        sent.write(_int(len(positions) + len(each.named)))
        for place in positions:
            sent.write(_int(place) + (b"\0" if marked else b""))
        for name, place in each.named.items():
            sent.write(_int(place) + b"\1" + _text(name))
        sent.write(_int(len(each.functions)))
        if spark_version() >= (4, 2):
            sent.write(struct.pack("!q", 0))  # the id of its result, for profiles
    sent.seek(0)
    loaded = _Loaded(function for each in calls for function in each.functions)
    function, _, deserializer, serializer = worker.read_udfs(loaded, sent, eval_type, *settings)

    def call(number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for result in function(number, deserializer.load_stream(io.BufferedReader(_Messages(batches)))):
            written = io.BytesIO()
            serializer.dump_stream(iter((result,)), written)
            # It begins with a mark for Spark.
            yield from pa.ipc.open_stream(pa.py_buffer(written.getvalue())[4:])

    return call


class _Messages(io.RawIOBase):
    """Batches as an Arrow stream, of which each is made when it is read."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._messages = self._made(batches)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if not self._left:
            self._left = memoryview(next(self._messages, b""))
        count = min(len(into), len(self._left))
        into[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    @staticmethod
    def _made(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        has_schema = False
        for batch in batches:
            if not has_schema:
                yield batch.schema.serialize().to_pybytes()
                has_schema = True
            yield batch.serialize().to_pybytes()
        yield b"\xff\xff\xff\xff\0\0\0\0"


def _int(value: int) -> bytes:
    return struct.pack("!i", value)


def _map(texts: Mapping[str, str]) -> bytes:
    return _int(len(texts)) + b"".join(_text(each) for item in texts.items() for each in item)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _int(len(encoded)) + encoded
