"""The publisher of staged rows whose client hangs: who takes part in checkpoints learns of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink import publisher as publisher_module
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.publisher import StagedPublisher
from headgate.errors import SinkUnavailableError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.publication_retries import PublicationMachine
from tests.waiting import wait_until


def test_a_client_in_which_nothing_moves_is_an_error_of_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's calls have outlived their own time-outs: the thread hangs, and no exception comes of it."""
    goes_on = threading.Event()
    attempts = []

    def hang(*_: Any, **__: Any) -> Any:
        attempts.append(1)
        goes_on.wait()
        raise SinkUnavailableError("it was let go")

    monkeypatch.setattr(publisher_module, "TransactionalWriter", hang)
    settings = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "rides"}
    sink = KafkaSink.of(settings, pa.schema([("value", pa.string())]))
    context = OperatorContext(uid="sink", subtask=0, parallelism=1, options={"checkpointLocation": str(tmp_path)})
    publisher = StagedPublisher(sink, context, [])
    publisher._machine = PublicationMachine(limit_ms=50)
    publisher._order(publisher.open)

    def error() -> SinkUnavailableError | None:
        try:
            publisher.raise_failure()
        except SinkUnavailableError as raised:
            return raised
        return None

    wait_until(lambda: error() is not None)
    raised = error()
    assert raised is not None
    assert "nothing moves" in str(raised) and raised.address == "127.0.0.1:9"
    goes_on.set()
    publisher.close(10)
    assert len(attempts) == 1, "what was given up is not tried again, least of all without a pause"
