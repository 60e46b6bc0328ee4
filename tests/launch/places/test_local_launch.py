"""Launching processes on this machine: how a run ends by itself, and that nothing is left of it."""

import json
import os
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from launch.job.preflight import hold_port
from launch.supervisor.outcome import ALL_LOST, judge
from launch.supervisor.process import LINE_BYTES_MAX, Running, start
from launch.supervisor.run_spec import Command, Task
from launch.supervisor.status import NEWS_S
from launch.supervisor.supervisor import LEAVE_S
from launch.supervisor.worker_output import FAILED_S, WorkerOutput
from launch.worker.log_lines import read_lines
from pslib.config import Timing
from pslib.errors import ConfigurationError, WaitTimeoutError
from pslib.transport import ZmqTransport
from tests.support.processes.standin_launch import (
    FixedStatus,
    processes_of,
    run_standins,
)
from tests.support.waiting import PATIENCE_S, wait_until

STATUS = {"rows": 12345, "updates_applied": 678, "servers_configured": 2, "saved": "", "events": []}


# --- processes ---


def test_a_disk_that_is_full_loses_lines_of_a_log_and_nothing_else(monkeypatch):
    """Also when the log is closed, which wrote once more what had found no space."""
    failed, heard = [], []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    command = Command(("/bin/sh", "-c", "echo one; echo two"), dict(os.environ), "here")
    running = start(
        Task("trainer", 0), command, Path("/dev/full"), lambda task, entry: heard.append(entry.message)
    )
    running.pump.join(60)
    running.stop()
    running.process.wait(60)
    assert heard == list(running.tail) == ["one", "two"]
    assert failed == []


def test_a_held_port_is_given_to_nobody_and_a_coordinator_listens_there_again():
    """Else a coordinator that was killed finds another process at the address where all look for it."""
    port = hold_port()
    address = f"tcp://127.0.0.1:{port}"
    for _ in range(3):
        transport = ZmqTransport()
        link = transport.listen(address)
        assert link.address == address
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: Address already in use"):
            hold_port(port)
        link.close()
        transport.close()  # waits until ZeroMQ has closed the socket
    with ExitStack() as stack:
        others = [stack.enter_context(socket.socket()) for _ in range(500)]
        for other in others:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
        assert port not in {other.getsockname()[1] for other in others}
    with socket.socket() as stranger, pytest.raises(OSError, match="Address already in use"):
        stranger.bind(("127.0.0.1", port))


def test_a_run_in_order_gathers_results_and_logs_and_leaves_nothing(tmp_path):
    outcome, said = run_standins(
        tmp_path,
        {"trainer 0": "say hello;result a;wait", "trainer 1": "result b;wait known;over"},
        servers=2,
        trainers=2,
        status=STATUS,
    )
    assert (outcome.exit_code, said) == (0, [])
    assert sorted(result["test"] for result in outcome.results) == ["a", "b"]
    assert outcome.status == STATUS
    assert "hello" in (tmp_path / "logs" / "trainer-0.log").read_text()
    assert sorted(path.name for path in (tmp_path / "logs").glob("*.log")) == [
        "coordinator.log",
        "server-0.log",
        "server-1.log",
        "trainer-0.log",
        "trainer-1.log",
    ]
    wait_until(lambda: not processes_of(tmp_path), 20, "all processes to end")


def test_a_process_whose_log_can_not_be_written_is_not_started(tmp_path):
    (tmp_path / "logs" / "trainer-0.log").mkdir(parents=True)
    with pytest.raises(
        ConfigurationError, match=r"trainer-0\.log: the log of trainer 0 can't be written: Is a"
    ):
        run_standins(tmp_path, {})
    wait_until(lambda: not processes_of(tmp_path), 20, "all processes to end")


def test_trainers_get_the_coordinators_address_and_their_own_arguments(tmp_path):
    outcome, _ = run_standins(tmp_path, {"trainer": "arguments;over"})
    expected = "--cluster-id test --coordinator tcp://127.0.0.1:1 --rank 0 script.py --its own"
    assert expected in (tmp_path / "logs" / "trainer-0.log").read_text()
    assert outcome.exit_code == 0


def test_what_trainers_print_is_shown_with_their_names_when_asked_for(tmp_path, capfd):
    run_standins(tmp_path, {"trainer 0": "say hello;wait", "trainer 1": "over"}, trainers=2, echo=True)
    assert capfd.readouterr().out == "[trainer 0] hello\n"


