"""Cuts CSV text into tokens exactly as Spark's parser (univocity 2.9) does, strange quotes included.

Never: convert a value, skip blank lines or know about columns. This is the slow way, for the lines on which Arrow's
parser and Spark's could differ; ``csv_arrow`` decides which.

Follows univocity-parsers 2.9.1 as Spark 4.3 configures it (``CSVOptions.asParserSettings``). A value, from its start:

    starts with    is read as    ends at
    -------------  ------------  ------------------------------------------------------------------------------
    the quote      quoted        a quote before a separator, a line end or white space; escapes are resolved
    anything else  as it stands  the next separator or line end; quotes and escapes mean nothing
    nothing        nullValue     a separator or line end at once

What follows a quote that does not end its value is ``unescapedQuoteHandling``.
"""

from __future__ import annotations

import re

import msgspec

from headgate.errors import BadDataError

STOP_AT_DELIMITER = "STOP_AT_DELIMITER"
STOP_AT_CLOSING_QUOTE = "STOP_AT_CLOSING_QUOTE"
BACK_TO_DELIMITER = "BACK_TO_DELIMITER"
SKIP_VALUE = "SKIP_VALUE"
RAISE_ERROR = "RAISE_ERROR"

Tokens = list[str | None]
_WHITE = "".join(map(chr, range(33)))
_NONE = "\0"


class Dialect(msgspec.Struct, frozen=True):
    r"""How a CSV file is written. An unused character is ``\0``, as in Spark."""

    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    escape_of_escape: str = "\\"
    comment: str | None = None
    trim_leading: bool = False
    trim_trailing: bool = False
    null_value: str = ""
    empty_value: str = ""
    unescaped: str = STOP_AT_DELIMITER
    max_columns: int = 20480

    def is_skipped(self, line: str) -> bool:
        """Return whether a line holds no record: it is blank, or a comment."""
        return not line.strip(_WHITE) or (self.comment is not None and line.startswith(self.comment))


