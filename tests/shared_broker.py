"""One Kafka and one Pulsar broker for all processes of a test run, each in a process of its own.

``python -m tests.shared_broker kafka FOLDER`` is that process.

Who uses it holds a shared lock on a file, and it ends when it gets that lock for itself alone. So the last user ends
it, whoever that is, and a user that is killed is none any more: its lock goes with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from local.kafka import Certificates, running_broker
from local.pulsar import running_pulsar
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
START_S = 300


@dataclasses.dataclass(frozen=True)
class Addresses:
    """The listeners of a broker that another process started, by the names that `local.kafka.Broker` gives them."""

    plain: str
    sasl: str
    tls: str
    sasl_tls: str


@dataclasses.dataclass(frozen=True)
class PulsarAddresses:
    """Likewise for Pulsar, by the names that `local.pulsar.PulsarBroker` gives them."""

    service_url: str
    admin_url: str
    tls_service_url: str
    tls_admin_url: str


def certificates_of(folder: Path) -> Certificates:
    """Return the certificates in a folder of the run's, made by whoever comes first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "certificates.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Certificates.within(folder)
        return made if made.broker.exists() else Certificates.make(folder)


@contextlib.contextmanager
def shared_broker(run: Path) -> Iterator[Addresses]:
    """Use the Kafka broker of a run's folder, started by whoever comes first."""
    with _shared("kafka", run) as addresses:
        yield Addresses(**addresses)


@contextlib.contextmanager
def shared_pulsar(run: Path) -> Iterator[PulsarAddresses]:
    """Use the Pulsar broker of a run's folder, started by whoever comes first."""
    with _shared("pulsar", run) as addresses:
        yield PulsarAddresses(**addresses)


@contextlib.contextmanager
def _shared(kind: str, run: Path) -> Iterator[dict[str, str]]:
    folder = run / kind
    folder.mkdir(parents=True, exist_ok=True)
    addresses, failed = folder / "addresses.json", folder / "failed"
    with (folder / "users").open("a") as users:
        with (folder / "start.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            if not addresses.exists():
                # No child of this process: others may use it for longer.
                subprocess.run([sys.executable, "-m", "tests.shared_broker", kind, str(run)], cwd=ROOT, check=True)
                wait_until(lambda: addresses.exists() or failed.exists(), START_S)
                assert addresses.exists(), f"the broker did not start:\n{failed.read_text()}"
        yield json.loads(addresses.read_text())


def main() -> None:
    """Run the broker of a run's folder until nobody uses it, in the background."""
    kind, run = sys.argv[1], Path(sys.argv[2])
    folder = run / kind
    start, shape = {
        "kafka": (running_broker, Addresses),
        "pulsar": (partial(running_pulsar, topic_policies=True), PulsarAddresses),
    }[kind]
    if os.fork():
        return
    os.setsid()
    with (folder / "log").open("ab") as log, open(os.devnull) as nothing:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    try:
        with (folder / "users").open("a") as users, start(
            folder / "broker", certificates=certificates_of(run)
        ) as broker:  # fmt: skip
            addresses = {each.name: getattr(broker, each.name) for each in dataclasses.fields(shape)}
            (folder / "addresses.new").write_text(json.dumps(addresses))
            (folder / "addresses.new").rename(folder / "addresses.json")
            fcntl.flock(users, fcntl.LOCK_EX)
    except BaseException:
        (folder / "failed").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    main()