def test_a_killed_server_ends_the_run_at_once_with_its_name_and_what_was_lost(tmp_path):
    begin_s = time.monotonic()
    outcome, said = run_standins(
        tmp_path,
        {"server 1": "wait;exit 137", "trainer 0": "wait known;over;sleep", "trainer": "sleep"},
        servers=2,
        trainers=2,
        status=STATUS,
    )
    assert outcome.exit_code == 69
    assert time.monotonic() - begin_s < 30
    assert len(said) == 1
    assert said[0].startswith("server 1 (localhost, pid ")
    assert "was killed by signal 9 (SIGKILL)" in said[0]
    assert "lost with it: about 1/2 of 12,345 rows and 678 updates; there is no checkpoint" in said[0]
    assert str(tmp_path / "logs" / "server-1.log") in said[0]
    wait_until(lambda: not processes_of(tmp_path), 20, "all processes to end")


def test_what_was_lost_with_a_server_is_judged_by_a_status_of_after_its_death(tmp_path, monkeypatch):
    """A checkpoint may be complete a moment before a server dies, after the last look but one."""
    dead = threading.Event()

    class SavedAtTheEnd(FixedStatus):
        def status(self):
            saved = "runs/a" if dead.is_set() else ""
            if not saved and dead.wait(PATIENCE_S):
                time.sleep(0.2)  # the answer is on its way as the server dies
            return STATUS | {"saved": saved}

    def judge_and_tell(codes):
        verdict = judge(codes)
        if verdict is not None:
            dead.set()
        return verdict

    monkeypatch.setattr("launch.supervisor.supervisor.judge", judge_and_tell)
    monkeypatch.setattr("launch.supervisor.status.NEWS_S", PATIENCE_S)
    behaviours = {"server": "wait;exit 137", "trainer": "over;sleep"}
    outcome, said = run_standins(tmp_path, behaviours, watcher=SavedAtTheEnd({}))
    assert outcome.exit_code == 69
    assert any("the checkpoint runs/a is the last state" in line for line in said)


def test_without_logs_a_server_that_gives_up_says_what_was_lost_as_one_that_is_killed_does(tmp_path):
    behaviours = {"server 0": "wait;exit 69", "trainer": "wait known;over;sleep"}
    _, said = run_standins(tmp_path, behaviours, status=STATUS)
    assert any("69; lost with it: about 1/2 of 12,345 rows and 678 updates" in line for line in said)


@pytest.mark.parametrize(
    ("who", "where"), [("server 0", "update log LOG/server-0"), ("coordinator", "journal LOG/coordinator")]
)
@pytest.mark.parametrize(("code", "is_told"), [(137, True), (70, True), (64, False), (69, False)])
def test_nothing_that_a_log_has_is_told_to_be_lost_unless_an_error_may_be_of_the_log_itself(
    tmp_path, who, where, code, is_told
):
    behaviours = {who: f"wait;exit {code}", "trainer": "over;sleep"}
    outcome, said = run_standins(tmp_path, behaviours, status=STATUS, log="LOG", durability="log")
    assert outcome.exit_code == (code if code < 126 else 69)
    kept = f"; all that it had acknowledged is in its {where}: go on with --resume; its log: "
    assert [kept in line for line in said if line.startswith(who)] == [is_told]
    assert not any("lost with it" in line for line in said)


@pytest.mark.parametrize(("follower", "code"), [("trainer 1", 75), ("server 0", 69)])
def test_who_ends_as_the_run_has_failed_is_not_said_to_be_started_again(
    tmp_path, monkeypatch, follower, code
):
    """Its end is seen a moment before the coordinator's reason is."""
    seen = threading.Event()
    exit_code = Running.exit_code.fget

    def seen_at_its_end(running):
        code = exit_code(running)
        if code == 69:
            seen.set()
        return code

    class FailedJustNow(FixedStatus):
        def status(self):
            return STATUS | {"error": "trainer 0 has left" if seen.is_set() else ""}

    monkeypatch.setattr(Running, "exit_code", property(seen_at_its_end))
    monkeypatch.setattr("launch.supervisor.status.NEWS_S", PATIENCE_S)
    behaviours = {"server": "sleep", "trainer 0": "exit 75", follower: "exit 69"}
    logged = {"durability": "log", "restarts": 3}
    outcome, said = run_standins(tmp_path, behaviours, trainers=2, watcher=FailedJustNow({}), **logged)
    assert (outcome.exit_code, outcome.reason) == (code, "trainer 0 has left")
    assert not any("started again" in line for line in said)


