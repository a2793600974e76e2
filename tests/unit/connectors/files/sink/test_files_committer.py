"""Publishing through Spark's log: each row once, whatever crashes at whatever operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pytest
from faulty_files import (
    OUTPUT,
    SMALL,
    DyingHandler,
    assert_tidy,
    committer,
    in_memory,
    listed,
    published_names,
    visible,
)
from faulty_files import writer as make_writer

from headgate.connectors.files.sink.committer import PublishingLimits
from headgate.connectors.files.sink.staged_files import StagedNames, decode_staged
from headgate.errors import CorruptStateError, OptionError, SinkError, UnsupportedVersionError
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema({"id": pa.int64()})
ONE_BY_ONE = PublishingLimits(interval_ms=10_000, size_bytes=1 << 20, file_bytes=8)
When = Literal["before", "after"]


def context(subtask: int = 0, run: int = 1, execution: int = 1, query_id: str = "q") -> OperatorContext:
    return OperatorContext(uid="sink", subtask=subtask, parallelism=2, run=run, execution=execution, query_id=query_id)


def stage(files: Any, rows: Sequence[Sequence[int]], who: OperatorContext | None = None) -> list[bytes]:
    """Stage a file per element, and return their committables."""
    writer = make_writer(DyingHandler(files), StagedNames(who or context(), "json"), SCHEMA)
    for checkpoint_id, ids in enumerate(rows, 1):
        writer.write(pa.record_batch({"id": pa.array(ids, pa.int64())}))
        state = writer.prepare_commit(checkpoint_id, final=False).result(60)
    writer.close()
    return list(state.committables)


def test_readers_see_nothing_before_the_first_publication() -> None:
    files = in_memory()
    committer(DyingHandler(files)).open()
    assert listed(files, f"{OUTPUT}/_spark_metadata") == ["0"]
    stage(files, [[1]])
    assert listed(files, OUTPUT) == [] and visible(files) == []


def test_small_files_of_many_checkpoints_become_one() -> None:
    files = in_memory()
    staged = stage(files, [[1, 2], [3], [4]]) + stage(files, [[5]], context(subtask=1))
    assert committer(DyingHandler(files)).commit(staged, epoch=1, final=True) == []
    assert visible(files) == [1, 2, 3, 4, 5] and len(published_names(files)) == 1
    assert_tidy(files)


def test_large_files_are_published_as_they_are() -> None:
    files = in_memory()
    staged = stage(files, [[1, 2], [3]])
    committer(DyingHandler(files), ONE_BY_ONE).commit(staged, epoch=1, final=True)
    assert visible(files) == [1, 2, 3] and len(published_names(files)) == 2
    assert_tidy(files)


def test_what_is_not_due_is_returned_and_published_later() -> None:
    files, now = in_memory(), [0.0]
    commits = committer(DyingHandler(files), now=now)
    first, *others = stage(files, [[1], [2], [3]])
    assert commits.commit([first], epoch=1, final=False) == [], "the first rows are seen at once"
    now.append(9.9)
    assert commits.commit(others[:1], epoch=2, final=False) == others[:1]
    assert visible(files) == [1]
    now.append(10.0)
    assert commits.commit(others[1:], epoch=3, final=False) == [], "the one left before is published too"
    assert visible(files) == [1, 2, 3]
    assert commits.commit([], epoch=4, final=False) == []
    assert listed(files, f"{OUTPUT}/_spark_metadata") == ["0", "1", "2"], "no batch without rows"
    assert_tidy(files)


def test_much_that_is_staged_is_published_before_its_time() -> None:
    files = in_memory()
    commits = committer(DyingHandler(files), PublishingLimits(interval_ms=10_000, size_bytes=18, file_bytes=1 << 20))
    staged = stage(files, [[1], [2], [3]])
    assert commits.commit(staged[:1], epoch=1, final=False) == []
    assert commits.commit(staged[1:2], epoch=2, final=False) == staged[1:2]
    assert commits.commit(staged[1:], epoch=3, final=False) == []


def test_the_same_committables_again_publish_nothing() -> None:
    files = in_memory()
    staged = stage(files, [[1], [2]])
    commits = committer(DyingHandler(files))
    for each in (commits, commits, committer(DyingHandler(files))):
        assert each.commit(staged, epoch=1, final=True) == []
        assert visible(files) == [1, 2] and len(listed(files, f"{OUTPUT}/_spark_metadata")) == 2


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("limits", [SMALL, ONE_BY_ONE], ids=["merged", "moved"])
@pytest.mark.parametrize("batches", [0, 8], ids=["plain", "compact"])
@pytest.mark.parametrize("again", ["new process", "same process"])
def test_a_crash_at_any_operation(batches: int, limits: PublishingLimits, when: When, again: str) -> None:
    """The whole life of a publication, from opening the folder on, is killed at each operation in turn."""
    dies_at, crashed = 0, True
    while crashed:
        dies_at += 1
        files = in_memory()
        for batch in range(batches):
            committer(DyingHandler(files)).commit(stage(files, [[-batch]]), epoch=batch + 1, final=True)
        staged = stage(files, [[1], [2, 3], [4]])
        before = sorted(-batch for batch in range(batches))
        dying = DyingHandler(files, dies_at, when)
        crashing = committer(dying, limits)
        try:
            crashing.commit(staged, epoch=9, final=True)
            crashed = False
        except SinkError as error:
            assert "dead" in str(error) or "Died" in repr(error.__cause__)
        assert visible(files) in (before, [*before, 1, 2, 3, 4])
        dying.dead, dying.dies_at = False, None
        after = crashing if again == "same process" else committer(DyingHandler(files), limits)
        more = stage(files, [[5]], context(subtask=1))
        assert after.commit([*staged, *more], epoch=10, final=True) == []
        assert visible(files) == [*before, 1, 2, 3, 4, 5], dies_at
        assert_tidy(files)
    assert dies_at > 8


@pytest.mark.parametrize("limits", [SMALL, ONE_BY_ONE], ids=["merged", "moved"])
def test_a_crash_in_the_recovery_from_a_crash(limits: PublishingLimits) -> None:
    for first in range(1, 14):
        for second in range(1, 14):
            files = in_memory()
            staged = stage(files, [[1], [2], [3]])
            for dies_at in (first, second):
                with_crash = committer(DyingHandler(files, dies_at, "after"), limits)
                try:
                    with_crash.commit(staged, epoch=1, final=True)
                except SinkError:
                    assert visible(files) in ([], [1, 2, 3])
            committer(DyingHandler(files), limits).commit(staged, epoch=1, final=True)
            assert visible(files) == [1, 2, 3]
            assert_tidy(files)


def test_memory_and_log_stay_small() -> None:
    """After many publications neither the committer nor a compact file knows the staged files of all of them."""
    files, now = in_memory(), [0.0]
    commits = committer(DyingHandler(files), now=now)
    for number in range(240):
        now.append(now[-1] + 60)
        commits.commit(stage(files, [[number]]), epoch=number + 1, final=False)
    assert commits._published is not None and len(commits._published) <= 20 and not commits._waiting
    assert visible(files) == list(range(240))
    log = listed(files, f"{OUTPUT}/_spark_metadata")
    assert len(log) < 130, "what compact files replaced is deleted, as by Spark's sink"
    with files.open_input_stream(f"{OUTPUT}/_spark_metadata/239.compact") as stream:
        assert stream.read().count(b"headgate") == 1


def test_dead_writers_files_are_deleted_and_living_ones_stay() -> None:
    files = in_memory()
    committer(DyingHandler(files)).open()
    dead_run = stage(files, [[90]], context(run=1))
    carried = stage(files, [[1]], context(run=1, subtask=1))
    dead_execution = stage(files, [[91]], context(run=2, execution=1))
    now_writing = stage(files, [[4]], context(run=2, execution=2))
    other_subtask = stage(files, [[5]], context(run=2, subtask=1))
    other_query = stage(files, [[6]], context(run=1, query_id="another"))
    first = stage(files, [[2]], context(run=2, execution=2))
    commits = committer(DyingHandler(files))
    commits.commit(carried, epoch=1, final=False)
    names = listed(files, f"{OUTPUT}/_staging")
    assert all(decode_staged(each[0]).name in names for each in (dead_run, dead_execution, now_writing)), (
        "their commits may be on the way"
    )
    commits.commit(first, epoch=2, final=False)
    names = listed(files, f"{OUTPUT}/_staging")
    assert [decode_staged(each[0]).name in names for each in (dead_run, dead_execution)] == [False, False]
    for each in (now_writing, other_subtask, other_query):
        assert decode_staged(each[0]).name in names
    commits.commit([*now_writing, *other_subtask], epoch=3, final=True)
    assert visible(files) == [1, 2, 4, 5]


def test_what_is_left_is_not_taken_for_a_dead_writers() -> None:
    files = in_memory()
    commits = committer(DyingHandler(files))
    commits.commit(stage(files, [[1]], context(execution=1)), epoch=1, final=False)
    left = stage(files, [[2]], context(execution=1))
    assert commits.commit(left, epoch=2, final=False) == left
    newer = stage(files, [[3]], context(execution=2))
    assert sorted(commits.commit(newer, epoch=3, final=False)) == sorted([*left, *newer])
    assert commits.commit([], epoch=4, final=True) == []
    assert visible(files) == [1, 2, 3]


def test_a_folder_with_files_of_others_is_refused() -> None:
    files = in_memory()
    files.create_dir(OUTPUT)
    with files.open_output_stream(f"{OUTPUT}/old.json") as stream:
        stream.write(b"{}")
    with pytest.raises(OptionError, match=r"old\.json.*another folder"):
        committer(DyingHandler(files)).open()
    assert listed(files, f"{OUTPUT}/_spark_metadata") == []


def test_a_log_of_sparks_own_sink_is_gone_on_with() -> None:
    files = in_memory()
    files.create_dir(f"{OUTPUT}/_spark_metadata")
    for number in range(4):
        with files.open_output_stream(f"{OUTPUT}/_spark_metadata/{number}") as stream:
            stream.write(b"v1")
    committer(DyingHandler(files)).commit(stage(files, [[1]]), epoch=1, final=True)
    assert listed(files, f"{OUTPUT}/_spark_metadata") == ["0", "1", "2", "3", "4"]
    assert visible(files) == [1]


def test_a_commit_without_rows_publishes_a_file_without_rows_once() -> None:
    """Readers that infer the schema need a file; the first rows are seen at once all the same."""
    files = in_memory()
    commits = committer(DyingHandler(files))
    for epoch in (1, 2):
        assert commits.commit([], epoch=epoch, final=False) == []
        assert len(published_names(files)) == 1 and visible(files) == []
    assert committer(DyingHandler(files)).commit([], epoch=3, final=True) == []
    assert len(published_names(files)) == 1
    assert commits.commit(stage(files, [[1]]), epoch=4, final=False) == []
    assert visible(files) == [1] and len(published_names(files)) == 2
    assert commits.commit([], epoch=5, final=False) == []
    assert len(published_names(files)) == 2
    assert_tidy(files)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("again", ["new process", "same process"])
@pytest.mark.parametrize("has_rows", [False, True], ids=["no rows", "rows"])
def test_a_crash_at_any_operation_of_a_commit_without_rows(when: When, again: str, has_rows: bool) -> None:
    dies_at, crashed = 0, True
    while crashed:
        dies_at += 1
        files = in_memory()
        dying = DyingHandler(files, dies_at, when)
        crashing = committer(dying)
        try:
            crashing.commit([], epoch=1, final=False)
            crashed = False
        except SinkError:
            assert visible(files) == []
        dying.dead, dying.dies_at = False, None
        after = crashing if again == "same process" else committer(DyingHandler(files))
        rows = stage(files, [[1]]) if has_rows else []
        assert after.commit(rows, epoch=2, final=False) == []
        assert visible(files) == [1] * has_rows and published_names(files), dies_at
        assert_tidy(files)
    assert dies_at > 6


def test_a_number_that_another_sink_took_does_not_count_as_ours() -> None:
    """The crash came before the log's file; then Spark's own sink wrote one of that number."""
    files = in_memory()
    staged = stage(files, [[1]])
    dying = DyingHandler(files)
    crashing = committer(dying, ONE_BY_ONE)
    crashing.open()
    dying.operations, dying.dies_at = 0, 3  # the intent, its name, and then the published file
    dying.when = "after"
    with pytest.raises(SinkError):
        crashing.commit(staged, epoch=1, final=True)
    assert len(listed(files, OUTPUT)) == 1, "made, not in the log"
    with files.open_output_stream(f"{OUTPUT}/_spark_metadata/1") as stream:
        stream.write(b"v1")
    committer(DyingHandler(files), ONE_BY_ONE).commit(staged, epoch=1, final=True)
    assert visible(files) == [1]
    assert_tidy(files)


def test_an_intent_as_it_lies_in_the_folder() -> None:
    """Versions 1 and 2 are read; once its number is taken, what the log does not name is deleted."""
    files = in_memory()
    committer(DyingHandler(files)).open()
    staged = stage(files, [[1]])
    name = decode_staged(staged[0]).name
    files.copy_file(f"{OUTPUT}/_staging/{name}", f"{OUTPUT}/part-x.json")
    golden = '{"version":1,"batch":1,"outputs":[{"name":"part-x.json","staged":["' + name + '"]}]}'
    intent = "publishing-00001-0123456789abcdef.json"
    for content, error in (
        (golden.replace("1", "3", 1), UnsupportedVersionError),
        ("{}", CorruptStateError),
        (golden[:-3], CorruptStateError),
        (golden, None),
    ):
        with files.open_output_stream(f"{OUTPUT}/_staging/{intent}") as stream:
            stream.write(content.encode())
        committer(DyingHandler(files)).open()
        assert listed(files, f"{OUTPUT}/_staging") == sorted([name, intent]), "whose it is may yet take its number"
        with files.open_output_stream(f"{OUTPUT}/_spark_metadata/1") as stream:
            stream.write(b"v1")
        if error is not None:
            with pytest.raises(error, match=r"publishing-00001-0123456789abcdef\.json"):
                committer(DyingHandler(files)).open()
            files.delete_file(f"{OUTPUT}/_spark_metadata/1")
    committer(DyingHandler(files)).open()
    assert listed(files, f"{OUTPUT}/_staging") == [name] and listed(files, OUTPUT) == []


def test_a_staged_file_that_is_gone_is_an_error() -> None:
    files = in_memory()
    staged = stage(files, [[1]])
    files.delete_file(f"{OUTPUT}/_staging/{decode_staged(staged[0]).name}")
    with pytest.raises(SinkError, match=r"_staging.*with 1 rows is gone"):
        committer(DyingHandler(files)).commit(staged, epoch=1, final=True)


def test_rows_staged_for_another_folder_stay_there() -> None:
    """A savepoint that a query goes on from into another folder names files of the first one."""
    files = in_memory()
    staged = [each.replace(b'"output":"out"', b'"output":"elsewhere"') for each in stage(files, [[1]])]
    files.delete_file(f"{OUTPUT}/_staging/{decode_staged(staged[0]).name}")
    assert committer(DyingHandler(files)).commit(staged, epoch=1, final=True) == []
    assert visible(files) == []
