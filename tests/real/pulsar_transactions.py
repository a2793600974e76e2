"""Writes to Pulsar in transactions, by its client for Java: the one for Python has none.

Never: outlive the test: the Java ends when the pipe to it does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from local.jars import jars, java


class TransactionalProducer:
    """A producer of one topic; a message is written when a call returns."""

    def __init__(self, client: JavaClient, topic: str) -> None:
        self._client = client
        self._producer = client.api.newProducer().topic(topic).sendTimeout(0, client.unit.SECONDS).create()

    def begin(self) -> Any:
        """Begin a transaction; ``commit().get()`` or ``abort().get()`` end it."""
        return self._client.api.newTransaction().withTransactionTimeout(1, self._client.unit.HOURS).build().get()

    def send(self, *values: bytes, within: Any = None) -> None:
        """Write messages, in one batch or some, of a transaction or of none."""
        sent = []
        for value in values:
            message = self._producer.newMessage() if within is None else self._producer.newMessage(within)
            sent.append(message.value(value).sendAsync())
        for each in sent:  # that of a transaction may not be under way yet when a flush returns
            each.get()


class JavaClient:
    """A Java with a client of a broker, on the broker's jars; py4j's is that of Spark.

    Attributes
    ----------
    api
        The ``PulsarClient``.
    unit
        Java's ``TimeUnit``.
    """

    def __init__(self, service_url: str) -> None:
        (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        port, token, self._process = launch_gateway(
            jarpath=str(py4j), classpath=os.pathsep.join(map(str, jars("pulsar-broker"))), java_path=java(),
            javaopts=["-Xmx128m", "-XX:TieredStopAtLevel=1"], die_on_exit=True, enable_auth=True, return_proc=True,
        )  # fmt: skip
        # Else objects that Python forgets are looked for in a Java that has ended.
        parameters = GatewayParameters(port=port, auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        java_util, client = self._gateway.jvm.java.util, self._gateway.jvm.org.apache.pulsar.client.api.PulsarClient
        self.api = client.builder().serviceUrl(service_url).enableTransaction(True).build()
        self.unit = java_util.concurrent.TimeUnit

    def producer(self, topic: str) -> TransactionalProducer:
        """Return a producer of a topic, by its whole name."""
        return TransactionalProducer(self, topic)

    def close(self) -> None:
        """End the Java."""
        self._gateway.close()
        self._process.kill()
        self._process.wait()
