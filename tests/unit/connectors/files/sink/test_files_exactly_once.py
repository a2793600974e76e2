"""A query with a files sink under random schedules of checkpoints, crashes, failovers and zombies: each row once."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from faulty_files import OUTPUT, DyingHandler, assert_tidy, committer, in_memory, listed, visible
from faulty_files import writer as make_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.sink.committer import FilesCommitter, PublishingLimits
from headgate.connectors.files.sink.partition_folders import PartitionFolders
from headgate.connectors.files.sink.staged_files import StagedNames
from headgate.connectors.files.sink.writer import FilesWriter
from headgate.errors import SinkError
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema({"id": pa.int64(), "digit": pa.string(), "half": pa.int64()})
SUBTASKS = 2
When = Literal["before", "after"]


def batch_of(ids: list[int]) -> pa.RecordBatch:
    digits = [None if each % 3 == 0 else f"/{each % 3}" for each in ids]
    return pa.record_batch([ids, digits, [each // 20 for each in ids]], SCHEMA)


class Query:
    """A small query: every subtask writes its own whole numbers, from where the last checkpoint left it.

    What the coordinators promise is played here: checkpoints complete in order, what is not known committed is in
    the next manifest, and what the last manifest names is committed again before anything runs.
    """

    def __init__(self, *, file_bytes: int, left_comes_again: bool, partitioned: bool) -> None:
        self.files = in_memory()
        self.folders = PartitionFolders(["digit", "half"], "UTC") if partitioned else None
        self.limits = PublishingLimits(interval_ms=2000, size_bytes=1 << 20, file_bytes=file_bytes)
        self.left_comes_again = left_comes_again
        self.now = [0.0]
        self.run = 0
        self.checkpoint_id = 0
        self.epoch = 0
        self.completed = [0] * SUBTASKS  # positions of the last completed checkpoint
        self.manifest: list[bytes] = []  # its commits
        self.zombies: list[FilesWriter] = []
        self.start_run()

    def start_run(self) -> None:
        """The driver starts, anew or after its death: from the last completed checkpoint."""
        self.run += 1
        self.executions = [0] * SUBTASKS
        self.positions = list(self.completed)
        self.handlers: list[DyingHandler] = [DyingHandler(self.files)] * SUBTASKS
        self.writers: list[FilesWriter | None] = [None] * SUBTASKS
        self.driver = DyingHandler(self.files)
        self.committer = self.make_committer()
        self.to_commit = list(self.manifest)
        self.commit()
        for subtask in range(SUBTASKS):
            self.deploy(subtask)

    def make_committer(self) -> FilesCommitter:
        return committer(self.driver, self.limits, self.now, partitioned=self.folders is not None)

    def deploy(self, subtask: int) -> None:
        self.executions[subtask] += 1
        self.positions[subtask] = self.completed[subtask]
        context = OperatorContext(
            uid="sink", subtask=subtask, parallelism=SUBTASKS, run=self.run, execution=self.executions[subtask]
        )
        self.handlers[subtask] = DyingHandler(self.files)
        self.writers[subtask] = make_writer(
            self.handlers[subtask], StagedNames(context, "json"), SCHEMA, self.limits.file_bytes, self.folders
        )

    def write(self, subtask: int, rows: int) -> None:
        first = self.positions[subtask]
        self.positions[subtask] += rows
        ids = [2 * number + subtask for number in range(first, first + rows)]
        self.writer(subtask).write(batch_of(ids))

    def writer(self, subtask: int) -> FilesWriter:
        writer = self.writers[subtask]
        assert writer is not None
        return writer

    def checkpoint(self, *, completes: bool) -> None:
        self.checkpoint_id += 1
        states = [
            self.writer(each).prepare_commit(self.checkpoint_id, final=False).result(60) for each in range(SUBTASKS)
        ]
        if not completes:
            return
        self.completed = list(self.positions)
        self.epoch += 1
        new = [each for state in states for each in state.committables]
        self.manifest = list(dict.fromkeys([*self.manifest, *new]))
        self.to_commit = list(self.manifest) if self.left_comes_again else [*self.to_commit, *new]
        for each in range(SUBTASKS):
            self.writer(each).notify_checkpoint_complete(self.checkpoint_id)

    def commit(self, dies_at: int | None = None, when: When = "before", *, final: bool = False) -> None:
        """Commit what is completed; the process may die in it, and then the query starts again."""
        self.driver.operations, self.driver.dies_at, self.driver.when = 0, dies_at, when
        try:
            left = self.committer.commit(self.to_commit, epoch=self.epoch, final=final)
        except SinkError:
            assert self.driver.dead
            self.look()
            self.kill_all()
            self.start_run()
        else:
            self.driver.dies_at = None
            self.manifest, self.to_commit = list(left), []
        self.look()

    def kill(self, subtask: int, *, zombie: bool) -> None:
        """A writer dies in the middle of its rows, or lives on without anybody listening."""
        writer = self.writer(subtask)
        if zombie:
            self.zombies.append(writer)
        else:
            self.handlers[subtask].dead = True
            writer.close()
        self.deploy(subtask)

    def kill_all(self) -> None:
        for subtask, writer in enumerate(self.writers):
            if writer is not None:
                self.handlers[subtask].dead = True
                writer.close()

    def stage_by_zombies(self) -> None:
        for writer in self.zombies:
            writer.write(batch_of([-1]))
            writer.prepare_commit(self.checkpoint_id + 1, final=False).result(60)

    def look(self) -> None:
        """Whatever happens, readers see no row twice, and none of a checkpoint that is not complete."""
        seen = visible(self.files)
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(self.expected())

    def expected(self) -> list[int]:
        return sorted(2 * number + each for each in range(SUBTASKS) for number in range(self.completed[each]))

    def end(self) -> None:
        """No more faults: everything completes, and everything is seen."""
        for subtask in range(SUBTASKS):
            self.write(subtask, 1)
        self.checkpoint(completes=True)
        self.commit(final=True)
        for writer in [*self.writers, *self.zombies]:
            assert writer is not None
            writer.close()
        assert visible(self.files) == self.expected()
        self.tidy_up()

    def tidy_up(self) -> None:
        """The next run leaves nothing of this one's dead writers."""
        self.start_run()
        for subtask in range(SUBTASKS):
            self.write(subtask, 1)
        self.checkpoint(completes=True)
        self.commit(final=True)
        self.kill_all()
        assert visible(self.files) == self.expected()
        assert_tidy(self.files)
        assert len(listed(self.files, f"{OUTPUT}/_spark_metadata")) <= self.epoch + 2


