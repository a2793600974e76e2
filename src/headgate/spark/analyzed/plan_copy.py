"""A copy of Spark's trees: plans and expressions as Python objects that answer as the Java objects do, without a call.

A tree comes over in one call (`PlanCopy.of`), in the form that PlanCopy.java describes. A `CopiedNode` has the methods
of its Java object. Those without parameters that are not in the copy are asked once, and what they return is copied
too; anything else is called on the Java object, as which a copy may be passed to Spark as well.

Never: know what a node means, or change one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

_FOLDABLE, _DETERMINISTIC, _NULLABLE = 1, 2, 4
_PATTERNS: Final = {"CURRENT_LIKE": 8, "PYTHON_UDF": 16}
_CHILDREN, _FIELDS, _FLAGS, _TYPE, _KEY, _EVALUATED, _ID, _NAME, _METADATA = range(1, 10)
"""The places in the record of a node; one of a plan ends with its fields, one without a name before the id."""
_COMPILER: Final = "org.codehaus.janino.SimpleCompiler"
_OF_PY4J: Final = ("_gateway_client", "_target_id")
"""What py4j's functions, such as ``get_field``, read of a Java object."""
_MISSING: Final = object()


class _Answer(msgspec.Struct, gc=False):
    value: Any
    classes: list[tuple[str, str, list[str], list[str]]]
    types: list[tuple[msgspec.Raw, str]]
    nodes: list[list[Any]]


_decode = msgspec.json.Decoder(_Answer).decode


class _Class:
    """A Java class, by its names.

    Attributes
    ----------
    above
        The simple names of it and of all classes and traits above it.
    fields
        The places of a node's fields, by their names.
    """

    __slots__ = ("above", "fields", "name", "simple_name")

    def __init__(self, name: str, simple_name: str, above: Sequence[str] = (), fields: Sequence[str] = ()) -> None:
        self.name = name
        self.simple_name = simple_name.removesuffix("$")
        self.above = frozenset(above)
        self.fields = {field: place for place, field in enumerate(fields)}

    def getName(self) -> str:
        return self.name

    def getSimpleName(self) -> str:
        return self.simple_name


class _Copied:
    """What stands for a Java object, which is fetched if something is asked that the copy does not have."""

    __slots__ = ("_fetched",)

    def _fetch(self) -> Any:
        raise NotImplementedError

    @property
    def _java(self) -> Any:
        try:
            return self._fetched
        except AttributeError:
            self._fetched: Any = self._fetch()
            return self._fetched

    def _get_object_id(self) -> str:
        """Return the name under which py4j passes it to a method."""
        return str(self._java._get_object_id())

    def __str__(self) -> str:
        return str(self.toString())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name[1:].isdigit() and name not in _OF_PY4J:
            raise AttributeError(name)
        return getattr(self._java, name)


class _Type(_Copied):
    """A data type."""

    __slots__ = ("_copy", "_json", "_number", "_text")

    def __init__(self, copy: PlanCopy, number: int, spelled: str, text: str) -> None:
        self._copy = copy
        self._number = number
        self._json = spelled
        self._text = text

    def _fetch(self) -> Any:
        return self._copy.java.type(self._number)

    def json(self) -> str:
        return self._json

    def catalogString(self) -> str:
        return self._text


class _Value(_Copied):
    """What a method of something copied returns, by its name, or the item of a copied collection, by its place."""

    __slots__ = ("_how", "_owner")

    def __init__(self, owner: _Copied, how: str | int) -> None:
        self._owner = owner
        self._how = how

    def _fetch(self) -> Any:
        if isinstance(self._how, int):
            return self._owner._java.apply(self._how)
        return getattr(self._owner._java, self._how)(*([None] if self._how == "eval" else []))


class _Id(_Value):
    """The id of an attribute, of an alias or of a function's result."""

    __slots__ = ("_number",)

    def __init__(self, owner: _Copied, how: str | int, number: int) -> None:
        super().__init__(owner, how)
        self._number = number

    def id(self) -> int:
        return self._number


class _Option(_Value):
    """A Scala ``Option``."""

    __slots__ = ("_values",)

    def __init__(self, owner: _Copied, how: str | int, values: list[Any]) -> None:
        super().__init__(owner, how)
        self._values = values

    def isDefined(self) -> bool:
        return bool(self._values)

    def get(self) -> Any:
        return self._values[0]


class CopiedItems(_Value):
    """A Scala ``Seq``, whose ``items`` are a list. It is not iterable itself: py4j would make a Java list of it."""

    __slots__ = ("items",)

    def __init__(self, owner: _Copied, how: str | int, items: list[Any]) -> None:
        super().__init__(owner, how)
        self.items = items


class _Metadata(_Value):
    """The metadata of a column."""

    __slots__ = ("_entries",)

    def __init__(self, owner: _Copied, how: str | int, spelled: str | None) -> None:
        super().__init__(owner, how)
        self._entries = json.loads(spelled) if spelled else {}

    def contains(self, key: str) -> bool:
        return key in self._entries

    def getLong(self, key: str) -> int:
        return int(self._entries[key])