def test_a_run_ends_as_the_trainer_that_was_asked_to_leave_though_another_one_is_slow_to_follow(
    tmp_path, monkeypatch
):
    """Servers hear first that nothing can go on: how they end is not the run's end yet."""
    monkeypatch.setattr("launch.supervisor.supervisor.FOLLOW_S", 30.0)
    behaviours = {
        "trainer 0": "touch left;exit 75",
        "server": "wait left;exit 69",
        "trainer 1": "wait left;sleep 3;exit 69",
    }
    failed = STATUS | {"error": "trainer 0 has left"}
    outcome, _ = run_standins(tmp_path, behaviours, trainers=2, status=failed)
    assert (outcome.exit_code, outcome.reason) == (75, "trainer 0 has left")


def test_a_coordinator_that_cannot_start_ends_the_run_with_its_own_line_and_code(tmp_path):
    outcome, said = run_standins(tmp_path, {"coordinator": "say pslib: port 7000 is in use;exit 64"})
    assert outcome.exit_code == 64
    assert said == ["coordinator: port 7000 is in use"]


def test_a_dead_trainer_is_one_line_and_the_run_goes_on(tmp_path):
    outcome, said = run_standins(
        tmp_path, {"trainer 0": "exit 137", "trainer 1": "result b;over"}, trainers=2
    )
    assert outcome.exit_code == 0
    assert len(said) == 1
    assert "trainer 0" in said[0]
    assert "was killed by signal 9 (SIGKILL)" in said[0]


@pytest.mark.parametrize("code", [1, 64, 137])
def test_the_last_line_of_a_process_is_told_once_though_its_end_is_seen_before(tmp_path, monkeypatch, code):
    hear = WorkerOutput.hear

    def hears_late(worker_output, task, line):
        time.sleep(0.3)
        hear(worker_output, task, line)

    monkeypatch.setattr(WorkerOutput, "hear", hears_late)
    _, said = run_standins(tmp_path, {"trainer": f"say pslib: 8 floats;exit {code}", "server": "sleep"})
    assert said[0] == "trainer 0: 8 floats"
    assert not any("8 floats" in line for line in said[1:])


@pytest.mark.parametrize("code", [1, 64])
def test_a_trainer_with_an_error_of_its_own_ends_the_run_though_others_live(tmp_path, code):
    behaviours = {
        "trainer 0": f"say pslib: v has 8 floats here and 16 there;exit {code}",
        "trainer 1": "sleep",
        "server": "sleep",
    }
    outcome, said = run_standins(tmp_path, behaviours, trainers=2)
    assert (outcome.exit_code, outcome.reason) == (code, "v has 8 floats here and 16 there")
    assert said[0] == "trainer 0: v has 8 floats here and 16 there"
    assert not any("go on" in line for line in said)


def test_the_same_complaint_of_two_trainers_is_told_once(tmp_path):
    complaint = "say pslib: data.parquet, row 7: expected 0 or 1, got 2;exit 64"
    outcome, said = run_standins(tmp_path, {"trainer": complaint}, trainers=2)
    assert outcome.exit_code == 64
    assert len(said) == 1
    assert said[0].endswith(": data.parquet, row 7: expected 0 or 1, got 2")


def test_what_follows_from_a_trainers_own_error_is_not_told_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "launch.supervisor.worker_output.FAILED_S", PATIENCE_S
    )  # however long the trainer takes to its end
    lost = "all trainers are lost before the work was done"
    status = STATUS | {"error": lost, "events": ["saved runs/a", lost]}
    others = {"coordinator": "sleep", "server": "sleep"}
    cause = {"trainer": "say pslib: data.parquet: row 7;touch said;wait known;exit 64"}
    outcome, said = run_standins(tmp_path, cause | others, status=status, since="said")
    assert (outcome.exit_code, outcome.reason) == (64, "data.parquet: row 7")
    assert sorted(said) == ["saved runs/a", "trainer 0: data.parquet: row 7"]
    (tmp_path / "known").unlink()
    killed = {"trainer": "say pslib: dropped a message;wait known;exit 137"}
    outcome, said = run_standins(tmp_path, killed | others, status=status)
    assert outcome.reason == lost
    assert lost in said


