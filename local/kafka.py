"""A Kafka broker of one's own on loopback: ``./run kafka`` for a person, `Broker` for tests and benches.

Never: leave a process running (it is stopped by its process id), or touch a folder that it was not given.

The recipe: one node that is broker and controller (KRaft), formatted with a cluster id of its own. Listeners beside the
plain one: ``SASL`` (SASL/PLAIN), ``TLS`` (TLS, with certificates that `Certificates` made), ``SASL_TLS`` (both).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.jars import CACHE, class_archive, jars, java
from local.ports import free_ports
from local.server import Server

USER, PASSWORD = "ferry", "s3cret-of-the-ferry"
"""Who may log in at the SASL listeners."""


@dataclass(frozen=True)
class Certificates:
    """Files in PEM, made anew by `make`: a CA, and by it the broker's key and certificate, in one file, and a client's,
    whose name is `USER`; and a CA nobody used."""

    ca: Path
    broker: Path
    other_ca: Path
    client: Path
    client_key: Path

    @classmethod
    def within(cls, folder: Path) -> Certificates:
        """Return where they are in a folder."""
        names = ("ca.pem", "broker.pem", "other-ca.pem", "client.pem", "client-key.pem")
        return cls(*(folder / name for name in names))

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Write all of them into ``folder``, the broker's last."""
        import trustme
        from cryptography.hazmat.primitives import serialization

        made = cls.within(folder)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(made.ca))
        trustme.CA().cert_pem.write_to_path(str(made.other_ca))
        client = authority.issue_cert("client.localhost", common_name=USER)
        client.private_key_pem.write_to_path(str(made.client_key))
        client.cert_chain_pems[0].write_to_path(str(made.client))
        issued = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
        # Java reads keys in PKCS 8 only.
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        made.broker.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + chain)
        return made