class _Object(_Value):
    """Any other object: what it is, and its text if it is there for that."""

    __slots__ = ("_class", "_text")

    def __init__(self, owner: _Copied, how: str | int, java_class: _Class, text: str | None) -> None:
        super().__init__(owner, how)
        self._class = java_class
        self._text = text

    def getClass(self) -> _Class:
        return self._class

    def toString(self) -> str:
        return str(self._java.toString()) if self._text is None else self._text


class _Parts(_Value):
    """An object that belongs to an expression, with its fields."""

    __slots__ = ("_class", "_copy", "_fields")

    def __init__(self, owner: _Copied, how: str | int, copy: PlanCopy, java_class: _Class, fields: list[Any]) -> None:
        super().__init__(owner, how)
        self._copy = copy
        self._class = java_class
        self._fields = fields

    def getClass(self) -> _Class:
        return self._class

    def __getattr__(self, name: str) -> Any:
        place = self._class.fields.get(name)
        if place is None:
            return super().__getattr__(name)
        value = self._copy.decoded(self._fields[place], self, name)
        return lambda: value


class CopiedNode(_Copied):
    """A plan or an expression. All its names but those of Java methods are private, as any other may be one.

    Methods are added to the class when they are first asked for.
    """

    __slots__ = ("_class", "_copy", "_flags", "_key", "_known", "_number", "_record")

    def __init__(self, copy: PlanCopy, number: int, record: list[Any], java_class: _Class) -> None:
        self._copy = copy
        self._number = number
        self._record = record
        self._class = java_class
        self._known: dict[str, Any] = {}
        is_expression = len(record) > _FLAGS
        self._flags: int = record[_FLAGS] if is_expression else 0
        self._key: int | None = record[_KEY] if is_expression else None

    def _fetch(self) -> Any:
        return self._copy.java.node(self._number)

    def getClass(self) -> _Class:
        """Return the class."""
        return self._class

    def eval(self, row: None) -> Any:
        """Return the value of an expression without columns."""
        evaluated = self._record[_EVALUATED]
        if evaluated is None:
            return self._java.eval(row)
        return self._copy.decoded(evaluated[0], self, "eval")

    def semanticEquals(self, other: Any) -> bool:
        """Return whether two expressions have the same value."""
        if not isinstance(other, CopiedNode) or other._copy is not self._copy:
            return bool(self._java.semanticEquals(other))
        return semantic_key(self) is not None and semantic_key(self) == semantic_key(other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        setattr(CopiedNode, name, _method(name))
        return getattr(self, name)

    def _found(self, name: str) -> Any:
        """Return what a method without parameters returns."""
        place = self._class.fields.get(name)
        if place is not None:
            return self._copy.decoded(self._record[_FIELDS][place], self, name)
        if name in _OF_NODES and len(self._record) > _OF_NODES[name][0]:
            return _OF_NODES[name][1](self)
        return self._copy.ask(self, name)

    def _children(self) -> CopiedItems:
        return CopiedItems(self, "children", list(map(self._copy.node, self._record[_CHILDREN] or ())))

    def _eval_mode(self) -> Any:
        has_context = "evalContext" in self._class.fields
        return self.evalContext().evalMode() if has_context else self._copy.ask(self, "evalMode")


_OF_NODES: Final[dict[str, tuple[int, Callable[[CopiedNode], Any]]]] = {
    "children": (_CHILDREN, CopiedNode._children),
    "foldable": (_FLAGS, lambda node: bool(node._flags & _FOLDABLE)),
    "deterministic": (_FLAGS, lambda node: bool(node._flags & _DETERMINISTIC)),
    "evalMode": (_FLAGS, CopiedNode._eval_mode),
    "nullable": (_TYPE, lambda node: bool(node._flags & _NULLABLE)),
    "dataType": (_TYPE, lambda node: node._copy.type_of(node, node._record[_TYPE])),
    "exprId": (_ID, lambda node: _Id(node, "exprId", node._record[_ID])),
    "name": (_ID, lambda node: node._record[_NAME]),
    "metadata": (_ID, lambda node: _Metadata(node, "metadata", node._record[_METADATA])),
}
"""Methods without parameters that are no fields: up to where the record must go, and what they return."""


def _method(name: str) -> Callable[..., Any]:
    """Return a method of copied nodes: without parameters it is looked up."""

    def method(self: CopiedNode, *arguments: Any) -> Any:
        if arguments:
            return getattr(self._java, name)(*arguments)
        known = self._known.get(name, _MISSING)
        if known is _MISSING:
            known = self._known[name] = self._found(name)
        return known

    return method


def key_of(expression: CopiedNode) -> int:
    """Return what two expressions have in common exactly if they have the same value, also if it is drawn by chance."""
    assert expression._key is not None
    return expression._key


def semantic_key(expression: CopiedNode) -> int | None:
    """Return what two expressions have in common exactly if they have the same value; None: it is drawn by chance."""
    return key_of(expression) if expression._flags & _DETERMINISTIC else None


def number_of(node: CopiedNode) -> int:
    """Return what a node alone has in its copy."""
    return node._number


def has_pattern(expression: CopiedNode, pattern: str) -> bool | None:
    """Return whether an expression has a ``TreePattern``; None: the copy does not know."""
    flag = _PATTERNS.get(pattern)
    return None if flag is None else bool(expression._flags & flag)


def copied_together(nodes: Sequence[Any]) -> PlanCopy | None:
    """Return what all of some nodes are parts of; None: one is no copy, or there are none."""
    copies = {each._copy if isinstance(each, CopiedNode) else None for each in nodes}
    return copies.pop() if len(copies) == 1 else None


class PlanCopy:
    """Copies of trees that belong together: of one plan, and of what Spark makes of its parts."""

    def __init__(self) -> None:
        self._made: Any = None
        self._classes: list[_Class] = []
        self._types: list[_Type] = []
        self._nodes: list[CopiedNode | list[Any]] = []

    @property
    def java(self) -> Any:
        """What has the Java objects."""
        if self._made is None:
            self._made = _compiled().fresh()
        return self._made

    def of(self, tree: Any) -> Any:
        """Return the copy of a plan or an expression; of a copy, itself."""
        return tree if isinstance(tree, _Copied) else self.node(int(self._taken(self.java.add(tree))[1:]))

    def ask(self, node: CopiedNode, method: str) -> Any:
        """Return what a method without parameters of a node returns."""
        return self.decoded(self._taken(self.java.ask(node._number, method)), node, method)

    def close(self) -> None:
        """Let go of the nodes, which refer to one another; those that somebody has are still their Java objects."""
        for node in self._nodes:
            if isinstance(node, CopiedNode):
                node._known.clear()
        self._nodes.clear()

    def sequence(self, nodes: Sequence[CopiedNode]) -> Any:
        """Return a Scala list of nodes, one at least."""
        return self.java.nodes(",".join(str(each._number) for each in nodes))

    def whole(self, answer: str) -> str:
        """Return an answer, given its first piece."""
        pieces = [answer]
        while pieces[-1][0] == "m":  # more follows
            pieces.append(self.java.next())
        return "".join(each[1:] for each in pieces)

    def _taken(self, answer: str) -> Any:
        """Take what is new in an answer, given its first piece, and return its value."""
        given = _decode(self.whole(answer))
        self._classes += [_Class(*each) for each in given.classes]
        for spelled, text in given.types:
            self._types.append(_Type(self, len(self._types), bytes(spelled).decode(), text))
        self._nodes += given.nodes
        return given.value

    def node(self, number: int) -> CopiedNode:
        """Return a node; of one number always the same."""
        node = self._nodes[number]
        if isinstance(node, list):
            node = self._nodes[number] = CopiedNode(self, number, node, self._classes[node[0]])
        return node

    def type_of(self, node: CopiedNode, number: int | None) -> Any:
        """Return the type of an expression."""
        return self.ask(node, "dataType") if number is None else self._types[number]

    def decoded(self, value: Any, owner: _Copied, how: str | int) -> Any:
        """Return a value of an answer, and whose it is: what a method returns, or the item at a place."""
        if isinstance(value, str):
            return self._decoded_text(value[0], value[1:], owner, how)
        if not isinstance(value, list):
            return value
        match value:
            case ["items", values]:
                made = CopiedItems(owner, how, [])
                made.items = [self.decoded(each, made, place) for place, each in enumerate(values)]
                return made
            case ["option", *values]:
                option = _Option(owner, how, [])
                option._values = [self.decoded(each, option, "get") for each in values]
                return option
            case ["parts", number, fields]:
                return _Parts(owner, how, self, self._classes[number], fields)
            case ["object", name, simple_name, *texts]:
                return _Object(owner, how, _Class(name, simple_name), texts[0] if texts else None)
        raise AssertionError(value)

    def _decoded_text(self, kind: str, text: str, owner: _Copied, how: str | int) -> Any:
        match kind:
            case "s":
                return text
            case "n":
                return self.node(int(text))
            case "t":
                return self._types[int(text)]
            case "e":
                return _Id(owner, how, int(text))
            case "m":
                return _Metadata(owner, how, text)
            case "f":
                return float(text)
            case "b":
                return base64.b64decode(text)
        raise AssertionError(kind)


@cache
def _compiled() -> Any:
    """Return a PlanCopy of Java's, which Spark's own compiler compiles in the driver's process, once."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    compiler = getattr(jvm, _COMPILER)()
    compiler.setParentClassLoader(getattr(jvm, "java.lang.Thread").currentThread().getContextClassLoader())
    compiler.cook(Path(__file__).with_name("PlanCopy.java").read_text())
    return compiler.getClassLoader().loadClass("headgate.PlanCopy").newInstance()
