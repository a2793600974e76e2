"""`Column`: an expression over the columns of a batch, as PySpark writes them, and how it is evaluated by Arrow.

Never: loop over rows in Python, or evaluate a branch for rows that do not take it: ``when(b != 0, a / b)`` must not
divide by zero.

Expressions are data (a name of `headgate.expressions.kernels` and its arguments): they can be pickled and shown.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.expressions.casts import TIMESTAMP, cast, common_type, type_of_name
from headgate.expressions.kernels import KERNELS

# What expressions are made of.


class Name(msgspec.Struct, frozen=True):
    """A column of the input, or a field in one: ``a.b``."""

    path: str


class Bound(msgspec.Struct, frozen=True):
    """A column of the input, by its place: what Spark's analyzer has resolved is not looked up by name again."""

    index: int
    name: str


class Constant(msgspec.Struct, frozen=True):
    """A value and its type."""

    value: Any
    kind: pa.DataType


class Call(msgspec.Struct, frozen=True):
    """A function of `KERNELS`, its arguments and its fixed parameters."""

    function: str
    arguments: tuple[Node, ...]
    parameters: dict[str, Any] = {}


class CastTo(msgspec.Struct, frozen=True):
    """A cast."""

    argument: Node
    kind: pa.DataType
    text: str


class Branches(msgspec.Struct, frozen=True):
    """``when``: the value of the first condition that is true, else ``otherwise``, else null."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None = None


Node = Name | Bound | Constant | Call | CastTo | Branches
_INFIX = frozenset(("+", "-", "*", "/", "%", "=", "!=", "<", "<=", ">", ">=", "<=>", "and", "or"))


_DIVISIONS = ("/", "%")
NULL_TOLERANT = frozenset(
    ("and", "or", "<=>", "isnull", "isnotnull", "isnan", "in", "coalesce", "nullif", "greatest", "least", "concat",
     "concat_ws", "struct")
)  # fmt: skip
"""The functions that evaluate all arguments, whichever of them is null; of the others the result is then null."""


class Column:
    """An expression over columns. Made by `headgate.functions`; its methods have PySpark's names and meaning.

    Parameters
    ----------
    node
        The expression.
    name
        Its name, if one was given.

    Examples
    --------
    >>> from headgate.functions import col
    >>> ((col("price") * 2 > 10) & col("symbol").isNotNull()).alias("dear")
    Column<(((price * 2) > 10) AND isnotnull(symbol)) AS dear>
    """

    __hash__ = None  # type: ignore[assignment]  # == makes an expression
    __iter__ = None  # __getitem__ takes a field's name

    def __init__(self, node: Node, name: str | None = None) -> None:
        self.node = node
        self._name = name

    @property
    def name_in_output(self) -> str:
        """The name that its column has in the output."""
        if self._name is not None:
            return self._name
        node = self.node.argument if isinstance(self.node, CastTo) else self.node
        if isinstance(node, Name):
            return split_path(node.path)[-1]
        if isinstance(node, Bound):
            return node.name
        if isinstance(node, Call) and node.function == "getfield":
            return str(node.parameters["name"])
        return text_of(self.node)

    def alias(self, name: str) -> Column:
        """Name the result."""
        return Column(self.node, name)

    name = alias

    def cast(self, dataType: Any) -> Column:
        """Convert to a type, given as Spark's name (``"long"``) or a simple type of PySpark's or pyarrow's.

        A value that cannot be converted is an error, as in Spark.
        """
        kind = dataType
        if not isinstance(dataType, pa.DataType):
            kind = type_of_name(dataType if isinstance(dataType, str) else dataType.simpleString())
        return Column(CastTo(self.node, kind, dataType if isinstance(dataType, str) else str(kind)))

    astype = cast

    def isNull(self) -> Column:
        """Whether it is null."""
        return call("isnull", self)

    def isNotNull(self) -> Column:
        """Whether it is not null."""
        return call("isnotnull", self)

    def isNaN(self) -> Column:
        """Whether it is NaN; false for null."""
        return call("isnan", self)

    def isin(self, *choices: Any) -> Column:
        """Whether it is one of the values."""
        values: Any = choices
        if len(choices) == 1 and isinstance(choices[0], list | set | frozenset | tuple):
            values = choices[0]
            if isinstance(values, set | frozenset):
                values = sorted(values, key=repr)  # the text of the expression must not change from run to run
        return call("in", self, *values)

    def between(self, lowerBound: Any, upperBound: Any) -> Column:
        """Whether it lies between two values, those included."""
        return call(">=", self, lowerBound) & call("<=", self, upperBound)

    def eqNullSafe(self, other: Any) -> Column:
        """Whether both are equal or both are null."""
        return call("<=>", self, other)

    def like(self, other: str | Column) -> Column:
        r"""Whether a text is like a pattern of SQL: ``%`` any text, ``_`` any character, ``\`` escapes."""
        return call("like", self, pattern=other)

    def rlike(self, other: str | Column) -> Column:
        """Whether a regular expression (of RE2) is found in a text."""
        return call("rlike", self, pattern=other)

    def contains(self, other: str | Column) -> Column:
        """Whether a text contains another."""
        return call("contains", self, pattern=other)

    def startswith(self, other: str | Column) -> Column:
        """Whether a text begins with another."""
        return call("startswith", self, pattern=other)

    def endswith(self, other: str | Column) -> Column:
        """Whether a text ends with another."""
        return call("endswith", self, pattern=other)

    def substr(self, startPos: int, length: int) -> Column:
        """Take a part of a text; its first character has position 1, and negative ones count from its end."""
        return call("substring", self, position=startPos, length=length)

    def getField(self, name: str) -> Column:
        """Take a field of a struct."""
        if not isinstance(name, str):
            raise OptionError(
                f"{self!r}[{name!r}]: a field of a struct has a name. Items of lists and maps are for mapInArrow.",
                option="getField", value=name,
            )  # fmt: skip
        return call("getfield", self, name=name)

    __getitem__ = getField

    def when(self, condition: Column, value: Any) -> Column:
        """Add a case to `headgate.functions.when`."""
        if not isinstance(self.node, Branches) or self.node.otherwise is not None:
            raise OptionError("when() follows functions.when(...) and no otherwise().", option="when", value=repr(self))
        return Column(Branches((*self.node.branches, (as_node(condition), as_node(value)))))

    def otherwise(self, value: Any) -> Column:
        """Give the value for rows that no case of `headgate.functions.when` applies to; else it is null."""
        if not isinstance(self.node, Branches) or self.node.otherwise is not None:
            raise OptionError("otherwise() follows functions.when(...).", option="otherwise", value=repr(self))
        return Column(Branches(self.node.branches, as_node(value)))

    def __add__(self, other: Any) -> Column:
        return call("+", self, other)

    def __radd__(self, other: Any) -> Column:
        return call("+", other, self)

    def __sub__(self, other: Any) -> Column:
        return call("-", self, other)

    def __rsub__(self, other: Any) -> Column:
        return call("-", other, self)

    def __mul__(self, other: Any) -> Column:
        return call("*", self, other)

    def __rmul__(self, other: Any) -> Column:
        return call("*", other, self)

    def __truediv__(self, other: Any) -> Column:
        return call("/", self, other)

    def __rtruediv__(self, other: Any) -> Column:
        return call("/", other, self)

    def __mod__(self, other: Any) -> Column:
        return call("%", self, other)

    def __rmod__(self, other: Any) -> Column:
        return call("%", other, self)

    def __pow__(self, other: Any) -> Column:
        return call("pow", self, other)

    def __rpow__(self, other: Any) -> Column:
        return call("pow", other, self)

    def __neg__(self) -> Column:
        return call("negative", self)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return call("=", self, other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return call("!=", self, other)

    def __lt__(self, other: Any) -> Column:
        return call("<", self, other)

    def __le__(self, other: Any) -> Column:
        return call("<=", self, other)

    def __gt__(self, other: Any) -> Column:
        return call(">", self, other)

    def __ge__(self, other: Any) -> Column:
        return call(">=", self, other)

    def __and__(self, other: Any) -> Column:
        return call("and", self, other)

    def __rand__(self, other: Any) -> Column:
        return call("and", other, self)

    def __or__(self, other: Any) -> Column:
        return call("or", self, other)

    def __ror__(self, other: Any) -> Column:
        return call("or", other, self)

    def __invert__(self) -> Column:
        return call("not", self)

    def __bool__(self) -> bool:
        raise OptionError(
            "A Column is an expression and neither true nor false: use '&' for 'and', '|' for 'or', '~' for 'not', "
            "with parentheses around each side.",
            option="condition", value=repr(self),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Column<{text_of(self.node)}{'' if self._name is None else f' AS {self._name}'}>"


def call(function: str, *arguments: Any, **parameters: Any) -> Column:
    """Return a call of one of `KERNELS`; arguments that are not columns are constants, and parameters must be."""
    fixed = {name: _fixed(function, name, value) for name, value in parameters.items()}
    return Column(Call(function, tuple(as_node(each) for each in arguments), fixed))


def _fixed(function: str, name: str, value: Any) -> Any:
    if not isinstance(value, Column):
        return value
    if isinstance(value.node, Constant):
        return value.node.value
    raise OptionError(
        f"{function}: the argument {name!r} is {value!r}; it must be a constant, the same for all rows.",
        option=name, value=repr(value),
    )  # fmt: skip


def as_node(value: Any) -> Node:
    """Return the expression of a column, or of a constant."""
    return value.node if isinstance(value, Column) else Constant(value, _kind_of(value))


def _kind_of(value: Any) -> pa.DataType:
    """Return the type that Spark gives to a constant."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int32() if -(1 << 31) <= value < 1 << 31 else pa.int64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case bytes():
            return pa.binary()
        case datetime.datetime():
            return TIMESTAMP if value.tzinfo is not None else pa.timestamp("us")
        case datetime.date():
            return pa.date32()
        case decimal.Decimal():
            digits, exponent = value.as_tuple().digits, int(value.as_tuple().exponent)
            scale = max(0, -exponent)
            return pa.decimal128(max(len(digits) + max(0, exponent), scale), scale)
    raise OptionError(f"A {type(value).__name__} cannot be a constant: {value!r}.", option="lit", value=repr(value))


