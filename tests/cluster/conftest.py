"""One cluster of three hosts for all tests here: run by ``./run test tests/cluster``, never by ``./run test`` alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.cluster import DRIVER, Cluster, running_cluster, why_not
from tests.cluster.programs import Program
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return three hosts with two cores each, whose names no other host knows."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"a cluster of several hosts cannot run here: {reason}")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; whatever the test did to its network is mended afterwards."""
    yield cluster
    for host in cluster.workers:
        cluster.heal(host)
        for other in cluster.workers:
            cluster.join(host, other)


@pytest.fixture
def start(whole: Cluster, tmp_path: Path) -> Iterator[type[Program]]:
    """Return what starts driver programs, which end with the test."""
    started: list[Program] = []

    def program(what: str, **settings: object) -> Program:
        made = Program(whole, tmp_path, what, settings)
        started.append(made)
        return made

    yield program  # type: ignore[misc]
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def broker(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[str]:
    """Return the address of a Kafka broker on the driver's host."""
    folder = tmp_path_factory.mktemp("kafka")
    host = cluster.addresses[DRIVER]
    command = [sys.executable, "-m", "local.kafka", "--host", host, "--port", "9092", "--folder", str(folder)]
    with open(folder / "out", "wb") as output:
        process = cluster.run(DRIVER, command, cwd=repository, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    wait_until(lambda: b"Kafka listens on" in (folder / "out").read_bytes() or process.poll() is not None, 120)
    assert process.poll() is None, (folder / "out").read_text()
    yield f"{host}:9092"
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)
