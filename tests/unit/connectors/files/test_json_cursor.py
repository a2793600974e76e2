"""After an error the cursor goes on where Jackson 2.21 goes on; its answers stand here, of both of its parsers."""

import pytest

from headgate.formats.json_cursor import JsonCursor, JsonDialect, MalformedRecordError

ERROR = "!"
JACKSON = {
    # text: tokens of the parser of characters, and of the one of bytes; "!": an error, after it the next token
    "[2e,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[2.,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[22e,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[0.,1]": ("[ ! ! ] .", "[ ! ! ] ."),
    "[01,1]": ("[ ! ! integer ] .", "[ ! ! integer ] ."),
    "[-,1]": ("[ ! ! ] .", "[ ! ! ] ."),
    "[-x,1]": ("[ ! integer ] .", "[ ! integer ] ."),
    "[-2.,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[nulx,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[undefined,1]": ("[ ! integer ] .", "[ ! ! ] ."),
    "[.5,1]": ("[ ! ! integer ] .", "[ ! ! integer ] ."),
    "[+1,1]": ("[ ! integer ] .", "[ ! integer ] ."),
    '["\\q",1]': ("[ string ! ! integer ] .", "[ string ! ! integer ] ."),
    '["\\u12x",1]': ("[ string ! ! integer ] .", "[ string ! ! integer ] ."),
    "[1 2]": ("[ integer ! ] .", "[ integer ! ] ."),
    "[1,,2]": ("[ integer ! ! ] .", "[ integer ! ! ] ."),
    "[tru]": ("[ ! ] .", "[ ! ! !"),
    "[nullx]": ("[ ! ] .", "[ ! ! !"),
    '{"a":2e,"b":1}': ("{ ! .", "{ ! ."),
    '{"a" 1}': ("{ ! .", "{ ! ."),
    "{a:1}": ("{ ! ! !", "{ ! ! !"),
    '{"f":,"b":3}': ("{ ! .", "{ ! ."),
    '{"\\ud83dx":1}': ("{ name integer } .", "{ ! ! !"),
    '{"\\ud83d\\ude00":1}': ("{ name integer } .", "{ name integer } ."),
    '{"a":1 "f":2}': ("{ name integer ! ! !", "{ name integer ! ! !"),
}


def tokens(text: str, characters: bool) -> str:
    cursor = JsonCursor(text.encode(), JsonDialect(characters=characters))
    found: list[str] = []
    while found.count(ERROR) < 3 and (not found or found[-1] != "."):
        try:
            found.append(cursor.next() or ".")
        except MalformedRecordError:
            found.append(ERROR)
    return " ".join(found)


@pytest.mark.parametrize("text", JACKSON)
def test_what_follows_an_error_is_what_jackson_finds(text: str) -> None:
    assert (tokens(text, characters=True), tokens(text, characters=False)) == JACKSON[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [('"SGVsbG8="', b"Hello"), ('"SGVs\\u0062G8="', b"Hello"), ('"SGVs bG8="', b"Hello"), ('""', b""),
     ('"SGVsbG8=SGVsbG8="', b"HelloHello"), ("'SGVsbG8='", b"Hello"), ('"QQ="', None), ('"Q"', None), ('"QQ"', None),
     ('"Q Q="', None), ('"\\q"', None), ('"é"', None), ('"QQ', None)],
)  # fmt: skip
def test_base64(text: str, value: bytes | None) -> None:
    cursor = JsonCursor(f"[{text},7]".encode(), JsonDialect(characters=True))
    cursor.next()
    cursor.next()
    if value is None:
        with pytest.raises(MalformedRecordError):
            cursor.binary()
        return
    assert cursor.binary() == value
    assert (cursor.next(), cursor.text()) == ("integer", "7")


@pytest.mark.parametrize(
    ("text", "characters", "following"),
    [('"QQ="', True, ERROR), ('"Q"', True, ERROR), ('"QQ"', True, "integer"), ('"Q Q="', True, "integer"),
     (r'"QQ=\""', True, "integer"), (r'"QQ=\","', True, "integer"), ('"é"', True, "integer"),
     ('"é"', False, ERROR), (r'"\ud83d"', False, "integer"),
     ('"QQ=é"', False, ERROR), ('"QQ=é"', True, "integer"), ('"\udcff"', False, "integer")],
)  # fmt: skip
def test_base64_that_ends_within_a_group_may_take_the_end_of_its_string_with_it(
    text: str, characters: bool, following: str
) -> None:
    """Nor may it leave all bytes of a character, where those are bytes."""
    record = f"[{text},7]".encode(errors="surrogateescape")
    cursor = JsonCursor(record, JsonDialect(characters=characters))
    cursor.next()
    cursor.next()
    with pytest.raises(MalformedRecordError):
        cursor.binary()
    if following == ERROR:
        with pytest.raises(MalformedRecordError):
            cursor.next()
    else:
        assert cursor.next() == following
