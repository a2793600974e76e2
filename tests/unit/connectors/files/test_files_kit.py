"""Every promise of the contract, over every format, by the kit that connector authors use."""

import pytest
from files_cases import CASES, SCHEMA, csv_bytes, table, write

from headgate.connectors.files.source import FilesSource
from headgate.source import Boundedness
from headgate.testing import SourceHarness, assert_same_rows
from headgate.testing.conformance import conformance_test


class SmallBlocks(FilesSource):
    """Makes many batches of small files, so that there are many places to restore at."""

    block_bytes = 64


@pytest.fixture
def written(tmp_path, case):
    return write(tmp_path, case, files=2, rows=20)[0]


test_every_format_keeps = pytest.mark.parametrize("case", CASES)(
    conformance_test(lambda written: SmallBlocks({**written, "splitSize": "100"}), schema=SCHEMA)
)


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_read_in_full(case, tmp_path):
    options, expected = write(tmp_path, case)
    for split_size in ("64", "1000", "1g"):
        with SourceHarness(FilesSource({**options, "splitSize": split_size}), schema=SCHEMA) as harness:
            harness.run_to_end()
            assert_same_rows(harness.rows(), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_schema_is_inferred(case, tmp_path):
    options, _ = write(tmp_path, case)
    inferred = FilesSource({**options, "inferSchema": "true"} if "csv" in case else options).schema()
    assert inferred.names == ["id", "name"]
    assert str(inferred.field("id").type) in ("int32", "int64")


def test_a_stream_finds_new_files_after_a_restore(tmp_path):
    options, expected = write(tmp_path, "csv", files=2)
    unbounded = {"schema": SCHEMA, "boundedness": Boundedness.CONTINUOUS_UNBOUNDED}
    with SourceHarness(SmallBlocks(options), **unbounded) as harness:
        harness.run_until_rows(35)
        snapshot = harness.snapshot()
        first = harness.rows()
    assert len(first) < len(expected)
    (tmp_path / "new.csv").write_bytes(csv_bytes(table(5000, 3)))
    expected += table(5000, 3).to_pylist()
    with SourceHarness(SmallBlocks(options), snapshot=snapshot, **unbounded) as harness:
        harness.run_until_rows(len(expected) - len(first))
        assert_same_rows(first + harness.rows(), expected)
        for _ in range(20):
            harness.enumerator.run_next_call()
        assert harness.row_count == len(expected) - len(first)
