"""Bytes that released versions wrote are read for ever: tests/golden/files-*."""

import json

import pytest

from headgate.connectors.files.enumerator import STATE_SERIALIZER, FilesState
from headgate.connectors.files.seen_files import SeenFiles, SeenFilesState, file_hashes
from headgate.connectors.files.split import SPLIT_SERIALIZER, FileSplit
from headgate.errors import CorruptStateError, UnsupportedVersionError

SPLIT = FileSplit(
    split_id="3f2a:134217728",
    path="/data/year=2026/a b.csv",
    size=300_000_000,
    modified_ms=1_767_225_600_123,
    start=134_217_728,
    end=268_435_456,
    position=140_000_001,
    partitions={"year": "2026", "city": None},
)
UNIT_SPLIT = FileSplit(
    split_id="3f2b:0", path="bucket/a.parquet", size=5, modified_ms=0, start=0, end=5, position=7, unit=1
)


def state():
    seen = SeenFiles(604_800_000)
    for number, file_hash in enumerate(file_hashes(["/data/a.csv", "/data/b.csv", "bucket/c.csv"]).tolist()):
        seen.add(file_hash, 1_767_225_600_000 + number)
    return FilesState(seen=seen.snapshot(), pending=(SPLIT,))


@pytest.mark.parametrize(("name", "value"), [("files-split-v1.json", SPLIT), ("files-unit-split-v1.json", UNIT_SPLIT)])
def test_splits(repository, name, value):
    golden = (repository / "tests/golden" / name).read_bytes().strip()
    assert SPLIT_SERIALIZER.deserialize(golden) == value
    assert SPLIT_SERIALIZER.serialize(value) == golden


def test_state(repository):
    golden = (repository / "tests/golden/files-state-v1.json").read_bytes().strip()
    assert STATE_SERIALIZER.deserialize(golden) == state()
    assert STATE_SERIALIZER.serialize(state()) == golden
    seen = SeenFiles(604_800_000, STATE_SERIALIZER.deserialize(golden).seen)
    assert seen.lookup(file_hashes(["bucket/c.csv", "/data/new.csv"])).tolist() == [1_767_225_601, -1]


def test_a_fresh_state_is_small():
    assert STATE_SERIALIZER.serialize(FilesState()) == b'{"v":1}'
    assert STATE_SERIALIZER.deserialize(b'{"v":1}') == FilesState(seen=SeenFilesState())


def test_an_unknown_version_is_refused():
    for serializer in (SPLIT_SERIALIZER, STATE_SERIALIZER):
        with pytest.raises(UnsupportedVersionError, match=r"headgate\.files has version 2"):
            serializer.deserialize(json.dumps({"v": 2}).encode())


def test_a_damaged_split_is_refused_with_the_field():
    with pytest.raises(CorruptStateError, match="path"):
        SPLIT_SERIALIZER.deserialize(b'{"v":1,"split_id":"x"}')