def _without_line_end(text: str) -> str:
    """Return a text without its last line end, as Scala's ``stripLineEnd`` does."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith(("\n", "\r")) else text


class _EndOfTextError(Exception):
    """The text ended inside a value."""


class Tokenizer:
    """Reads records of one dialect. Not for use by several threads."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        quote, separator = re.escape(dialect.quote), re.escape(dialect.separator)
        escape, escaped = re.escape(dialect.escape), re.escape(dialect.quote + dialect.escape_of_escape)
        # A value that ends at its first quote, which nothing escapes: univocity copies it as it stands.
        inside = (
            f"[^{quote}\n]+"
            if dialect.escape == dialect.quote
            else f"(?:[^{quote}{escape}\n]|{escape}(?![{escaped}]))*"
        )
        self._whole_value = re.compile(f"{quote}({inside}){quote}(?={separator}|\n)")
        inner = "".join({re.escape(each) for each in (dialect.quote, dialect.escape, dialect.escape_of_escape, "\n")})
        self._stops = re.compile("[" + "".join(re.escape(c) for c in self._specials()) + "]")
        self._value_end = re.compile(f"{separator}|\n")
        # The everyday record with quotes: quoted values without a quote or escape in them, others without quotes.
        value = f"(?:{quote}[^{inner}]*{quote}|(?!{quote})(?:(?!{separator})[^{quote}\n])*)"
        self._tidy_record = re.compile(f"{value}(?:{separator}{value})*")
        # Without an escape univocity reads a doubled quote strangely, and so it does a separator of several characters.
        self._may_be_tidy = not (dialect.trim_leading or dialect.trim_trailing) and (
            len(dialect.separator) == 1 and dialect.escape != _NONE
        )
        self._tidy_value = re.compile(f"(?:^|{separator})({value})")

    def _specials(self) -> str:
        return self.dialect.quote + self.dialect.escape + self.dialect.escape_of_escape

    def line(self, text: str) -> Tokens:
        """Return the tokens of one line, given without its end, that is not skipped."""
        dialect = self.dialect
        if dialect.quote not in text and len(dialect.separator) == 1:
            return self._limited(self._without_quotes(text))
        if self._may_be_tidy and self._tidy_record.fullmatch(text):
            raw = self._tidy_value.findall(text)
            return self._limited([self._tidy_token(token) for token in raw])
        return self.record(text, 0)[0]

    def cut_line(self, text: str, line_separator: str | None) -> tuple[Tokens, str]:
        r"""Return the tokens of a line that is not skipped, and the text that they are of, without a line end.

        To univocity a line ends in ``\n`` as well where ``lineSep`` has two characters, but inside of a value that a
        separator follows; where it has another one, ``\n`` is white space like any other.
        """
        if line_separator is None or "\n" not in text:
            return self.line(text), _without_line_end(text)
        if len(line_separator) == 1:
            stands_for = self._unused_white(text)
            tokens = self.line(text.replace("\n", stands_for))
            whole = [token and token.replace(stands_for, "\n") for token in tokens]
            return whole, _without_line_end(text)
        tokens, at, start = [], 0, 0
        while not tokens and at < len(text):
            start = at
            tokens, at = self.record(text, at, is_line=True)
        return tokens, _without_line_end(text[start:at])

    def _unused_white(self, text: str) -> str:
        used = {*text, *self._specials(), *self.dialect.separator, *(self.dialect.comment or ""), "\n", _NONE}
        return next((each for each in _WHITE if each not in used), "\n")

    def _tidy_token(self, token: str) -> str:
        if not token:
            return self.dialect.null_value
        if token[0] == self.dialect.quote:
            return token[1:-1] or self.dialect.empty_value
        return token

    def _without_quotes(self, text: str) -> Tokens:
        dialect = self.dialect
        tokens: Tokens = [*text.split(dialect.separator)]
        if dialect.trim_leading or dialect.trim_trailing:
            last = len(tokens) - 1
            for index, token in enumerate(tokens):
                if token:
                    tokens[index] = self._trimmed(str(token), index == last)
        if dialect.null_value:
            tokens = [token or dialect.null_value for token in tokens]
        return tokens

    def _trimmed(self, token: str, is_last: bool) -> str:
        dialect = self.dialect
        if dialect.trim_leading:
            token = token.lstrip(_WHITE)
            if not token:
                return dialect.null_value
        if dialect.trim_trailing:
            token = token.rstrip(_WHITE)
            if not token and (is_last or len(dialect.separator) > 1):
                return dialect.empty_value
        return token or dialect.null_value

    def record(self, text: str, start: int, *, is_line: bool = False) -> tuple[Tokens, int]:
        """Return the tokens of the record that starts at an offset, none for a blank one, and where the next starts.

        Where a value runs to the end of the text, so does the record: give it more text, or believe it. Of a line, a
        value without quotes runs over line ends to a separator, if there is one.
        """
        record = _Record(self.dialect, self._stops, self._value_end, self._whole_value, text, start)
        record.is_line = is_line and len(self.dialect.separator) == 1
        record.read()
        return self._limited(record.tokens), record.at

    def _limited(self, tokens: Tokens) -> Tokens:
        if len(tokens) > self.dialect.max_columns:
            raise BadDataError(
                f"A record has {len(tokens)} columns; maxColumns is {self.dialect.max_columns}. Raise that option, or "
                "check the options sep and lineSep.",
                columns=len(tokens),
            )
        return tokens