class Broker(Server):
    """A broker with its folder and ports. Start it, kill it, start it again: data and addresses stay.

    Parameters
    ----------
    folder
        Where its data and log are; made if missing.
    port
        The port of the plain listener; None: any free one.
    certificates
        With them the three secured listeners are opened as well.
    auto_create_topics
        Whether the broker makes topics that a careless client asks for.
    host
        The address of this machine at which its plain listener is.
    archive
        A file for an archive of the classes that it loads, written when it is stopped; None: it starts with that of
        all brokers.
    """

    def __init__(
        self, folder: Path, port: int | None = None, *, certificates: Certificates | None = None,
        auto_create_topics: bool = True, host: str = "127.0.0.1", archive: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        super().__init__()
        ports = free_ports(5)
        self.plain = f"{host}:{port or ports[0]}"
        self.sasl, self.tls, self.sasl_tls = (f"127.0.0.1:{each}" for each in ports[1:4])
        listeners = {"PLAINTEXT": self.plain, "CONTROLLER": f"127.0.0.1:{ports[4]}"}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{listeners['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"),
            "auto.create.topics.enable": str(auto_create_topics).lower(),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill the controller waits so long before it lets the same broker register again.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            # Else an idle controller writes an empty record twice a second.
            "metadata.max.idle.interval.ms": "5000",
            "log.segment.delete.delay.ms": "1000",
            "log.retention.check.interval.ms": "1000",
            "log.cleaner.backoff.ms": "500",
            "num.partitions": "1",
            # Records of tests have any time stamp: retention works on it.
            "log.retention.ms": "-1",
        }
        if certificates is not None:
            listeners |= {"SASL": self.sasl, "TLS": self.tls, "SASL_TLS": self.sasl_tls}
            protocols |= {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASL_TLS": "SASL_SSL"}
            plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
            for name in ("sasl", "sasl_tls"):
                settings[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                    f'{plain} required username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
                )
                settings[f"listener.name.{name}.sasl.enabled.mechanisms"] = "PLAIN"
            for name in ("tls", "sasl_tls"):
                settings[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
                settings[f"listener.name.{name}.ssl.keystore.location"] = str(certificates.broker)
        settings["listeners"] = ",".join(f"{name}://{address}" for name, address in listeners.items())
        settings["listener.security.protocol.map"] = ",".join(f"{name}:{each}" for name, each in protocols.items())
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._classpath = os.pathsep.join(map(str, jars("kafka-broker")))
        self._archive = archive

    @property
    def log(self) -> Path:
        """What the broker printed."""
        return self.folder / "broker.log"

    def start(self, timeout_s: float = 120) -> None:
        """Start it, and wait until it answers."""
        classes = [f"-XX:ArchiveClassesAtExit={self._archive}"] if self._archive else archived_classes(self._classpath)
        identity = self.folder / "cluster-id"
        if not identity.exists():
            cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            tool = () if self._archive else tuple(classes)
            self._java(
                *tool, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(self._properties)
            )
            identity.write_text(cluster_id)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [java(), "-Xmx512m", *classes, *shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "")),
                 "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", self._classpath,
                 "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait(identity.read_text(), timeout_s)

    def _wait(self, cluster_id: str, timeout_s: float) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self.process is not None
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(KafkaException):
                found = admin.list_topics(timeout=1)
                if found.brokers and found.cluster_id == cluster_id:  # not another one that got the port first
                    return
        tail = self.log.read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"The Kafka broker in {self.folder} did not answer within {timeout_s} s:\n{tail}")

    def _java(self, *arguments: str) -> None:
        done = subprocess.run(
            [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", self._classpath, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}")


def archived_classes(classpath: str) -> list[str]:
    """Return the option of Java for an archive of what brokers load: an empty file where Java cannot write one."""
    archive = class_archive("kafka", f"{java()} {classpath}", _archive)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _archive(made: Path) -> None:
    """Write an archive of the classes that a broker loads."""
    broker = _started(made.parent / "broker", None, archive=made)
    try:
        assert broker.process is not None
        broker.process.terminate()
        if broker.process.wait(300) not in (0, 143):
            made.unlink(missing_ok=True)
    finally:
        broker.stop()
    made.touch()


@contextlib.contextmanager
def running_broker(folder: Path | None = None, port: int | None = None, **settings: object) -> Iterator[Broker]:
    """Run a broker; without a folder, in a temporary one that goes with it."""
    home = folder or Path(tempfile.mkdtemp(prefix="headgate-kafka-"))
    try:
        broker = _started(home, port, **settings)
        try:
            yield broker
        finally:
            broker.stop()
    finally:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _started(home: Path, port: int | None, **settings: object) -> Broker:
    """Start a broker: with other ports if somebody took a free one meanwhile."""
    for attempt in itertools.count(1):
        broker = Broker(home, port, **settings)  # type: ignore[arg-type]
        try:
            broker.start()
            break
        except BaseException as error:
            broker.stop()
            if attempt == 3 or "Address already in use" not in str(error):
                raise
    return broker


def main() -> None:
    """Run a broker until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="./run kafka", description="A Kafka broker on 127.0.0.1 until Ctrl-C. Its data is kept."
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address that it listens at (127.0.0.1)")
    parser.add_argument("--port", type=int, default=9092, help="the port that it listens on (9092)")
    parser.add_argument("--fresh", action="store_true", help="forget the data of earlier runs")
    parser.add_argument("--folder", type=Path, default=CACHE / "kafka", help="where its data is (.cache/kafka)")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), running_broker(folder, chosen.port, host=chosen.host) as broker:
        print(f"run: Kafka listens on {broker.plain}; its data is in {folder}. Ctrl-C ends it.", flush=True)
        assert broker.process is not None
        broker.process.wait()
        raise SystemExit(f"The broker ended on its own. The end of {broker.log}:\n{broker.log.read_text()[-2000:]}")


if __name__ == "__main__":
    main()
