"""What the author of a `SimpleSource` may do wrong, and the errors."""

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.simple import adapt
from headgate.connectors.simple.user_code import SimpleOptions, UserSource, cast_to_schema
from headgate.errors import ConnectorContractError, OptionError, SourceUnavailableError, UserFunctionError
from headgate.source import OptionSpec
from headgate.source.options import integer
from headgate.source.simple import SimpleSource

SCHEMA = pa.schema([("symbol", pa.string()), ("n", pa.int64())])
BATCH = pa.record_batch({"symbol": ["a"], "n": [1]})


def user(options: dict[str, str] | None = None, **methods: Any) -> UserSource:
    members = {
        "name": "demo",
        "schema": "symbol string, n bigint",
        "splits": lambda self: ["a"],
        "read": lambda self, split_id, position: iter(()),
    }
    user_class: Any = type("Demo", (SimpleSource,), members | methods)
    made = adapt(user_class)(options or {})
    return UserSource(user_class, SimpleOptions(made.options), SCHEMA)


def items(*yielded: Any) -> Any:
    return lambda self, split_id, position: iter(yielded)


def test_good_items_pass() -> None:
    made = user(read=items((BATCH, 1), [BATCH, {"token": ["x", None]}], (BATCH.slice(0, 0), "same"), (BATCH, "more")))
    assert [position for _, position in made.read("a", None)] == [1, {"token": ["x", None]}, "same", "more"]


def test_positions_are_what_json_gives_back() -> None:
    """A position that changes its form in a checkpoint has that form without one as well."""
    made = user(read=items((BATCH, (1, 2)), (BATCH, {3: "three"}), (BATCH, 1 << 70)))
    assert [position for _, position in made.read("a", None)] == [[1, 2], {"3": "three"}, 1 << 70]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (BATCH, r"Demo\.read of split 'a' yielded RecordBatch after position 'p'.*pairs of a pyarrow.RecordBatch"),
        ((BATCH,), "yielded tuple"),
        ((BATCH, 1, 2), "yielded tuple"),
        ((pa.table({"symbol": ["a"], "n": [1]}), 1), "a pair of Table and int"),
        (([{"symbol": "a"}], 1), "a pair of list and int"),
        (None, "yielded NoneType"),
        ((BATCH, None), "None as a position"),
        ((BATCH, datetime.date(2026, 1, 1)), "JSON cannot hold"),
        ((BATCH, b"token"), "JSON cannot hold"),
        ((BATCH, float("nan")), "JSON cannot hold"),
        ((BATCH, "\ud800"), "JSON cannot hold"),
        ((BATCH, {"at": decimal.Decimal(1)}), "JSON cannot hold"),
        ((BATCH, "p"), "the position 'p' again after 1 further rows"),
        ((pa.record_batch({"symbol": ["a"]}), 1), "the columns are symbol; the schema declares symbol, n"),
        ((pa.record_batch({"symbol": ["a"], "n": [1], "m": [1]}), 1), "the columns are symbol, n, m"),
        ((pa.record_batch([["a"], [1], [2]], names=["symbol", "n", "n"]), 1), "the columns are symbol, n, n"),
        ((pa.record_batch({"symbol": ["a"], "n": ["1"]}), 1), "'n' has the type string; the schema declares int64"),
        ((pa.record_batch({"symbol": ["a"], "n": [1.0]}), 1), "'n' has the type double"),
    ],
)
def test_a_wrong_item_is_named(item: Any, message: str) -> None:
    with pytest.raises(ConnectorContractError, match=message) as caught:
        list(user(read=items(item)).read("a", "p"))
    assert (caught.value.connector, caught.value.method, caught.value.split) == ("Demo", "read", "a")


def test_every_batch_is_checked_and_not_the_first_only() -> None:
    read = user(read=items((BATCH, 1), (pa.record_batch({"other": [1]}), 2))).read("a", None)
    assert next(read)[1] == 1
    with pytest.raises(ConnectorContractError, match="after position 1 in which the columns are other"):
        next(read)


def test_an_error_of_the_authors_names_function_split_and_position() -> None:
    def read(self, split_id, position):
        yield BATCH, 7
        raise ValueError("page 8 is broken")

    with pytest.raises(
        UserFunctionError, match=r"Demo\.read raised ValueError for split 'a' at position 7: page 8"
    ) as e:
        list(user(read=read).read("a", None))
    assert (e.value.function, e.value.split, e.value.position) == ("Demo.read", "a", 7)
    assert isinstance(e.value.__cause__, ValueError)


def test_errors_of_ours_pass_as_they_are() -> None:
    def read(self, split_id, position):
        raise SourceUnavailableError("the service is down", source="demo")
        yield

    with pytest.raises(SourceUnavailableError, match="the service is down"):
        list(user(read=read).read("a", None))


def test_read_that_returns_nothing_to_iterate() -> None:
    with pytest.raises(UserFunctionError, match=r"Demo\.read raised TypeError for split 'a'"):
        list(user(read=lambda self, split_id, position: None).read("a", None))


