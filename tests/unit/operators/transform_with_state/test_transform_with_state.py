"""`TransformWithState`: what a processor is given, what becomes of its output, timers, time to live, late rows."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from stateful_processors import LONG, Scripted, state_of
from stateful_runs import INPUT, StatefulRun, as_restored, definition, events

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.transform_with_state.row_codec import MisfitValueError

RESULT = [("user", pa.string()), ("result", pa.string())]


def run(processor: Any, time_mode: str = "eventtime", **facts: Any) -> StatefulRun:
    """Return a deployment of a processor that yields (user, result)."""
    context = {name: facts.pop(name) for name in ("now_ms", "parallelism", "subtask") if name in facts}
    return StatefulRun(processor, definition(RESULT, time_mode=time_mode, **facts), **context)


def test_each_key_gets_its_rows_in_their_order() -> None:
    """One call for each key of a batch, null among them, in the order of their first rows."""
    stateful = run(Scripted(lambda p, user, rows, times: [row.amount for row in rows]))
    result = stateful.rows(("b", 1, 0), (None, 2, 0), ("a", 3, 0), ("b", 4, 0), (None, 5, 0), ("b", 0, 0))
    assert result == [("b", "[1, 4, 0]"), (None, "[2, 5]"), ("a", "[3]")]


def test_a_row_has_all_columns_by_name() -> None:
    """Rows are PySpark's, timestamps in the session's time zone."""
    made = definition(RESULT)
    stateful = StatefulRun(
        Scripted(lambda p, user, rows, times: (type(rows[0]).__name__, rows[0].asDict())),
        made,
        time_zone="Asia/Tokyo",
    )
    ((_, result),) = stateful.rows(("a", 7, 0))
    assert result.startswith("('Row', {'user': 'a', 'amount': 7, 'at': datetime.datetime(1970, 1, 1, 9, 0")


@pytest.mark.parametrize("is_nested", [False, True])
def test_keys_of_several_columns_with_nulls_and_nans(is_nested: bool) -> None:
    """-0.0 is 0.0, a NaN is any other NaN, in one batch and between two."""

    def column(numbers: pa.Array) -> pa.Array:
        """Return numbers, or structs of arrays of them, null where they are."""
        lists = pa.ListArray.from_arrays(pa.array(range(len(numbers) + 1), pa.int32()), numbers)
        return pa.StructArray.from_arrays([lists], names=["of"], mask=numbers.is_null()) if is_nested else numbers

    schema = pa.schema([("x", column(pa.array([], pa.float64())).type), ("y", pa.string())])

    def count(p: Scripted, user: Any, rows: Any, times: Any) -> Any:
        p.value.update(((p.value.get() or (0,))[0] + len(rows),))
        return p.value.get()[0]

    stateful = run(Scripted(count), keys=("x", "y"), input=schema, time_mode="none")
    stateful.operator._flavor._schema = pa.schema([("user", schema.field("x").type), ("result", pa.string())])
    numbers = column(pa.array([0.0, -0.0, float("nan"), None]))
    batch = pa.record_batch([numbers, pa.array(["a", "a", "b", None])], schema=schema)
    assert [result for _, result in stateful.batch(batch)] == ["2", "1", "1"]
    nan = pa.array([0xFFF8000000000001], pa.uint64()).view(pa.float64())
    batch = pa.record_batch(
        [column(pa.concat_arrays([nan, pa.array([-0.0, None])])), pa.array(["b", "a", None])], schema=schema
    )
    assert [result for _, result in stateful.batch(batch)] == ["2", "3", "2"]


def test_states_keep_what_was_stored() -> None:
    """Every method of the three kinds of state, as in PySpark."""
    steps: list[Any] = [
        lambda p: (p.value.exists(), p.value.get(), p.list.exists(), list(p.list.get()), p.map.exists(),
                   p.map.getValue(("x",)), p.map.containsKey(("x",)), list(p.map.keys())),
        lambda p: (p.value.update((1,)), p.list.appendValue((1,)), p.map.updateValue(("x",), (1,))),
        lambda p: (p.value.exists(), p.value.get(), p.list.exists(), list(p.list.get()), p.map.exists(),
                   p.map.getValue(("x",)), p.map.containsKey(("x",)), list(p.map.values())),
        lambda p: (p.list.appendList([(2,), (None,)]), p.map.updateValue(("y",), (None,)), p.value.update((None,))),
        lambda p: state_of(p)[:3],
        lambda p: (p.list.put([(9,)]), p.map.removeKey(("x",)), p.map.removeKey(("none",))),
        lambda p: state_of(p)[:3],
        lambda p: (p.list.clear(), p.map.clear(), p.value.clear(), p.value.clear()),
        lambda p: (*state_of(p)[:3], p.value.exists(), p.list.exists(), p.map.exists()),
    ]  # fmt: skip
    stateful = run(Scripted(lambda p, user, rows, times: steps[rows[0].amount](p)))
    result = [stateful.rows(("a", step, 0))[0][1] for step in range(len(steps))]
    assert result[0] == "(False, None, False, [], False, None, False, [])"
    assert result[2] == "(True, (1,), True, [(1,)], True, Row(n=1), True, [(1,)])"
    assert result[4] == "((None,), [(1,), (2,), (None,)], [(('x',), (1,)), (('y',), (None,))])"
    assert result[6] == "((None,), [(9,)], [(('y',), (None,))])"
    assert result[8] == "(None, [], [], False, False, False)"
    assert not stateful.operator._store.cells, "a key of which nothing is known is forgotten"


def test_what_is_stored_does_not_change_with_the_users_object() -> None:
    """A list that is changed after the call that stored it is stored as it was."""
    from pyspark.sql.types import ArrayType, LongType, StructField, StructType

    class Keeps(Scripted):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.numbers = handle.getValueState("numbers", StructType([StructField("n", ArrayType(LongType()))]))

    def change(p: Any, user: Any, rows: Any, times: Any) -> Any:
        mine = [1, 2]
        p.numbers.update((mine,))
        mine.append(3)
        p.numbers.get()[0].append(4)
        return p.numbers.get()

    assert run(Keeps(change)).rows(("a", 0, 0)) == [("a", "([1, 2],)")]


def test_event_timers_fire_once_the_watermark_is_there() -> None:
    """A timer fires at its time, the first one first, and sees the watermark; rows after it do not fire it again."""
    stateful = run(
        Scripted(
            lambda p, user, rows, times: [p.handle.registerTimer(row.amount) for row in rows] and None,
            lambda p, user, at, times: (at, times.getCurrentWatermarkInMs(), list(p.handle.listTimers())),
        )
    )
    assert stateful.rows(("a", 300, 0), ("b", 200, 0), ("a", 100, 0), ("a", 100, 0)) == []
    assert stateful.watermark(99) == []
    assert stateful.watermark(200) == [("a", "(100, 200, [100, 300])"), ("b", "(200, 200, [200])")]
    assert stateful.watermark(250) == []
    assert stateful.watermark(2**63 - 1) == [("a", f"(300, {2**63 - 1}, [300])")]
    assert stateful.operator.due_ms() is None


def test_deleted_timers_do_not_fire() -> None:
    """A timer that was deleted, and one that was registered again, fire not at all and once."""

    def rows(p: Scripted, user: str, rows: Any, times: Any) -> None:
        for at_ms in (100, 200):
            p.handle.registerTimer(at_ms)
            p.handle.deleteTimer(at_ms)
        p.handle.registerTimer(200)
        p.handle.deleteTimer(999)

    stateful = run(Scripted(rows))
    stateful.rows(("a", 0, 0))
    assert stateful.watermark(1000) == [("a", "200")]


def test_a_timer_for_the_past_fires_after_what_comes_next() -> None:
    """As in Spark: after the rows; one that a timer registers, at the next call, so that a round always ends."""
    stateful = run(
        Scripted(
            lambda p, user, rows, times: p.handle.registerTimer(10),
            lambda p, user, at, times: p.handle.registerTimer(at + 1) or at,
        )
    )
    stateful.watermark(1000)
    assert stateful.rows(("a", 0, 2000)) == [("a", "10")]
    assert stateful.watermark(1001) == [("a", "11")]
    assert stateful.watermark(2**63 - 1) == [("a", "12")]


def test_timers_of_the_clock() -> None:
    """They are due at their time; a batch fires those that are over, and sees the time."""
    stateful = run(
        Scripted(
            lambda p, user, rows, times: p.handle.registerTimer(times.getCurrentProcessingTimeInMs() + rows[0].amount),
            lambda p, user, at, times: (at, times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs()),
        ),
        "processingtime",
        now_ms=5000,
    )
    assert stateful.operator.due_ms() is None
    assert stateful.rows(("a", 100, 0), ("b", 50, 0)) == []
    assert stateful.operator.due_ms() == 5050
    assert stateful.watermark(2**62) == []
    assert stateful.time(5050) == [("b", f"(5050, 5050, {2**62})")]
    assert stateful.operator.due_ms() == 5100
    stateful.now_ms = 6000
    assert stateful.rows(("c", 0, 2**40)) == [("a", f"(5100, 6000, {2**62})"), ("c", f"(6000, 6000, {2**62})")]


def test_without_time_there_are_no_timers() -> None:
    """With timeMode None times are -1, and timers are refused as in Spark."""
    stateful = run(Scripted(lambda p, user, rows, times: times.getCurrentProcessingTimeInMs()), "none")
    assert stateful.rows(("a", 0, 0)) == [("a", "-1")]
    stateful = run(Scripted(lambda p, user, rows, times: p.handle.registerTimer(1)), "none")
    with pytest.raises(
        PySparkRuntimeError, match=r"INVALID_TIME_MODE\] .*operation=register_timer with .*timeMode=None"
    ):
        stateful.rows(("a", 0, 0))


def test_what_is_past_its_time_to_live_is_gone() -> None:
    """Values, items and entries live as long as configured after their last update, and are then forgotten."""

    def rows(p: Scripted, user: str, rows: Any, times: Any) -> Any:
        if rows[0].amount:
            p.value.update((1,))
            p.list.appendValue((rows[0].amount,))
            p.map.updateValue((str(rows[0].amount),), (1,))
        return (
            p.value.get(),
            list(p.list.get()),
            list(p.map.keys()),
            p.value.exists(),
            p.list.exists(),
            p.map.exists(),
        )

    stateful = run(Scripted(rows, ttl_ms=1000), "processingtime", now_ms=10_000)
    stateful.rows(("a", 1, 0))
    stateful.now_ms = 10_600
    assert stateful.rows(("a", 2, 0)) == [("a", "((1,), [(1,), (2,)], [('1',), ('2',)], True, True, True)")]
    stateful.now_ms = 10_999
    assert stateful.rows(("a", 0, 0)) == [("a", "((1,), [(1,), (2,)], [('1',), ('2',)], True, True, True)")]
    stateful.now_ms = 11_000
    assert stateful.rows(("a", 0, 0)) == [("a", "((1,), [(2,)], [('2',)], True, True, True)")]
    stateful.now_ms = 11_600
    assert stateful.rows(("a", 0, 0)) == [("a", "(None, [], [], False, False, False)")]
    while (due_ms := stateful.operator.due_ms()) is not None:
        stateful.time(due_ms)
    assert not stateful.operator._store.cells


def test_late_rows_are_counted_and_given_away() -> None:
    """A row at the watermark or before is late, as in Spark; one a microsecond after it, or without a time, is not."""
    stateful = run(Scripted(lambda p, user, rows, times: [row.amount for row in rows]), event_time="at")
    assert stateful.rows(("a", 1, -5)) == [("a", "[1]")]
    stateful.watermark(1000)
    times = [999_999, 1_000_000, 0, 1_000_001, None, 1_001_000]
    at = pa.array(times, pa.int64()).cast(INPUT.field("at").type)
    batch = pa.record_batch([pa.array(["a", "a", "b", "a", "a", "a"]), pa.array(range(6)), at], schema=INPUT)
    assert stateful.batch(batch) == [("a", "[3, 4, 5]")]
    assert stateful.operator.late_rows == 3
    assert [row["amount"] for late in stateful.late for row in late.to_pylist()] == [0, 1, 2]
    assert stateful.rows(("b", 7, 1000)) == []
    assert stateful.operator.late_rows == 4


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_what_is_late_is_so_in_every_unit_of_time(unit: str) -> None:
    """A watermark between two seconds makes those before it late, and no more."""
    kind = pa.timestamp(unit, "UTC")
    schema = INPUT.set(2, pa.field("at", kind))
    stateful = run(Scripted(lambda p, user, rows, times: len(rows)), event_time="at", input=schema)
    stateful.watermark(2999)
    per_second = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    at = pa.array([1 * per_second, 2 * per_second, 3 * per_second], pa.int64()).cast(kind)
    batch = pa.record_batch([pa.array(["a"] * 3), pa.array(range(3)), at], schema=schema)
    assert stateful.batch(batch) == [("a", "1")]
    assert [row["amount"] for each in stateful.late for row in each.to_pylist()] == [0, 1]


def test_output_must_not_be_late_downstream() -> None:
    """With eventTimeColumnName a row that is not after the watermark that others know is an error."""

    class Shifted(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(2000)
            yield from (Row(user=key[0], at=row.at) for row in rows)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            import datetime

            yield Row(user=key[0], at=datetime.datetime.fromtimestamp(1, datetime.UTC))

    defined = definition([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))], time_mode="eventtime",
                      output_event_time="at")  # fmt: skip
    stateful = StatefulRun(Shifted(), defined)
    assert stateful.operator.event_time_column == "at"
    stateful.watermark(500)
    stateful.rows(("a", 0, 501))
    stateful.watermark(999)
    assert len(stateful.watermark(3000)) == 1, "what is downstream knows 999"
    for at_ms in (3000, 2999):
        with pytest.raises(UserFunctionError, match=r"Shifted gave a row whose event time 'at' .* not after"):
            stateful.rows(("a", 0, at_ms))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (lambda key: None, r"handleInputRows returned NoneType; it must return an iterator of pyspark.sql.Row"),
        (lambda key: [(1, 2)], r"handleInputRows yielded tuple without names"),
        (lambda key: [Row(user=1.5, result="")], r"does not fit outputStructType \(user: string, result: string\)"),
    ],
)
def test_output_that_does_not_fit_is_an_error(output: Any, says: str) -> None:
    """It names the processor, and what its output should be."""

    class Wrong(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return output(key)

    with pytest.raises(UserFunctionError, match=says):
        run(Wrong()).rows(("a", 0, 0))


def test_an_error_of_the_users_comes_out() -> None:
    """As it is: the chain says where it was."""
    with pytest.raises(ZeroDivisionError):
        run(Scripted(lambda p, user, rows, times: 1 // 0)).rows(("a", 0, 0))


def test_output_is_by_name() -> None:
    """Fields in any order; one that is missing is null, one that was not declared is left out; structs nest."""
    kind = pa.struct([("x", pa.int64())])

    class Nested(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield Row(other=1, inner=Row(x=5), user="a")
            yield Row(user="b")

    stateful = StatefulRun(Nested(), definition([("user", pa.string()), ("inner", kind)]))
    assert stateful.rows(("a", 0, 0)) == [("a", {"x": 5}), ("b", None)]


def test_a_value_that_does_not_fit_its_state_is_an_error() -> None:
    """It names the state; Spark would store null."""
    stateful = run(Scripted(lambda p, user, rows, times: p.value.update(("text",))))
    with pytest.raises(MisfitValueError, match=r"state 'value': 'text' is a str; it must be an integer \(bigint\)"):
        stateful.rows(("a", 0, 0))


@pytest.mark.parametrize(
    ("method", "arguments", "error_class"),
    [
        ("getValueState", ("value", LONG), "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"),
        ("getListState", ("mortal", LONG, 1), "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        ("getValueState", ("$own", LONG), "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("registerTimer", (1,), "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"),
    ],
)
def test_init_is_refused_what_spark_refuses(method: str, arguments: Any, error_class: str) -> None:
    """With Spark's class of error."""

    class Wrong(Scripted):
        def init(self, handle: Any) -> None:
            super().init(handle)
            getattr(handle, method)(*arguments)

    with pytest.raises(PySparkRuntimeError, match=error_class):
        run(Wrong())


