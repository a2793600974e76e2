"""When rows of files are, without reading them: what statistics and folders show, and what is planned by it."""

import datetime
import io
import pickle
import random

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest
from files_cases import csv_bytes, table
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.event_times import EventTimes, RowTimes
from headgate.connectors.files.listing import FileStatus
from headgate.connectors.files.source import FilesSource
from headgate.connectors.files.split import FileSplit
from headgate.errors import SourceUnavailableError
from headgate.formats.parquet import earliest_event_times
from headgate.source import PlanLimits, SupportsEventTimeSeek
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.testing import EnumeratorHarness, ReaderHarness, assert_same_rows

AT = pa.field("at", pa.timestamp("us", "UTC"))
SCHEMA = pa.schema([AT, ("id", pa.int64())])
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def parquet(values, data_type=AT.type, rows_per_group=2, name="at", **options):
    sink = io.BytesIO()
    data = pa.table({"id": pa.array(range(len(values)), pa.int64()), name: pa.array(values, data_type)})
    pq.write_table(data, sink, row_group_size=rows_per_group, **options)
    return sink.getvalue()


def earliest(data, column=AT):
    return earliest_event_times(pa.BufferReader(data), "f.parquet", column)


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        ("ms", [5, 3, 9], (3, 9)),
        ("us", [5_999, 3_999, -1], (3, -1)),
        ("ns", [5_999_999, 3_999_999, -1], (3, -1)),
    ],
)
def test_bounds_are_rounded_down_whatever_the_unit(unit, values, expected):
    assert earliest(parquet(values, pa.timestamp(unit))) == expected


def test_dates_that_are_read_as_times_have_bounds():
    data = parquet([datetime.date(1970, 1, 3), datetime.date(1970, 1, 2)], pa.date32())
    assert earliest(data, pa.field("at", pa.timestamp("us"))) == (DAY_MS,)


def test_what_has_no_event_time_has_no_bound():
    assert earliest(parquet([None, None, None, 7])) == (MAX_WATERMARK_MS, 0)
    assert earliest(parquet([1, 2, 3], name="other")) == (MAX_WATERMARK_MS, MAX_WATERMARK_MS)


def test_without_statistics_rows_may_be_of_any_time():
    assert earliest(parquet([1, 2, 3], write_statistics=False)) == (MIN_WATERMARK_MS, MIN_WATERMARK_MS)
    assert earliest(parquet([1, 2], use_deprecated_int96_timestamps=True)) == (MIN_WATERMARK_MS,)
    assert earliest(parquet(["a", "b"], pa.string())) == (MIN_WATERMARK_MS,)


def test_the_column_is_found_whatever_its_case():
    assert earliest(parquet([2_000, 1_000], name="At")) == (1,)


def status(path, content=None, partitions=(), size=None):
    if content is not None:
        path.write_bytes(content)
    return FileStatus(str(path), len(content or b"x") if size is None else size, 1, partitions)


def event_times(has_footers=True, zone=None, column=AT):
    return EventTimes(pa_fs.LocalFileSystem(), column, has_footers=has_footers, time_zone=zone)


def test_files_that_are_damaged_or_gone_may_have_rows_of_any_time(tmp_path):
    files = [
        status(tmp_path / "good", parquet([1_000, 2_000])),
        status(tmp_path / "damaged", b"PAR1 nothing PAR1"),
        status(tmp_path / "gone"),
    ]
    assert [each.earliest for each in event_times().look_at(files)] == [(1,), (MIN_WATERMARK_MS,), (MIN_WATERMARK_MS,)]


def test_a_file_system_that_does_not_answer_is_an_error(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceUnavailableError, match="footer"):
        event_times().look_at([status(tmp_path / "folder")])


def test_a_footer_is_read_once(tmp_path):
    file = status(tmp_path / "a", parquet([1_000]))
    times = event_times()
    first = times.look_at([file])
    (tmp_path / "a").unlink()
    assert times.look_at([file]) == first
    assert times.look_at([msgspec.structs.replace(file, size=1)]) == [RowTimes()]


@pytest.mark.parametrize(
    ("column", "zone", "expected"),
    [
        (pa.field("AT", pa.timestamp("us")), None, DAY_MS),
        (AT, "UTC", DAY_MS),
        (AT, "Europe/Berlin", DAY_MS - HOUR_MS),
        (AT, None, DAY_MS - 14 * HOUR_MS),  # in Kiribati the day begins then
    ],
)
def test_folders_show_the_event_time_of_all_their_rows(tmp_path, column, zone, expected):
    file = status(tmp_path / "a", partitions=(("at", "1970-01-02"),))
    times = event_times(has_footers=False, zone=zone, column=column)
    assert times.can_know(file)
    assert times.look_at([file])[0].earliest == (expected,)


def test_folders_without_a_time_hold_nobody_and_those_that_cannot_be_read_hold_all(tmp_path):
    times = event_times(has_footers=False)
    files = [status(tmp_path / "a", partitions=(("at", text),)) for text in (None, "noon")]
    assert [each.earliest for each in times.look_at(files)] == [(MAX_WATERMARK_MS,), (MIN_WATERMARK_MS,)]
    assert not times.can_know(status(tmp_path / "b", partitions=(("city", "Rome"),)))


# -- plans ---------------------------------------------------------------------------------------------------------


