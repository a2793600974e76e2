"""What is logged: one line per event, with where it happened, as text or as Spark's JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.event_log import configure, describe, set_process_context, set_thread_context


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged in this test; logging is as before after it."""
    logger = logging.getLogger("headgate")
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])
    set_process_context()
    set_thread_context()


def test_json_has_the_fields_of_sparks_structured_logs(stream: io.StringIO) -> None:
    from pyspark.logger import SPARK_LOG_SCHEMA

    configure(structured=True, stream=stream)
    set_process_context(query="rides", slot=3)
    log = logging.getLogger("headgate.test")
    log.info("Checkpoint %d is complete.", 5, extra={"context": {"stage": 1}})
    try:
        raise ValueError("what\nis wrong")
    except ValueError:
        log.exception("It failed.")
    event, failure = map(json.loads, stream.getvalue().splitlines())
    assert (event["level"], event["msg"], event["logger"]) == ("INFO", "Checkpoint 5 is complete.", "headgate.test")
    assert event["context"] == {"query": "rides", "slot": "3", "stage": "1"}
    assert set(failure) - set(event) == {"exception"}
    assert all(re.search(rf"(^|, ){name} (TIMESTAMP|STRING|map|STRUCT)", SPARK_LOG_SCHEMA) for name in failure)
    assert failure["exception"]["class"] == "ValueError"
    assert failure["exception"]["stacktrace"][-1]["method"] == "test_json_has_the_fields_of_sparks_structured_logs"


@pytest.mark.spark_since("log-context")
def test_pysparks_own_formatter_finds_the_context(stream: io.StringIO) -> None:
    from pyspark.logger.logger import JSONFormatter

    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("headgate")
    logger.addHandler(handler)
    logger.warning("A slot is lost.", extra={"context": {"query": "rides"}})
    assert json.loads(stream.getvalue())["context"] == {"query": "rides"}


def test_text_is_one_line_with_query_slot_and_subtask(stream: io.StringIO) -> None:
    configure(structured=False, stream=stream)
    set_process_context(query="rides", slot=3)

    def subtask() -> None:
        set_thread_context(stage=1, subtask=3)
        logging.getLogger("headgate.test").warning("It failed: %s", describe(ValueError("what\nis wrong")))

    thread = threading.Thread(target=subtask)
    thread.start()
    thread.join()
    expected = "WARNING headgate.test [query rides, slot 3, stage 1, subtask 3] It failed: ValueError: what is wrong\n"
    assert stream.getvalue().endswith(expected) and stream.getvalue().count("\n") == 1


def test_set_up_twice_is_one_line_still_and_other_handlers_stay(stream: io.StringIO) -> None:
    others: Any = io.StringIO()
    own = logging.StreamHandler(others)
    logging.getLogger("headgate").addHandler(own)
    configure(structured=True, stream=stream)
    configure(structured=False, stream=stream)
    logging.getLogger("headgate").info("once")
    assert stream.getvalue().count("once") == 1 and others.getvalue() == "once\n"


def test_what_is_handled_has_no_traceback(repository: Path) -> None:
    found = []
    for path in (repository / "src/headgate").rglob("*.py"):
        for call in re.findall(r"_log\.\w+\([^\n]*exc_info=True", path.read_text()):
            if not call.startswith("_log.debug"):
                found.append(f"{path.name}: {call}")
    assert not found
