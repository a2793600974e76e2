"""Carries out a fault of the scenario.

Never: touch a machine: faults happen to processes, connections and storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, assert_never

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.job import job_events as jm
from headgate.protocol.messages import CheckpointKind
from headgate.simulation.cluster import Cluster
from headgate.simulation.data_network import LINK_PATIENCE_MS
from headgate.simulation.driver_process import DriverProcess
from headgate.simulation.fault_kinds import (
    ConnectionFaults,
    Fault,
    FaultKind,
    MoreFaults,
    SinkFaults,
    StorageFaults,
    UserFaults,
)
from headgate.simulation.scripted_functions import LASTING

T = TypeVar("T")


def inject(cluster: Cluster, fault: Fault) -> bool:
    """Let a fault happen; return whether there was anything for it to happen to."""
    driver = cluster.driver
    if driver is None or not driver.alive or driver.over:
        return False
    if not isinstance(fault.kind, FaultKind):
        return _drawn_apart(cluster, driver, fault)
    if fault.kind in _ON_SLOTS:
        return _on_slot(cluster, fault)
    match fault.kind:
        case FaultKind.BREAK_ALL:
            for connection in cluster.network.connections:
                cluster.break_connection(connection)
        case FaultKind.FREEZE_DRIVER:
            cluster.freeze(driver, 50 * (1 + fault.pick % 30))
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
            cluster.pending.starved_ms = 500 + 5 * (fault.pick % 500)
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
            cluster.request(driver, CheckpointKind.SAVEPOINT, f"savepoint-{fault.at_ms}-{fault.pick}")
        case FaultKind.STOP:
            driver.stopped = True
            driver.notify(jm.StopRequested())
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
            cluster.freeze(slot, 50 * (1 + fault.pick % 60))
        case FaultKind.ZOMBIE:
            return cluster.abandon(slot)
        case FaultKind.FAIL_SUBTASK:
            slot.fail(fault.pick)
        case FaultKind.DECLINE:
            slot.decline(fail=fault.pick % 2 == 0)
        case _:
            raise AssertionError(fault.kind)
    return True


def _on_storage(cluster: Cluster, fault: Fault, kind: StorageFaults) -> bool:
    files, now_ms = cluster.storage.files, cluster.clock.now_ms
    match kind:
        case StorageFaults.FULL:
            files.full_until_ms = now_ms + 2 * fault.pick
        case StorageFaults.STALE:
            files.stale_ms = 100 + 3 * fault.pick
        case StorageFaults.CORRUPT:
            cluster.clock.after(200 + fault.pick, cluster.world, files.repair)
            return files.damage(fault.pick)
        case _:
            assert_never(kind)
    return True


def _drawn_apart(cluster: Cluster, driver: DriverProcess, fault: Fault) -> bool:
    match fault.kind:
        case MoreFaults():
            return _one_more(cluster, driver, fault, fault.kind)
        case StorageFaults():
            return _on_storage(cluster, fault, fault.kind)
        case SinkFaults():
            alive = [slot for slot in cluster.slots if slot.alive]
            if alive:
                _picked(alive, fault).lose_rows()
            return bool(alive)
        case ConnectionFaults():
            return _on_connection(cluster, fault)
        case UserFaults.DELETE:
            cluster.clock.after(2000, cluster.world, cluster.storage.files.repair)
            return cluster.storage.files.lose(fault.pick, LASTING)
        case UserFaults.GIVE_UP:
            return _give_up(cluster, driver, fault)
    raise AssertionError(fault.kind)


def _give_up(cluster: Cluster, driver: DriverProcess, fault: Fault) -> bool:
    kind = (CheckpointKind.SUSPEND, CheckpointKind.SAVEPOINT, CheckpointKind.DRAIN)[fault.pick % 3]
    is_savepoint = kind is CheckpointKind.SAVEPOINT
    if not is_savepoint and driver.suspension is not None:
        return False
    request = cluster.request(driver, kind, f"given-up-{fault.at_ms}-{fault.pick}" if is_savepoint else "")
    cluster.clock.after(1 + fault.pick % 150, driver, driver.notify, cp.RequestWithdrawn(request))
    return True


def _on_connection(cluster: Cluster, fault: Fault) -> bool:
    up = [each for each in cluster.network.connections if each.up and each.slot.alive]
    if not up:
        return False
    cluster.break_late(_picked(up, fault), 20 + fault.pick % 200)
    return True


def _one_more(cluster: Cluster, driver: DriverProcess, fault: Fault, kind: MoreFaults) -> bool:
    alive = [slot for slot in cluster.slots if slot.alive]
    if kind is MoreFaults.RESCALE_AT_CHECKPOINT:
        cluster.pending.at_checkpoints.append(msgspec.structs.replace(fault, kind=FaultKind.STOP))
        return True
    if not alive:
        return False
    slot, now_ms = _picked(alive, fault), cluster.clock.now_ms
    match kind:
        case MoreFaults.CRASH_SLOTS:
            for each in alive[fault.pick % 2 :]:
                cluster.crash_slot(each)
        case MoreFaults.MOVE_SLOT:
            cluster.moved[slot.slot] = cluster.moved.get(slot.slot, 0) + 1
            cluster.crash_slot(slot)
        case MoreFaults.REPEAT:
            if slot.connection is None:
                return False
            slot.connection.repeats = 1 + fault.pick % 10
        case MoreFaults.CUT_LINK | MoreFaults.HALF_OPEN:
            cluster.excused_until_ms = now_ms + 2 * LINK_PATIENCE_MS
            return cluster.data.cut(fault.pick, half=kind is MoreFaults.HALF_OPEN)
        case MoreFaults.SLOW_LINKS:
            cluster.data.slow_down(50 + fault.pick)
        case MoreFaults.SLOW_STORAGE:
            cluster.pending.slow_storage_until_ms = now_ms + 2 * fault.pick
        case MoreFaults.FAIL_UPLOAD:
            slot.fail_uploads = 1 + fault.pick % 4
        case MoreFaults.FAIL_READ:
            cluster.pending.reads += 1 + fault.pick % 2
        case MoreFaults.FAIL_IN_RECOVERY:
            cluster.pending.in_recovery = msgspec.structs.replace(fault, kind=FaultKind.FAIL_SUBTASK)
            slot.fail(fault.pick)
        case MoreFaults.RESCALE_IN_RECOVERY:
            stop = msgspec.structs.replace(fault, kind=FaultKind.STOP, parallelism=1 + fault.pick % 4)
            cluster.pending.in_recovery = stop
            driver.stopped = True
            driver.notify(jm.StopRequested())
        case _:
            assert_never(kind)
    return True


def _picked(things: Sequence[T], fault: Fault) -> T:
    return things[fault.pick % len(things)]
