"""The table of `job_master`: who is notified of what, by which of its methods.

Never: decide. A row says where something goes, and not what is made of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.alignment import alignment_group as al
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.slots import slots as slt
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg

STATES = ("open", "releasing", "over")
"""The query lives; its slots are to end; all is over."""


class Route(msgspec.Struct, frozen=True):
    """Where something goes.

    Parameters
    ----------
    of
        Whose it is: a machine, a slot, or ``outside``.
    what
        The type of the event, message or order.
    to
        Who is notified directly: ``scheduler``, ``sources``, ``checkpoints``, ``groups``, ``slots``, ``outside``.
    by
        The method that does it; empty: nobody is notified.
    why
        What is not obvious.
    state
        In which of `STATES`, with commas between.
    """

    of: str
    what: type
    to: tuple[str, ...] = ()
    by: str = ""
    why: str = ""
    state: str = ", ".join(STATES)

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it holds in."""
        return tuple(self.state.split(", "))


def dispatch_of(routes: Iterable[Route]) -> dict[tuple[str, type], str]:
    """Return the name of the method for each state and type; two routes for one pair are an error."""
    found: dict[tuple[str, type], str] = {}
    for route in routes:
        for state in route.states:
            if found.setdefault((state, route.what), route.by) != route.by:
                raise TypeError(f"two routes for {state}, {route.what.__name__}")
    return found