class _Record:
    """The state of reading one record: what was read last (``ch``), before it (``prev``), and the value so far."""

    def __init__(
        self,
        dialect: Dialect,
        stops: re.Pattern[str],
        value_end: re.Pattern[str],
        whole_value: re.Pattern[str],
        text: str,
        at: int,
    ) -> None:
        self.dialect = dialect
        self.stops = stops
        self.value_end = value_end
        self.whole_value = whole_value
        self.text = text
        self.at = at
        self.tokens: Tokens = []
        self.value = ""
        self.skipped = False
        self.ch = _NONE
        self.prev = _NONE
        self.unescaped = False
        self.trim = False
        self.is_line = False

    def read(self) -> None:
        try:
            self.next()
            if self.dialect.trim_leading:
                self._skip_white()
            while self.ch != "\n":
                self._read_value()
        except _EndOfTextError:
            self._finish_at_end()

    def next(self) -> None:
        """Advance one character; a separator of several characters counts as one."""
        if self.at >= len(self.text):
            raise _EndOfTextError
        separator = self.dialect.separator
        if len(separator) > 1 and self.text.startswith(separator, self.at):
            self.ch = separator
        else:
            self.ch = self.text[self.at]
        self.at += len(self.ch)

    def _skip_white(self) -> None:
        while self._is_white() and self.ch != self.dialect.quote:
            self.next()

    def _ends_value(self) -> bool:
        return self.ch == self.dialect.separator or self.ch == "\n"

    def _is_white(self) -> bool:
        return self.ch <= " " and self.ch != "\n" and self.ch != self.dialect.separator

    def _read_value(self) -> None:
        dialect = self.dialect
        self.prev, self.unescaped = _NONE, False
        if dialect.trim_leading:
            self._skip_white()
        if self._ends_value():
            self.tokens.append(dialect.null_value)
        elif self.ch == dialect.quote:
            self.trim = False
            whole = self.whole_value.match(self.text, self.at - 1) if len(dialect.separator) == 1 else None
            if whole is not None:
                self.tokens.append(whole[1] or dialect.empty_value)
                self.at = whole.end()
                self.next()
            else:
                self._quoted()
            if whole is None and not (self.unescaped and dialect.unescaped == BACK_TO_DELIMITER and not self.value):
                self._emit()
        else:
            self.trim = dialect.trim_trailing
            self.value = self.ch
            self._rest_of_value()
            token = self.value.rstrip(_WHITE) if self.trim else self.value
            self.value = ""
            self.tokens.append(token or (dialect.null_value if len(dialect.separator) == 1 else dialect.empty_value))
        if self.ch != "\n":
            self.next()
            if self.ch == "\n":
                self.tokens.append(dialect.null_value)

    def _emit(self) -> None:
        token = self.value.rstrip(_WHITE) if self.trim else self.value
        self.tokens.append(None if self.skipped else token or self.dialect.empty_value)
        self.value, self.skipped = "", False

    def _rest_of_value(self) -> None:
        """Append everything up to the next separator or line end, which becomes ``ch``."""
        end = self.value_end.search(self.text, self.at)
        if end is not None and end[0] == "\n" and self.is_line and len(self.value) == 1:
            end = re.compile(re.escape(self.dialect.separator)).search(self.text, self.at) or end
        if end is None:
            self.value += self.text[self.at :]
            self.at = len(self.text)
            if len(self.dialect.separator) > 1:
                self.ch = self.text[-1]
            raise _EndOfTextError
        self.value += self.text[self.at : end.start()]
        self.ch, self.at = end[0], end.end()

    def _quoted(self) -> None:
        """Read on inside quotes; ``ch`` is the opening quote, or what an earlier call stopped at."""
        dialect = self.dialect
        if self.prev != _NONE and dialect.unescaped not in (STOP_AT_CLOSING_QUOTE, RAISE_ERROR):
            if dialect.unescaped == SKIP_VALUE:
                self._skip_value()
                return
            self.value = dialect.quote + self.value
            self.next()
            self.trim = dialect.trim_trailing
            if not self._ends_value():
                self.value += self.ch
                self._rest_of_value()
            return
        self.next()
        while not (self.prev == dialect.quote and (self.ch <= " " or self._ends_value())):
            if self.ch not in (dialect.quote, dialect.escape):
                if self.prev == dialect.quote:
                    self._after_unescaped_quote()
                    return
                if self.prev == dialect.escape and dialect.escape != _NONE:
                    self.value += dialect.escape
                self._append_until_special()
                self.prev = self.ch
                self.next()
            else:
                self._quote_or_escape()
                self.prev = self.ch
                self.next()
                if self.unescaped and self._ends_value():
                    return
        if self._is_white():
            self._white_after_quote()
        if not self._ends_value():
            raise self._unescaped_error()

    def _append_until_special(self) -> None:
        start = self.at - len(self.ch)
        stop = self.stops.search(self.text, start)
        if stop is None:
            self.value += self.text[start:]
            self.at = len(self.text)
            raise _EndOfTextError
        self.value += self.text[start : stop.start()]
        self.ch, self.at = stop[0], stop.end()

    def _white_after_quote(self) -> None:
        dialect = self.dialect
        white = ""
        while True:
            white += self.ch
            self.next()
            if self.ch == "\n":
                return
            if not (self.ch <= " " and self.ch != dialect.separator):
                break
        if self.ch == dialect.separator or dialect.unescaped == RAISE_ERROR:
            return
        self.value += dialect.quote + white
        if dialect.unescaped != STOP_AT_CLOSING_QUOTE or self.ch not in (dialect.quote, dialect.escape):
            self.value += self.ch
        self.prev = self.ch
        self._quoted()

    def _quote_or_escape(self) -> None:
        dialect = self.dialect
        if self.ch == dialect.escape and self.prev == dialect.escape_of_escape and dialect.escape_of_escape != _NONE:
            self.value += dialect.escape
            self.ch = _NONE
        elif self.prev == dialect.escape:
            if self.ch == dialect.quote:
                self.value += dialect.quote
                self.ch = _NONE
            else:
                self.value += self.prev
        elif self.ch == dialect.quote and self.prev == dialect.quote:
            self.value += dialect.quote
        elif self.prev == dialect.quote:
            self._quote_inside_value()

    def _quote_inside_value(self) -> None:
        dialect = self.dialect
        if dialect.unescaped == RAISE_ERROR:
            raise self._unescaped_error()
        if dialect.unescaped == SKIP_VALUE:
            self._skip_value()
            return
        self.value += dialect.quote
        self.prev = self.ch
        while not self._ends_value():
            if self.ch not in (dialect.quote, dialect.escape):
                if self.prev == dialect.quote:
                    self._quote_inside_value()
                    return
                self.value += self.ch
            else:
                self._quote_or_escape()
            self.prev = self.ch
            self.next()

    def _after_unescaped_quote(self) -> None:
        dialect = self.dialect
        self.unescaped = True
        if dialect.unescaped == RAISE_ERROR:
            raise self._unescaped_error()
        if dialect.unescaped == SKIP_VALUE:
            self._skip_value()
            return
        if dialect.unescaped == BACK_TO_DELIMITER:
            *whole, self.value = self.value.split(dialect.separator)
            self.tokens.extend(whole)
            self.value += self.ch
            self.prev = _NONE
        else:
            self.value += dialect.quote + self.ch
            self.prev = self.ch
        self._quoted()

    def _skip_value(self) -> None:
        self.value, self.skipped = "", True
        if not self._ends_value():
            self._rest_of_value()
        self.value = ""

    def _unescaped_error(self) -> BadDataError:
        return BadDataError(
            f"An unescaped quote {self.dialect.quote!r} is inside a value, and unescapedQuoteHandling is "
            "RAISE_ERROR. Correct the file, or choose STOP_AT_DELIMITER.",
        )

    def _finish_at_end(self) -> None:
        """End the record where the text ends; an open quote is a value of its own if nothing follows it."""
        dialect = self.dialect
        if self.ch == dialect.quote and dialect.quote != _NONE and self.prev != dialect.quote and not self.unescaped:
            self.value += dialect.quote
        is_value = self.prev != _NONE and not self._ends_value() and self.ch != (dialect.comment or "#")
        is_value = is_value or (self.ch == dialect.quote and self.prev == dialect.quote)
        if self.value or self.skipped or is_value:
            self._emit()
        else:
            self.tokens.append(dialect.null_value)
