"""Arguments of the Slurm commands and of srun, recorded by stand-ins; a real Slurm: test_slurm_launch.py."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.cli.main import main
from launch.places.options import HostOptions, selected_launcher
from launch.places.slurm import SlurmLauncher
from launch.supervisor.graceful_stop import EndSignals
from launch.supervisor.process import start
from launch.supervisor.run_spec import Task
from pslib.errors import UnavailableError
from pslib.process.shutdown import ASKED_LINE, TOGETHER_VARIABLE
from tests.support.processes.standin_launch import ROOT, run_standins
from tests.support.waiting import wait_until

NODES = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.1.0.1 NodeHostName=vm Version=22.05.8 OS=Linux
NodeName=n2 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.1.0.2 NodeHostName=vm Version=22.05.8 OS=Linux
"""
SRUN = """\
#!/bin/sh
printf '%s\\n' "$@" > "$NOTES"
env > "$NOTES.environment"
echo "srun: error: n1: task 0: Exited with exit code 3" >&2
for last; do :; done
exec /bin/sh -c "$last"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``scontrol`` and ``srun`` of an allocation of two nodes; the second notes its arguments in a file."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in (("scontrol", f"#!/bin/sh\ncat <<'END'\n{NODES}END\n"), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    for name, value in {"JOB_ID": "12", "JOB_NODELIST": "n[1-2]", "MEM_PER_CPU": "100"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    return folder


def launcher(per_node: str | None = None, *, insecure_network: bool = False) -> SlurmLauncher:
    found = selected_launcher(HostOptions(on="slurm", per_node=per_node, insecure_network=insecure_network))
    assert isinstance(found, SlurmLauncher)
    return found


def test_each_node_of_the_allocation_runs_one_of_each_or_what_was_said(programs):
    hosts = launcher().hosts
    assert [(one.name, one.address, one.servers, one.trainers) for one in hosts] == [
        ("n1", "10.1.0.1", 1, 1),
        ("n2", "10.1.0.2", 1, 1),
    ]
    assert {(one.python, one.dir) for one in hosts} == {(sys.executable, str(Path.cwd()))}
    place = launcher("servers=1 trainers=3 python=/opt/bin/python dir=/data")
    assert [(one.trainers, one.python, one.dir) for one in place.hosts] == [
        (3, "/opt/bin/python", "/data")
    ] * 2
    assert [place.host_of(Task("trainer", number)).name for number in range(6)] == ["n1"] * 3 + ["n2"] * 3
    assert place.host_of(Task("coordinator", 0)).name == "n1"
    assert place.open_addresses == ["10.1.0.1", "10.1.0.2"]
    assert place.listen(Task("server", 1)) == "tcp://10.1.0.2:0"


def test_a_run_that_is_to_go_on_is_given_the_same_options_again(programs):
    place = launcher("servers=1 trainers=3", insecure_network=True)
    assert shlex.split(place.options) == [
        "--on",
        "slurm",
        "--per-node",
        "servers=1 trainers=3",
        "--insecure-network",
    ]


def test_a_step_has_all_that_the_job_has_on_its_node_whatever_the_job_was_asked_with(programs, tmp_path):
    command = launcher().over(launcher().hosts[1], "exit 3")
    done = subprocess.run(command.arguments, env=dict(command.environment), capture_output=True, check=False)
    assert done.returncode == 3
    noted = (tmp_path / "notes").read_text().splitlines()
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--nodelist=n2"} < set(
        noted
    )
    assert "--jobid=12" in noted
    assert noted[-3:] == ["/bin/sh", "-c", "trap '' TERM; exit 3"]  # Slurm's SIGTERM comes to the shell, too
    worker = launcher().command(Task("server", 0)).arguments[-1]
    assert f" {TOGETHER_VARIABLE}=1 " in worker
    environment = (tmp_path / "notes.environment").read_text().splitlines()
    assert [line for line in environment if line.startswith("SLURM_")] == ["SLURM_CONF=/etc/slurm/slurm.conf"]


def test_what_srun_adds_to_the_end_of_a_worker_is_in_the_log_alone(programs, tmp_path):
    heard: list[str] = []
    for number, script in enumerate(("echo KeyError: 7; exit 3", "exit 3")):
        log = tmp_path / f"{number}.log"
        running = start(
            Task("trainer", number),
            launcher().over(launcher().hosts[0], script),
            log,
            lambda task, entry: heard.append(entry.message),
        )
        running.stop()  # its standard input
        wait_until(lambda running=running: running.exit_code is not None, 10, "its end")
        said = running.complaints()
        assert said == ["KeyError: 7" if number == 0 else "srun: error: n1: task 0: Exited with exit code 3"]
        assert "srun: error: n1" in log.read_text()
    assert heard == ["KeyError: 7"]


def test_a_node_that_does_not_see_a_file_is_named_and_one_that_can_not_be_asked_is_an_error(
    programs, tmp_path, capsys
):
    assert launcher().not_seeing(str(programs)) == []
    assert launcher().not_seeing(str(tmp_path / "nowhere")) == ["n1", "n2"]
    (programs / "srun").write_text("#!/bin/sh\necho 'srun: error: Invalid job id 12' >&2\nexit 1\n")
    with pytest.raises(UnavailableError) as error:
        launcher().not_seeing(str(programs))
    said = "srun ended with exit code 1: srun: error: Invalid job id 12; try srun"
    assert [line.partition(f": {said}")[0] for line in str(error.value).splitlines()] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--per-node", "servers=x"], "--per-node: servers: expected a whole number from 0 to 4096, got 'x'"),
        (
            ["--per-node", "trainers=2"],
            "--per-node: expected at least one of servers, got none; give a host servers=1",
        ),
        (["--per-node", "gpus=1"], "--per-node: gpus"),
        (["--servers", "2"], '--per-node "servers=N trainers=N"'),
        (["--hosts", "file"], "--hosts is for --on ssh; leave one of them out"),
    ],
)
def test_a_wrong_way_to_ask_for_slurm_is_one_line(programs, capsys, options, words):
    assert main(["launch", "--on", "slurm", *options, "script.py"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_outside_an_allocation_it_says_where_it_is_to_be_called(programs, capsys, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main(["launch", "--on", "slurm", "script.py"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "call it in a script for sbatch, or after salloc" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "#!/bin/sh\necho 'slurm_load_node error: Unable to contact slurm controller' >&2\nexit 1\n",
            "contact",
        ),
        ("#!/bin/sh\nexit 0\n", "it names no node"),
        (None, "can't be asked: No such file or directory"),
    ],
)
def test_a_slurm_that_does_not_answer_is_told_in_its_own_words(programs, capsys, monkeypatch, text, words):
    if text is None:
        monkeypatch.setenv("PATH", str(programs.parent))
    else:
        (programs / "scontrol").write_text(text)
    assert main(["launch", "--on", "slurm", "script.py"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


# --- SIGTERM that comes to all processes at once ---


def test_a_worker_that_is_asked_together_with_all_tells_it_and_works_on_until_its_turn():
    """Servers that left with the first signal would be gone before the trainers have saved."""
    program = (
        "import signal, time; from pslib.process.shutdown import preemption; preemption.install()\n"
        "with preemption.finishing():\n"
        "    print('ready', flush=True)\n"
        "    while not preemption.asked: time.sleep(0.01)\n"
        "print('leaves', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, TOGETHER_VARIABLE: "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == ASKED_LINE
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == ASKED_LINE
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == b"leaves\n"
    process.stdout.close()
    assert process.wait(30) == 0


def test_a_run_of_which_a_worker_was_asked_ends_in_order(tmp_path):
    asked = {"trainer": "stubborn;say pslib-asked;sleep", "server": "sleep", "coordinator": "sleep"}
    outcome, said = run_standins(tmp_path, asked)
    assert outcome.exit_code == 75
    assert said[0].startswith("got SIGTERM: all leave in order")


def test_the_launchers_own_signal_of_the_same_end_hurries_nobody_and_a_later_one_does():
    hurried: list[float] = []
    now_s = 10.0
    signals = EndSignals(SimpleNamespace(now_s=lambda: now_s), lambda: hurried.append(now_s))
    signals.told()
    now_s = 11.5
    signals.hear(signal.SIGTERM, None)
    signals.told()
    assert (signals.number, hurried) == (signal.SIGTERM, [])
    now_s = 13.0
    signals.hear(signal.SIGTERM, None)
    assert hurried == [13.0]
    first = EndSignals(SimpleNamespace(now_s=lambda: now_s), lambda: hurried.append(-1.0))
    first.hear(signal.SIGTERM, None)
    first.told()
    assert -1.0 not in hurried
