"""SASL/PLAIN and TLS through Spark: they work, errors are clear, and no secret is seen anywhere."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from local.kafka import PASSWORD, USER, Broker, Certificates
from local.topics import Message, create_topic, produce
from tests.spark_java import defaults

HERE = Path(__file__).parent
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def secured(kafka: Broker, certificates: Certificates) -> dict[str, dict[str, str]]:
    """Return the options for each of the broker's listeners, as a user of Spark's source writes them."""
    login = {
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{JAAS} username="{USER}" password="{PASSWORD}";',
    }
    trust = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(certificates.ca)}
    return {
        "sasl": {"kafka.bootstrap.servers": kafka.sasl, "kafka.security.protocol": "SASL_PLAINTEXT", **login},
        "tls": {"kafka.bootstrap.servers": kafka.tls, "kafka.security.protocol": "SSL", **trust},
        "both": {"kafka.bootstrap.servers": kafka.sasl_tls, "kafka.security.protocol": "SASL_SSL", **login, **trust},
    }


def count(spark: SparkSession, topic: str, options: dict[str, Any]) -> int:
    return spark.read.format("headgate.kafka").options(**options).option("subscribe", topic).load().count()


@pytest.mark.parametrize("listener", ["sasl", "tls", "both"])
def test_secured_listeners_are_read_with_the_options_of_sparks_source(
    spark: SparkSession, kafka: Broker, secured: dict[str, dict[str, str]], topic_name: str, listener: str
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, [Message(b"%d" % number) for number in range(7)])
    assert count(spark, topic_name, secured[listener]) == 7
    theirs = spark.read.format("kafka").options(**secured[listener]).option("subscribe", topic_name).load().count()
    assert theirs == 7


def test_a_wrong_password_is_reported_and_not_shown(
    spark: SparkSession, secured: dict[str, dict[str, str]], topic_name: str
) -> None:
    wrong = {**secured["both"], "kafka.sasl.jaas.config": f'{JAAS} username="{USER}" password="open-sesame-1234";'}
    with pytest.raises(PySparkException, match=r"(?is)headgate.*authentication") as caught:
        count(spark, topic_name, wrong)
    assert "open-sesame" not in str(caught.value)


def test_a_wrong_authority_is_reported(
    spark: SparkSession, secured: dict[str, dict[str, str]], certificates: Certificates, topic_name: str
) -> None:
    wrong = {**secured["tls"], "kafka.ssl.truststore.location": str(certificates.other_ca)}
    with pytest.raises(PySparkException, match=r"(?is)headgate.*certificate"):
        count(spark, topic_name, wrong)


@pytest.mark.spark_since("stream-arrow-writer")
def test_no_secret_is_seen(
    imported: Path, kafka: Broker, certificates: Certificates, topic_name: str, tmp_path: Path
) -> None:
    """Not in offsets, progress, plans, errors, logs, or any page of the UI and its interface for programs."""
    # A Java of its own: what that prints is looked at.
    settings = shlex.join(f"--conf={name}={value}" for name, value in defaults().items())
    for topic in (topic_name, f"{topic_name}-copy"):
        create_topic(kafka.plain, topic)
    done = subprocess.run(
        [sys.executable, str(HERE / "kafka_secrets_program.py"), kafka.sasl_tls, str(certificates.ca), topic_name,
         str(tmp_path), USER, PASSWORD],
        cwd=tmp_path, env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"}, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=600,
    )  # fmt: skip
    (tmp_path / "output.txt").write_bytes(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:].decode()
    assert (tmp_path / "rows.txt").read_text() == "5"
    assert "authentication" in (tmp_path / "wrong-password.txt").read_text().lower()
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert len(files) > 20
    assert b"headgate" in b"".join(each.read_bytes() for each in files if each.name.startswith("page-"))
    leaks = [str(each.relative_to(tmp_path)) for each in files if PASSWORD.encode() in each.read_bytes()]
    assert leaks == []