def test_a_state_that_init_removed_cannot_be_used() -> None:
    """As in Spark. The others keep their values, and the name can be declared again."""

    class Removes(Scripted):
        def init(self, handle: Any) -> None:
            self.gone = handle.getValueState("list", LONG)
            handle.deleteIfExists("never there")
            self.gone_list = handle.getListState("gone list", LONG)
            self.number = handle.getValueState("number", LONG)
            handle.deleteIfExists("list")
            handle.deleteIfExists("gone list")
            super().init(handle)

    def use(p: Any, user: Any, rows: Any, times: Any) -> Any:
        p.number.update((1,))
        p.value.update((2,))
        p.list.appendValue((3,))
        return p.number.get(), p.value.get(), list(p.list.get()), repr(p.gone)

    stateful = run(Removes(use))
    assert stateful.rows(("a", 0, 0)) == [("a", "((1,), (2,), [(3,)], \"HeldValue('list')\")")]
    again = StatefulRun(Removes(use), definition(RESULT), restored=as_restored(stateful.snapshot()))
    assert again.rows(("a", 0, 0)) == [("a", "((1,), (2,), [(3,), (3,)], \"HeldValue('list')\")")]
    for call, name in (
        (lambda p: p.gone.get(), "list"), (lambda p: p.gone.exists(), "list"), (lambda p: p.gone.update((1,)), "list"),
        (lambda p: p.gone_list.appendValue((1,)), "gone list"), (lambda p: p.gone_list.clear(), "gone list"),
    ):  # fmt: skip
        stateful = run(Removes(lambda p, user, rows, times, call=call: call(p)))
        with pytest.raises(PySparkRuntimeError, match=f"The state '{name}' is not initialized: init declared it"):
            stateful.rows(("a", 0, 0))


