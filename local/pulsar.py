"""A Pulsar broker of one's own on loopback: ``./run pulsar`` for a person, `PulsarBroker` for tests and benches.

Never: leave a process running (it is stopped by its process id), listen anywhere but on loopback, or touch a folder
that it was not given.

The recipe: Pulsar standalone, which has a broker, one bookie and a metadata store in one process. Java may take 256 MB
of heap and 192 MB beside it; the whole takes about 400 MB. What the broker has acknowledged survives a kill of the
process; a machine that loses power may lose some, because nothing waits for the disk.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from local.jars import CACHE, class_archive, jars, java
from local.kafka import Certificates
from local.ports import free_ports
from local.server import Server

ADMIN = "harbour-master"
"""Who may do everything at a broker with tokens; all others need to be granted what they do."""

_SETTINGS = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    # Else the bookie takes another port than the one it is given.
    "allowEphemeralPorts": "true",
    "journalSyncData": "false",
    # Else a bookie takes nothing more on a disk that is 95 % full.
    "diskUsageThreshold": "0.999",
    "diskUsageWarnThreshold": "0.999",
    "diskUsageLwmThreshold": "0.998",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "32",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
    "numWorkerThreadsForNonPersistentTopic": "1",
    "loadBalancerEnabled": "false",
    # Else what no subscription holds is deleted: readers have none.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    # A ledger may be closed, and then be trimmed, as soon as it is large enough.
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "exposeTopicLevelMetricsInPrometheus": "false",
    "maxMessageSize": str(5 << 20),
}
_FRAME_PADDING = 10 << 10
"""How much larger than a message's payload an entry may be, by what the broker lets pass."""
_LOGGING = """\
<Configuration status="ERROR">
  <Appenders><Console name="console"><PatternLayout pattern="%d{ISO8601} %-5p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""
_FAILED = "Failed to start pulsar service"
"""What the starter prints when the broker cannot start."""
_OPENED = (
    "java.base/jdk.internal.loader", "java.base/java.lang", "java.base/jdk.internal.platform", "java.base/java.nio",
    "java.base/jdk.internal.misc", "java.management/sun.management",
)  # fmt: skip
"""What Pulsar's own start script opens."""


