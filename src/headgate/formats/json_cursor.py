"""Walks through one JSON record token by token, as lenient as Jackson and, after an error, as forgiving.

Never: know the types of columns.

Follows Spark 4.3, "JSON Files" (the ``allow...`` options), and Jackson 2.21. Spark catches the errors of a value and
asks the same parser for the next token, so what is kept of a broken record depends on where the parser stands then.
Three things decide that, and hold here as well: a field's value is looked at together with its name, a string is not
read before it is asked for, and what an error is about has been consumed. Jackson's two parsers, for bytes and for
characters, consume differently (`JsonDialect.characters`).
"""

from __future__ import annotations

import base64
import codecs
import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

import msgspec

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNFINISHED_NUMBER = re.compile(r"-?[0-9]+(\.(?![0-9])|(\.[0-9]+)?[eE][+-]?(?![0-9+-]))")
_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f\ud800\udc80-\udcff]*'),
    "'": re.compile(r"[^'\\\x00-\x1f\ud800\udc80-\udcff]*"),
}
_PLAIN_WITH_CONTROLS = {
    '"': re.compile(r'[^"\\\ud800\udc80-\udcff]*'),
    "'": re.compile(r"[^'\\\ud800\udc80-\udcff]*"),
}
_UNQUOTED_NAME = {
    True: re.compile(r"[\w$@#*+\-]+"),
    False: re.compile(r"[\w$@#*+\-]+", re.ASCII),  # byte by byte, of which none beyond ASCII is part of a word
}
_HEX = re.compile("[0-9a-fA-F]{0,4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_WORDS = {"t": ("boolean", "true"), "f": ("boolean", "false"), "n": ("null", "null")}
_NAMED_NUMBERS = {"N": "NaN", "I": "Infinity"}
_OPENING = {"}": "{", "]": "["}
_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_GROUP = r"[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==)"
_BASE64_GROUP = re.compile(_GROUP)
_BASE64 = re.compile(rf"(?:[\x00-\x20]*{_GROUP})*[\x00-\x20]*")
_NO_UTF8 = b"\x80".decode("utf-8", "surrogateescape")
_ENCODED_SURROGATE = "\ud800"
"""What stands in a record's text for a surrogate that is encoded by itself: no string has it that is read."""
_BASE64_CHARACTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + "+/"
_WORD_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc", "Nd", "Mn", "Mc", "Cf"}
_MOST_NESTED = 1000


class MalformedRecordError(Exception):
    """What comes next is not JSON. The cursor may be asked to go on; what it finds then is Jackson's to decide."""


class JsonDialect(msgspec.Struct, frozen=True):
    """What of Jackson's leniency is on, and which of its parsers is followed."""

    comments: bool = False
    unquoted_field_names: bool = False
    single_quotes: bool = True
    numeric_leading_zeros: bool = False
    non_numeric_numbers: bool = True
    backslash_escaping_any_character: bool = False
    unquoted_control_chars: bool = False
    characters: bool = False
    """Whether the record comes as decoded characters, as of ``from_json``, or as bytes, as of files."""

    @classmethod
    def of(cls, options: Mapping[str, Any], characters: bool) -> JsonDialect:
        """Return the dialect that Spark's ``allow...`` options choose."""
        return cls(
            comments=options["allowComments"],
            unquoted_field_names=options["allowUnquotedFieldNames"],
            single_quotes=options["allowSingleQuotes"],
            numeric_leading_zeros=options["allowNumericLeadingZeros"],
            non_numeric_numbers=options["allowNonNumericNumbers"],
            backslash_escaping_any_character=options["allowBackslashEscapingAnyCharacter"],
            unquoted_control_chars=options["allowUnquotedControlChars"],
            characters=characters,
        )


class _Scope:
    """An object or array that is open ("" around them all): how far it is, and the name of its last field."""

    __slots__ = ("count", "kind", "name")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self.name: str | None = None


class JsonCursor:
    """A position in one record's text.

    ``kind`` says what the current token is: ``{``, ``}``, ``[``, ``]``, ``name``, ``string``, ``integer``, ``float``,
    ``boolean`` or ``null``; None before the first and after the last one. ``partial`` is for the caller to set.
    """

    __slots__ = (
        "_dialect",
        "_incomplete",
        "_next",
        "_scopes",
        "_start",
        "_string",
        "_text",
        "kind",
        "partial",
        "position",
    )

    def __init__(self, record: bytes, dialect: JsonDialect) -> None:
        self._text = _decoded(record)
        self._dialect = dialect
        self.position = 1 if self._text.startswith("\ufeff") and not dialect.characters else 0
        self.kind: str | None = None
        self.partial = False
        self._next: str | None = None  # of the field whose name is the current token
        self._scopes = [_Scope("")]
        self._start = 0
        self._string = ""
        self._incomplete = False  # the current token is a string of which only the opening quote has been read

    @property
    def name(self) -> str | None:
        """The name of the field that the current token belongs to, None in an array."""
        return self._scopes[-2 if self.kind in ("{", "[") else -1].name

    def next(self) -> str | None:
        """Go to the next token and return its kind, None at the end.

        Raises
        ------
        MalformedRecordError
            There is no token here, or none of those that may follow.
        """
        if self.kind == "name":
            self.kind, self._next = self._next, None
            if self.kind in ("{", "["):
                self._open(self.kind)
            return self.kind
        if self._incomplete:
            self._incomplete = False
            self._read_string('"', is_passed_over=True)
        character = self._significant()
        scope = self._scopes[-1]
        if character == "":
            if scope.kind:
                raise MalformedRecordError
            self.kind = None
            return None
        if character in "]}":
            self._start = self.position - 1
            if scope.kind != _OPENING[character]:
                raise MalformedRecordError
            self._scopes.pop()
            self.kind = character
            return character
        scope.count += 1
        if scope.kind and scope.count > 1:
            if character != ",":
                raise MalformedRecordError
            character = self._significant()
        if scope.kind == "{":
            scope.name = self._name(character)
            self.kind = "name"
            if self._significant() != ":":
                raise MalformedRecordError
            self._next = self._value(self._significant())
            return self.kind
        kind = self._value(character)
        if kind in ("{", "["):
            self._open(kind)
        self.kind = kind
        return kind

    def skip_children(self) -> None:
        """Go to the end of the object or array that the current token opens; stay where it opens none."""
        if self.kind not in ("{", "["):
            return
        depth = 1
        while depth:
            kind = self.next()
            if kind is None:
                return
            if kind in ("{", "["):
                depth += 1
            elif kind in ("}", "]"):
                depth -= 1

    def text(self) -> str:
        """Return the text of a string, without escapes, and of everything else what is in the record."""
        if self.kind != "string":
            return self._text[self._start : self.position]
        if self._incomplete:
            self._incomplete = False
            self._string = self._read_string('"')
        return self._string

    def raw(self) -> str:
        """Return an object or array as it is written, or the current token if that is none."""
        start = self._start
        if self._dialect.characters and self.kind in ("}", "]"):
            raise MalformedRecordError  # Spark writes it anew, and nothing is open there
        self.skip_children()
        return self._text[start : self.position].replace(_ENCODED_SURROGATE, "\ufffd")

    def binary(self) -> bytes:
        """Return what a string means as base64. If it means nothing, the rest of the string is still to be read."""
        if not self._incomplete:
            text = self.text()
            if not _BASE64.fullmatch(text):
                raise MalformedRecordError
            return b"".join(map(base64.b64decode, _BASE64_GROUP.findall(text)))
        decoded = b""
        while (character := self._base64_character(0)) != '"':
            if character:
                decoded += base64.b64decode(character + self._base64_character(1) + self._end_of_base64_group())
        self._incomplete = False
        return decoded

    def _end_of_base64_group(self) -> str:
        third = self._base64_character(2)
        if third != "=":
            return third + self._base64_character(3)
        read = character = self._next_character()  # if it ends the string, that is read now
        if character == "\\":
            character = self._escaped()
        if character != "=":
            raise self._no_base64(read)
        return "=="

    def _base64_character(self, index: int) -> str:
        """Read a character of a group; of the first one it may be the string's end or, escaped, white space ("")."""
        character = self._next_character()
        while index == 0 and character <= " ":
            character = self._next_character()
        if character == '"' and index == 0:
            return character
        if character == '"' and index > 1:
            self.position -= 1
        read = character
        if character == "\\":
            character = self._escaped()
            if index == 0 and character <= " ":
                return ""
        if character not in (_BASE64_CHARACTERS if index < 2 else _BASE64_CHARACTERS + "="):
            raise self._no_base64(read)
        return character

    def _no_base64(self, read: str) -> MalformedRecordError:
        """Return the error of a character that was read. Of bytes one is: what is left of several is not UTF-8."""
        if not self._dialect.characters and read > "\x7f" and not "\udc80" <= read <= "\udcff":
            self._text = self._text[: self.position] + _NO_UTF8 + self._text[self.position :]
        return MalformedRecordError()

    def _next_character(self) -> str:
        character = self._text[self.position : self.position + 1]
        if character == "":
            raise MalformedRecordError
        self.position += 1
        return character

    def _open(self, kind: str) -> None:
        self._scopes.append(_Scope(kind))
        if len(self._scopes) > _MOST_NESTED + 1:
            raise MalformedRecordError

    def _significant(self) -> str:
        """Go past the next character that is neither white space nor a comment, and return it; "" at the end."""
        while True:
            position = _space_end(self._text, self.position)
            character = self._text[position : position + 1]
            self.position = position + len(character)
            if character != "/" or not self._dialect.comments:
                return character
            comment = _COMMENT.match(self._text, position)
            if comment is None:
                raise MalformedRecordError
            self.position = comment.end()

    def _name(self, character: str) -> str:
        """Read the name of a field that begins with a character just read."""
        if self._opens_string(character):
            return self._read_string(character, is_name=not self._dialect.characters)
        unquoted = _UNQUOTED_NAME[self._dialect.characters]
        match = unquoted.match(self._text, self.position - 1) if self._dialect.unquoted_field_names else None
        if match is None or character == "":
            raise MalformedRecordError
        self.position = match.end()
        return match.group()

    def _value(self, character: str) -> str:
        """Read a value that begins with a character just read, of strings, objects and arrays only that; its kind."""
        self._start = self.position - 1
        if character == '"':
            self._incomplete = True
            return "string"
        if character in ("{", "["):
            return character
        if self._opens_string(character):
            self._string = self._read_string(character)
            return "string"
        if character in _WORDS:
            kind, word = _WORDS[character]
            self._match(word[1:])
            return kind
        if character.isdigit() and character.isascii():
            return self._number()
        if character in ("-", "+"):
            following = self._text[self.position : self.position + 1]
            if character == "-" and following.isdigit() and following.isascii():
                return self._number()
            self.position += len(following)
            return self._signed_infinity(following)
        if character in _NAMED_NUMBERS:
            return self._named_number(_NAMED_NUMBERS[character][1:])
        if character and (character.isalpha() or character in "_$"):
            self._invalid_token()
        raise MalformedRecordError

    def _number(self) -> str:
        text, start = self._text, self._start
        match = _NUMBER.match(text, start)
        assert match is not None
        whole = match.group(1)
        if whole[0] == "0" and len(whole) > 1 and not self._dialect.numeric_leading_zeros:
            self.position = match.start(1) + 1
            raise MalformedRecordError
        unfinished = _UNFINISHED_NUMBER.match(text, start)
        if unfinished is not None:
            end = unfinished.end()
            at_once = self._dialect.characters and whole[0] != "0" and end < len(text)
            self.position = match.end(1) + 1 if at_once else min(end + 1, len(text))
            raise MalformedRecordError
        self.position = match.end()
        return "integer" if match.group(2) is None and match.group(3) is None else "float"

    def _signed_infinity(self, character: str) -> str:
        """Read what follows a sign that no digit follows; of that a character has been read."""
        following = self._text[self.position : self.position + 1]
        if character != "I":
            raise MalformedRecordError
        self.position += len(following)
        if following not in ("N", "n"):
            raise MalformedRecordError
        return self._named_number("F" if following == "N" else "finity")

    def _named_number(self, rest: str) -> str:
        self._match(rest)
        if not self._dialect.non_numeric_numbers:
            raise MalformedRecordError
        return "float"

    def _match(self, rest: str) -> None:
        """Go past the rest of a word; nothing that could belong to a word may follow it."""
        text = self._text
        for character in rest:
            if text[self.position : self.position + 1] != character:
                self._invalid_token()
            self.position += 1
        if _is_word(text[self.position : self.position + 1]):
            self._invalid_token()

    def _invalid_token(self) -> None:
        text, position = self._text, self.position
        while position < len(text) and _is_word(text[position]):
            position += 1
        self.position = position if self._dialect.characters else min(position + 1, len(text))
        raise MalformedRecordError

    def _opens_string(self, character: str) -> bool:
        return character == '"' or (character == "'" and self._dialect.single_quotes)

    def _read_string(self, quote: str, *, is_name: bool = False, is_passed_over: bool = False) -> str:
        """Read on to the end of a string, and return its text.

        Of a name as bytes escaped surrogates must come in pairs, and what is not UTF-8 is an error at its end only.
        """
        dialect, text = self._dialect, self._text
        plain = (_PLAIN_WITH_CONTROLS if dialect.unquoted_control_chars else _PLAIN)[quote]
        pieces = []
        is_spoilt = False
        while True:
            match = plain.match(text, self.position)
            assert match is not None
            pieces.append(match.group())
            stop = text[match.end() : match.end() + 1]
            self.position = match.end() + len(stop)
            if stop == quote and is_spoilt:
                raise MalformedRecordError
            if stop == quote:
                return _well_formed("".join(pieces))
            if stop == _ENCODED_SURROGATE and is_passed_over:
                continue
            if is_name and (stop == _ENCODED_SURROGATE or _is_no_utf8(stop)):
                is_spoilt = True
                continue
            if stop != "\\":
                self._pass_over_character(stop)
                raise MalformedRecordError
            escaped = self._escaped()
            if is_name and _SURROGATE.match(escaped) and not self._has_twin(escaped, pieces):
                raise MalformedRecordError
            pieces.append(escaped)

    def _has_twin(self, surrogate: str, pieces: list[str]) -> bool:
        """Whether an escaped surrogate follows, or is followed by, the other half of its pair."""
        if surrogate < "\udc00":
            return _LOW_SURROGATE.match(self._text, self.position) is not None
        return pieces[-1] == "" and "\ud800" <= pieces[-2] < "\udc00" if len(pieces) > 1 else False

    def _escaped(self) -> str:
        """Return what a backslash that has been read begins."""
        escape = self._text[self.position : self.position + 1]
        self.position += len(escape)
        if escape == "u":
            match = _HEX.match(self._text, self.position)
            assert match is not None
            self.position = match.end()
            if len(match.group()) == 4:
                return chr(int(match.group(), 16))
            self.position = min(self.position + 1, len(self._text))
            raise MalformedRecordError
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        self._pass_over_character(escape)
        if _is_no_utf8(escape):
            raise MalformedRecordError
        lenient = self._dialect.backslash_escaping_any_character or (escape == "'" and self._dialect.single_quotes)
        if not escape or not lenient:
            raise MalformedRecordError
        return escape if self._dialect.characters else chr(ord(escape) & 0xFFFF)  # Jackson casts it to one of Java's

    def _pass_over_character(self, first: str) -> None:
        """Go past what Jackson reads of a character whose first byte, just read, is not UTF-8: up to what is wrong."""
        if not _is_no_utf8(first):
            return
        for _ in range(_length_of_character(ord(first) & 0xFF) - 1):
            character = self._text[self.position : self.position + 1]
            self.position += len(character)
            if not "\udc80" <= character <= "\udcbf":
                left = _NO_UTF8 * (len(character.encode("utf-8", "surrogatepass")) - 1)
                if character > "\x7f" and not _is_no_utf8(character):
                    self._text = self._text[: self.position] + left + self._text[self.position :]
                return


def _is_no_utf8(character: str) -> bool:
    return "\udc80" <= character <= "\udcff"


def _length_of_character(lead: int) -> int:
    """Return how many bytes a character has that begins with a byte; 1 for what begins none."""
    return 1 if lead < 0xC0 or lead >= 0xF8 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _decoded(record: bytes) -> str:
    """Return a record's text as Jackson decodes it: what is not UTF-8 spoils the string that it is in."""
    try:
        return record.decode()
    except UnicodeDecodeError:
        return record.decode("utf-8", "headgate-jackson")


def _as_jackson(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for bytes that are not UTF-8, and where to go on.

    Jackson looks at the number of bytes only: too many for a character, or a number beyond all characters, is decoded.
    """
    assert isinstance(error, UnicodeDecodeError)
    start, lead = error.start, error.object[error.start]
    length = _length_of_character(lead)
    rest = error.object[start + 1 : start + length]
    if length == 1 or len(rest) < length - 1 or not all(0x80 <= each < 0xC0 for each in rest):
        return chr(0xDC00 | lead), start + 1
    number = lead & (0x7F >> length)
    for each in rest:
        number = number << 6 | each & 0x3F
    if length < 4:
        return _ENCODED_SURROGATE if 0xD800 <= number < 0xE000 else chr(number), start + length
    number -= 0x10000
    halves = chr((0xD800 | number >> 10) & 0xFFFF), chr(0xDC00 | number & 0x3FF)
    return "".join("?" if _SURROGATE.match(each) else each for each in halves), start + length


codecs.register_error("headgate-jackson", _as_jackson)


def _space_end(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _is_word(character: str) -> bool:
    """Whether Java calls a character part of an identifier, which control characters are as well."""
    if character.isascii():
        return character.isalnum() or (
            character != "" and (character in "_$\x7f" or character <= "\x08" or "\x0e" <= character <= "\x1b")
        )
    return "\x80" <= character <= "\x9f" or unicodedata.category(character) in _WORD_CATEGORIES


def _well_formed(value: str) -> str:
    """Join escaped surrogate pairs; a single surrogate becomes a question mark, as Java encodes it."""
    if _SURROGATE.search(value) is None:
        return value
    joined = _SURROGATE_PAIR.sub(lambda m: m.group().encode("utf-16", "surrogatepass").decode("utf-16"), value)
    return _SURROGATE.sub("?", joined)