def text_of(node: Node) -> str:
    """Return an expression as text, about as Spark names columns."""
    match node:
        case Name(path=path):
            return path.replace("`", "")
        case Bound(name=name):
            return name
        case Constant(value=value):
            return "NULL" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        case CastTo(argument=argument, text=text):
            return f"CAST({text_of(argument)} AS {text.upper()})"
        case Branches(branches=branches, otherwise=otherwise):
            cases = "".join(f" WHEN {text_of(condition)} THEN {text_of(value)}" for condition, value in branches)
            return f"CASE{cases}{'' if otherwise is None else f' ELSE {text_of(otherwise)}'} END"
        case Call(function="getfield", arguments=(argument,), parameters=parameters):
            return f"{text_of(argument)}.{parameters['name']}"
        case Call(function="not", arguments=(argument,)):
            return f"(NOT {text_of(argument)})"
        case Call(function=function, arguments=(left, right)) if function in _INFIX:
            return f"({text_of(left)} {function.upper()} {text_of(right)})"
        case Call(function=function, arguments=arguments, parameters=parameters):
            return f"{function}({', '.join([*map(text_of, arguments), *map(str, parameters.values())])})"


# How they are evaluated.


def evaluate(node: Node, batch: pa.RecordBatch, time_zone: str) -> pa.Array:
    """Return an expression's value for each row of a batch.

    Raises
    ------
    OptionError
        A column is missing, or types do not go together: whatever the rows are.
    pyarrow.ArrowInvalid
        A row's value does not do: an overflow, a division by zero, a text that is not a number.
    """
    match node:
        case Name(path=path):
            return _column(batch, path)
        case Bound(index=index):
            return batch.column(index)
        case Constant(value=value, kind=kind):
            if isinstance(value, datetime.datetime) and value.tzinfo is None:
                return cast(pa.repeat(pa.scalar(value, kind), batch.num_rows), TIMESTAMP, time_zone)
            return pa.repeat(pa.scalar(value, kind), batch.num_rows)
        case CastTo(argument=argument, kind=kind):
            values = evaluate(argument, batch, time_zone)
            try:
                return cast(values, kind, time_zone)
            except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise OptionError(
                    f"cast: there is no cast of {values.type} to {kind}.", option="cast", value=str(kind)
                ) from error
        case Branches():
            return _evaluate_branches(node, batch, time_zone)
        case Call(function="and", arguments=(left, right)):
            return _evaluate_and(left, right, batch, time_zone)
        case Call(function=function, arguments=arguments, parameters=parameters):
            arrays = _evaluate_arguments(function, arguments, batch, time_zone)
            try:
                found = KERNELS[function](*arrays, time_zone=time_zone, **parameters)
            except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
                types = ", ".join(str(each.type) for each in arrays)
                raise OptionError(
                    f"{text_of(node)}: {function} cannot take {types}.", option=function, value=types
                ) from error
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _evaluate_arguments(
    function: str, arguments: tuple[Node, ...], batch: pa.RecordBatch, time_zone: str
) -> list[pa.Array]:
    """Evaluate arguments in Spark's order; one that fails only where another is null already has no error."""
    order = range(len(arguments))
    found: dict[int, pa.Array] = {}
    for place in reversed(order) if function in _DIVISIONS else order:
        try:
            found[place] = evaluate(arguments[place], batch, time_zone)
        except pa.ArrowInvalid:
            if not found or function in NULL_TOLERANT:
                raise
            needed = pa.array(np.logical_and.reduce([np.asarray(each.is_valid()) for each in found.values()]))
            if needed.true_count == len(needed):
                raise
            values = evaluate(arguments[place], batch.filter(needed), time_zone)
            found[place] = pc.replace_with_mask(pa.nulls(len(needed), values.type), needed, values)
    return [found[place] for place in order]


