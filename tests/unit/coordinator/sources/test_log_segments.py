"""The numbers of a source's log, and what waits for them."""

from __future__ import annotations

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import NoMoreSplitsRecord
from headgate.coordinator.sources.log_segments import LogSegments
from headgate.coordinator.sources.outbox import Admission, Outbox, Unassigned

RECORD = NoMoreSplitsRecord(0)


def test_numbers_go_on_over_segments_and_logs() -> None:
    log = LogSegments()
    assert log.append(RECORD, RECORD) == [src.AppendLog(0, 2, (RECORD, RECORD))]
    log.appended(2)
    log.begin_segment(7)
    assert log.append(RECORD) == [src.AppendLog(7, 3, (RECORD,))]
    log.begin(7)
    assert log.is_older(3) and not log.is_older(4)
    assert log.append() == []


def test_what_comes_during_a_write_goes_into_the_next_one_of_its_segment() -> None:
    """200 records of 64 readers are two or three writes, whatever a write takes."""
    log = LogSegments()
    assert log.append(RECORD) == [src.AppendLog(0, 1, (RECORD,))]
    assert (log.append(RECORD), log.append(RECORD, RECORD)) == ([], [])
    log.begin_segment(3)
    assert (log.append(RECORD), log.append(RECORD)) == ([], [])
    assert log.appended(1) == [src.AppendLog(0, 4, (RECORD,) * 3)]
    assert log.append(RECORD) == []
    assert log.appended(4) == [src.AppendLog(3, 7, (RECORD,) * 3)]
    assert (log.appended(7), log.durable) == ([], 7)
    assert log.append(RECORD) == [src.AppendLog(3, 8, (RECORD,))]


def test_all_that_waits_is_written_before_the_log_is_read() -> None:
    log = LogSegments()
    log.append(RECORD)
    log.append(RECORD)
    log.begin_segment(3)
    log.append(RECORD)
    assert log.write_all() == [src.AppendLog(0, 2, (RECORD,)), src.AppendLog(3, 3, (RECORD,))]
    assert (log.appended(1), log.append(RECORD), log.appended(2)) == ([], [], []), "those are under way"
    assert log.appended(3) == [src.AppendLog(3, 4, (RECORD,))]


def test_an_older_log_ends_no_write() -> None:
    log = LogSegments()
    log.append(RECORD)
    log.begin(5)
    log.append(RECORD)
    log.append(RECORD)
    assert log.appended(1) == []
    assert log.appended(2) == [src.AppendLog(5, 3, (RECORD,))]


def test_a_segment_that_misses_a_record_gets_no_more_and_the_next_one_does() -> None:
    log = LogSegments()
    log.append(RECORD)
    log.go_on_without()
    assert (log.append(RECORD), log.durable, log.is_whole_since(0)) == ([], 1, False)
    log.begin_segment(1)
    assert log.append(RECORD) == [src.AppendLog(1, 2, (RECORD,))]
    assert log.is_whole_since(1) and not log.is_whole_since(0)


def test_what_is_put_goes_once_the_log_is_durable_and_nothing_overtakes() -> None:
    log = LogSegments()
    outbox = Outbox(log)
    log.append(RECORD)
    outbox.put(Admission(), 0, 1)
    log.append(RECORD)
    outbox.put(Unassigned(5), log_number=0)
    assert outbox.pop() is None
    log.appended(1)
    sent = [outbox.pop(), outbox.pop(), outbox.pop()]
    assert [each and each.what for each in sent] == [Admission(), Unassigned(5), None]