# fmt: off
ROUTES = (
    Route("outside", sch.QueryStarted, ("checkpoints", "scheduler", "groups"), "_on_query_started",
        state="open, releasing"),
    Route("outside", job.SlotMessageReceived, ("scheduler", "outside"), "_on_slot_message_received",
        "what is of a slot's own attempt goes on below", state="open, releasing"),
    Route("outside", job.SlotMessageReceived, ("outside",), "_shut_out", "who comes when all is over", state="over"),
    Route("outside", job.ConnectionClosed, ("scheduler",), "_on_connection_closed", state="open, releasing"),
    Route("outside", job.FromSource, ("sources",), "_on_from_source", state="open, releasing"),
    Route("outside", sch.JobEnded, ("scheduler",), "_on_job_ended", "if it is the job that runs",
        state="open, releasing"),
    Route("outside", cp.CheckpointRequested, ("checkpoints",), "_on_checkpoint_requested", state="open"),
    Route("outside", cp.CheckpointRequested, ("outside",), "_refuse_request", "the query ends",
        state="releasing, over"),
    Route("outside", cp.RequestWithdrawn, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", cp.ManifestWritten, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", cp.ManifestWriteFailed, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", cp.FilesLooked, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", cp.Committed, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", cp.CommitFailed, ("checkpoints",), "_notify_checkpoints", state="open, releasing"),
    Route("outside", job.OthersMoved, ("groups",), "_on_others_moved", state="open, releasing"),
    Route("outside", job.StopRequested, ("scheduler",), "_on_stop_requested", state="open, releasing"),
    Route("outside", job.TimePassed, ("slots", "scheduler", "checkpoints", "sources", "groups"),
        "_on_time_passed", "whose time has come", state="open, releasing"),
    *(
        Route("outside", what, why="late", state="over")
        for what in (
            sch.QueryStarted, job.ConnectionClosed, job.FromSource, sch.JobEnded, cp.RequestWithdrawn,
            cp.ManifestWritten, cp.ManifestWriteFailed, cp.FilesLooked, cp.Committed, cp.CommitFailed,
            job.OthersMoved, job.StopRequested, job.TimePassed,
        )
    ),
    # Messages of executions that count.
    Route("slot", msg.ReaderRegistered, ("sources", "groups"), "_on_reader_registered"),
    Route("slot", msg.SplitRequested, ("sources",), "_on_reader_message"),
    Route("slot", msg.SplitsFinished, ("sources",), "_on_reader_message"),
    Route("slot", msg.EventToEnumerator, ("sources",), "_on_reader_message"),
    Route("slot", msg.SourceReported, ("sources",), "_on_reader_message"),
    Route("slot", msg.WatermarkReported, ("groups",), "_on_watermark_reported"),
    Route("slot", msg.SubtaskProgress, ("outside", "groups"), "_on_subtask_progress"),
    Route("slot", msg.SubtaskRunning, ("scheduler",), "_on_subtask_running"),
    Route("slot", msg.SubtaskRecovered, ("checkpoints",), "_on_subtask_recovered"),
    Route("slot", msg.LinkBroken, ("scheduler",), "_on_link_broken"),
    Route("slot", msg.InputEnded, ("scheduler",), "_on_input_ended"),
    Route("slot", msg.SubtaskFailed, ("scheduler",), "_on_subtask_failed"),
    Route("slot", msg.CheckpointAcknowledged, ("checkpoints",), "_on_checkpoint_acknowledged"),
    Route("slot", msg.CheckpointDeclined, ("checkpoints",), "_on_checkpoint_declined"),
    # Orders of the machines.
    Route("Scheduler", sch.SubmitJob, ("outside",), "_on_submit_job"),
    Route("Scheduler", sch.CancelJob, ("outside",), "_pass_on"),
    Route("Scheduler", sch.FailQuery, ("outside",), "_pass_on"),
    Route("Scheduler", sch.QueryOver, ("outside",), "_on_query_over", "requests that are open are answered"),
    Route("Scheduler", slt.AcceptSlot, ("slots",), "_accept"),
    Route("Scheduler", slt.FenceSlot, ("slots", "outside"), "_fence"),
    Route("Scheduler", sch.DeploySubtask, ("slots",), "_deploy"),
    Route("Scheduler", sch.CancelExecution, ("slots",), "_cancel"),
    Route("Scheduler", sch.ResetReaders, ("sources",), "_reset_readers"),
    Route("Scheduler", sch.RestoreSources, ("sources", "scheduler"), "_restore_sources"),
    Route("Scheduler", sch.AnnounceRunning, ("outside", "checkpoints"), "_announce_running"),
    Route("Scheduler", sch.AnnounceNotRunning, ("checkpoints",), "_announce_not_running"),
    Route("Scheduler", sch.AnnounceInputEnded, ("checkpoints",), "_announce_input_ended"),
    Route("Scheduler", sch.ReleaseSlots, ("slots", "groups", "sources", "outside"), "_release"),
    Route("Scheduler", sch.ReportFailure, ("groups", "outside"), "_report"),
    Route("Scheduler", sch.ReportMissingSlots, ("outside",), "_report"),
    Route("SourceCoordinator", src.StartEnumerator, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.CallEnumerator, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.StopEnumerator, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.AppendLog, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.DropLog, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.LoadLog, ("outside",), "_for_source"),
    Route("SourceCoordinator", src.SendToReader, ("slots",), "_send_to_reader"),
    Route("SourceCoordinator", src.EnumeratorStateReady, ("checkpoints",), "_on_state_ready"),
    Route("SourceCoordinator", src.CheckpointRefused, ("checkpoints",), "_on_refused"),
    Route("SourceCoordinator", src.ReaderReset, ("scheduler",), "_on_reader_reset",
        "when all sources have its splits back"),
    Route("SourceCoordinator", src.RequestGlobalFailover, ("scheduler",), "_on_source_failed"),
    Route("SourceCoordinator", src.WarnOfEnumerator, ("outside",), "_warn_of_enumerator"),
    Route("CheckpointCoordinator", cp.WriteManifest, ("outside",), "_pass_on"),
    Route("CheckpointCoordinator", cp.DeleteCheckpoint, ("outside",), "_pass_on"),
    Route("CheckpointCoordinator", cp.LookForFiles, ("outside",), "_pass_on"),
    Route("CheckpointCoordinator", cp.ReportLostFiles, ("outside",), "_report_lost_files"),
    Route("CheckpointCoordinator", cp.Commit, ("outside",), "_pass_on"),
    Route("CheckpointCoordinator", cp.AnswerRequest, ("outside",), "_answer_request"),
    Route("CheckpointCoordinator", cp.DeleteSavepoint, ("outside",), "_delete_savepoint"),
    Route("CheckpointCoordinator", cp.SnapshotSources, ("sources",), "_snapshot_sources"),
    Route("CheckpointCoordinator", cp.SendBarriers, ("slots", "sources"), "_send_barriers",
        "sources hear of it after slots"),
    Route("CheckpointCoordinator", cp.NotifyCompleted, ("slots", "sources", "outside"), "_notify_completed"),
    Route("CheckpointCoordinator", cp.NotifyAborted, ("outside", "slots", "sources"), "_notify_aborted"),
    Route("CheckpointCoordinator", cp.QuerySuspended, ("scheduler",), "_on_query_suspended"),
    Route("CheckpointCoordinator", cp.CheckpointFailureLimitReached, ("scheduler",), "_on_failure_limit"),
    Route("AlignmentGroup", al.Announce, ("slots",), "_announce"),
    Route("AlignmentGroup", al.ShareMinimum, ("outside",), "_share_minimum", state="open, releasing"),
    Route("AlignmentGroup", al.ShareMinimum, why="we vote no longer", state="over"),
    Route("AlignmentGroup", al.WarnOfAbsence, ("outside",), "_warn_of_absence"),
    Route("AlignmentGroup", al.WarnOfHolder, ("outside",), "_warn_of_holder"),
)
# fmt: on
"""All that `job_master` routes."""
