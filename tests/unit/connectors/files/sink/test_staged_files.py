"""Committables of the files sinks: their bytes, and the names of staged files."""

from __future__ import annotations

import pytest

from headgate.connectors.files.sink.staged_files import StagedFile, StagedName, StagedNames, decode_staged
from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.protocol.operator_context import OperatorContext

NAME = "8e35c2cd-3-1-7-2-5-0123abcd.snappy.parquet"
GOLDEN = b'{"version":1,"output":"bucket/out","name":"%s","rows":10,"size":2000}' % NAME.encode()
PARTITIONED = GOLDEN.replace(b":1,", b":2,", 1)[:-1] + b',"folder":"a=x%2Fy/b=1"}'


def test_version_1_as_it_stands_in_checkpoints() -> None:
    staged = StagedFile.of("bucket/out", NAME, 10, 2000)
    assert staged.encode() == GOLDEN
    assert decode_staged(GOLDEN) == staged


def test_version_2_as_it_stands_in_checkpoints() -> None:
    staged = StagedFile.of("bucket/out", NAME, 10, 2000, "a=x%2Fy/b=1")
    assert staged.encode() == PARTITIONED
    assert decode_staged(PARTITIONED) == staged


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", GOLDEN.replace(b"10", b'"x"'), GOLDEN.replace(NAME.encode(), b"../../a"),
     PARTITIONED.replace(b"b=1", b"..")],
)  # fmt: skip
def test_what_is_not_ours_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptStateError):
        decode_staged(data)


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_staged(b'{"version":3,"something":"else"}')


def test_names_show_who_staged_and_never_come_twice() -> None:
    context = OperatorContext(uid="s", subtask=1, parallelism=2, run=3, attempt=7, execution=2, query_id="q")
    first, zombie = StagedNames(context, "json.gz"), StagedNames(context, "json.gz")
    names = [first.next(), first.next(), zombie.next()]
    assert len(set(names)) == 3
    parsed = [StagedName.parse(name) for name in names]
    assert [(each.run, each.subtask, each.attempt, each.execution, each.count) for each in parsed] == [
        (3, 1, 7, 2, 1), (3, 1, 7, 2, 2), (3, 1, 7, 2, 1),
    ]  # fmt: skip
    assert StagedName.try_parse("publishing-00001-0123456789abcdef.json") is None


def test_names_sort_as_rows_were_written() -> None:
    names = [StagedName("q", run, subtask, 1, 1, count) for run in (1, 2) for subtask in (0, 10) for count in (9, 10)]
    assert sorted(set(names)) == names
