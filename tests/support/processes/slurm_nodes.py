"""A real Slurm for tests, whose two nodes are this machine, under two addresses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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


def run(*words: str) -> str:
    """Run a command, which must end well; return what it says."""
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


@contextmanager
def slurm_nodes(folder: Path) -> Iterator[Path]:
    """The configuration of a Slurm whose two nodes are this machine, under two addresses."""
    instead = "what srun is called with, and what it says, is tested by test_slurm_steps.py beside it"
    if os.geteuid() != 0 or (missing := [name for name, path in FOUND.items() if path is None]):
        lacks = "root" if os.geteuid() else ", ".join(missing)
        pytest.skip(f"needs {lacks} (Debian: slurmctld, slurmd, slurm-client, munge, iproute2); {instead}")
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


@contextmanager
def slurm_allocation(slurm: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Number of a job that has both nodes; this process is as if it were called in it."""
    patch.setenv("SLURM_CONF", str(slurm))

    def idle() -> bool:
        done = subprocess.run(["scontrol", "show", "-o", "node"], capture_output=True, text=True, check=False)
        return done.stdout.count("State=IDLE ") == 2

    wait_until(idle, 30, "two nodes")
    said = run("salloc", "--no-shell", "--nodes=2", "--ntasks=2", "--mem-per-cpu=100")
    job = said.partition("job allocation ")[2].split()[0]
    # As a job's script has them; srun refuses some of them beside what it is given here.
    variables = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_MEM_PER_CPU": "100"}
    for name, value in {**variables, "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2"}.items():
        patch.setenv(name, value)
    yield job
    subprocess.run(["scancel", job], capture_output=True, check=False)