def type_in(node: Node, schema: pa.Schema, time_zone: str) -> pa.DataType:
    """Return the type of an expression over rows with these columns; raises as `evaluate`, for no rows."""
    return evaluate(node, pa.RecordBatch.from_pylist([], schema=schema), time_zone).type


def _evaluate_and(left: Node, right: Node, batch: pa.RecordBatch, time_zone: str) -> pa.Array:
    first = evaluate(left, batch, time_zone)
    try:
        return _and(first, evaluate(right, batch, time_zone))
    except pa.ArrowInvalid:
        # It may have failed on rows for which the first side is false already: those are not evaluated.
        needed = pc.fill_null(first, True)
        second = pa.nulls(batch.num_rows, pa.bool_())
        values = evaluate(right, batch.filter(needed), time_zone)
        return _and(first, pc.replace_with_mask(second, needed, values))


def _and(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return pc.and_kleene(left, right)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError(
            f"AND takes boolean values, not {left.type} and {right.type}.", option="and", value=str(right.type)
        ) from error


def _evaluate_branches(node: Branches, batch: pa.RecordBatch, time_zone: str) -> pa.Array:
    values = [value for _, value in node.branches] + ([] if node.otherwise is None else [node.otherwise])
    kind = common_type([type_in(value, batch.schema, time_zone) for value in values], "when")
    left, rows = batch, np.arange(batch.num_rows)  # the rows that no branch has taken, and where they were
    found: list[tuple[pa.Array, np.ndarray]] = []

    def take(value: Node | None, taken: pa.RecordBatch, where: np.ndarray) -> None:
        column = pa.nulls(len(where), kind) if value is None else evaluate(value, taken, time_zone)
        found.append((cast(column, kind, time_zone), where))

    for condition, value in node.branches:
        applies = pc.fill_null(evaluate(condition, left, time_zone), False)
        mask = np.asarray(applies)
        take(value, left.filter(applies), rows[mask])
        left, rows = left.filter(pc.invert(applies)), rows[~mask]
    take(node.otherwise, left, rows)
    order = np.argsort(np.concatenate([where for _, where in found]), kind="stable")
    return pa.concat_arrays([column for column, _ in found]).take(pa.array(order))


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    first, *fields = split_path(path)
    column = batch.column(index_of(batch.schema, first))
    for field in fields:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
            raise OptionError(f"{path!r}: {column.type} has no field {field!r}.", option="col", value=path)
        column = pc.struct_field(column, field)
    return column


def index_of(schema: pa.Schema, name: str) -> int:
    """Return where a column is, by its exact name or, as in Spark, without regard to case.

    Raises
    ------
    OptionError
        There is none, or more than one.
    """
    exact = schema.get_field_index(name)
    if exact >= 0:
        return int(exact)
    matching = [index for index, each in enumerate(schema.names) if each.lower() == name.lower()]
    if len(matching) != 1:
        what = "more than one column" if matching else "no column"
        raise OptionError(
            f"There is {what} {name!r}. The columns are: {', '.join(schema.names)}.", option="col", value=name
        )
    return matching[0]


def split_path(path: str) -> list[str]:
    """Return the names in ``a.b``; what is in backticks is one name."""
    parts, rest = [], path
    while rest:
        if rest.startswith("`") and "`" in rest[1:]:
            part, _, rest = rest[1:].partition("`")
            rest = rest.removeprefix(".")
        else:
            part, _, rest = rest.partition(".")
        parts.append(part)
    return parts or [path]
