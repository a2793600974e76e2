"""Walks through one JSON record, token by token, with the leniency that Jackson has.

Never: know the types of columns.

Follows Spark 4.3, "JSON Files" (the ``allow...`` options), and Jackson's ``ReaderBasedJsonParser``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_WHITESPACE = " \t\r\n"
_NUMBER = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NON_NUMERIC = re.compile(r"NaN|[+-]INF|[+-]?Infinity")
_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f\udc80-\udcff]*'),
    "'": re.compile(r"[^'\\\x00-\x1f\udc80-\udcff]*"),
}
_PLAIN_WITH_CONTROLS = {'"': re.compile(r'[^"\\\udc80-\udcff]*'), "'": re.compile(r"[^'\\\udc80-\udcff]*")}
_UNQUOTED_NAME = re.compile(r"[A-Za-z0-9_$@#*+\-]+")
_HEX = re.compile("[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class MalformedRecordError(Exception):
    """A record is no JSON, or is neither an object nor an array of objects."""


class JsonDialect(msgspec.Struct, frozen=True):
    """What of Jackson's leniency is on."""

    comments: bool = False
    unquoted_field_names: bool = False
    single_quotes: bool = True
    numeric_leading_zeros: bool = False
    non_numeric_numbers: bool = True
    backslash_escaping_any_character: bool = False
    unquoted_control_chars: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> JsonDialect:
        """Return the dialect that Spark's ``allow...`` options choose."""
        return cls(
            comments=options["allowComments"],
            unquoted_field_names=options["allowUnquotedFieldNames"],
            single_quotes=options["allowSingleQuotes"],
            numeric_leading_zeros=options["allowNumericLeadingZeros"],
            non_numeric_numbers=options["allowNonNumericNumbers"],
            backslash_escaping_any_character=options["allowBackslashEscapingAnyCharacter"],
            unquoted_control_chars=options["allowUnquotedControlChars"],
        )


class JsonToken(msgspec.Struct, frozen=True):
    """A value that is neither an object nor an array: its ``kind`` and its text as written, strings without escapes."""

    kind: str
    text: str


