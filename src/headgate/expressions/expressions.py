"""Expressions over the columns of a batch, as data: what Spark's analyzer has resolved and typed becomes one.

Never: evaluate it: `headgate.expressions.compiled` does.

They can be pickled and shown.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError


class Bound(msgspec.Struct, frozen=True):
    """A column of the input, by its place."""

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


Node = Bound | Constant | Call | CastTo | Branches
_INFIX = frozenset(("+", "-", "*", "/", "%", "=", "<", "<=", ">", ">=", "<=>", "and", "or"))


class Column(msgspec.Struct, frozen=True):
    """An expression, and the name of its result.

    Parameters
    ----------
    node
        The expression.
    name
        The name; None: the expression's text.

    Examples
    --------
    >>> Column(Call("isnotnull", (Bound(0, "symbol"),)), "known")
    Column<isnotnull(symbol) AS known>
    """

    node: Node
    name: str | None = None

    @property
    def name_in_output(self) -> str:
        """The name that its column has in the output."""
        return text_of(self.node) if self.name is None else self.name

    def __repr__(self) -> str:
        return f"Column<{text_of(self.node)}{'' if self.name is None else f' AS {self.name}'}>"


def text_of(node: Node) -> str:
    """Return an expression as text, about as Spark names columns."""
    match node:
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