class PulsarBroker(Server):
    """A broker with its folder and ports. Start it, kill it, start it again: data and addresses stay.

    Parameters
    ----------
    folder
        Where its data and log are; made if missing.
    port, web_port
        The ports of the plain listeners, of clients and of administration; None: any free ones.
    certificates
        With them there are listeners with TLS as well.
    tokens
        Whether everybody needs a token that `token` made, or a certificate of those.
    deduplication
        Whether producers' repeated messages are dropped, where the namespace or the topic says nothing else.
    topic_policies
        Whether single topics may have settings. After a kill such a broker (4.0.7) answers nobody who asks for some
        topic, for a minute, about one time in seven.
    settings
        Others of Pulsar's ``standalone.conf``; they win.
    archive
        A file for an archive of the classes that it loads, written when it is stopped; None: it starts with that of
        all brokers.

    Attributes
    ----------
    service_url, admin_url, tls_service_url, tls_admin_url
        Its addresses. Nobody listens at the last two without certificates.
    """

    def __init__(
        self, folder: Path, port: int | None = None, web_port: int | None = None, *,
        certificates: Certificates | None = None, tokens: bool = False, deduplication: bool = False,
        topic_policies: bool = False,
        settings: Mapping[str, str] | None = None, archive: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        super().__init__()
        ports = free_ports(5)
        plain, web, tls, web_tls = port or ports[0], web_port or ports[1], *ports[2:4]
        self.service_url, self.admin_url = f"pulsar://127.0.0.1:{plain}", f"http://127.0.0.1:{web}"
        self.tls_service_url, self.tls_admin_url = f"pulsar+ssl://127.0.0.1:{tls}", f"https://127.0.0.1:{web_tls}"
        self._bookie_port = ports[4]  # once it has data it keeps the first it had
        self._archive = archive
        self._classpath = os.pathsep.join(map(str, jars("pulsar-broker")))
        folder.mkdir(parents=True, exist_ok=True)
        self._cluster = _kept(folder / "cluster-name", lambda: f"headgate-{secrets.token_hex(6)}")
        self._secret = bytes.fromhex(_kept(folder / "token-secret", lambda: secrets.token_hex(32)))
        self._tokens = tokens
        chosen = _SETTINGS | {
            "clusterName": self._cluster,
            # Of the bookie, which knows no address to bind to.
            "listeningInterface": next(name for _, name in socket.if_nameindex() if name.startswith("lo")),
            "brokerServicePort": str(plain),
            "webServicePort": str(web),
            "brokerDeduplicationEnabled": str(deduplication).lower(),
            "systemTopicEnabled": str(topic_policies).lower(),
            "topicLevelPoliciesEnabled": str(topic_policies).lower(),
        }
        if certificates is not None:
            # Java reads certificates from a file that has nothing else.
            key, begin, chain = certificates.broker.read_text().partition("-----BEGIN CERTIFICATE-----")
            key_file = _private(folder / "tls-key.pem", key)
            (folder / "tls-chain.pem").write_text(begin + chain)
            chosen |= {
                "brokerServicePortTls": str(tls),
                "webServicePortTls": str(web_tls),
                "webServiceTlsProvider": "SunJSSE",
                "tlsCertificateFilePath": str(folder / "tls-chain.pem"),
                "tlsKeyFilePath": str(key_file),
                "tlsTrustCertsFilePath": str(certificates.ca),
            }
        if tokens:
            encoded = base64.b64encode(self._secret).decode()
            package = "org.apache.pulsar.broker.authentication"
            ways = ("Token",) if certificates is None else ("Token", "Tls")
            chosen |= {
                "authenticationEnabled": "true",
                "authenticationProviders": ",".join(f"{package}.AuthenticationProvider{way}" for way in ways),
                "tokenSecretKey": f"data:;base64,{encoded}",
                "authorizationEnabled": "true",
                "superUserRoles": ADMIN,
                "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "brokerClientAuthenticationParameters": f"token:{self.token()}",
            }
        chosen |= settings or {}
        # Else the bookie refuses the largest messages, by dropping the connection, and the broker tries for ever.
        chosen.setdefault("nettyMaxFrameSizeBytes", str(int(chosen["maxMessageSize"]) + _FRAME_PADDING))
        self._settings = folder / "standalone.conf"
        _private(self._settings, "".join(f"{name}={value}\n" for name, value in chosen.items()))
        (folder / "log4j2.xml").write_text(_LOGGING)

    @property
    def log(self) -> Path:
        """What the broker printed."""
        return self.folder / "broker.log"

    def token(self, role: str = ADMIN, *, secret: bytes | None = None) -> str:
        """Return a token for a role; with another ``secret`` than the broker's it is refused."""
        parts = b".".join(_base64(json.dumps(each).encode()) for each in ({"alg": "HS256"}, {"sub": role}))
        return (parts + b"." + _base64(hmac.digest(secret or self._secret, parts, hashlib.sha256))).decode()

    def start(self, timeout_s: float = 120) -> None:
        """Start it, and wait until it answers."""
        classes = [f"-XX:ArchiveClassesAtExit={self._archive}"] if self._archive else archived_classes(self._classpath)
        opened = [word for each in _OPENED for word in ("--add-opens", f"{each}=ALL-UNNAMED")]
        with open(self.log, "ab") as log:
            self._log_begin = log.tell()
            self.process = subprocess.Popen(
                [java(), "-Xmx256m", "-XX:MaxDirectMemorySize=192m", *classes,
                 *shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "")), *opened,
                 "-Dio.netty.tryReflectionSetAccessible=true", "-Dotel.sdk.disabled=true",
                 f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}", "-cp", self._classpath,
                 "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(self._settings),
                 "--metadata-dir", str(self.folder / "data" / "metadata"), "--num-bookies", "1",
                 "--bookkeeper-dir", str(self.folder / "data" / "bookkeeper"),
                 "--bookkeeper-port", str(self._bookie_port), "--no-functions-worker", "--no-stream-storage"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> None:
        """Wait until the broker is healthy and has the namespace of whoever names none, which it makes last."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        # A broker that failed goes on for long: other threads than the one that failed live.
        while time.monotonic() < deadline and self.process.poll() is None and _FAILED not in self._printed():
            with contextlib.suppress(OSError, json.JSONDecodeError):
                # Not another one that got the port first:
                ours = self._cluster in json.loads(self._asked("clusters"))
                if ours and "public/default" in json.loads(self._asked("namespaces/public")):
                    self._asked("brokers/health?topicVersion=V2")
                    return
            time.sleep(0.1)
        printed = self._printed()
        self.kill()
        # What failed comes before its causes, each with many calls.
        why = "\n".join(line for line in printed.splitlines() if "\tat " not in line)[-3000:]
        raise RuntimeError(f"The Pulsar broker in {self.folder} does not answer:\n{why}")

    def _printed(self) -> str:
        with open(self.log, errors="replace") as log:
            log.seek(self._log_begin)
            return log.read()

    def _asked(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.token()}"} if self._tokens else {}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.admin_url}/admin/v2/{path}", headers=headers), timeout=30
        ) as answer:
            return bytes(answer.read())


def _kept(file: Path, make: Callable[[], str]) -> str:
    return (file if file.exists() else _private(file, make())).read_text()


def _private(file: Path, text: str) -> Path:
    file.touch(0o600)
    file.write_text(text)
    return file


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def archived_classes(classpath: str) -> list[str]:
    """Return the option of Java for an archive of what brokers load: an empty file where Java cannot write one."""
    archive = class_archive("pulsar", f"{java()} {classpath}", _archive)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _archive(made: Path) -> None:
    """Write an archive of the classes that a broker loads."""
    broker = _started(made.parent / "broker", archive=made)
    try:
        assert broker.process is not None
        broker.process.terminate()
        if broker.process.wait(300) not in (0, 143):
            made.unlink(missing_ok=True)
    finally:
        broker.stop()
    made.touch()


@contextlib.contextmanager
def running_pulsar(
    folder: Path | None = None, port: int | None = None, web_port: int | None = None, **settings: object
) -> Iterator[PulsarBroker]:
    """Run a broker; without a folder, in a temporary one that goes with it."""
    home = folder or Path(tempfile.mkdtemp(prefix="headgate-pulsar-"))
    try:
        broker = _started(home, port, web_port, **settings)
        try:
            yield broker
        finally:
            if folder is None:
                broker.kill()  # in seconds less: nobody needs its data
            else:
                broker.stop()
    finally:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _started(home: Path, port: int | None = None, web_port: int | None = None, **settings: object) -> PulsarBroker:
    """Start a broker: with other ports if somebody took a free one meanwhile."""
    for attempt in itertools.count(1):
        broker = PulsarBroker(home, port, web_port, **settings)  # type: ignore[arg-type]
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
        prog="./run pulsar", description="A Pulsar broker on 127.0.0.1 until Ctrl-C. Its data is kept."
    )
    parser.add_argument("--port", type=int, default=6650, help="the port that clients connect to (6650)")
    parser.add_argument("--web-port", type=int, default=8080, help="the port of the admin API (8080)")
    parser.add_argument("--deduplication", action="store_true", help="drop what producers repeat")
    parser.add_argument("--fresh", action="store_true", help="forget the data of earlier runs")
    parser.add_argument("--folder", type=Path, default=CACHE / "pulsar", help="where its data is (.cache/pulsar)")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        running_pulsar(folder, chosen.port, chosen.web_port, deduplication=chosen.deduplication) as broker,
    ):
        print(
            f"run: Pulsar listens on {broker.service_url}, its admin API on {broker.admin_url}; its data is in "
            f"{folder}. Ctrl-C ends it.",
            flush=True,
        )
        assert broker.process is not None
        broker.process.wait()
        raise SystemExit(f"The broker ended on its own. The end of {broker.log}:\n{broker.log.read_text()[-2000:]}")


if __name__ == "__main__":
    main()
