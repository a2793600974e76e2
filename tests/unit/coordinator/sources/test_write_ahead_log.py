"""The log in files: what was appended is loaded, and what is not whole is not used."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import (
    AssignedRecord,
    FinishedRecord,
    GivenAgainRecord,
    GivenBackRecord,
    LogRecord,
    NoMoreSplitsRecord,
    RegisteredRecord,
    SourceEventRecord,
    StateRecord,
)
from headgate.coordinator.sources.write_ahead_log import LogGroup, WriteAheadLog, decode_group, encode_group
from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.protocol.state import FinishedSplit, SplitState

A = SplitState("a", b"\x00a")
ALL: tuple[LogRecord, ...] = (
    StateRecord(b"state", 4),
    StateRecord(None),
    RegisteredRecord(1, 2, (A,)),
    AssignedRecord(1, 2, 3, (A,)),
    GivenBackRecord(1, 4),
    FinishedRecord(1, (FinishedSplit("a", 1),)),
    NoMoreSplitsRecord(1),
)
GOLDEN_EVENT = (
    "68656164676174652d6c6f6720310a34666339323763360a92089183a474797065ac736f757263652d6576656e74a7737562746173"
    "6b01a77061796c6f6164c4077069636b6c6564"
)
GOLDEN_GIVEN_AGAIN = (
    "68656164676174652d6c6f6720310a30643934323238330a92099183a474797065ab676976656e2d616761696ea7737562746173"
    "6b01a673706c6974739182a873706c69745f6964a161a464617461c4020061"
)
GOLDEN = (
    "68656164676174652d6c6f6720310a32363535353935370a92079783a474797065a57374617465a57374617465c405737461"
    "7465ad636865636b706f696e745f69640483a474797065a57374617465a57374617465c0ad636865636b706f696e745f6964"
    "c084a474797065aa72656769737465726564a77375627461736b01a9657865637574696f6e02af7265706f727465645f7370"
    "6c6974739182a873706c69745f6964a161a464617461c402006185a474797065a861737369676e6564a77375627461736b01"
    "a9657865637574696f6e02a66e756d62657203a673706c6974739182a873706c69745f6964a161a464617461c402006183a4"
    "74797065aa676976656e2d6261636ba77375627461736b01ad636865636b706f696e745f69640483a474797065a866696e69"
    "73686564a77375627461736b01a866696e69736865649182a873706c69745f6964a161a66e756d6265720182a474797065ae"
    "6e6f2d6d6f72652d73706c697473a77375627461736b01"
)


def log_in(folder: Path) -> WriteAheadLog:
    return WriteAheadLog(pa_fs.LocalFileSystem(), str(folder / "log"))


def written(folder: Path) -> WriteAheadLog:
    """Return a log of two segments: records 1 and 2, 3; and 4."""
    log = log_in(folder)
    for segment, number, records in ((0, 2, ALL[:2]), (0, 3, ALL[2:3]), (5, 4, ALL[3:4])):
        assert log.carry_out(src.AppendLog(segment, number, records)) == src.LogAppended(number)
    return log


def load(log: WriteAheadLog, from_segment: int = 0, through: int = 4) -> src.LogLoaded:
    loaded = log.carry_out(src.LoadLog(from_segment, through, 9))
    assert isinstance(loaded, src.LogLoaded)
    assert loaded.incarnation == 9
    return loaded


def test_what_was_appended_is_loaded_in_order(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert load(log).records == ALL[:4]
    assert load(log, 5).records == ALL[3:4]


def test_segments_before_one_are_dropped_or_all(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert log.carry_out(src.DropLog(5)) is None
    assert load(log).records == ALL[3:4]
    log.carry_out(src.DropLog(None))
    assert load(log, through=0).records == ()
    log_in(tmp_path / "nowhere").carry_out(src.DropLog(None))


def test_a_missing_end_a_gap_and_a_changed_byte_make_it_unusable(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert "ends with record 4, not 5" in load(log, through=5).reason
    first, second = sorted((tmp_path / "log" / f"{0:020d}").iterdir())
    kept = second.read_bytes()
    second.unlink()
    gap = load(log)
    assert gap.records is None
    assert "does not follow record 2" in gap.reason
    for broken in (kept[:-1], kept[:-1] + b"?", b"", b"{}"):
        second.write_bytes(broken)
        unusable = load(log)
        assert unusable.records is None
        assert str(second) in unusable.reason
    second.write_bytes(kept)
    assert load(log).records == ALL[:4]
    first.chmod(0o644)


def test_a_folder_that_cannot_be_written_or_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file where the folder should be")
    failed = log_in(tmp_path).carry_out(src.AppendLog(0, 1, ALL[:1]))
    assert isinstance(failed, src.LogAppendFailed)
    assert str(tmp_path) in failed.reason
    assert load(log_in(tmp_path)).records is None


def test_every_record_survives_and_the_golden_bytes_are_read() -> None:
    group = LogGroup(7, ALL)
    assert decode_group(encode_group(group), "path") == group
    assert decode_group(bytes.fromhex(GOLDEN), "path") == group
    event = LogGroup(8, (SourceEventRecord(1, b"pickled"),))
    assert decode_group(encode_group(event), "path") == event
    assert decode_group(bytes.fromhex(GOLDEN_EVENT), "path") == event
    given_again = LogGroup(9, (GivenAgainRecord(1, (A,)),))
    assert decode_group(encode_group(given_again), "path") == given_again
    assert decode_group(bytes.fromhex(GOLDEN_GIVEN_AGAIN), "path") == given_again


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="path has version 2"):
        decode_group(b"headgate-log 2\n0\n", "path")
    body = b"\x92\x07\xc0"
    with pytest.raises(CorruptStateError, match="path cannot be read"):
        decode_group(b"headgate-log 1\n%08x\n" % zlib.crc32(body) + body, "path")
