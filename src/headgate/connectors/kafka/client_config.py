"""What Kafka clients are made of: ``kafka.*`` options, most of them Java's, as settings of librdkafka.

Never: show a secret (in a ``repr``, an error, a log), open a key store, or make a client.

Follows Spark 4.2, ``KafkaSourceProvider.kafkaParamsForExecutors``, for what is set and what may not be; the tables of
properties are in `client_properties`. Where Java and librdkafka differ in a default that readers would notice, Java's
is set: uncommitted records are read, a lost broker is retried at least once a second, keys choose
partitions by Java's hash.
"""

from __future__ import annotations

import difflib
import re
import socket
import uuid
from dataclasses import dataclass, field

from headgate.connectors.kafka.client_limits import fit_reconnects, whole
from headgate.connectors.kafka.client_properties import (
    ANY_CLIENT,
    CONSUMER_ONLY,
    JAVA_NAMES,
    LIBRDKAFKA_NAMES,
    PRODUCER_ONLY,
    REFUSED,
    RENAMED,
    WITHOUT_EFFECT,
    is_secret,
)
from headgate.errors import DeploymentError, OptionError
from headgate.source.options import Options

Setting = str | int | bool

GROUP_ID_PREFIX = "spark-kafka-source"
"""What names of consumer groups begin with; Spark's own, since brokers may grant rights by it."""

_DEFAULT_TIMEOUT_MS = 60_000
DELIVERY_TIMEOUT_MS = 120_000
"""Java's."""
_NOT_TO_READ = frozenset(
    ("group.instance.id", "group.protocol", "group.protocol.type", "heartbeat.interval.ms", "max.poll.interval.ms",
     "message.max.bytes", "session.timeout.ms")
)  # fmt: skip
"""Settings of groups, which are not joined, and of writing: to read they are without effect, but librdkafka has rules
about them that Java has not, and options are often shared by reading and writing."""
_LOWER_CASE = ("security.protocol", "isolation.level", "ssl.endpoint.identification.algorithm", "group.protocol")