class JsonCursor:
    """A position in one record's text, and whether a value of the record was bad."""

    __slots__ = ("dialect", "partial", "position", "text")

    def __init__(self, record: bytes, dialect: JsonDialect) -> None:
        self.text = record.decode("utf-8", "surrogateescape")  # what is no UTF-8 spoils only strings that are read
        self.position = 1 if self.text.startswith("\ufeff") else 0
        self.dialect = dialect
        self.partial = False

    def peek(self) -> str:
        """Return the next character that is neither white space nor a comment, "" at the end; it stays next."""
        text, position = self.text, self.position
        while True:
            while position < len(text) and text[position] in _WHITESPACE:
                position += 1
            if not (self.dialect.comments and text.startswith(("//", "/*"), position)):
                break
            block = text[position + 1] == "*"
            end = text.find("*/" if block else "\n", position + 2)
            if block and end < 0:
                raise MalformedRecordError
            position = len(text) if end < 0 else end + (2 if block else 1)
        self.position = position
        return text[position] if position < len(text) else ""

    def take(self, character: str) -> None:
        """Go behind a character that must be next."""
        if self.peek() != character:
            raise MalformedRecordError
        self.position += 1

    def accept(self, character: str) -> bool:
        """Go behind a character if it is next, and say whether it was."""
        if self.peek() != character:
            return False
        self.position += 1
        return True

    def string(self, quote: str) -> str:
        """Read a string whose opening quote is next."""
        dialect, text = self.dialect, self.text
        plain = (_PLAIN_WITH_CONTROLS if dialect.unquoted_control_chars else _PLAIN)[quote]
        pieces = []
        position = self.position + 1
        while True:
            match = plain.match(text, position)
            assert match is not None
            pieces.append(match.group())
            position = match.end()
            stop = text[position : position + 1]
            if stop == quote:
                break
            if stop != "\\":
                raise MalformedRecordError
            escape = text[position + 1 : position + 2]
            position += 2
            if escape == "u":
                digits = text[position : position + 4]
                if not _HEX.fullmatch(digits):
                    raise MalformedRecordError
                pieces.append(chr(int(digits, 16)))
                position += 4
            elif escape in _ESCAPES:
                pieces.append(_ESCAPES[escape])
            elif escape and (dialect.backslash_escaping_any_character or (escape == "'" and dialect.single_quotes)):
                pieces.append(escape)
            else:
                raise MalformedRecordError
        self.position = position + 1
        return _well_formed("".join(pieces))

    def quote(self, character: str) -> bool:
        """Whether a character opens a string."""
        return character == '"' or (character == "'" and self.dialect.single_quotes)

    def name(self) -> str:
        """Read the name of an object's field and its colon."""
        character = self.peek()
        if self.quote(character):
            name = self.string(character)
        else:
            match = _UNQUOTED_NAME.match(self.text, self.position) if self.dialect.unquoted_field_names else None
            if match is None or match.group()[0].isdigit():
                raise MalformedRecordError
            name = match.group()
            self.position = match.end()
        self.take(":")
        return name

    def token(self) -> JsonToken:
        """Read a string, a number, a boolean or null."""
        character = self.peek()
        if self.quote(character):
            return JsonToken("string", self.string(character))
        for word in ("true", "false", "null"):
            if self.text.startswith(word, self.position):
                self._end_word(self.position + len(word))
                return JsonToken("null" if word == "null" else "boolean", word)
        match = _NON_NUMERIC.match(self.text, self.position)
        if match is not None:
            if not self.dialect.non_numeric_numbers:
                raise MalformedRecordError
            self._end_word(match.end())
            return JsonToken("float", match.group())
        match = _NUMBER.match(self.text, self.position)
        if match is None:
            raise MalformedRecordError
        whole = match.group(1)
        if whole[0] == "0" and len(whole) > 1 and not self.dialect.numeric_leading_zeros:
            raise MalformedRecordError
        self._end_word(match.end())
        return JsonToken("integer" if match.group(2) is None and match.group(3) is None else "float", match.group())

    def _end_word(self, end: int) -> None:
        """Go behind a word or number; it must be followed by something that may follow a value."""
        if end < len(self.text) and self.text[end] not in " \t\r\n,]}:/#":
            raise MalformedRecordError
        self.position = end

    def skip(self) -> None:
        """Read any value and forget it, however deep it nests."""
        closings: list[str] = []  # of the objects and arrays around what is next, the innermost last
        while True:
            character = self.peek()
            if character == "{" or character == "[":
                self.position += 1
                closing = "}" if character == "{" else "]"
                if not self.accept(closing):
                    closings.append(closing)
                    if closing == "}":
                        self.name()
                    continue
            else:
                self.token()
            while closings and self.accept(closings[-1]):
                closings.pop()
            if not closings:
                return
            self.take(",")
            if closings[-1] == "}":
                self.name()

    def fields(self, on_field: Callable[[str], None]) -> None:
        """Read an object; ``on_field`` gets each name and reads its value."""
        self.take("{")
        if self.accept("}"):
            return
        while True:
            on_field(self.name())
            if self.accept("}"):
                return
            self.take(",")

    def elements(self, on_element: Callable[[], None]) -> None:
        """Read an array; ``on_element`` reads each element."""
        self.take("[")
        if self.accept("]"):
            return
        while True:
            on_element()
            if self.accept("]"):
                return
            self.take(",")

    def raw(self) -> str:
        """Read any value and return it as it is written."""
        self.peek()
        start = self.position
        self.skip()
        return self.text[start : self.position]


def _well_formed(value: str) -> str:
    """Join escaped surrogate pairs; a single surrogate becomes a question mark, as Java encodes it."""
    if _SURROGATE.search(value) is None:
        return value
    joined = _SURROGATE_PAIR.sub(lambda m: m.group().encode("utf-16", "surrogatepass").decode("utf-16"), value)
    return _SURROGATE.sub("?", joined)
