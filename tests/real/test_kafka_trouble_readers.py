"""What a reader of Kafka meets besides records: errors in the middle of a batch, forks, and pauses in any order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kafka import bulk, consumer_pool, split_reader
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.records import Records, Wanted
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.split_reader import KafkaSplitReader
from headgate.errors import SourceError
from headgate.readers import MultiplexedReader, ReaderOptions
from headgate.source import SourceReaderContext
from headgate.task.reader_output import BatchOutput
from local.kafka import Broker
from local.topics import Message, create_topic, produce

SETTINGS: dict[str, str | int | bool] = {"enable.partition.eof": True, "auto.offset.reset": "error"}


class Offsets:
    def __init__(self, *, headers: bool = False) -> None:
        self.wanted = Wanted(keys=False, timestamps=False, headers=headers)

    def rows(self, records: Records) -> tuple[pa.RecordBatch, None]:
        return pa.record_batch({"offset": records.offsets, "value": records.values}), None


def client(kafka: Broker) -> ClientConfig:
    return ClientConfig((("bootstrap.servers", kafka.plain),))


def ends(work: Callable[[], Any]) -> None:
    """Run work that may never end, and fail if it does not."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "it never ends"


@pytest.mark.parametrize("headers", [False, True])
def test_more_than_a_column_holds_is_an_error_that_arrives(
    kafka: Broker, topic_name: str, monkeypatch: pytest.MonkeyPatch, headers: bool
) -> None:
    """A client with messages that nobody gave back waits for them when it is closed, for ever, and hides the error."""
    create_topic(kafka.plain, topic_name, 3)
    long: list[tuple[str, bytes | None]] = [("a", b"x" * 3000)] if headers else []
    messages = [Message(b"y" if headers else b"x" * 3000, partition=each % 3, headers=long) for each in range(30)]
    produce(kafka.plain, topic_name, messages)
    monkeypatch.setattr(bulk, "_MOST_BYTES", 2000)

    def make() -> KafkaSplitReader:
        return KafkaSplitReader(
            client(kafka), Offsets(headers=headers), fail_on_data_loss=True, poll_timeout_ms=20_000,
            buffered_bytes=2**26,
        )  # fmt: skip

    context = SourceReaderContext(
        subtask=0, schema=pa.schema([]), host="", request_split=lambda: None, send_event=lambda event: None,
        time_zone="UTC",
    )  # fmt: skip
    reader = MultiplexedReader(make, context, ReaderOptions(request_splits=False, close_timeout_ms=60_000))
    reader.add_splits(
        [KafkaSplit(split_id=str(each), topic=topic_name, partition=each, position=0, stop=10) for each in range(3)]
    )
    ends(reader.available().result)
    with pytest.raises(SourceError, match=rf"bytes of {topic_name}-\d at once; a column holds 2 GiB"):
        reader.poll_next(BatchOutput())
    ends(reader.close)
    assert not any(each.alive for each in reader._fetchers.values()), "its fetcher is stuck"


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_a_forked_child_has_a_consumer_of_its_own(
    kafka: Broker, topic_name: str, decoder: consumer_pool.Decoder
) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, [Message(b"%d" % each) for each in range(50)])
    program = [sys.executable, str(Path(__file__).parent / "kafka_fork_program.py"), kafka.plain, topic_name, decoder]
    assert subprocess.run(program, timeout=600).returncode == 0


@pytest.mark.parametrize("decoder", ["auto", "plain"])
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_paused_added_and_restored_each_record_comes_once_and_in_order(
    kafka: Broker, topic_name: str, decoder: consumer_pool.Decoder, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "_FIRST_ROWS", 20)  # small fetches
    monkeypatch.setattr(split_reader, "MOST_ROWS", 40)
    numbers, per_partition = random.Random(seed), 400
    create_topic(kafka.plain, topic_name, 3)
    produce(
        kafka.plain,
        topic_name,
        [Message(b"%d" % (each // 3), partition=each % 3) for each in range(3 * per_partition)],
    )
    splits: dict[str, KafkaSplit] = {}
    wanted: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    paused: set[str] = set()

    def make() -> KafkaSplitReader:
        return KafkaSplitReader(
            client(kafka), Offsets(), fail_on_data_loss=True, poll_timeout_ms=20_000, buffered_bytes=2**22,
            decoder=decoder,
        )  # fmt: skip

    def new() -> KafkaSplit:
        start = numbers.randrange(per_partition)
        stop = numbers.randint(start, per_partition)
        name = f"{topic_name}@{len(wanted)}"
        wanted[name], got[name] = list(range(start, stop)), []
        splits[name] = KafkaSplit(
            split_id=name, topic=topic_name, partition=numbers.randrange(3), position=start, stop=stop
        )
        return splits[name]

    def fetch(timeout_ms: int) -> None:
        for each in reader.fetch(timeout_ms):
            name = each.split.split_id
            assert name in splits and name not in paused
            if each.batch is not None:
                offsets = each.batch.column("offset").to_pylist()
                assert each.batch.column("value").to_pylist() == [b"%d" % offset for offset in offsets]
                got[name] += offsets
            splits[name] = each.split
            if each.finished:
                assert got[name] == wanted[name]
                del splits[name]

    reader = make()
    for _ in range(120):
        action = numbers.choice(["fetch"] * 5 + ["pause", "resume", "add", "wake", "restore"])
        if action == "fetch":
            fetch(numbers.choice([0, 1, 20]))
        elif action == "pause":
            chosen = numbers.sample(sorted(splits), numbers.randint(0, len(splits)))
            paused |= set(chosen)
            reader.pause_or_resume_splits([splits[name] for name in chosen], [])
        elif action == "resume":
            chosen = [name for name in sorted(paused) if numbers.random() < 0.6]
            paused -= set(chosen)
            reader.pause_or_resume_splits([], [splits[name] for name in chosen])
        elif action == "add" and len(splits) < 10:
            reader.handle_splits_changes([new() for _ in range(numbers.randint(1, 3))])
        elif action == "wake":
            reader.wake_up()
        elif action == "restore":
            reader.close()
            paused.clear()
            reader = make()
            reader.handle_splits_changes(list(splits.values()))
    paused.clear()
    reader.pause_or_resume_splits([], list(splits.values()))
    while splits:
        fetch(500)
    reader.close()
    assert got == wanted
