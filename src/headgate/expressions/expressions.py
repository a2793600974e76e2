"""`Column`: an expression over the columns of a batch, as PySpark writes them.

Never: evaluate it: `headgate.expressions.compiled` does.

Expressions are data (a name of `headgate.expressions.kernels` and its arguments): they can be pickled and shown.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.casts import TIMESTAMP, type_of_name

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
    """A function of `headgate.expressions.kernels`, its arguments and its fixed parameters."""

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
    """Return a call of a kernel; arguments that are not columns are constants, and parameters must be."""
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


# Names.


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
