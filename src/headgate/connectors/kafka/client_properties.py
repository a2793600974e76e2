"""The properties that ``kafka.*`` options may name: librdkafka's, and what becomes of those that only Java has.

Never: decide anything; these are tables, used by `client_config`, `options` and the documentation.

Follows librdkafka 2.16, CONFIGURATION.md (a test compares them with the installed library), and Kafka 4.1's
``ConsumerConfig``, ``ProducerConfig``, ``SaslConfigs`` and ``SslConfigs``.
"""

from __future__ import annotations


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


ANY_CLIENT = _names(
    """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms bootstrap.servers broker.address.family
    broker.address.ttl broker.version.fallback client.dns.lookup client.id client.rack connections.max.idle.ms debug
    enable.metrics.push enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
    https.ca.location https.ca.pem log.connection.close log.thread.name log_level max.in.flight
    max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes metadata.broker.list
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable
    socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id
    ssl.engine.location ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
    ssl.providers ssl.sigalgs.list statistics.interval.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
    """
)
"""librdkafka's properties of every client."""

CONSUMER_ONLY = _names(
    """
    check.crcs coordinator.query.interval.ms fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
    fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.instance.id group.protocol group.protocol.type
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms queued.max.messages.kbytes
    queued.min.messages session.timeout.ms
    """
)
"""librdkafka's properties of consumers."""

PRODUCER_ONLY = _names(
    """
    acks batch.num.messages batch.size compression.codec compression.level compression.type delivery.timeout.ms
    enable.gapless.guarantee enable.idempotence linger.ms message.send.max.retries message.timeout.ms partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy request.required.acks retries sticky.partitioning.linger.ms
    transaction.timeout.ms transactional.id
    """
)
"""librdkafka's properties of producers."""

RENAMED = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Java's names of properties that librdkafka has under another one."""

NOTHING_COMMITTED = "no group is joined, and no offset is committed to one: positions are kept by Spark"
_NO_CLASSES = "librdkafka measures otherwise"
_OPENSSL = "librdkafka uses OpenSSL, which negotiates TLS 1.2 or newer"
_LOGIN = "librdkafka logs in again automatically"
_BATCHING = "librdkafka batches otherwise"

WITHOUT_EFFECT = {
    "allow.auto.create.topics": "a topic is never created by reading",
    "auto.commit.interval.ms": NOTHING_COMMITTED,
    "auto.include.jmx.reporter": _NO_CLASSES,
    "default.api.timeout.ms": "supported by Headgate itself: the longest wait for an answer of the brokers (60000)",
    "exclude.internal.topics": "Kafka's own topics are read only when they are named",
    "group.id": "supported by Headgate itself: the name of the group, instead of a unique one",
    "group.remote.assignor": NOTHING_COMMITTED,
    "key.serializer": "keys are bytes",
    "max.block.ms": "waits are limited by delivery.timeout.ms",
    "max.poll.records": "maxBufferedBytes limits what is held",
    "metadata.max.idle.ms": "librdkafka keeps what it needs",
    "metric.reporters": _NO_CLASSES,
    "metrics.num.samples": _NO_CLASSES,
    "metrics.recording.level": _NO_CLASSES,
    "metrics.sample.window.ms": _NO_CLASSES,
    "partition.assignment.strategy": NOTHING_COMMITTED,
    "partitioner.adaptive.partitioning.enable": _BATCHING,
    "partitioner.availability.timeout.ms": _BATCHING,
    "sasl.kerberos.ticket.renew.jitter": _LOGIN,
    "sasl.kerberos.ticket.renew.window.factor": _LOGIN,
    "sasl.login.connect.timeout.ms": _LOGIN,
    "sasl.login.read.timeout.ms": _LOGIN,
    "sasl.login.refresh.buffer.seconds": _LOGIN,
    "sasl.login.refresh.min.period.seconds": _LOGIN,
    "sasl.login.refresh.window.factor": _LOGIN,
    "sasl.login.refresh.window.jitter": _LOGIN,
    "sasl.login.retry.backoff.max.ms": _LOGIN,
    "sasl.login.retry.backoff.ms": _LOGIN,
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms is the longest as well",
    "ssl.enabled.protocols": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.protocol": _OPENSSL,
    "ssl.provider": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "value.serializer": "values are bytes",
}
"""Properties that are accepted and not handed to librdkafka, with the reason."""

_JAVA_CODE = "it names Java code, which librdkafka cannot run. "
_BYTES = "come as bytes: use functions of Spark on the column, or valueFormat json."

REFUSED = {
    "auto.offset.reset": "startingOffsets says where a new query starts; a restarted one continues where it was.",
    "enable.auto.commit": "positions are kept in Spark's checkpoint and are never committed to Kafka.",
    "auto.commit.enable": "positions are kept in Spark's checkpoint and are never committed to Kafka.",
    "enable.auto.offset.store": "positions are kept in Spark's checkpoint and are never committed to Kafka.",
    "enable.partition.eof": "Headgate sets it: it finds the end of a partition by it.",
    "interceptor.classes": _JAVA_CODE + "Leave it out.",
    "key.deserializer": "keys " + _BYTES,
    "value.deserializer": "values " + _BYTES,
    "partitioner.class": _JAVA_CODE
    + "Set kafka.partitioner (by default murmur2_random, as in Java), or fill the column "
    "partition.",
    "partitioner.ignore.keys": "set kafka.partitioner to random, or leave the column key out.",
    "sasl.client.callback.handler.class": _JAVA_CODE + "For OAuth set kafka.sasl.oauthbearer.method to oidc.",
    "sasl.login.callback.handler.class": _JAVA_CODE + "For OAuth set kafka.sasl.oauthbearer.method to oidc, and "
    "kafka.sasl.oauthbearer.client.id, .client.secret and .token.endpoint.url.",
    "sasl.login.class": _JAVA_CODE + "Leave it out.",
    "security.providers": _JAVA_CODE + "Leave it out.",
    "ssl.engine.factory.class": _JAVA_CODE + "Set kafka.ssl.ca.location and the like.",
}
"""Properties that are an error, with what to do."""

SPECIAL = {
    "sasl.jaas.config": "PlainLoginModule and ScramLoginModule: becomes sasl.username and sasl.password",
    "ssl.keystore.location": "PEM: becomes ssl.certificate.location and ssl.key.location; PKCS12: stays; JKS: an error",
    "ssl.keystore.type": "PEM or PKCS12; JKS, Java's default, is an error",
    "ssl.truststore.location": "PEM: becomes ssl.ca.location; PKCS12 and JKS: an error",
    "ssl.truststore.password": "not needed for PEM",
    "ssl.truststore.type": "PEM; PKCS12 and JKS, Java's default, are an error",
    "ssl.endpoint.identification.algorithm": "an empty value becomes none",
}
"""Properties that are translated by more than a name."""

JAVA_NAMES = frozenset({*RENAMED, *WITHOUT_EFFECT, *REFUSED, *SPECIAL})
"""What is known beside librdkafka's own names."""

LIBRDKAFKA_NAMES = ANY_CLIENT | CONSUMER_ONLY | PRODUCER_ONLY


def is_secret(name: str) -> bool:
    """Return whether the value of a property must not be shown."""
    return (
        any(word in name for word in ("password", "passphrase", "secret"))
        or name.endswith((".pem", "keystore.key", ".certificate.chain", "truststore.certificates"))
        or name == "sasl.oauthbearer.config"
    )
