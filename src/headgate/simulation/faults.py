"""Carries out a fault of the scenario.

Never: touch a machine: faults happen to processes, connections and storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from headgate.coordinator.job import job_events as jm
from headgate.protocol.messages import CheckpointKind
from headgate.simulation.scenario import Fault, FaultKind

if TYPE_CHECKING:
    from headgate.simulation.cluster import Cluster

T = TypeVar("T")


def inject(cluster: Cluster, fault: Fault) -> bool:
    """Let a fault happen; return whether there was anything for it to happen to."""
    driver = cluster.driver
    if driver is None or not driver.alive or driver.over:
        return False
    if fault.kind in _ON_SLOTS:
        return _on_slot(cluster, fault)
    match fault.kind:
        case FaultKind.BREAK_ALL:
            for connection in cluster.network.connections:
                cluster.break_connection(connection)
        case FaultKind.FREEZE_DRIVER:
            driver.freeze(cluster.clock.now_ms + 50 * (1 + fault.pick % 30))
        case FaultKind.END_JOB:
            alive = [job for job in cluster.jobs if job.alive]
            if not alive:
                return False
            cluster.end_job(alive[-1], "a fault")
        case FaultKind.CRASH_ENUMERATOR | FaultKind.CRASH_ENUMERATOR_AND_LOG:
            uid = _picked(list(driver.plan.sources), fault)
            if uid not in driver.enumerators:
                return False
            driver.enumerators[uid].crash_next = True
            if fault.kind is FaultKind.CRASH_ENUMERATOR_AND_LOG:
                driver.lose_log.add(uid)
            elif fault.pick % 3 == 0:
                driver.fail_append.add(uid)
        case FaultKind.FAIL_APPEND:
            driver.fail_append.add(_picked(list(driver.plan.sources), fault))
        case FaultKind.LOSE_MANIFEST:
            driver.manifest_fault = "lost"
        case FaultKind.HIDE_MANIFEST:
            driver.manifest_fault = "hidden"
        case FaultKind.STARVE:
            cluster.starved_ms = 500 + 5 * (fault.pick % 500)
        case FaultKind.FAIL_COMMIT:
            driver.commit_fault = "before"
        case FaultKind.FAIL_HALF_COMMIT:
            driver.commit_fault = "half"
        case FaultKind.CRASH_DRIVER:
            cluster.crash_driver(fault.parallelism)
        case FaultKind.CRASH_DRIVER_SOON:
            driver.crash_in = fault.pick % 12
        case FaultKind.CHECKPOINT:
            cluster.request(driver, CheckpointKind.CHECKPOINT)
        case FaultKind.SAVEPOINT:
            cluster.request(driver, CheckpointKind.SAVEPOINT, f"savepoint-{fault.at_ms}")
        case FaultKind.STOP:
            driver.stopped = True
            driver.tell(jm.StopRequested())
        case FaultKind.SUSPEND | FaultKind.DRAIN:
            if driver.suspension is not None:
                return False
            suspend = fault.kind is FaultKind.SUSPEND
            cluster.request(driver, CheckpointKind.SUSPEND if suspend else CheckpointKind.DRAIN)
        case _:
            raise AssertionError(fault.kind)
    return True


_ON_SLOTS = {
    FaultKind.BREAK_CONNECTION,
    FaultKind.CRASH_SLOT,
    FaultKind.CRASH_SLOT_SOON,
    FaultKind.FREEZE_SLOT,
    FaultKind.ZOMBIE,
    FaultKind.FAIL_SUBTASK,
    FaultKind.DECLINE,
}


def _on_slot(cluster: Cluster, fault: Fault) -> bool:
    alive = [slot for slot in cluster.slots if slot.alive]
    if not alive:
        return False
    slot = _picked(alive, fault)
    match fault.kind:
        case FaultKind.BREAK_CONNECTION:
            if slot.connection is None:
                return False
            cluster.break_connection(slot.connection)
        case FaultKind.CRASH_SLOT:
            cluster.crash_slot(slot)
        case FaultKind.CRASH_SLOT_SOON:
            slot.crash_in = fault.pick % 7
        case FaultKind.FREEZE_SLOT:
            slot.freeze(cluster.clock.now_ms + 50 * (1 + fault.pick % 60))
        case FaultKind.ZOMBIE:
            return cluster.abandon(slot)
        case FaultKind.FAIL_SUBTASK:
            slot.fail(fault.pick)
        case FaultKind.DECLINE:
            slot.decline(fail=fault.pick % 2 == 0)
        case _:
            raise AssertionError(fault.kind)
    return True


def _picked(things: Sequence[T], fault: Fault) -> T:
    return things[fault.pick % len(things)]