def test_a_time_to_live_must_be_positive() -> None:
    """As in Spark."""
    with pytest.raises(PySparkRuntimeError, match="STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE"):
        run(Scripted(ttl_ms=0), "processingtime")


def test_states_are_declared_in_init_only() -> None:
    """And are used for a key only."""
    stateful = run(Scripted(lambda p, user, rows, times: p.handle.getMapState("more", LONG, LONG)))
    with pytest.raises(PySparkRuntimeError, match="operation=get_map_state with invalid handle state=INITIALIZED"):
        stateful.rows(("a", 0, 0))
    with pytest.raises(PySparkRuntimeError, match="used without a current key"):
        run(Scripted()).operator._processor.value.get()  # type: ignore[attr-defined]
    stateful = run(Scripted(lambda p, user, rows, times: p.list.put([])))
    with pytest.raises(PySparkRuntimeError, match="EMPTY_LIST_VALUE"):
        stateful.rows(("a", 0, 0))


def test_a_schema_that_is_text_comes_from_the_driver() -> None:
    """What the driver did not see cannot be read in a slot."""
    stateful = definition(RESULT, schemas={"n long": LONG.json()})

    class Text(Scripted):
        def init(self, handle: Any) -> None:
            self.value = handle.getValueState("value", "n long")

    run_ = StatefulRun(Text(lambda p, user, rows, times: p.value.update((1,)) or p.value.get()), stateful)
    assert run_.rows(("a", 0, 0)) == [("a", "(1,)")]
    with pytest.raises(OptionError, match="only the driver can read a schema that is text"):
        StatefulRun(Text(), definition(RESULT))


