"""A launcher of stand-ins for tests, also as a program: ``python -m`` this module with ``FOLDER JSON``."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launch.places.hosts import Host, HostsLauncher, read_hosts
from launch.places.local import LocalLauncher
from launch.places.options import HostOptions, selected_launcher
from launch.places.ssh import SshLauncher
from launch.supervisor.run_spec import Command, Outcome, Plan, Task
from launch.supervisor.supervisor import run_cluster
from pslib.config import ClusterConfig, Timing
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class HostStandIns:
    """The same on hosts: the command that their launcher makes, with the stand-in's name in it."""

    hosts: HostsLauncher
    folder: Path
    behaviours: Mapping[str, str]

    def command(self, task: Task) -> Command:
        behaviour = self.behaviours.get(task.name, self.behaviours.get(task.role, "wait"))
        settings = shlex.join([f"STANDIN_DO={behaviour}", f"STANDIN_FOLDER={self.folder}"])

        def over(host: Host, script: str) -> Command:
            script = script.replace("&& env ", f"&& env {settings} ", 1)
            return self.hosts.over(
                host, script.replace("launch.worker.main", "tests.support.processes.standin_worker", 1)
            )

        variables = self.hosts.variables
        here = SimpleNamespace(
            host_of=self.hosts.host_of, insecure_network=False, variables=variables, over=over
        )
        return HostsLauncher.command(here, task)  # type: ignore[arg-type]

    def listen(self, task: Task) -> str:
        return self.hosts.listen(task)


@dataclass(frozen=True)
class StandIns:
    """Runs `standin_worker` in place of the real worker; behaviours by task name or role."""

    folder: Path
    behaviours: Mapping[str, str]

    def command(self, task: Task) -> Command:
        real = LocalLauncher(1, module="tests.support.processes.standin_worker").command(task)
        behaviour = self.behaviours.get(task.name, self.behaviours.get(task.role, "wait"))
        environment = {**real.environment, "STANDIN_DO": behaviour, "STANDIN_FOLDER": str(self.folder)}
        return Command(real.arguments, environment, real.where)

    def listen(self, task: Task) -> str:
        return "tcp://127.0.0.1:0"


class FixedStatus:
    """A watcher that always reads the same; with ``since`` only from when that file is there."""

    def __init__(self, status: dict[str, Any], since: Path | None = None) -> None:
        self._status, self._since = status, since

    def status(self) -> dict[str, Any]:
        return dict(self._status) if self._since is None or self._since.exists() else {}

    def close(self) -> None:
        pass


def run_standins(
    folder: Path,
    behaviours: Mapping[str, str],
    *,
    servers: int = 1,
    trainers: int = 1,
    status: dict[str, Any] | None = None,
    since: str | None = None,
    echo: bool = False,
    hosts: HostsLauncher | None = None,
    watcher: Any = None,
    look: Callable[[dict[str, Any]], None] = lambda _status: None,
    log: str | None = None,
    **settings: Any,
) -> tuple[Outcome, list[str]]:
    """Run a cluster of stand-ins; its outcome and what was said.

    ``watcher`` in place of one that reads ``status``; ``look``: is shown each status; ``log``: where its logs
    are; ``settings``: of its `ClusterConfig`.

    So that no test guesses how long something takes, the launcher makes files for which stand-ins can wait:
    ``known`` when it knows the status, ``told-1`` when it has said its first line, and so on. They make
    another one, ``since``, when the coordinator is to have that status.
    """
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        (folder / f"told-{len(said)}").touch()

    def observe(status: dict[str, Any]) -> None:
        if status:
            (folder / "known").touch()
        look(status)

    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    config = ClusterConfig(servers=servers, trainers=trainers, **{"timing": Timing(drain_s=1.0)} | settings)
    plan = Plan(config, "test", ("script.py", "--its", "own"), logs, echo, log=log)
    outcome = run_cluster(
        StandIns(folder, behaviours) if hosts is None else HostStandIns(hosts, folder, behaviours),
        plan,
        observe=observe,
        say=say,
        watch=lambda *_where: watcher or FixedStatus(status or {}, since and folder / since),
    )
    return outcome, said


def processes_of(folder: Path) -> dict[int, str]:
    """Live processes (pid to command line) that were started for this folder, with any parent."""
    found = {}
    mark = f"STANDIN_FOLDER={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def assert_killed_trainer_is_named(folder: Path, hosts: HostsLauncher, host: str) -> None:
    """Assert that a run goes on without a killed trainer and names its host in one line."""
    outcome, said = run_standins(
        folder, {"trainer 0": "die", "trainer 1": "result b;over"}, servers=2, trainers=2, hosts=hosts
    )
    assert outcome.exit_code == 0, said
    assert [result["test"] for result in outcome.results] == ["b"]
    (line,) = said
    assert line.startswith(f"trainer 0 ({host}, pid ")
    assert "was killed by signal 9 (SIGKILL)" in line
    wait_until(lambda: not processes_of(folder), 10, "all processes to end")


def start_launcher(folder: Path, behaviours: Mapping[str, str], *hosts: str) -> subprocess.Popen[str]:
    """A launcher with 2 servers and 2 trainers in a process of its own, once all five workers are up.

    ``hosts``: a hosts file and a configuration of ssh, or ``slurm``.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.processes.standin_launch",
            str(folder),
            json.dumps(behaviours),
            *hosts,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: len(list(folder.glob("ready-*"))) == 5, 20, "all five workers to be up")
    return process


if __name__ == "__main__":
    file, config = (*sys.argv[3:5], None, None)[:2]
    hosts: HostsLauncher | None = None
    if file == "slurm":
        hosts = selected_launcher(HostOptions(on="slurm"))
    elif file:
        hosts = SshLauncher(read_hosts(Path(file).read_text(), file, ""), ssh_config=config)
    outcome, said = run_standins(
        Path(sys.argv[1]), json.loads(sys.argv[2]), servers=2, trainers=2, hosts=hosts
    )
    print("\n".join(said))
    sys.exit(outcome.exit_code)