def test_a_run_whose_trainers_are_lost_is_told_by_what_they_have_said_of_their_end(tmp_path, monkeypatch):
    """A server's refusal for want of memory ends each of them, and only then is none left."""
    monkeypatch.setattr("launch.supervisor.worker_output.FAILED_S", PATIENCE_S)
    lost = "all trainers are lost before the work was done"
    status = STATUS | {"error": lost, "events": [lost]}
    full = "say pslib: tcp://s:1: memory limit: raise it"
    waits = "say pslib: waiting 10 s for tcp://s:1 (push);say pslib: waiting 15 s for tcp://s:1 (push)"
    others = {"coordinator": "sleep", "server": "sleep"}
    slow = {"trainer": f"{waits};{full};touch said;wait known;exit 69"}
    outcome, said = run_standins(tmp_path, slow | others, status=status, since="said")
    assert (outcome.exit_code, outcome.reason) == (69, "tcp://s:1: memory limit: raise it")
    assert lost not in said
    quick = {"trainer": f"{full};exit 69"}  # which the coordinator has not seen
    outcome, _ = run_standins(tmp_path, quick | others)
    assert (outcome.exit_code, outcome.reason) == (69, "tcp://s:1: memory limit: raise it")


def test_a_servers_death_is_the_cause_whatever_trainers_say_that_miss_it(tmp_path):
    status = STATUS | {"error": "server 0 is lost", "events": []}
    behaviours = {"trainer": "say pslib: no answer;wait known;exit 69", "server": "wait known;exit 137"}
    outcome, _ = run_standins(tmp_path, behaviours, status=status)
    assert outcome.reason == "server 0 is lost"


def test_what_a_process_waited_for_is_no_cause_of_its_end_unless_it_said_nothing_else(tmp_path):
    waits = "say pslib: waiting 10 s for tcp://s:1 (push)"
    status = STATUS | {"error": "server 0: log full"}
    both = {"trainer": f"{waits};say pslib: row 7: no number;say pslib: row 9: no number;exit 64"}
    outcome, _ = run_standins(tmp_path, both, status=status)
    assert outcome.reason == "row 7: no number; row 9: no number"
    outcome, _ = run_standins(tmp_path, {"trainer": f"{waits};exit 64"})
    assert outcome.reason == "waiting 10 s for tcp://s:1 (push)"


class AllLost(FixedStatus):
    """All trainers that are ready count as lost, on a machine of this name."""

    def __init__(self, folder, host):
        super().__init__(STATUS)
        self._folder, self._host = folder, host

    def status(self):
        pids = [path.name.removeprefix("ready-") for path in self._folder.glob("ready-*")]
        return STATUS | {"trainers_lost": [f"pid {pid} on {self._host}" for pid in pids]}


def test_trainers_that_ended_with_0_and_never_left_end_the_run_when_they_count_as_lost(tmp_path):
    begin_s = time.monotonic()
    behaviours = {"trainer": "ready;exit 0", "coordinator": "sleep", "server": "sleep"}
    outcome, said = run_standins(tmp_path, behaviours, trainers=2, watcher=AllLost(tmp_path, "host"))
    lost = "all trainers are lost before the work was done"
    assert (outcome.exit_code, outcome.reason) == (69, lost)
    assert said == [lost]
    assert time.monotonic() - begin_s < LEAVE_S, "servers and coordinator have not been waited for"


def test_trainers_that_give_up_on_a_mute_coordinator_are_not_waited_for_one_by_one(tmp_path):
    class Mute(FixedStatus):
        def status(self):
            raise WaitTimeoutError("no answer")

    begin_s = time.monotonic()
    behaviours = {"trainer": "exit 69", "coordinator": "sleep", "server": "sleep"}
    outcome, _ = run_standins(tmp_path, behaviours, trainers=12, restarts=0, watcher=Mute({}))
    assert outcome.exit_code == 69
    assert time.monotonic() - begin_s < 12 * NEWS_S


def test_who_counts_as_lost_is_known_by_its_machine_too(tmp_path, monkeypatch):
    """In containers processes have the same few ids on every machine."""
    monkeypatch.setenv("STANDIN_HOST", "here")
    behaviours = {"trainer": "ready;exit 0", "coordinator": "sleep 3", "server": "sleep 3"}
    elsewhere = {"watcher": AllLost(tmp_path, "elsewhere"), "timing": Timing(report_s=PATIENCE_S)}
    outcome, said = run_standins(tmp_path, behaviours, trainers=2, **elsewhere)
    assert (outcome.exit_code, said) == (0, [])


