"""Planners of one application meet: over real sockets, whoever hosts, and whoever dies."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.microbatch.alignment import group_membership as membership_module
from headgate.microbatch.alignment import host as host_module
from headgate.microbatch.alignment import member as member_module
from headgate.microbatch.alignment import reports as reports_module
from headgate.microbatch.alignment.host import Host, endpoint_in, folder_of_application, member_lock
from headgate.microbatch.alignment.member import Member
from headgate.microbatch.alignment.messages import HostEndpoint, Join, ReportTo, Standing, Vote, receive, send
from headgate.microbatch.alignment.reports import EventTimeOutput, report
from headgate.private_files import make_private
from headgate.source.watermark import MIN_WATERMARK_MS


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is alone, and no report is lost, because the machine is slow."""
    monkeypatch.setattr(member_module, "_ANSWER_S", 60.0)
    monkeypatch.setattr(member_module, "_GIVE_UP_S", 60.0)
    monkeypatch.setattr(reports_module, "_REPORT_S", 60.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "endpoint"


def votes(standing: Standing) -> list[int | None]:
    return sorted((vote.vote_ms for vote in standing.others.values()), key=lambda vote: (vote is None, vote))


def child(folder: Path, vote_ms: int) -> subprocess.Popen[str]:
    """Start a process with a member that votes once and then lives on."""
    program = f"""
        import time
        from pathlib import Path
        from headgate.microbatch.alignment.messages import Vote
        from headgate.microbatch.alignment.member import Member
        member = Member("g", Path({str(folder)!r}))
        member.join()
        member.exchange(Vote({vote_ms}))
        print("voted", flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "voted\n"
    return process


def test_members_of_a_group_see_each_others_votes_and_no_other_groups(folder: Path) -> None:
    a, b, other = Member("g", folder), Member("g", folder), Member("h", folder)
    for member in (a, b, other):
        member.join()
    assert votes(a.exchange(Vote(5))) == [MIN_WATERMARK_MS]
    assert votes(b.exchange(Vote(7, slowest="x"))) == [5]
    assert votes(a.exchange(Vote(5))) == [7]
    assert votes(other.exchange(Vote(1))) == []
    b.leave()
    while (seen := votes(a.exchange(Vote(5)))) != []:
        assert seen == [7], "until the host hears that its connection is closed"
        time.sleep(0.01)
    for member in (a, other):
        member.leave()


def test_the_folder_is_private_and_a_stranger_without_the_token_learns_nothing(folder: Path) -> None:
    member = Member("g", folder)
    member.join()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    endpoint = endpoint_in(folder)
    assert endpoint is not None and member.report_to is not None
    report(ReportTo(HostEndpoint(endpoint.path, "guessed"), member.report_to.member), {"s": 5})
    assert member.exchange(Vote(None)).event_times == {}
    report(member.report_to, {"s": 5})
    assert member.exchange(Vote(None)).event_times == {"s": 5}
    assert member.exchange(Vote(None)).event_times == {}, "reported once"
    member.leave()


def test_when_the_host_leaves_another_member_takes_over_with_all_votes(folder: Path) -> None:
    host, a, b = (Member("g", folder) for _ in range(3))
    for vote_ms, member in enumerate((host, a, b)):
        member.join()
        member.exchange(Vote(vote_ms))
    host.leave()
    seen = votes(a.exchange(Vote(1)))
    while seen != [2]:
        assert seen == [MIN_WATERMARK_MS], "until b is back it may have anything"
        time.sleep(0.05)
        seen = votes(a.exchange(Vote(1)))
    a.leave()
    b.leave()


def test_who_comes_to_a_new_host_before_its_own_planner_does_is_not_alone(folder: Path) -> None:
    """A planner is the host first and joins it then: in between, it had no vote, and others read ahead of it."""
    make_private(folder)
    of_host = member_lock(folder, "planner")
    host, other = Host(folder), Member("g", folder)
    other.join()
    assert votes(other.exchange(Vote(1))) == [MIN_WATERMARK_MS]
    other.leave()
    host.close()
    of_host.release()


def test_who_connects_while_the_host_leaves_is_sent_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be alone with a host that nobody finds any more."""
    accepted, go_on = threading.Event(), threading.Event()
    finish_request = host_module._Server.finish_request

    def finish_late(server: Any, request: Any, client_address: Any) -> None:
        accepted.set()
        assert go_on.wait(60)
        finish_request(server, request, client_address)

    monkeypatch.setattr(host_module._Server, "finish_request", finish_late)
    make_private(folder)
    host = Host(folder)
    endpoint = endpoint_in(folder)
    assert endpoint is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(endpoint.path)
        send(connection, Join(endpoint.token, "late", "g"))
        assert accepted.wait(60)
        host.close()
        go_on.set()
        with pytest.raises((EOFError, ConnectionError)):
            receive(connection)


def test_a_task_on_another_machine_reports_over_tcp(folder: Path) -> None:
    """There is no Unix socket where it runs; a stranger is not listened to, and members do not come this way."""
    make_private(folder)
    host = Host(folder, local=False)
    member = Member("g", folder)
    member.join()
    assert member.report_to is not None
    endpoint = member.report_to.endpoint
    elsewhere = HostEndpoint("/nowhere/sock", endpoint.token, endpoint.addresses)
    report(ReportTo(elsewhere, member.report_to.member), {"split": 5})
    report(
        ReportTo(HostEndpoint("/nowhere/sock", "guessed", endpoint.addresses), member.report_to.member), {"split": 9}
    )
    with socket.create_connection(endpoint.addresses[0], 60) as connection:
        send(connection, Join(endpoint.token, "stranger", "g"))
        with pytest.raises((EOFError, ConnectionError)):
            receive(connection)
    standing = member.exchange(Vote(1))
    assert standing.event_times == {"split": 5}
    assert not standing.others
    member.leave()
    host.close()
    with pytest.raises(OSError):
        socket.create_connection(endpoint.addresses[0], 60)


def test_a_report_that_reaches_nobody_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report(ReportTo(HostEndpoint("/nowhere/sock", "t"), "m"), {"split": 5})
    assert "cannot be reported to the driver's machine (/nowhere/sock: " in caplog.text


@pytest.mark.timeout(120)
def test_a_killed_host_holds_nobody_and_the_others_go_on(folder: Path) -> None:
    host = child(folder, 1)
    a, b = Member("g", folder), Member("g", folder)
    a.join()
    b.join()
    try:
        b.exchange(Vote(9))
        assert votes(a.exchange(Vote(5))) == [1, 9]
    finally:
        host.kill()
        host.wait()
    while (seen := votes(a.exchange(Vote(5)))) != [9]:
        assert seen == [MIN_WATERMARK_MS]
        time.sleep(0.05)
    a.leave()
    b.leave()


def test_a_connection_that_only_breaks_takes_no_vote_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks where the host, or its machine, stands still for a while: nobody may read ahead meanwhile."""
    a, b = Member("g", folder), Member("g", folder)
    a.join()
    a.exchange(Vote(9))
    monkeypatch.setattr(member_module, "RENEW_S", 600.0)  # it does not recover automatically
    b.join()
    b.exchange(Vote(7))
    assert b._connection is not None
    b._connection.shutdown(socket.SHUT_RDWR)
    for _ in range(50):
        assert votes(a.exchange(Vote(9))) == [7]
        time.sleep(0.02)
    assert votes(b.exchange(Vote(8))) == [9]
    assert votes(a.exchange(Vote(9))) == [8]
    b.leave()
    while votes(a.exchange(Vote(9))) != []:
        time.sleep(0.01)
    a.leave()


@pytest.mark.timeout(120)
def test_a_member_that_only_hangs_loses_its_vote_when_its_lease_runs_out_and_has_it_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "LEASE_MS", 5000)  # of several renewals, as the real one is
    a = Member("g", folder)
    a.join()
    hanging = child(folder, 3)
    try:
        os.kill(hanging.pid, signal.SIGSTOP)
        assert votes(a.exchange(Vote(5))) == [3]
        while votes(a.exchange(Vote(5))) == [3]:
            time.sleep(0.2)
        assert votes(a.exchange(Vote(5))) == []
        os.kill(hanging.pid, signal.SIGCONT)
        while votes(a.exchange(Vote(5))) != [3]:
            time.sleep(0.2)
    finally:
        hanging.kill()
        hanging.wait()
        a.leave()


def test_a_path_that_is_too_long_for_a_socket_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    a, b = Member("g", folder), Member("g", folder)
    a.join()
    b.join()
    a.exchange(Vote(5))
    assert votes(b.exchange(Vote(6))) == [5]
    b.leave()
    a.leave()


def test_without_a_folder_a_source_is_aligned_alone_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    alone = Member("g", tmp_path / "file" / "below")
    with caplog.at_level(logging.WARNING):
        alone.join()
        assert alone.exchange(Vote(5)) == Standing()
        assert alone.exchange(Vote(5)) == Standing()
    (reported,) = [each for each in caplog.messages if str(tmp_path) in each]
    assert "cannot be joined" in reported
    alone.leave()


def test_a_report_to_nobody_fails_no_task(tmp_path: Path) -> None:
    report(ReportTo(HostEndpoint(str(tmp_path / "nobody"), "t"), "m"), {"s": 5})


def test_a_task_notes_the_highest_event_time_of_each_split() -> None:
    output = EventTimeOutput("at")
    for split, times in (("a", [5, 3]), ("a", [4]), ("b", [None, 7]), ("c", [None]), ("d", [])):
        batch = pa.record_batch({"at": pa.array([each and each * 1000 for each in times], pa.timestamp("us"))})
        output.create_output_for_split(split).emit_batch(batch)
    output.create_output_for_split("e").emit_batch(pa.record_batch({"other": [1]}))
    assert output.event_times == {"a": 5, "b": 7}
    assert output.take() is not None


def test_planners_meet_below_the_folder_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1,/mnt/blockmgr-2")
    assert folder_of_application() == Path("/tmp/blockmgr-1/headgate-alignment")
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert str(os.getppid()) in folder_of_application().name


def test_a_member_whose_file_a_new_host_deletes_makes_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it the new host may take it for one that a dead process left."""
    make_private(folder)
    flock, deleted = fcntl.flock, []

    def too_late(file: int, operation: int) -> None:
        if not deleted:
            deleted.append(folder / "member-a")
            deleted[0].unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    lock = member_lock(folder, "a")
    assert lock.is_at(folder / "member-a")
    lock.release()