def test_pandas_frames() -> None:
    """One frame for each key, frames out, converted at once; their columns go by name."""
    import pandas as pd

    class Frames(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                yield pd.DataFrame({"total": [int(frame["amount"].sum())], "user": [key[0]]})
            yield pd.DataFrame()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield 1

    defined = definition([("user", pa.string()), ("total", pa.int64())], pandas=True, time_mode="eventtime")
    stateful = StatefulRun(Frames(), defined)
    assert stateful.rows(("b", 1, 0), ("a", 2, 0), ("b", 3, 0)) == [("b", 4), ("a", 2)]


def test_frames_are_made_by_the_settings_of_the_session() -> None:
    """As Spark's Python worker makes them: how many rows a frame has, and how strictly its columns are taken."""
    import pandas as pd

    amount = pa.decimal128(10, 2)

    class Frames(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                kind = str(frame["amount"].dtype)
                yield pd.DataFrame({"whole": [1.5], "n": [len(frame)], "kind": [kind], "exact": [frame["n"].sum()]})

    columns = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("n", pa.int64())])
    output = [("n", pa.int64()), ("whole", pa.int64()), ("kind", pa.string()), ("exact", amount)]

    def result(conf: dict[str, str]) -> list[tuple[Any, ...]]:
        stateful = StatefulRun(Frames(), definition(output, input=columns, pandas=True, conf=conf))
        users = pa.array(["a", None, "a", "a", "b", "a"])
        numbers = pa.array([1, None, 2, 3, 4, 5], pa.int64())
        return stateful.batch(pa.record_batch([users, numbers, pa.array([1] * 6)], schema=columns))

    decimals = {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"}
    assert [row[:3] for row in result(decimals)] == [(4, 1, "float64"), (1, 1, "float64"), (1, 1, "float64")]
    few = {**decimals, "spark.sql.execution.arrow.maxRecordsPerBatch": "3"}
    assert [row[0] for row in result(few)] == [3, 1, 1, 1]
    few = {**decimals, "spark.sql.execution.arrow.maxBytesPerBatch": "20"}
    assert [row[0] for row in result(few)] == [1] * 6
    integers = {**decimals, "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"}
    assert {row[2] for row in result(integers)} == {"Int64"}
    with pytest.raises(UserFunctionError, match="convertToArrowArraySafely"):
        result({**decimals, "spark.sql.execution.pandas.convertToArrowArraySafely": "true"})
    with pytest.raises(UserFunctionError, match="'exact'"):
        result({})


def test_a_frame_without_a_column_of_the_output_is_named() -> None:
    """What was expected and what was given; columns without names go by their places."""
    import pandas as pd

    class Frames(Scripted):
        def __init__(self, columns: Any) -> None:
            super().__init__()
            self.columns = columns

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield pd.DataFrame([("a", 1)], columns=self.columns)

    def result(columns: Any, by_name: str = "true") -> list[tuple[Any, ...]]:
        conf = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": by_name}
        made = definition([("user", pa.string()), ("total", pa.int64())], pandas=True, conf=conf)
        return StatefulRun(Frames(columns), made).rows(("a", 1, 0))

    says = (
        r"Frames yielded a frame with the columns 'user', 'totl'\. The output is user: string, total: int64, by name: "
        "'total' is missing"
    )
    with pytest.raises(UserFunctionError, match=says):
        result(["user", "totl"])
    assert result([0, 1]) == result(["user", "totl"], "false") == [("a", 1)]


def test_much_output_comes_in_batches() -> None:
    """What is held of the output is bounded by one call's."""

    class Many(Scripted):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield from (Row(user=key[0], result="") for _ in range(10_000))

    stateful = run(Many())
    stateful.operator.process(events(("a", 0, 0), ("b", 0, 0), ("c", 0, 0)), "s", stateful._emit)
    assert [batch.num_rows for batch in stateful.emitted] == [20_000, 10_000]


def test_each_deployment_has_a_processor_of_its_own() -> None:
    """Fields that one sets are not seen by another."""

    def count(p: Any, user: Any, rows: Any, times: Any) -> Any:
        p.calls = getattr(p, "calls", 0) + 1
        return p.calls

    processor = Scripted(count)
    first, second = run(processor), run(processor)
    assert first.rows(("a", 0, 0)) == second.rows(("a", 0, 0)) == [("a", "1")]
    with pytest.raises(OptionError, match="Scripted cannot be sent to the slots"):
        run(Scripted(threading.Lock()))  # type: ignore[arg-type]