def test_the_authors_iterator_is_closed() -> None:
    closed = []

    def read(self, split_id, position):
        try:
            yield BATCH, 1
            yield BATCH, 2
        finally:
            closed.append(split_id)

    started = user(read=read).read("a", None)
    next(started)
    started.close()  # type: ignore[attr-defined]
    assert closed == ["a"]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("AAPL", "returned 'AAPL'. It must return a list"),
        ({"a": 1}, "must return a list"),
        (["a", 7], "listed 7 as a split id"),
        (["a", ""], "listed '' as a split id"),
        (["a", "b", "a"], "listed 'a' more than once"),
    ],
)
def test_wrong_splits_are_named(listed: Any, message: str) -> None:
    with pytest.raises(ConnectorContractError, match=message):
        user(splits=lambda self: listed).splits()


def test_splits_may_be_any_iterable() -> None:
    assert user(splits=lambda self: (each for each in ["b", "a"])).splits() == ["b", "a"]


def test_errors_in_splits_and_in_the_constructor() -> None:
    def fail(self, *arguments):
        raise OSError("no network")

    with pytest.raises(UserFunctionError, match=r"Demo\.splits raised OSError: no network"):
        user(splits=fail).splits()
    with pytest.raises(UserFunctionError, match=r"Demo\.__init__ raised OSError: no network"):
        user(__init__=fail)


def test_latest_is_checked_too() -> None:
    assert user(latest=lambda self, split_id: (1, split_id)).latest("a") == [1, "a"]
    assert user(latest=lambda self, split_id: None).latest("a") is None
    with pytest.raises(
        ConnectorContractError, match=r"Demo\.latest of split 'a' gave the position .* JSON cannot hold"
    ):
        user(latest=lambda self, split_id: object()).latest("a")


def test_options_are_free_and_without_case() -> None:
    seen = {}

    def splits(self):
        seen["url"], seen["missing"] = self.options["startUrl"], self.options.get("token")
        return []

    user({"starturl": "http://x", "pollInterval": "2 seconds"}, splits=splits).splits()
    assert seen == {"url": "http://x", "missing": None}


def test_declared_options_are_parsed_and_others_refused() -> None:
    seen = {}

    def splits(self):
        seen.update(pages=self.options["PAGES"], interval=self.options["pollInterval"])
        return []

    specs = (OptionSpec("pages", integer(1), 3),)
    user({"pages": "7"}, option_specs=specs, splits=splits).splits()
    assert seen == {"pages": 7, "interval": 1000}
    with pytest.raises(OptionError, match="Did you mean 'pages'"):
        user({"page": "7"}, option_specs=specs)
    with pytest.raises(OptionError, match="whole number from 1"):
        user({"pages": "0"}, option_specs=specs)


@pytest.mark.parametrize("missing", ["name", "schema", "splits", "read"])
def test_a_class_that_lacks_something_is_named(missing: str) -> None:
    members: dict[str, Any] = {
        "name": "demo",
        "schema": "n bigint",
        "splits": lambda self: [],
        "read": lambda self, split_id, position: iter(()),
    }
    del members[missing]
    user_class: Any = type("Half", (SimpleSource,), members)
    with pytest.raises(ConnectorContractError, match=f"Half lacks {missing}"):
        adapt(user_class)({})


def test_columns_are_put_in_order_and_cast_within_their_kind() -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("n", pa.int64()),
            ("s", pa.string()),
            ("x", pa.float64()),
            ("d", pa.decimal128(10, 2)),
            ("nothing", pa.int32()),
            ("tags", pa.list_(pa.string())),
        ]
    )
    at = datetime.datetime(2026, 1, 1)
    batch = pa.record_batch(
        {
            "tags": pa.array([["a"]], pa.large_list(pa.large_string())),
            "nothing": pa.nulls(1),
            "d": pa.array([decimal.Decimal("1.5")]),
            "x": pa.array([0.5], pa.float32()),
            "s": pa.array(["a"]).dictionary_encode(),
            "n": pa.array([1], pa.int8()),
            "at": pa.array([at], pa.timestamp("ns")),
        }
    )
    cast = cast_to_schema(batch, schema)
    assert cast.schema == schema
    (row,) = cast.to_pylist()
    assert row["at"] == at.replace(tzinfo=datetime.UTC)
    assert (row["n"], row["s"], row["x"], row["nothing"], row["tags"]) == (1, "a", 0.5, None, ["a"])


def test_a_value_that_does_not_fit_its_column_is_an_error() -> None:
    batch = pa.record_batch({"n": pa.array([300], pa.int64())})
    with pytest.raises(ValueError, match="the values do not fit"):
        cast_to_schema(batch, pa.schema([("n", pa.int8())]))


def test_nulls_where_none_are_allowed_are_an_error() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(ValueError, match="'n' has nulls; the schema declares it NOT NULL"):
        cast_to_schema(pa.record_batch({"n": pa.array([None], pa.int64())}), schema)
    with pytest.raises(ValueError, match="NOT NULL"):
        cast_to_schema(pa.record_batch([pa.array([None], pa.int64())], schema=schema), schema)
