"""Versioned bytes: canonical, every old version is read, an unknown one is refused, damage is named."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from headgate.errors import CorruptStateError, StoredStateError, UnsupportedVersionError
from headgate.source import Split, VersionedSerializer


class Page(Split, frozen=True, kw_only=True):
    number: int
    marks: dict[str, int] = {}  # noqa: RUF012  msgspec copies it
    at: tuple[int, ...] = ()


def second_from_first(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "number": fields["page"] + 1}


def third_from_second(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "at": [fields["number"]]}


PAGES = VersionedSerializer(Page, version=3, what="a page", upgrades={1: second_from_first, 2: third_from_second})


def test_what_was_written_is_read() -> None:
    page = Page(split_id="ä/1", number=-7, marks={"b": 1, "a": 2}, at=(1, 2))

    assert PAGES.deserialize(PAGES.serialize(page)) == page
    assert PAGES.from_json(PAGES.to_json(page)) == page


def test_equal_values_give_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one = Page(split_id="a", number=1, marks={"x": 1, "y": 2})
    other = Page(split_id="a", number=1, marks={"y": 2, "x": 1})

    assert PAGES.serialize(one) == PAGES.serialize(other)


@pytest.mark.parametrize(
    "golden",
    [
        b'{"page":4,"split_id":"a","v":1}',
        b'{"number":5,"split_id":"a","v":2}',
        b'{"at":[5],"marks":{},"number":5,"split_id":"a","v":3}',
    ],
)
def test_every_version_ever_written_is_read(golden: bytes) -> None:
    assert PAGES.deserialize(golden) == Page(split_id="a", number=5, at=(5,))


def test_the_newest_version_is_written_in_these_bytes() -> None:
    expected = b'{"at":[5],"marks":{},"number":5,"split_id":"a","v":3}'
    assert PAGES.serialize(Page(split_id="a", number=5, at=(5,))) == expected


@pytest.mark.parametrize("version", [0, 4, 99, -1])
def test_an_unknown_version_is_refused_with_both_versions(version: int) -> None:
    with pytest.raises(
        UnsupportedVersionError, match=f"a page has version {version}, this Headgate reads up to 3"
    ) as e:
        PAGES.deserialize(b'{"v":%d}' % version)

    assert (e.value.expected, e.value.found) == (3, version)


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (b"", "not valid JSON"),
        (b'{"v":3,"split_id":"a"', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"v":3,"split_id":"\xff"}', "not valid JSON"),
        (b"[]", "expected a JSON object with a version"),
        (b"null", "expected a JSON object with a version"),
        (b'{"split_id":"a"}', "expected a JSON object with a version"),
        (b'{"v":"3"}', "expected a JSON object with a version"),
        (b'{"v":3,"split_id":"a"}', "missing required field `number`"),
        (b'{"v":3,"split_id":"a","number":"7"}', r"Expected `int`, got `str` - at `\$\.number`"),
        (b'{"v":3,"split_id":"a","number":7,"marks":{"b":"c"}}', r"\$\.marks"),
    ],
)
def test_damaged_bytes_are_an_error_that_names_what_is_wrong(damaged: bytes, what: str) -> None:
    with pytest.raises(CorruptStateError, match=what) as raised:
        PAGES.deserialize(damaged)

    assert raised.value.what == "a page"
    assert isinstance(raised.value, StoredStateError)


def test_an_upgrade_that_meets_other_fields_than_it_knows_is_damage_too() -> None:
    with pytest.raises(CorruptStateError, match="'page'"):
        PAGES.deserialize(b'{"v":1,"split_id":"a"}')


def test_a_version_that_is_a_boolean_is_no_version() -> None:
    with pytest.raises(StoredStateError):
        PAGES.deserialize(b'{"v":true,"page":1,"split_id":"a"}')


def test_a_new_field_needs_no_upgrade_if_it_has_a_default() -> None:
    class Before(msgspec.Struct, frozen=True):
        a: int

    class After(msgspec.Struct, frozen=True):
        a: int
        b: str = "new"

    written = VersionedSerializer(Before, version=1, what="x").serialize(Before(1))

    assert VersionedSerializer(After, version=1, what="x").deserialize(written) == After(1, "new")


FIRST_USES = """
import sys, threading, types
import msgspec
from headgate.source.serialization import VersionedSerializer

sys.setswitchinterval(1e-6)
CODE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    a: int
    b: str | None
    c: list[int]
    d: dict[str, tuple[int, ...]] = {}
class Outer(msgspec.Struct):
    x: int
    inner: Inner
    others: list[Inner]
    by: dict[str, Inner] = {}
'''
data = b'{"x":1,"inner":{"a":1,"b":"q","c":[1]},"others":[{"a":1,"b":null,"c":[]}],"v":1}'
for number in range(300):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(compile(CODE, module.__name__, "exec"), module.__dict__)
    barrier = threading.Barrier(4)

    def read(serializer):
        barrier.wait()
        assert serializer.deserialize(data).inner.c == [1]

    serializers = [VersionedSerializer(module.Outer, version=1, what="it") for _ in range(4)]
    threads = [threading.Thread(target=read, args=(each,)) for each in serializers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def test_threads_that_read_a_type_for_the_first_time_do_not_crash() -> None:
    """They ended the process: msgspec was still finding out what the type is made of."""
    ended = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
