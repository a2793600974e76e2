"""What the processes of a simulated cluster share and call: `headgate.simulation.cluster.Cluster`, as they see it.

Never: name a process: they are made of this.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job.job_plan import JobPlan
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol.messages import CheckpointKind, Envelope, ErrorReport, SubtaskProgress
from headgate.simulation.clockwork import Clockwork, Process
from headgate.simulation.data_network import DataNetwork
from headgate.simulation.durable import Row, Storage, Table
from headgate.simulation.fault_kinds import Fault
from headgate.simulation.network import Connection
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_reader import ScriptedReader
from headgate.simulation.scripted_source import ScriptedSource
from headgate.simulation.topic import Topic
from headgate.task.reader_output import StreamingOutput


class PendingFaults(msgspec.Struct):
    """What is to go wrong, and has not yet.

    Parameters
    ----------
    starved_ms
        How long the next task waits for a core.
    slow_storage_until_ms
        Until when storage is slow.
    reads
        How many of the next reads of stored state fail.
    at_checkpoints
        What happens when each of the next checkpoints with rows on their way is complete.
    in_recovery
        What happens when a subtask is deployed the next time.
    """

    starved_ms: int = 0
    slow_storage_until_ms: int = 0
    reads: int = 0
    at_checkpoints: list[Fault] = []
    in_recovery: Fault | None = None


class World(Protocol):
    """The cluster. A slot, a subtask or a driver that it is given is the process that calls."""

    scenario: Scenario
    clock: Clockwork
    choose: random.Random
    storage: Storage
    table: Table
    data: DataNetwork
    definition: QueryDefinition
    topics: dict[str, Topic]
    sources: dict[str, ScriptedSource]
    uid_of: dict[str, str]
    key_groups: list[int]
    split_groups: dict[str, int]
    slots: list[Any]
    driver: Any
    world: Process
    application: Any
    acting: Any
    pending: PendingFaults
    moved: dict[int, int]
    next_parallelism: int
    faults: int
    calm: bool
    others_ms: int | None
    others_since_ms: int
    longest_turn_ms: float
    excused_until_ms: int
    ended_copies: dict[tuple[int, int], dict[str, int]]

    @property
    def plan(self) -> JobPlan | None:
        """The plan of the run; None: there is none."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has gone wrong for long."""

    def is_replaced(self, slot: Any) -> bool:
        """Return whether another attempt of a slot, or another run, has begun."""

    @property
    def excuses_late(self) -> bool:
        """Whether rows may come after the watermark at functions."""

    def note(self, process: Process, event: Any) -> None:
        """Note that a machine is given an event."""

    def note_action(self, process: Process, action: Any) -> None:
        """Note that a machine orders something."""

    def check(self, machine: Any) -> None:
        """Check a machine after a step."""

    def violated(self, error: ErrorReport) -> None:
        """Note that a subtask failed, which nothing gave it a reason for."""

    def splits_added(self, slot: Any, uid: str, split_ids: set[str]) -> None:
        """Note that a reader has got splits."""

    def rows_wanted(self, slot: Any, reader: ScriptedReader) -> None:
        """Note that a reader is about to read."""

    def rows_read(self, slot: Any, reader: ScriptedReader, rows: list[Row]) -> None:
        """Note what a reader read."""

    def looked(self, reader: ScriptedReader, output: StreamingOutput) -> None:
        """Note what a turn of a subtask left of a reader."""

    def snapshot_taken(self, subtask: Any, checkpoint_id: int) -> None:
        """Note that a subtask takes a snapshot."""

    def barrier_ordered(self, subtask: Any, order: Any) -> None:
        """Note that a subtask that reads sources is ordered to send a barrier."""

    def manifest_written(self, manifest: Manifest) -> None:
        """Check a checkpoint that is complete."""

    def progress_shown(self, subtask: int, progress: SubtaskProgress) -> None:
        """Take note of what a subtask reports."""

    def commit(self, action: cp.Commit, fault: str) -> dict[str, tuple[bytes, ...]]:
        """Publish an epoch; raises OSError where a fault wants it."""

    def connect(self, slot: Any) -> Connection | None:
        """Connect a slot to the driver; None: there is none of its run."""

    def send_to_driver(self, connection: Connection, envelope: Envelope) -> None:
        """Send from a slot."""

    def send_to_slot(self, number: int, envelope: Envelope) -> None:
        """Send from the driver."""

    def break_connection(self, connection: Connection) -> None:
        """Break a connection."""

    def close_connection(self, number: int) -> None:
        """Close a connection from the driver's side."""

    def submit_job(self, driver: Any, submission: int) -> None:
        """Start the tasks of a job."""

    def cancel_job(self, driver: Any, submission: int) -> None:
        """Let Spark kill a job, in a while."""

    def crash_slot(self, process: Any) -> None:
        """Kill a slot's process."""

    def crash_driver(self, parallelism: int) -> None:
        """Kill the driver, and start again."""

    @property
    def is_rescaled(self) -> bool:
        """Whether the query goes on with another run, and this one's slots are ending."""

    def others_vote(self) -> None:
        """Note that the application's other queries are about to vote."""

    def query_failed(self, driver: Any, error: ErrorReport) -> None:
        """Note that the query has given up."""

    def query_over(self, driver: Any) -> None:
        """Note that a run has ended."""

    def request(self, driver: Any, kind: CheckpointKind, location: str = "") -> int:
        """Ask for a checkpoint; return the number of the request."""

    def request_refused(self, driver: Any, request_id: int) -> None:
        """Note that a checkpoint that was asked for failed."""
