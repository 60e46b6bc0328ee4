"""A process that the kernel may have killed for want of memory is told so, and no other one is."""

import pytest

from launch.supervisor.exit_report import NO_MEMORY, ExitReport
from launch.supervisor.process import start
from launch.supervisor.run_spec import THIS_MACHINE, Command, Task
from launch.supervisor.worker_output import WorkerOutput
from tests.support.processes.standin_launch import StandIns, run_standins


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Readings of the kernel's count of OOM kills, one a look; the last one stays."""
    counts = [4]
    monkeypatch.setattr(
        "launch.supervisor.exit_report.oom_kills", lambda: counts.pop(0) if len(counts) > 1 else counts[0]
    )
    return counts


def test_a_server_that_dies_by_sigkill_as_the_kernel_lacks_memory_is_told_with_what_to_do(tmp_path, kernel):
    kernel.append(5)
    outcome, (line,) = run_standins(tmp_path, {"server": "die"})
    assert outcome.exit_code == 69
    assert (
        "was killed by signal 9 (SIGKILL); the kernel has killed a process for want of memory (OOM)" in line
    )
    assert "since the run began, perhaps this one: keep fewer rows (admission, eviction)" in line
    assert "bound them (server_memory_bytes), or run where there is more memory; nothing had been" in line


def test_nothing_is_said_of_memory_where_the_kernel_has_killed_nobody_since_the_run_began(tmp_path, kernel):
    _, (line,) = run_standins(tmp_path, {"server": "die"})
    assert "was killed by signal 9 (SIGKILL); nothing had been trained" in line


@pytest.mark.parametrize("end", ["exit 137", "exit 70"])
def test_nothing_is_said_of_memory_when_the_end_was_another_or_of_another_machine(end, tmp_path, kernel):
    """A command for a worker elsewhere ends with 137; the kernel that is asked is not the worker's."""
    kernel.append(5)
    _, (line,) = run_standins(tmp_path, {"server": end})
    assert "OOM" not in line


def test_nothing_is_said_of_memory_when_the_command_for_another_machine_is_killed_here(
    tmp_path, kernel, monkeypatch
):
    own = StandIns.command

    def elsewhere(self, task):
        command = own(self, task)
        return Command(command.arguments, command.environment, "node7")

    monkeypatch.setattr(StandIns, "command", elsewhere)
    kernel.append(5)
    _, (line,) = run_standins(tmp_path, {"server": "die"})
    assert "server 0 (node7" in line
    assert "OOM" not in line


def test_each_kill_that_the_kernel_counts_may_explain_one_end_and_no_more(tmp_path, kernel):
    kernel.append(5)
    _, said = run_standins(tmp_path, {"trainer 0": "die", "trainer 1": "sleep 1;die"}, trainers=2)
    told = [line for line in said if "was killed by signal 9" in line]
    assert [NO_MEMORY in line for line in told] == [True, False]


def test_two_kills_explain_two_ends(tmp_path, kernel):
    kernel.append(6)
    _, said = run_standins(tmp_path, {"trainer 0": "die", "trainer 1": "sleep 1;die"}, trainers=2)
    told = [line for line in said if "was killed by signal 9" in line]
    assert [NO_MEMORY in line for line in told] == [True, True]


def test_nothing_is_said_of_memory_when_the_launcher_has_killed_the_process_itself(tmp_path, kernel):
    words = ExitReport({}, WorkerOutput(echo=False, trainers=1, say=print), lambda: None)
    sleep = Command(("sleep", "600"), {}, THIS_MACHINE)
    by_launcher, by_others = (
        start(Task("server", number), sleep, tmp_path / "log", lambda task, line: None) for number in (0, 1)
    )
    by_launcher.kill()
    by_others.process.kill()
    kernel[:] = [6]
    for running in (by_launcher, by_others):
        running.process.wait(20)
        running.stop()  # its pipe
    assert NO_MEMORY not in words.why(by_launcher, "")
    assert NO_MEMORY in words.why(by_others, "")
