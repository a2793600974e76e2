import pytest

from headgate.errors import BadDataError
from headgate.formats.csv_tokenizer import Dialect, Tokenizer

# Each expectation was read off Spark 4.3 (univocity-parsers 2.9.1).
DEFAULT = [
    ("a,b", ["a", "b"]),
    ("a,", ["a", ""]),
    (",", ["", ""]),
    ('"a,b",c', ["a,b", "c"]),
    ('"a\\"b",c', ['a"b', "c"]),
    ('"a\\\\",c', ["a\\", "c"]),
    ('"a\\b",c', ["a\\b", "c"]),
    ('"a""b",c', ['"a""b"', "c"]),
    ('"a"b,c', ['"a"b', "c"]),
    ('"a" b,c', ['"a" b', "c"]),
    ('"a"  ,c', ["a", "c"]),
    ('a"b"c,d', ['a"b"c', "d"]),
    (' "a",b', [' "a"', "b"]),
    ('1,"a', ["1", "a"]),
    ('1,"a,b', ["1", "a,b"]),
    ('1,"', ["1", '"']),
    ('1,""', ["1", ""]),
    ('"",""', ["", ""]),
]


@pytest.mark.parametrize(("line", "tokens"), DEFAULT, ids=[line for line, _ in DEFAULT])
def test_default_dialect(line: str, tokens: list[str]):
    assert Tokenizer(Dialect()).line(line) == tokens


@pytest.mark.parametrize(
    ("line", "tokens"),
    [('"a""b",c', ['a"b', "c"]), ('""""', ['"']), ('"a""",b', ['a"', "b"]), ('"a"b,c', ['"a"b', "c"])],
)
def test_doubled_quotes_as_escapes(line: str, tokens: list[str]):
    assert Tokenizer(Dialect(escape='"', escape_of_escape="\0")).line(line) == tokens


def test_unescaped_quotes():
    line = '1,"a"b,c"'
    results = {
        handling: Tokenizer(Dialect(unescaped=handling)).line(line)
        for handling in ("STOP_AT_DELIMITER", "STOP_AT_CLOSING_QUOTE", "SKIP_VALUE")
    }
    assert results == {
        "STOP_AT_DELIMITER": ["1", '"a"b', 'c"'],
        "STOP_AT_CLOSING_QUOTE": ["1", 'a"b,c'],
        "SKIP_VALUE": ["1", None, 'c"'],
    }
    with pytest.raises(BadDataError, match="RAISE_ERROR"):
        Tokenizer(Dialect(unescaped="RAISE_ERROR")).line(line)


def test_white_space():
    tokenizer = Tokenizer(Dialect(trim_leading=True, trim_trailing=True))
    assert tokenizer.line(' a , "b" ,\tc\t,  ') == ["a", "b", "c", ""]


def test_null_and_empty_values():
    tokenizer = Tokenizer(Dialect(null_value="N", empty_value="E"))
    assert tokenizer.line(',"",x,""') == ["N", "E", "x", "E"]
    assert tokenizer.line(",x,") == ["N", "x", "N"]


def test_long_separator():
    assert Tokenizer(Dialect(separator="||")).line('a||"b||c"||d|e||') == ["a", "b||c", "d|e", ""]


def test_records_of_a_document():
    tokenizer = Tokenizer(Dialect())
    text = '1,"a\nb"\n2,c\n'
    assert tokenizer.record(text, 0) == (["1", "a\nb"], 8)
    assert tokenizer.record(text, 8) == (["2", "c"], 12)


def test_max_columns():
    with pytest.raises(BadDataError, match="has 4 columns; maxColumns is 3"):
        Tokenizer(Dialect(max_columns=3)).line("1,2,3,4")
