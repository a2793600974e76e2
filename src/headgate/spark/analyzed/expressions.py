"""An expression of Spark's analyzer becomes one that Arrow evaluates, where its result is proven to be Spark's.

Never: type, coerce or resolve anything: each expression has its type from Spark, and a kernel that gives another is not
used. What no kernel is proven for is a column that `headgate.spark.analyzed.catalyst` had Spark's own code make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from headgate.errors import OptionError, UnsupportedOperationError
from headgate.expressions.compiled import NULL_TOLERANT, compiled, type_in
from headgate.expressions.expressions import Bound, Branches, Call, Constant, Node
from headgate.spark.analyzed.plan_copy import PlanCopy, key_of, number_of
from headgate.spark.analyzed.scala import (
    JavaObject,
    UnsupportedTypeError,
    arrow_type,
    class_of,
    constant,
    contains,
    has_collation,
    is_a,
    items,
    option,
    same_type,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TIME_POLICY = "spark.sql.legacy.timeParserPolicy"


class NotOnArrowError(Exception):
    """No kernel of ours is proven to give Spark's result; ``why`` continues "...cannot run ...: "."""

    def __init__(self, expression: JavaObject, why: str) -> None:
        super().__init__(why)
        self.expression = expression
        self.why = why


Rule = Callable[["Expressions", Any], Node]
RULES: dict[str, Rule] = {}
"""How an expression is evaluated on Arrow, by the simple name of its class in Spark."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for expressions of these classes."""

    def enter(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return enter


def not_supported(expression: JavaObject, why: NotOnArrowError) -> UnsupportedOperationError:
    """Return the error for a part of an expression, as the user wrote both."""
    whole, part = str(expression.sql()), str(why.expression.sql())
    within = "" if whole == part else f" (in {whole})"
    return UnsupportedOperationError(
        f"{part}{within} cannot run continuously: {why.why}. Compute it in a mapInArrow function, or run the program "
        "with df.writeStream.",
        operation=class_of(why.expression), expression=part,
    )  # fmt: skip


def check_keys(expressions: Iterable[JavaObject]) -> None:
    """Check that values of keys are equal exactly where their bytes are: rows are put together by these, everywhere.

    Raises
    ------
    UnsupportedOperationError
        One is, or contains, a map or a text with a collation.
    """
    for each in expressions:
        text = str(each.dataType().catalogString())
        if "map<" in text:
            why = f"its type is {text}, and no key is or contains a map; array_sort(map_entries(...)) of it can be one"
            raise not_supported(each, NotOnArrowError(each, why))
        if has_collation(text):
            why = (
                f"its type is {text}, and rows are put together by the bytes of a key, which texts that are equal by a "
                "collation need not share; collate(lower(...), 'UTF8_BINARY') is one without case that can be a key"
            )
            raise not_supported(each, NotOnArrowError(each, why))


class Expressions:
    """Translates the expressions over the columns of one input.

    Parameters
    ----------
    schema
        The columns.
    places
        By the id that Spark gives to an attribute: where it is among them.
    time_zone
        The session's.
    known
        Expressions whose value is in a column already.
    spark
        The session, for expressions that mean what a setting says; without it none of them has a kernel.
    copy
        The copy of the plan that the known expressions are parts of.

    Attributes
    ----------
    taken_over
        Whether Spark's own code evaluated an expression in earlier versions.
    """

    def __init__(
        self,
        schema: pa.Schema,
        places: Mapping[int, int],
        time_zone: str,
        known: Sequence[tuple[Any, Bound]] = (),
        spark: SparkSession | None = None,
        copy: PlanCopy | None = None,
    ) -> None:
        self.taken_over = False
        self.time_zone = time_zone
        self.schema = schema
        self.places = places
        self._copy = PlanCopy() if copy is None else copy
        self._known: dict[int, Bound] = {}
        for each, bound in known:
            self._known.setdefault(key_of(self._copy.of(each)), bound)
        self._spark = spark
        self._common: dict[int, Node] = {}
        self._made: dict[int, tuple[Node, bool]] = {}
        """By the number of an expression: its node, and whether it is taken over."""
        self._types: dict[tuple[str, tuple[pa.DataType, ...]], pa.DataType] = {}

    def compiled(self, expression: JavaObject) -> Node:
        """Return the node of a whole expression.

        Raises
        ------
        UnsupportedOperationError
            It cannot be evaluated.
        """
        try:
            return self.node(expression)
        except NotOnArrowError as error:
            raise not_supported(expression, error) from error

    def node(self, expression: JavaObject) -> Node:
        """Return the node of an expression or a part of one.

        Raises
        ------
        NotOnArrowError
            No kernel is proven to give Spark's result.
        """
        expression = self._copy.of(expression)
        number, taken_over_before = number_of(expression), self.taken_over
        if number not in self._made:  # all here: each function on the way would halve how deep expressions may be
            self.taken_over, name = False, class_of(expression)
            made: Node | None = self._known.get(key_of(expression)) if self._known else None
            if made is None:
                made = self._value_of(expression)
            if made is None and name in RULES:
                made = RULES[name](self, expression)
            elif made is None and is_a(expression, "RuntimeReplaceable"):
                made = self.node(expression.replacement())
            elif made is None:
                raise NotOnArrowError(expression, f"{name} has no Arrow kernel that is proven to give Spark's result")
            self._made[number] = made, self.taken_over
        node, taken_over = self._made[number]
        self.taken_over = taken_over_before or taken_over
        return node

    def _value_of(self, expression: JavaObject) -> Constant | None:
        """Return what Spark itself computes of an expression without columns; None: it has some, or the time in it."""
        if (
            not expression.foldable()
            or class_of(expression) == "Literal"
            or not expression.deterministic()
            or contains(expression, "CURRENT_LIKE")
        ):
            return None
        from pyspark.errors import PySparkException

        try:
            kind = arrow_type(expression.dataType())
            return Constant(constant(expression.eval(None), kind), kind)
        except (PySparkException, Py4JError, UnsupportedTypeError):
            return None  # it fails when a row needs it, or has no simple value

    def kind(self, expression: JavaObject) -> pa.DataType:
        """Return the type that Spark gives to an expression."""
        try:
            return arrow_type(expression.dataType())
        except UnsupportedTypeError as error:
            raise NotOnArrowError(expression, f"it has {error}") from error

    def column(self, attribute: JavaObject) -> Bound:
        """Return the column of an attribute."""
        number = attribute.exprId().id()
        if number not in self.places:
            raise NotOnArrowError(attribute, "it is no column of the rows here; windows are there to be grouped by")
        index = self.places[number]
        return Bound(index, self.schema.field(index).name)

    def call(self, expression: JavaObject, kernel: str, *arguments: JavaObject, **parameters: Any) -> Node:
        """Return a call of a kernel over other expressions, if it gives the type that Spark says."""
        nodes, kinds = list(map(self.node, arguments)), list(map(self.kind, arguments))
        if kernel not in NULL_TOLERANT and any(isinstance(each, Constant) and each.value is None for each in nodes):
            return Constant(None, self.kind(expression))
        return self.checked(expression, lambda given: Call(kernel, tuple(given), parameters), nodes, kinds)

    def checked(
        self,
        expression: JavaObject,
        make: Callable[[Sequence[Node]], Node],
        nodes: Sequence[Node],
        kinds: Sequence[pa.DataType],
    ) -> Node:
        """Return what is made of other nodes, if over their types it gives the one that Spark says."""
        schema = pa.schema([pa.field(str(index), kind) for index, kind in enumerate(kinds)])
        trial = make([Bound(index, name) for index, name in enumerate(schema.names)])
        tried = repr(trial), tuple(kinds)
        try:
            if tried not in self._types:
                self._types[tried] = type_in(trial, schema, self.time_zone)
            found = self._types[tried]
        except (OptionError, pa.ArrowException) as error:
            raise NotOnArrowError(expression, f"its Arrow kernel cannot take {', '.join(map(str, kinds))}") from error
        if not same_type(found, self.kind(expression)):
            raise NotOnArrowError(expression, f"its Arrow kernel gives {found}, Spark {self.kind(expression)}")
        return make(nodes)

    def cannot_fail(self, node: Node) -> bool:
        """Return whether a node has a value for every row, so that nothing changes if it is evaluated needlessly."""
        return compiled(node, self.schema, self.time_zone).cannot_fail

    def fixed(self, expression: JavaObject) -> Any:
        """Return the value of an argument that is the same for all rows."""
        node = self.node(expression)
        if not isinstance(node, Constant):
            raise NotOnArrowError(expression, "this argument's Arrow kernel takes a constant only")
        return node.value

    def common(self, definition: JavaObject) -> Node:
        """Return the expression of a common one, which Spark evaluates once."""
        number = definition.id().id()
        if number not in self._common:
            self._common[number] = self.node(definition.child())
        return self._common[number]

    def refer(self, reference: JavaObject) -> Node:
        """Return the common expression that is referred to."""
        return self._common[reference.id().id()]

    @property
    def legacy_times(self) -> bool:
        """Whether times are written and read as Spark 2 did, or nobody knows."""
        return self._spark is None or str(self._spark.conf.get(_TIME_POLICY)).upper() == "LEGACY"

    def check_zone(self, expression: JavaObject) -> None:
        """Check that an expression was resolved with the time zone that the query runs in."""
        zone = option(expression.timeZoneId())
        if zone is not None and zone != self.time_zone:
            raise NotOnArrowError(
                expression, f"it is of the time zone {zone}, and the session's is now {self.time_zone}"
            )


# What every program has.


@rule("AttributeReference")
def _attribute(own: Expressions, expression: Any) -> Node:
    return own.column(expression)


@rule("PythonUDF")
def _result(own: Expressions, expression: Any) -> Node:
    if expression.resultId().id() not in own.places:
        raise NotOnArrowError(expression, "users' functions are called in columns, filters and keys only")
    return own.column(expression.resultAttribute())


@rule("Alias", "KnownNullable", "KnownNotNull")
def _same(own: Expressions, expression: Any) -> Node:
    return own.node(expression.child())


@rule("Literal")
def _literal(own: Expressions, expression: Any) -> Node:
    kind = own.kind(expression)
    try:
        return Constant(constant(expression.value(), kind), kind)
    except UnsupportedTypeError as error:
        raise NotOnArrowError(expression, f"it is {error}") from error


@rule("With")
def _with(own: Expressions, expression: Any) -> Node:
    for each in items(expression.defs()):
        own.common(each)
    return own.node(expression.child())


@rule("CommonExpressionRef")
def _reference(own: Expressions, expression: Any) -> Node:
    return own.refer(expression)


# Conditions.


@rule("CaseWhen", "If", "NullIfResult", "Coalesce")
def _branches(own: Expressions, expression: Any) -> Node:
    given = list(items(expression.children()))
    nodes, kinds = [own.node(each) for each in given], [own.kind(each) for each in given]
    name = class_of(expression)
    if name == "Coalesce":
        if all(map(own.cannot_fail, nodes[1:])):
            return own.call(expression, "coalesce", *given)
        made = _first_valid
    elif name == "NullIfResult":
        made = _null_if
    else:
        made = _cases
    return own.checked(expression, made, nodes, kinds)


def _cases(given: Sequence[Node]) -> Node:
    pairs = tuple(zip(given[0::2], given[1::2]))
    return Branches(pairs, given[-1] if len(given) % 2 else None)


def _null_if(given: Sequence[Node]) -> Node:
    return Branches(((given[0], Constant(None, pa.null())),), given[1])


def _first_valid(given: Sequence[Node]) -> Node:
    """Return a ``coalesce`` that evaluates no argument after the first that is not null, as Spark's."""
    return Branches(tuple((Call("isnotnull", (each,)), each) for each in given[:-1]), given[-1])


@rule("And", "Or")
def _logic(own: Expressions, expression: Any) -> Node:
    left, right = own.node(expression.left()), own.node(expression.right())
    decided = Constant(class_of(expression) == "Or", pa.bool_())
    if decided in (left, right):  # the other side is not evaluated
        return decided
    if class_of(expression) == "And":
        return Call("and", (left, right))
    if own.cannot_fail(right):
        return Call("or", (left, right))
    # Only `and` leaves out rows that the first side has decided already.
    return Call("not", (Call("and", (Call("not", (left,)), Call("not", (right,)))),))


@rule("In")
def _in(own: Expressions, expression: Any) -> Node:
    value, *choices = items(expression.children())
    for each in choices:
        own.fixed(each)
    return own.call(expression, "in", value, *choices)
