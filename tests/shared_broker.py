"""One Kafka and one Pulsar broker for all processes of a test run, each in a process of its own.

``python -m tests.shared_broker kafka FOLDER`` is that process.

Who uses it holds a shared lock on a file, and it ends when it gets that lock for itself alone. So the last user ends
it, whoever that is, and a user that is killed is none any more: its lock goes with it. Who comes after that starts
another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
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
    with shared(run / "kafka", partial(_start, "kafka", run)) as addresses:
        yield Addresses(**addresses)


@contextlib.contextmanager
def shared_pulsar(run: Path) -> Iterator[PulsarAddresses]:
    """Use the Pulsar broker of a run's folder, started by whoever comes first."""
    with shared(run / "pulsar", partial(_start, "pulsar", run)) as addresses:
        yield PulsarAddresses(**addresses)


@contextlib.contextmanager
def shared(folder: Path, start: Callable[[], object]) -> Iterator[dict[str, str]]:
    """Use what `serve` serves in a folder; ``start`` lets another thread or process do that."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses, failed = folder / "addresses.json", folder / "failed"
    with (folder / "users").open("a") as users:
        with (folder / "start.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits until a broker that is stopping has stopped
            if not addresses.exists():
                start()
                wait_until(lambda: addresses.exists() or failed.exists(), START_S)
                assert addresses.exists(), f"the broker did not start:\n{failed.read_text()}"
        yield json.loads(addresses.read_text())


def serve(folder: Path, broker: Callable[[], AbstractContextManager[object]], names: Iterable[str]) -> None:
    """Run a broker until nobody uses it, for `shared`; ``names``: those of its addresses."""
    try:
        with (folder / "users").open("a") as users, broker() as running:
            addresses = {each: getattr(running, each) for each in names}
            (folder / "addresses.new").write_text(json.dumps(addresses))
            (folder / "addresses.new").rename(folder / "addresses.json")
            fcntl.flock(users, fcntl.LOCK_EX)
            (folder / "addresses.json").unlink()  # who comes later starts another one
    except BaseException:
        (folder / "failed").write_text(traceback.format_exc())
        raise


def _start(kind: str, run: Path) -> None:
    # No child of this process: others may use it for longer.
    subprocess.run([sys.executable, "-m", "tests.shared_broker", kind, str(run)], cwd=ROOT, check=True)


def main() -> None:
    """Run the broker of a run's folder until nobody uses it, in the background."""
    kind, run = sys.argv[1], Path(sys.argv[2])
    start, shape = {
        "kafka": (running_broker, Addresses),
        "pulsar": (partial(running_pulsar, topic_policies=True), PulsarAddresses),
    }[kind]
    if os.fork():
        return
    os.setsid()
    folder = run / kind
    with (folder / "log").open("ab") as log, open(os.devnull) as nothing:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)

    def broker() -> AbstractContextManager[object]:
        return start(Path(tempfile.mkdtemp(prefix="broker-", dir=folder)), certificates=certificates_of(run))

    serve(folder, broker, [each.name for each in dataclasses.fields(shape)])


if __name__ == "__main__":
    main()