def source_of(folder, **options):
    raw = {"path": str(folder), "fileFormat": "parquet", "eventTimeColumn": "at"}
    return FilesSource({**raw, **{name.replace("_", "."): value for name, value in options.items()}})


def splits_of(source, schema=SCHEMA):
    harness = EnumeratorHarness(source, schema=schema)
    harness.start()
    harness.register_reader(0)
    while harness.run_next_call():
        pass
    while 0 not in harness.no_more_splits:
        harness.request_split(0)
    return list(harness.assigned[0].values())


def rows_of(source, split):
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        return reader.run_to_end()


def ms(row):
    return None if row["at"] is None else int(row["at"].timestamp() * 1000)


TIMES = st.lists(st.one_of(st.none(), st.integers(0, 50_000)), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    files=st.lists(TIMES, min_size=1, max_size=4),
    split_size=st.sampled_from(["300", "1000", "1g"]),
    drift_ms=st.integers(1, 20),
    max_files=st.sampled_from([None, 1]),
    max_rows=st.sampled_from([None, 3]),
)
def test_plans_end_before_row_groups_that_are_too_late_and_everything_is_read_in_the_end(
    tmp_path_factory, files, split_size, drift_ms, max_files, max_rows
):
    folder = tmp_path_factory.mktemp("in")
    expected = []
    for number, values in enumerate(files):
        (folder / f"{number}.parquet").write_bytes(parquet(values))
        expected += pq.read_table(folder / f"{number}.parquet").select(["at", "id"]).to_pylist()
    source = source_of(folder, splitSize=split_size)
    splits = splits_of(source)
    found, plans = [], 0
    while splits:
        following = source.next_event_times(splits)
        bound = min((each for each in following.values() if each is not None), default=0) + drift_ms
        limits = PlanLimits(before_event_time_ms=bound, max_files=max_files, max_rows=max_rows)
        planned = source.plan_ranges(splits, limits, 0)
        assert planned, f"nothing is planned of {splits} before {bound}"
        for each in planned:
            following_ms = following[each.split.split_id]
            assert following_ms is None or following_ms < bound
            rows = rows_of(source, each.split)
            # Row groups are planned as a whole: of the two rows of one the first decides as little as the second.
            for first in range(0, len(rows), 2):
                times = [ms(row) for row in rows[first : first + 2] if row["at"] is not None]
                assert not times or min(times) < bound
            found += rows
        rests = {each.split.split_id: each.rest for each in planned}
        splits = [rest for split in splits if (rest := rests.get(split.split_id, split)) is not None]
        plans += 1
        assert plans < 100
    assert_same_rows(found, expected)


def test_the_next_event_time_is_that_of_the_row_group_that_is_next(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet([9_000, 5_000, None, None, 1_000, 2_000]))
    source = source_of(tmp_path)
    (split,) = splits_of(source)
    assert isinstance(source, SupportsEventTimeSeek)
    after = [msgspec.structs.replace(split, unit=unit, position=0) for unit in (0, 1, 2)]
    assert [source.next_event_times([each])[split.split_id] for each in after] == [5, 1, 1]
    assert source.plan_ranges([split], PlanLimits(before_event_time_ms=5), 0) == []
    (planned,) = source.plan_ranges([split], PlanLimits(before_event_time_ms=6), 0)
    assert (planned.split, planned.rest) == (split, None)  # nothing after its first row group is too late


def test_files_with_unknown_times_are_planned_as_ever(tmp_path):
    (tmp_path / "a.csv").write_bytes(csv_bytes(table()))
    source = source_of(tmp_path, fileFormat="csv", header="true")
    splits = splits_of(source)
    assert source.next_event_times(splits) is None
    assert [each.split for each in source.plan_ranges(splits, PlanLimits(before_event_time_ms=0), 0)] == splits


def test_without_an_event_time_column_nothing_is_known(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet([1]))
    source = FilesSource({"path": str(tmp_path), "fileFormat": "parquet"})
    assert source.next_event_times(splits_of(source)) is None


def test_whether_event_times_are_known_can_be_asked_at_any_time(tmp_path):
    """A planner asks before there is an enumerator, and a source that travels to a task leaves out what it knows."""
    (tmp_path / "a.parquet").write_bytes(parquet([1_000]))
    source = source_of(tmp_path)
    assert source.next_event_times([]) == {}
    (split,) = splits_of(source)
    assert source.next_event_times([split]) == {split.split_id: 1}
    assert pickle.loads(pickle.dumps(source)).next_event_times([split]) is None
    assert FilesSource({"path": str(tmp_path), "fileFormat": "parquet"}).next_event_times([]) is None


@given(seed=st.integers(0, 10_000), groups=st.integers(1, 9), size=st.integers(1, 60), length=st.integers(1, 60))
def test_the_earliest_row_of_a_split_is_that_of_its_row_groups(seed, groups, size, length):
    rng = random.Random(seed)
    bounds = tuple(rng.choice([1, 2, 3, 4, MAX_WATERMARK_MS]) for _ in range(groups))
    times = RowTimes(bounds, by_unit=True)
    rest = FileSplit(split_id="x", path="x", size=size, modified_ms=0, start=0, end=size)
    pieces = []
    while rest is not None:
        whole = times.earliest_ms(rest)
        piece, rest = rest.cut(length)
        pieces.append(times.earliest_ms(piece))
        assert whole == min(pieces[-1], times.earliest_ms(rest) if rest is not None else MAX_WATERMARK_MS)
    assert min(pieces) == min(bounds)
