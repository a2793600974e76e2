"""The model of what a driver must announce to an alignment group: it accepts neither late nor double ones."""

from __future__ import annotations

import pytest

from headgate.coordinator.job import job_events as jm
from headgate.protocol import messages as msg
from headgate.simulation.announcements import Announcements
from headgate.source.watermark import MAX_WATERMARK_MS, WatermarkAlignment


class Driver:
    """A driver of one source with two readers, in slots 0 and 1, which have reported 100 and 200."""

    def __init__(self) -> None:
        aligned = {"a": WatermarkAlignment(group="group", max_drift_ms=10)}
        self.model = Announcements(aligned, parallelism=2)
        self._numbers: dict[tuple[str, int], int] = {}
        for slot in (0, 1):
            self.sends(slot, msg.Deploy(stage=0, execution=1, parallelism=2, restore=None, checkpoint_id=0))
        self.hears(0, report(100))
        self.hears(1, report(200))

    def hears(self, slot: int, message: msg.Message) -> None:
        """Let a message come, the next one of its slot."""
        self.model.on_event(jm.SlotMessageReceived(slot + 1, self._envelope("from", slot, message)))

    def sends(self, slot: int, message: msg.Message) -> None:
        """Let a message go, the next one to its slot."""
        self.model.on_action(jm.Transmit(slot + 1, self._envelope("to", slot, message)))

    def _envelope(self, way: str, slot: int, message: msg.Message) -> msg.Envelope:
        number = self._numbers[way, slot] = self._numbers.get((way, slot), 0) + 1
        return msg.Envelope(run=1, slot=slot, attempt=0, number=number, received=0, message=message)


def report(watermark_ms: int | None) -> msg.WatermarkReported:
    """Return what a reader reports."""
    return msg.WatermarkReported(stage=0, execution=1, source="a", watermark_ms=watermark_ms, slowest="")


def announcement(bound_ms: int) -> msg.AlignmentAnnounced:
    """Return what is announced to a reader."""
    return msg.AlignmentAnnounced(stage=0, execution=1, source="a", max_watermark_ms=bound_ms, others_ms=0)


def test_a_reader_that_was_notified_of_the_bound_of_the_lowest_vote_is_right() -> None:
    driver = Driver()
    driver.sends(0, announcement(110))
    driver.sends(1, announcement(110))
    driver.model.check()


def test_a_reader_that_is_not_notified_when_the_minimum_moved_is_found() -> None:
    driver = Driver()
    driver.sends(0, announcement(110))
    driver.sends(1, announcement(110))
    driver.hears(0, report(150))
    driver.sends(0, announcement(160))
    with pytest.raises(AssertionError, match="slot 1 was not notified: it may read on to 160"):
        driver.model.check()


def test_a_reader_that_is_notified_of_the_same_twice_is_found() -> None:
    driver = Driver()
    driver.sends(0, announcement(110))
    with pytest.raises(AssertionError, match="twice"):
        driver.sends(0, announcement(110))


def test_a_reader_that_failed_keeps_its_vote_and_need_not_be_notified() -> None:
    driver = Driver()
    driver.sends(0, announcement(110))
    driver.sends(1, announcement(110))
    error = msg.ErrorReport(error_type="ValueError", message="")
    driver.hears(0, msg.SubtaskFailed(stage=0, execution=1, error=error))
    driver.hears(0, report(150))  # of an execution that is over
    driver.model.check()
    driver.hears(1, report(90))
    driver.sends(1, announcement(100))
    driver.model.check()


def test_other_queries_take_part_and_without_any_vote_there_is_no_bound() -> None:
    driver = Driver()
    driver.model.on_event(jm.OthersMoved("group", 50))
    driver.sends(0, announcement(60))
    driver.model.check()
    for slot in (0, 1):
        driver.hears(slot, report(None))
    driver.model.on_event(jm.OthersMoved("group", None))
    driver.sends(0, announcement(MAX_WATERMARK_MS))
    driver.model.check()


def test_a_reader_whose_connection_is_closed_need_not_be_notified() -> None:
    driver = Driver()
    driver.sends(0, announcement(110))
    driver.model.on_event(jm.ConnectionClosed(1))
    driver.hears(1, report(90))
    driver.model.check()