crashes = st.one_of(st.none(), st.integers(1, 12))
whens: Any = st.sampled_from(["before", "after"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, SUBTASKS - 1), st.integers(1, 3)),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("commit"), crashes, whens),
        st.tuples(st.just("checkpoint and commit"), crashes, whens),
        st.tuples(st.just("publication with a crash"), st.integers(1, 8), whens),
        st.tuples(st.just("time"), st.sampled_from([0.5, 3.0])),
        st.tuples(st.just("kill"), st.integers(0, SUBTASKS - 1), st.booleans()),
        st.tuples(st.just("zombies")),
        st.tuples(st.just("restart")),
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=150)
@given(
    steps=steps, file_bytes=st.sampled_from([16, 1 << 20]), left_comes_again=st.booleans(), partitioned=st.booleans()
)
def test_each_row_once(
    steps: list[tuple[Any, ...]], file_bytes: int, left_comes_again: bool, partitioned: bool
) -> None:
    query = Query(file_bytes=file_bytes, left_comes_again=left_comes_again, partitioned=partitioned)
    for step in steps:
        match step:
            case ("write", subtask, rows):
                query.write(subtask, rows)
            case ("checkpoint", completes):
                query.checkpoint(completes=completes)
            case ("commit", dies_at, when):
                query.commit(dies_at, when)
            case ("checkpoint and commit", dies_at, when):
                query.checkpoint(completes=True)
                query.commit(dies_at, when)
            case ("publication with a crash", dies_at, when):
                query.write(0, 1)
                query.write(1, 2)
                query.now.append(query.now[-1] + 3)
                query.checkpoint(completes=True)
                query.commit(dies_at, when)
            case ("time", seconds):
                query.now.append(query.now[-1] + seconds)
            case ("kill", subtask, zombie):
                query.kill(subtask, zombie=zombie)
            case ("zombies",):
                query.stage_by_zombies()
            case ("restart",):
                query.kill_all()
                query.start_run()
    query.end()
