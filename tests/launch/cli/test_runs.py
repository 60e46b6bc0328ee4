"""``pslib logs`` and ``pslib stop``, with made-up folders of runs and with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launch.cli.main import main
from launch.supervisor.discovery import note_cluster
from launch.supervisor.log_files import LogFiles
from pslib.monitor.run_folder import NOTE
from pslib.recorder.records import PROGRESS, Record
from tests.support.processes.counting_runs import Start, write_job

# --- logs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with logs of two servers and a trainer."""
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "server-0.log").write_text("T1 info server-0 a\nT4 info server-0 d\n")
    (logs / "server-1.log").write_text("T2 info server-1 b\nT2 message server-1 pslib-over {}\n")
    (logs / "trainer-0.log").write_text("T3 output trainer-0 c\n")
    return tmp_path / "run"


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The last word of each line that ``pslib logs`` prints."""
    assert main(["logs", *map(str, arguments)]) == 0
    return "".join(line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines())


def test_the_lines_of_all_processes_are_shown_in_the_order_of_time(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, run) == shown(capsys, run / "logs") == "abcd"


def test_one_process_or_one_role_may_be_chosen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, run, "--role", "server-1") == "b"
    assert shown(capsys, run, "--role", "server") == "abd"
    assert main(["logs", str(run), "--role", "server-2"]) == 64
    assert capsys.readouterr().err == (
        "pslib: --role: expected one of server-0, server-1, trainer-0, or a role of them; got 'server-2'\n"
    )


def test_a_folder_without_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(tmp_path)]) == 64
    assert "expected the folder of a started run, with logs/*.log" in capsys.readouterr().err


@pytest.fixture
def of_script(tmp_path: Path) -> Path:
    """The folder that a script without a launcher has as ``out``, in the middle of its training."""
    folder = tmp_path / "frame"
    folder.mkdir()
    records = (Record(event=PROGRESS, seconds=one, epoch=one - 1, examples=5_000 * one) for one in (1, 2))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one.plain())}\n" for one in records))
    return folder


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("logs", "its lines went to that script's standard error"),
        ("stop", "only that script can stop it: press Ctrl-C there, or kill it"),
        ("doctor", "it has no address to ask: only metrics.jsonl tells how it goes"),
    ],
)
def test_of_a_script_without_a_launcher_a_line_says_what_can_be_done(
    of_script: Path, capsys: pytest.CaptureFixture[str], command: str, advice: str
) -> None:
    assert main([command, str(of_script)]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"pslib: {of_script}: records of a training in a script's own process, the last of "
    )
    assert line.endswith(f": 1 finished epoch, 10,000 examples; {advice}")


@pytest.mark.parametrize(("phase", "code", "how"), [("done", 0, "done"), ("failed", 1, "not done: no disk")])
def test_of_a_script_whose_training_has_ended_a_line_says_how(
    of_script: Path, capsys: pytest.CaptureFixture[str], phase: str, code: int, how: str
) -> None:
    error = None if phase == "done" else "no disk"
    summary = {"phase": phase, "error": error, "epochs": 2, "examples": 20_000}
    (of_script / "summary.json").write_text(json.dumps(summary))
    assert main(["doctor", str(of_script)]) == code
    line = capsys.readouterr().out
    assert f", {how} (2 finished epochs, 20,000 examples); its folder holds no checkpoint\n" in line
    assert main(["stop", str(of_script)]) == 0
    assert capsys.readouterr().out == line


def test_lines_are_followed_until_the_run_has_ended(run: Path) -> None:
    """A line that is half written is shown when it is whole, and a process that comes later, too."""
    got: list[str] = []
    seen = threading.Event()
    note_cluster(run / "logs", "tcp://127.0.0.1:5", "abc")

    def show(line: str) -> None:
        got.append(line)
        seen.set()

    with (run / "logs" / "server-1.log").open("a") as log:
        log.write("T5 info server-1")
        follower = threading.Thread(target=LogFiles(run, None).follow, args=(show,))
        follower.start()
        assert seen.wait(20)
        log.write(" e\n")
    (run / "logs" / "server-2.log").write_text("T6 info server-2 f\n")
    (run / "summary.json").write_text(json.dumps({"exit_code": 0}))
    follower.join(20)
    assert not follower.is_alive()
    assert sorted(line.rpartition(" ")[2] for line in got) == ["a", "b", "c", "d", "e", "f"]


def test_a_line_ends_at_a_line_feed_alone_and_a_bar_does_not_overwrite_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run / "logs" / "trainer-0.log").open("wb") as log:
        log.write("T0 output trainer-0 10%\r20%\nT3 info trainer-0 a\u2028b\fc\r\n".encode())
    assert main(["logs", str(run)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "T0 output trainer-0 10% 20%"
    assert [line.split(" ", 1)[0] for line in lines if line] == ["T0", "T1", "T2", "T3", "T4"]
    assert "T3 info trainer-0 a\u2028b\fc" in lines


def test_the_logs_of_a_killed_launcher_are_followed_to_their_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with somebody() as launcher:
        created_s = psutil.Process(launcher.pid).create_time()
        folder = noted(tmp_path / "run", pid=launcher.pid, created_s=created_s)
        (folder / "job.yaml").touch()
        (folder / "logs" / "server-0.log").write_text("T1 info server-0 a\n")
        got: list[str] = []
        seen = threading.Event()

        def show(line: str) -> None:
            got.append(line)
            seen.set()

        said: list[str | None] = []
        follower = threading.Thread(target=lambda: said.append(LogFiles(folder, None).follow(show)))
        follower.start()
        assert seen.wait(20)
        assert follower.is_alive(), "its launcher runs"
        launcher.kill()
        follower.join(20)
        assert not follower.is_alive()
    gone = f"{folder}: the launcher of that run, pid {launcher.pid}, does not run any more"
    line = f"{gone}; go on with pslib train --resume and that folder"
    assert said[0] is not None
    assert said[0].startswith(line)
    assert main(["logs", "--follow", str(folder)]) == 0
    assert capsys.readouterr().err.startswith(f"pslib: {line}")


# --- stop


@contextmanager
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with the run."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def noted(folder: Path, **launcher: object) -> Path:
    """The folder of a run whose launcher is described so."""
    (folder / "logs").mkdir(parents=True)
    about = {"host": socket.gethostname(), "pid": os.getpid(), "created_s": 0.0} | launcher
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc", launcher=about)
    return folder


@pytest.mark.parametrize("about", [{}, {"host": "here"}, {"host": "here", "pid": "x", "created_s": 0}, [1]])
def test_a_note_without_a_launcher_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], about: object
) -> None:
    folder = noted(tmp_path / "run")
    (folder / "logs" / NOTE).write_text(json.dumps({"launcher": about}))
    assert main(["stop", str(folder)]) == 64
    assert capsys.readouterr().err == (
        f"pslib: {folder}: expected the folder of a run that has started, with its launcher in "
        "logs/cluster.json\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (psutil.AccessDenied(), 64, "is another user's: call pslib stop as that user"),
        (psutil.NoSuchProcess(1), 0, "has ended without a summary"),
    ],
)
def test_a_launcher_that_takes_no_signal_is_told_of_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: psutil.Error,
    code: int,
    told: str,
) -> None:
    def refuse(process: psutil.Process, number: int) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    with somebody() as launcher:
        created_s = psutil.Process(launcher.pid).create_time()
        folder = noted(tmp_path / "run", pid=launcher.pid, created_s=created_s)
        assert main(["stop", str(folder)]) == code
    said = "".join(capsys.readouterr())
    assert told in said
    assert said.count("\n") == 1


def test_a_process_that_has_the_launchers_pid_by_now_is_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with somebody() as stranger:
        began_s = psutil.Process(stranger.pid).create_time() - 60.0
        folder = noted(tmp_path / "run", pid=stranger.pid, created_s=began_s)
        assert main(["stop", str(folder)]) == 69
        assert stranger.poll() is None
    assert f"the launcher of that run, pid {stranger.pid}, does not run any more" in capsys.readouterr().err


def test_a_launcher_on_another_machine_is_not_looked_for_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with somebody() as stranger:
        created_s = psutil.Process(stranger.pid).create_time()
        folder = noted(tmp_path / "run", host="elsewhere", pid=stranger.pid, created_s=created_s)
        assert main(["stop", str(folder)]) == 64
        assert stranger.poll() is None
    assert f"is pid {stranger.pid} on elsewhere: call pslib stop there" in capsys.readouterr().err


def test_a_run_that_has_ended_says_so_and_nothing_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with somebody() as stranger:
        created_s = psutil.Process(stranger.pid).create_time()
        folder = noted(tmp_path / "run", pid=stranger.pid, created_s=created_s)
        (folder / "summary.json").write_text(json.dumps({"exit_code": 0}))
        os.utime(folder / "logs" / NOTE, (0, 1))
        assert main(["stop", str(folder)]) == 0
        assert stranger.poll() is None
    assert f"{folder}: that run ended at " in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", str(tmp_path)]) == 64
    assert (
        "expected the folder of a run that has started, with its launcher in logs/cluster.json"
        in capsys.readouterr().err
    )


def test_a_run_is_stopped_saved_and_gone_on_with(start: Start, examples: Path, tmp_path: Path) -> None:
    path = write_job(tmp_path, examples, {"batch_rows": 128, "epochs": 8}, {"servers": 2, "trainers": 1})
    run = start("train", path)
    run.wait_for_file("metrics.jsonl", '"phase": "training"')
    stop = start("stop", tmp_path / "out")
    assert stop.finish(60) == 0, stop.output
    assert run.finish(5) == 75  # it has ended before
    assert stop.lines(f"the launcher of {tmp_path / 'out'}, saves what is trained and ends: waiting for it")
    assert stop.lines(", exit code 75 (")
    (line,) = stop.lines("go on with: pslib ")
    followed = start("logs", "--follow", "--role", "trainer", tmp_path / "out")
    assert followed.finish(20) == 0
    assert followed.lines("info    trainer-0 ")
    launcher = start("logs", "--role", "launcher", tmp_path / "out")
    assert launcher.finish(20) == 0
    own = "warning launcher pslib: got SIGTERM: all leave in order, trainers within 20 s; again: at once"
    assert len(launcher.lines(own)) == 1, launcher.output
    assert len(launcher.lines("go on with: pslib train --resume ")) == 1, launcher.output
    again = start(*line.split("go on with: pslib ")[1].split(), "--quiet")
    assert again.finish(90) == 0, again.output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["epochs"] == 8


def test_a_signal_to_a_run_that_was_stopped_already_hurries_it(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    path = write_job(tmp_path, examples, {"batch_rows": 128, "epochs": 500}, {"servers": 1, "trainers": 1})
    run = start("train", path)
    run.wait_for_file("metrics.jsonl", '"phase": "training"')
    run.kill("trainer 0", signal.SIGSTOP)  # it will not leave by itself
    first = start("stop", tmp_path / "out")
    run.wait_for("got SIGTERM")
    second = start("stop", tmp_path / "out")
    assert [one.finish(40) for one in (first, second, run)] == [0, 0, 75]
