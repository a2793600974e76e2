import pytest
from files_cases import CASES, SCHEMA, write

from headgate.connectors.files.source import FilesSource
from headgate.source import PlanLimits
from headgate.testing import EnumeratorHarness, ReaderHarness, assert_same_rows


def splits_of(source):
    harness = EnumeratorHarness(source, schema=SCHEMA)
    harness.start()
    harness.register_reader(0)
    harness.run_next_call()
    while 0 not in harness.no_more_splits:
        harness.request_split(0)
    return list(harness.assigned[0].values())


def rows_of(source, split):
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        reader.reader.notify_no_more_splits()
        reader.run_to_end()
        return reader.rows()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_rows", [1, 8, 1000])
def test_plans_hold_no_more_rows_than_allowed_and_all_in_the_end(case, max_rows, tmp_path):
    options, expected = write(tmp_path, case, files=2, rows=20)
    source = FilesSource({**options, "splitSize": "120"})
    splits = splits_of(source)
    found, whole_units = [], {"parquet": 7, "arrow": 7, "orc": 20}.get(case, 20 if "-" in case else 1)
    plans = 0
    while splits:
        planned = source.plan_ranges(splits, PlanLimits(max_rows=max_rows), 0)
        rows = [row for each in planned for row in rows_of(source, each.split)]
        exact = case in ("csv", "csv-crlf", "json")
        assert len(rows) <= (max_rows if exact else max(max_rows, whole_units))
        found += rows
        rests = {each.split.split_id: each.rest for each in planned}
        splits = [rest for split in splits if (rest := rests.get(split.split_id, split)) is not None]
        plans += 1
    assert_same_rows(found, expected)
    assert plans >= len(expected) // max(max_rows, whole_units)