@dataclass(frozen=True, repr=False)
class ClientConfig:
    """The settings of all clients of one source or sink. Equal ones may share a consumer.

    Parameters
    ----------
    settings
        librdkafka's properties with their values, sorted by name.
    group_id
        The consumer group's name, if the user gave one.
    group_id_prefix
        What a unique name begins with otherwise.
    timeout_ms
        The longest wait for an answer of the brokers, in milliseconds (``kafka.default.api.timeout.ms``).
    retries, retry_interval_ms
        How often a question that failed for a passing reason is asked again, and how long to wait before
        (``fetchOffset.*``).
    """

    settings: tuple[tuple[str, str], ...]
    group_id: str | None = None
    group_id_prefix: str = GROUP_ID_PREFIX
    timeout_ms: int = _DEFAULT_TIMEOUT_MS
    retries: int = field(default=3, kw_only=True)
    retry_interval_ms: int = field(default=1000, kw_only=True)

    @classmethod
    def of(cls, options: Options) -> ClientConfig:
        """Return the settings that the ``kafka.*`` options of a source or a sink stand for.

        Raises
        ------
        OptionError
            A property is unknown (near ones are named), cannot be had with librdkafka (the message says what to write
            instead), or ``kafka.bootstrap.servers`` is missing.
        """
        given = {name.lower(): value for name, value in options.matching("kafka.*").items()}
        for name in given:
            if name in REFUSED:
                raise _error(options, name, f"is not supported: {REFUSED[name]}")
            if name not in LIBRDKAFKA_NAMES and name not in JAVA_NAMES:
                raise _unknown(options, name)
        if not (given.get("bootstrap.servers") or given.get("metadata.broker.list")):
            raise _error(
                options, "bootstrap.servers", "must be set: the brokers' addresses, like 'broker1:9092,broker2:9092'."
            )
        timeout_ms = _whole_number(options, given, "default.api.timeout.ms", _DEFAULT_TIMEOUT_MS)
        group_id = given.get("group.id")
        settings = _translated(options, given)
        return cls(
            tuple(sorted(settings.items())),
            group_id,
            options.get("groupIdPrefix") or GROUP_ID_PREFIX,
            timeout_ms,
            retries=options.get("fetchOffset.numRetries", 3),
            retry_interval_ms=options.get("fetchOffset.retryIntervalMs", 1000),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={'***' if is_secret(name) else value}" for name, value in self.settings)
        return f"ClientConfig({shown})"

    @property
    def address(self) -> str:
        """The brokers' addresses as the user wrote them."""
        settings = dict(self.settings)
        return settings.get("bootstrap.servers") or settings["metadata.broker.list"]

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are hidden."""
        return dict(self.settings).get("isolation.level") == "read_committed"

    def consumer(self) -> dict[str, Setting]:
        """Return the settings of a new consumer; unless the user named the group, each has a group of its own."""
        given = {name: each for name, each in self._for(CONSUMER_ONLY).items() if name not in _NOT_TO_READ}
        return given | {
            "isolation.level": "read_committed" if self.reads_committed else "read_uncommitted",
            "group.id": self.group_id or f"{self.group_id_prefix}-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
        }

    def admin(self) -> dict[str, Setting]:
        """Return the settings of a new admin client."""
        return self._for(frozenset())

    def producer(self) -> dict[str, Setting]:
        """Return the settings of a new producer."""
        return {"partitioner": "murmur2_random"} | self._for(PRODUCER_ONLY)

    def _for(self, more: frozenset[str]) -> dict[str, Setting]:
        wanted = ANY_CLIENT | more
        return fit_reconnects({name: each for name, each in self.settings if name in wanted})

    @property
    def delivery_timeout_ms(self) -> int:
        """How long brokers may take to take a row, in milliseconds."""
        given = whole(dict(self.settings), "delivery.timeout.ms", "message.timeout.ms")
        return DELIVERY_TIMEOUT_MS if given is None else given

    def redact(self, message: str) -> str:
        """Return ``message`` without the secrets, should it hold any."""
        for name, value in self.settings:
            if is_secret(name) and value:
                message = message.replace(value, "***")
        return message

    def option_error(self, message: str) -> OptionError:
        """Return the error for settings that librdkafka refused when a client was made, from its text."""
        named = re.search(r'configuration property:? "([^"]+)"', message, re.IGNORECASE)
        option = f"kafka.{named[1]}" if named else "kafka.*"
        return OptionError(
            f"headgate.kafka: librdkafka refuses the options kafka.*: {self.redact(message).strip()}. "
            f"Correct {option if named else 'the property it speaks of'}.",
            option=option, value=None,
        )  # fmt: skip


def require_client_library() -> None:
    """Raise `DeploymentError` if confluent-kafka is not installed here.

    Called before the first client is made, so that Spark finds the format, and other formats, without it.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise DeploymentError(
            f"headgate.kafka needs confluent-kafka, which cannot be imported on {socket.gethostname()} ({error}). "
            "Install it on driver and executors: pip install 'headgate[kafka]'.",
            source="headgate.kafka",
        ) from error


def _error(options: Options, name: str, message: str) -> OptionError:
    """Return an error about ``kafka.<name>`` that does not carry its value, unlike `Options.error`."""
    return OptionError(
        f"{options.source}: the option 'kafka.{name}' {message}",
        source=options.source, option=f"kafka.{name}", value=None,
    )  # fmt: skip


def _unknown(options: Options, name: str) -> OptionError:
    near = difflib.get_close_matches(name, sorted(LIBRDKAFKA_NAMES | (JAVA_NAMES - set(REFUSED))), n=3, cutoff=0.6)
    hint = (
        "Did you mean " + " or ".join(f"'kafka.{each}'" for each in near) + "?"
        if near
        else "The properties are those of librdkafka (its CONFIGURATION.md) and of Java's clients in docs/kafka.md."
    )
    return _error(options, name, f"is not a property of a Kafka client. {hint}")


def _whole_number(options: Options, given: dict[str, str], name: str, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not value.strip().isdecimal() or int(value) == 0:
        raise _error(options, name, "must be a whole number of milliseconds above zero.")
    return int(value)


def _translated(options: Options, given: dict[str, str]) -> dict[str, str]:
    """Return librdkafka's properties for those the user gave."""
    settings: dict[str, str] = {}
    for name, value in given.items():
        if name in WITHOUT_EFFECT:
            continue
        if name in RENAMED:
            settings[RENAMED[name]] = _converted(options, name, value)
        elif name in LIBRDKAFKA_NAMES:
            settings[name] = value.strip().lower() if name in _LOWER_CASE else value
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    if settings.get("isolation.level", "read_committed") not in ("read_committed", "read_uncommitted"):
        raise _error(options, "isolation.level", "must be read_committed or read_uncommitted.")
    _translate_login(options, given, settings)
    _translate_trust_store(options, given, settings)
    _translate_key_store(options, given, settings)
    return settings


def _converted(options: Options, name: str, value: str) -> str:
    """Return the value of a property that librdkafka names, and sometimes counts, otherwise."""
    if name in ("receive.buffer.bytes", "send.buffer.bytes") and value.strip() == "-1":
        return "0"  # what the operating system chooses
    if name == "buffer.memory":
        if not value.strip().isdecimal():
            raise _error(options, name, "must be a whole number of bytes.")
        return str(max(1, int(value) // 1024))
    return value


_JAAS = re.compile(
    r"""\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b"""  # the login module and its flag
    r"""((?:[^;"']|"(?:\\.|[^"\\])*"|'[^']*')*);\s*"""  # its options
)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*("(?:\\.|[^"\\])*"|'[^']*'|[^\s;"']+)""")


def _translate_login(options: Options, given: dict[str, str], settings: dict[str, str]) -> None:
    """Make a user and a password of ``sasl.jaas.config``."""
    jaas = given.get("sasl.jaas.config")
    if jaas is None:
        return
    instead = "Set kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password instead."
    if "sasl.username" in given or "sasl.password" in given:
        raise _error(
            options, "sasl.jaas.config", "cannot be set together with kafka.sasl.username or kafka.sasl.password."
        )
    match = _JAAS.fullmatch(jaas)
    if match is None:
        raise _error(options, "sasl.jaas.config", f"cannot be read as one login module with its options. {instead}")
    module = match[1].rpartition(".")[2]
    found = {name: _unquoted(value) for name, value in _JAAS_OPTION.findall(match[2])}
    mechanism = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").strip().upper()
    if module == "OAuthBearerLoginModule":
        raise _error(
            options, "sasl.jaas.config",
            "names OAuthBearerLoginModule, which is not translated. Set kafka.sasl.oauthbearer.method to oidc, and "
            "kafka.sasl.oauthbearer.client.id, .client.secret, .token.endpoint.url and .scope instead.",
        )  # fmt: skip
    if module == "Krb5LoginModule":
        raise _error(
            options, "sasl.jaas.config",
            "names Krb5LoginModule, which is not translated. Set kafka.sasl.kerberos.principal, .keytab and "
            ".service.name instead, with a confluent-kafka built with Kerberos.",
        )  # fmt: skip
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise _error(options, "sasl.jaas.config", f"names {module}, Java code that librdkafka cannot run. {instead}")
    if not {"username", "password"} <= found.keys():
        raise _error(options, "sasl.jaas.config", f"has no username or no password. {instead}")
    if found.get("tokenauth", "false").lower() == "true":
        raise _error(options, "sasl.jaas.config", f"has a delegation token, which librdkafka does not know. {instead}")
    if module == "PlainLoginModule":
        if mechanism not in ("", "PLAIN"):
            raise _error(options, "sasl.mechanism", "must be PLAIN for the PlainLoginModule of kafka.sasl.jaas.config.")
        if not mechanism:
            settings["sasl.mechanism"] = "PLAIN"
    elif not mechanism.startswith("SCRAM-"):
        raise _error(
            options, "sasl.mechanism",
            "must be SCRAM-SHA-256 or SCRAM-SHA-512 for the ScramLoginModule of kafka.sasl.jaas.config.",
        )  # fmt: skip
    settings["sasl.username"], settings["sasl.password"] = found["username"], found["password"]


def _unquoted(value: str) -> str:
    if value[0] == '"':
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value[1:-1] if value[0] == "'" else value


def _translate_trust_store(options: Options, given: dict[str, str], settings: dict[str, str]) -> None:
    """Make a file of CA certificates of a trust store in PEM."""
    location = given.get("ssl.truststore.location")
    if location is None:
        return
    if given.get("ssl.truststore.type", "JKS").strip().upper() != "PEM":
        raise _error(
            options, "ssl.truststore.location",
            "must be a file of certificates in PEM, with kafka.ssl.truststore.type PEM: librdkafka reads no Java trust "
            "store. Convert it with 'keytool -exportcert -rfc -keystore STORE -alias ALIAS -file ca.pem' for each of "
            "its certificates.",
        )  # fmt: skip
    settings["ssl.ca.location"] = location


def _translate_key_store(options: Options, given: dict[str, str], settings: dict[str, str]) -> None:
    """Make a certificate and a key of a key store in PEM; one in PKCS12 stays what it is."""
    location = given.get("ssl.keystore.location")
    if location is None:
        return
    kind = given.get("ssl.keystore.type", "").strip().upper()
    if not kind and location.lower().endswith((".p12", ".pfx")):
        kind = "PKCS12"
    if kind == "PEM":
        # Each reads its own part of the one file.
        settings["ssl.certificate.location"] = settings["ssl.key.location"] = location
        del settings["ssl.keystore.location"]
        settings.pop("ssl.keystore.password", None)
    elif kind != "PKCS12":
        raise _error(
            options, "ssl.keystore.location",
            "must be in PKCS12 or PEM, with kafka.ssl.keystore.type saying which: librdkafka reads no JKS. Convert it "
            "with 'keytool -importkeystore -srckeystore STORE -destkeystore store.p12 -deststoretype PKCS12'.",
        )  # fmt: skip
