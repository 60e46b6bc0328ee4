"""Launching under Slurm: an allocation of two nodes of a real one, with a daemon each, on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.places.options import HostOptions, selected_launcher
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import write_counting_examples
from tests.support.processes.standin_launch import (
    assert_killed_trainer_is_named,
    processes_of,
    start_launcher,
)
from tests.support.waiting import wait_until

NET = f"10.83.{50 + os.getpid() % 150}"
"""Network of this process: slow tests of the file may run in another process with a Slurm of its own."""
ADDRESSES = (f"{NET}.2", f"{NET}.3")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scancel", "scontrol", "ip")
FOUND = {name: shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") for name in PROGRAMS}

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
"""


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout + done.stderr


def _address(do: str, address: str) -> None:
    words = ["ip", "address", do, f"{address}/32", "dev", "lo"]
    subprocess.run(words, capture_output=True, timeout=10, check=False)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a Slurm whose two nodes are this machine, under two addresses."""
    instead = "what srun is called with, and what it says, is tested by test_slurm_steps.py beside it"
    if os.geteuid() != 0 or (missing := [name for name, path in FOUND.items() if path is None]):
        lacks = "root" if os.geteuid() else ", ".join(missing)
        pytest.skip(f"needs {lacks} (Debian: slurmctld, slurmd, slurm-client, munge, iproute2); {instead}")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    host, (port, *ports) = socket.gethostname().partition(".")[0], _free_ports(3)
    conf = CONF.format(folder=folder, host=host, port=port)
    for number, (address, own) in enumerate(zip(ADDRESSES, ports, strict=True), 1):
        node = f"NodeName=n{number} NodeHostname={host} NodeAddr={address} Port={own}"
        conf += f"{node} CPUs=2 RealMemory=1000 State=UNKNOWN\n"
        (folder / f"spool-n{number}").mkdir()
        _address("add", address)
    (folder / "slurm.conf").write_text(conf + "PartitionName=all Nodes=ALL Default=YES State=UP\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    munge += [f"--socket={folder}/munge.socket"]
    processes = [subprocess.Popen([str(FOUND["munged"]), "--foreground", "--force", *munge])]
    wait_until((folder / "munge.socket").exists, 10, "munged")
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
        command = [str(FOUND[words[0]]), *words[1:], "-f", str(folder / "slurm.conf")]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    yield folder / "slurm.conf"
    for process in reversed(processes):  # a slurmd that has lost its controller bears SIGTERM for a minute
        process.kill()
        process.wait(30)
    for address in ADDRESSES:
        _address("del", address)


@pytest.fixture
def allocation(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Number of a job that has both nodes; this process is as if it were called in it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm))

    def idle() -> bool:
        done = subprocess.run(["scontrol", "show", "-o", "node"], capture_output=True, text=True, check=False)
        return done.stdout.count("State=IDLE ") == 2

    wait_until(idle, 30, "two nodes")
    said = _run("salloc", "--no-shell", "--nodes=2", "--ntasks=2", "--mem-per-cpu=100")
    job = said.partition("job allocation ")[2].split()[0]
    # As a job's script has them; srun refuses some of them beside what it is given here.
    variables = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_MEM_PER_CPU": "100"}
    for name, value in {**variables, "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2"}.items():
        monkeypatch.setenv(name, value)
    yield job
    subprocess.run(["scancel", job], capture_output=True, check=False)


@pytest.mark.root
def test_a_run_under_slurm_gathers_results_and_names_a_killed_trainer(allocation, tmp_path):
    assert_killed_trainer_is_named(tmp_path, selected_launcher(HostOptions(on="slurm")), "n1")


@pytest.mark.root
def test_steps_end_when_their_launcher_is_killed(allocation, tmp_path):
    behaviours = {
        "coordinator": "ready;sleep",
        "server": "ready;sleep",
        "trainer": "spawn;stubborn;ready;sleep",
    }
    launcher = start_launcher(tmp_path, behaviours, "slurm")
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_until(lambda: not processes_of(tmp_path), 15, "all processes to end")


@pytest.mark.root
@pytest.mark.parametrize("network", [(), ("--insecure-network",)], ids=["encrypted", "plain"])
def test_a_job_file_trains_on_all_nodes_of_an_allocation(allocation, tmp_path, capfd, network):
    generate(tmp_path / "data", GeneratorConfig(train_rows=8_000, test_rows=2_000, vocabularies=(50, 60)))
    (tmp_path / "job.yaml").write_text(
        "data: {train: data/train.parquet, schema: {label: label, sparse: [C1, C2]}}\n"
        "model: {name: lr}\ntraining: {batch_rows: 256}\ncluster: {servers: 3, trainers: 5}\nout: run\n"
    )
    each = ("--per-node", "servers=1 trainers=2")
    code = main(["train", str(tmp_path / "job.yaml"), "--on", "slurm", *each, *network, "--quiet"])
    assert code == 0, capfd.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["examples"], summary["servers"], summary["trainers"]) == (8_000, 2, 4)
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert summary["pushes_sent"] >= 32


@pytest.mark.root
def test_a_job_that_slurm_ends_saves_itself_and_goes_on_with_the_line_that_it_has_said(
    allocation, tmp_path, start
):
    """Slurm sends SIGTERM to all steps and, where its script says exec, to pslib, as at the time limit."""
    write_counting_examples(tmp_path / "examples.parquet", 60_000)
    (tmp_path / "job.yaml").write_text(
        "data: {train: examples.parquet, schema: {label: label, sparse: [id, shared]}}\n"
        "model: {name: fm, dim: 4}\ntraining: {batch_rows: 64, epochs: 3}\n"
        "checkpoint: {path: saved}\nout: out\n"
    )
    command: Command = start("train", tmp_path / "job.yaml", "--on", "slurm")
    command.wait_for_file("metrics.jsonl", '"phase": "training"', 60)
    _run("scancel", "--signal=TERM", allocation)
    command.process.send_signal(signal.SIGTERM)
    assert command.finish(60) == 75, command.output
    assert "Traceback" not in command.output
    assert "srun: " not in command.output
    (line,) = command.lines("go on with: ")
    assert "--resume --on slurm" in line
    again: Command = start("train", tmp_path / "job.yaml", "--resume", "--on", "slurm")
    assert again.finish(120) == 0, again.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["examples"] == 180_000


@pytest.mark.root
def test_a_node_that_can_not_be_asked_is_told_in_sruns_own_words(allocation, tmp_path, capfd, monkeypatch):
    write_counting_examples(tmp_path / "examples.parquet", 100)
    (tmp_path / "job.yaml").write_text(
        "data: {train: examples.parquet, schema: {label: label, sparse: [shared]}}\n"
        "model: {name: lr}\nout: run\n"
    )
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert main(["train", str(tmp_path / "job.yaml"), "--on", "slurm"]) == 69
    said = capfd.readouterr().err
    assert "n1: srun ended with exit code 1: srun: error: " in said
    assert "try srun --overlap --jobid=4711 --nodelist=n1 --ntasks=1 true" in said
    assert not (tmp_path / "run").exists()