def test_a_run_that_has_failed_and_does_not_end_says_why(tmp_path):
    worker_output = WorkerOutput(echo=False, trainers=1, say=(said := []).append)
    status = {"error": "server 1 is lost", "events": ["server 1 is lost"]}
    for now_s in (100.0, 101.0):
        worker_output.tell_events(status, now_s)
        assert said == []
    worker_output.tell_events(status, 103.0)
    assert said == ["server 1 is lost"]


def test_a_launcher_that_stood_still_does_not_take_a_run_for_one_that_does_not_end(tmp_path):
    """The launcher reported all trainers as lost, besides the trainer's own report of its end."""

    def stand_still(status):
        if status and not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            time.sleep(2 * FAILED_S)

    behaviours = {"trainer": "wait go;say pslib: bad data;exit 64"}
    status = {"error": ALL_LOST.reason, "events": []}
    outcome, said = run_standins(tmp_path, behaviours, status=status, look=stand_still)
    assert (outcome.exit_code, said) == (64, ["trainer 0: bad data"])


def test_only_the_word_itself_says_that_a_process_would_only_end_so_again():
    worker_output, trainer = WorkerOutput(echo=False, trainers=1, say=[].append), Task("trainer", 0)
    worker_output.hear(trainer, *read_lines("pslib-final state of the model: 0.7"))  # a script's own line
    worker_output.take_in()
    assert worker_output.final == set()
    worker_output.hear(trainer, *read_lines("pslib-final"))
    worker_output.take_in()
    assert worker_output.final == {trainer}
    worker_output.hear(trainer, *read_lines("pslib-started 7"))  # another one at its place
    worker_output.take_in()
    assert worker_output.final == set()


@pytest.mark.parametrize(("code", "more"), [(69, []), (137, ["was killed by signal 9"])])
def test_who_has_said_a_final_error_and_ends_with_it_is_told_by_that_line_alone(tmp_path, code, more):
    does = f"say pslib-final;say pslib: no room;exit {code}"
    other = {"trainer 1": "wait told-2;over;result b"}
    outcome, said = run_standins(tmp_path, {"trainer 0": does, **other}, trainers=2)
    assert said[0] == "trainer 0: no room"
    assert [words in line for words, line in zip(more, said[1:], strict=True)] == [True] * len(more)
    assert outcome.exit_code == (69 if code == 69 else 0)


def test_of_two_final_errors_the_first_is_told_alone(tmp_path):
    """A save of two trainers on a full disk: the successor of the first one's finds no space for another
    file."""
    first = "say pslib-final;say pslib: no room for a;wait later;exit 69"
    second = "wait told-1;say pslib-final;say pslib: no room for b;touch later;exit 69"
    outcome, said = run_standins(tmp_path, {"trainer 0": first, "trainer 1": second}, trainers=2)
    assert said == ["trainer 0: no room for a"]
    assert (outcome.exit_code, outcome.reason) == (69, "no room for a")


def test_a_trainer_that_ends_with_a_traceback_is_told_by_its_last_line(tmp_path):
    _, said = run_standins(tmp_path, {"trainer": "say ZeroDivisionError: division by zero;exit 1"})
    assert "ended with exit code 1: ZeroDivisionError: division by zero" in said[0]


def test_a_run_is_summed_up_from_what_its_coordinator_says_at_its_end_not_from_the_last_answer(tmp_path):
    last = STATUS | {"updates_applied": 700, "events": ["server 1 is back"], "seen": "x" * LINE_BYTES_MAX}
    outcome, said = run_standins(
        tmp_path,
        {"trainer": "say pslib-over {};over", "coordinator": f"wait;say pslib-over {json.dumps(last)}"},
        status=STATUS,
    )
    assert outcome.status == last
    assert said == ["server 1 is back"]


def test_what_a_worker_started_ends_with_it(tmp_path):
    outcome, _ = run_standins(tmp_path, {"trainer 0": "spawn;exit 137", "trainer 1": "over"}, trainers=2)
    assert outcome.exit_code == 0
    wait_until(lambda: not processes_of(tmp_path), 5, "all processes to end")
