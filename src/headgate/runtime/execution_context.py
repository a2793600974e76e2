"""Where and as what an execution of a subtask runs: what its parts are made of.

Never: hold anything that an execution opens.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.checkpoint.state_uploader import StateUploader
from headgate.graph.stage_graph import QueryDefinition, Stage
from headgate.operators.exchange import Exchange, Partitioner
from headgate.protocol import messages as msg
from headgate.protocol.operator_context import HelperUse, OperatorContext
from headgate.protocol.state import FileState, InlineState, StateHandle
from headgate.runtime.channel_recovery_thread import RECOVERY_MEMORY_BYTES, ChannelRecoveryThread, Recovery
from headgate.runtime.clocks import wall_clock_ms, work_ms
from headgate.runtime.mailbox import Mailbox
from headgate.runtime.partitioners import partitioner_of
from headgate.transport.data_plane import DataPlane


class SlotPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a subtask runs: its names and numbers, for contexts and errors; the id of Spark's application, if any."""

    run: int
    slot: int
    attempt: int
    host: str
    query_id: str
    time_zone: str
    checkpoint_location: str
    application: str = ""


class SlotServices(msgspec.Struct, frozen=True, kw_only=True):
    """What the subtasks of a slot share.

    Parameters
    ----------
    work_ms
        Reads the clock by which pieces of work are measured, in milliseconds.
    wall_clock_ms
        Reads the wall clock, in milliseconds since 1970-01-01 UTC.
    plane
        Its data plane; None for a query without an exchange.
    uploader
        Stores keyed state and rows in flight; None only where nothing does, in tests.
    spill_folders
        A folder on each local disk: operators use the first, and channel state the first that has room.
    load
        Reads a pickled object of the user's.
    recovery, recovery_memory_bytes
        What recovers rows that were under way, and how much of them waits in memory.
    """

    work_ms: Callable[[], float] = work_ms
    wall_clock_ms: Callable[[], int] = wall_clock_ms
    plane: DataPlane | None = None
    uploader: StateUploader | None = None
    spill_folders: tuple[str, ...] = ()
    load: Callable[[bytes], Any] = pickle.loads
    recovery: Callable[..., Recovery] = ChannelRecoveryThread
    recovery_memory_bytes: int = RECOVERY_MEMORY_BYTES


@dataclass(frozen=True)
class ExecutionContext:
    """What one execution is made of.

    Parameters
    ----------
    definition
        What the query does.
    place, services
        The slot's.
    deployed
        The order to deploy it.
    mailbox
        The subtask's.
    now_ms
        Reads the clock, in milliseconds.
    read_state
        Reads state that lies in a file of the checkpoint. Any thread.
    """

    definition: QueryDefinition
    place: SlotPlace
    services: SlotServices
    deployed: msg.Deploy
    mailbox: Mailbox
    now_ms: Callable[[], int]
    read_state: Callable[[FileState], bytes]

    @property
    def number(self) -> int:
        """The execution."""
        return self.deployed.execution

    @property
    def stage(self) -> Stage:
        """What a subtask of the stage does."""
        return self.definition.graph.stages[self.deployed.stage]

    @property
    def plane(self) -> DataPlane:
        """The slot's data plane."""
        assert self.services.plane is not None, "a slot of a query with an exchange has a data plane"
        return self.services.plane

    @property
    def uploader(self) -> StateUploader:
        """What stores the slot's keyed state and rows in flight."""
        assert self.services.uploader is not None, "a slot has an uploader"
        return self.services.uploader

    @property
    def spill_folders(self) -> list[str]:
        """A folder of the execution's own on each local disk; they may not exist yet."""
        own = f"{self.deployed.stage}-{self.place.slot}-{self.number}"
        return [os.path.join(each, own) for each in self.services.spill_folders]

    def operator(self, uid: str = "", helper_use: HelperUse | None = None) -> OperatorContext:
        """Return what an operator may know; ``helper_use`` counts what it asks of the Java process for expressions."""
        options = self.definition.options
        return OperatorContext(
            uid=uid,
            subtask=self.place.slot,
            parallelism=self.deployed.parallelism,
            run=self.place.run,
            attempt=self.place.attempt,
            execution=self.number,
            query_id=self.place.query_id,
            options={"checkpointLocation": self.place.checkpoint_location},
            max_parallelism=options["max-parallelism"],
            time_zone=self.place.time_zone,
            spill_folder=next(iter(self.spill_folders), ""),
            memory_bytes=options["state.memory"],
            catalyst_memory_bytes=options["catalyst.memory"],
            catalyst_java_options=options["catalyst.extraJavaOptions"],
            application=self.place.application,
            helper_use=helper_use or HelperUse(),
            load=self.services.load,
        )

    def partitioner(self, exchange: Exchange) -> Partitioner:
        """Return what says whose the rows of an exchange are."""
        return partitioner_of(
            exchange,
            producer=self.place.slot,
            parallelism=self.deployed.parallelism,
            max_parallelism=self.definition.options["max-parallelism"],
        )

    def neighbours(self, exchange: Exchange) -> tuple[int, ...]:
        """Return the subtasks at the other ends of an exchange."""
        own = exchange.exchange_kind == "forward"
        return (self.place.slot,) if own else tuple(range(self.deployed.parallelism))

    def bytes_of(self, handle: StateHandle) -> bytes:
        """Return the bytes of stored state. Any thread."""
        return handle.data if isinstance(handle, InlineState) else self.read_state(handle)
