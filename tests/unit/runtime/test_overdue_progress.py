"""Figures of a subtask that reports none itself: only where a call keeps it from that."""

from __future__ import annotations

import pytest

from headgate.protocol import messages as msg
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail, Mailboxes
from headgate.runtime.subtask import Subtask
from tests.unit.runtime.toy_query import ToySink, ToySource, toy_definition


@pytest.mark.parametrize("suspended", [False, True])
def test_a_subtask_that_was_deployed_only_to_publish_is_not_taken_for_busy(suspended: bool) -> None:
    """It reports no figures, and so none are overdue: nothing is counted as work of which there is none."""
    now, posted = [0], list[msg.FromSlot]()
    place = SlotPlace(run=1, slot=0, attempt=0, host="h", query_id="q", time_zone="UTC", checkpoint_location="/none")
    mailbox, found = Mailboxes(lambda: now[0]).new(), list[bool]()
    subtask = Subtask(
        toy_definition(ToySink(), {"a": ToySource()}), 0, place, SlotServices(work_ms=lambda: now[0]),
        mailbox, lambda: now[0], posted.append, lambda execution: None, lambda handle: b"",
    )  # fmt: skip
    subtask.deliver(msg.Deploy(stage=0, execution=1, parallelism=1, suspended=suspended))
    while subtask.turn(now[0]):
        pass
    assert any(isinstance(each, msg.SubtaskRunning) for each in posted)
    now[0] = 60_000
    assert subtask.overdue_progress() is None, "it waits, while another one has the thread"
    mailbox.post(Mail(lambda: found.append(subtask.overdue_progress() is None)))
    subtask.turn(now[0])
    assert found == [suspended]
