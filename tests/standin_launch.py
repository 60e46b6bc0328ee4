"""A launcher of stand-in processes, for tests; as a program: ``python -m tests.standin_launch FOLDER JSON``."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.local import LocalLauncher
from launch.process import Command, Task
from launch.supervise import Outcome, Plan, run_cluster
from pslib.config import ClusterConfig

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class StandIns:
    """Runs `tests.standin_worker` in place of the real worker; behaviours by task name or role."""

    folder: Path
    behaviours: Mapping[str, str]

    def command(self, task: Task) -> Command:
        real = LocalLauncher(1, module="tests.standin_worker").command(task)
        behaviour = self.behaviours.get(task.name, self.behaviours.get(task.role, "wait"))
        environment = {**real.environment, "STANDIN_DO": behaviour, "STANDIN_FOLDER": str(self.folder)}
        return Command(real.arguments, environment, real.where)

    def listen(self, task: Task) -> str:
        return "tcp://127.0.0.1:0"


class FixedStatus:
    """A watcher that always reads the same."""

    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def status(self) -> dict[str, Any]:
        return self._status

    def close(self) -> None:
        pass


def run_standins(
    folder: Path,
    behaviours: Mapping[str, str],
    *,
    servers: int = 1,
    trainers: int = 1,
    status: dict[str, Any] | None = None,
    echo: bool = False,
) -> tuple[Outcome, list[str]]:
    """Run a cluster of stand-ins; its outcome and what was said."""
    said: list[str] = []
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    plan = Plan(
        ClusterConfig(servers=servers, trainers=trainers), "test", ("script.py", "--its", "own"), logs, echo
    )
    outcome = run_cluster(
        StandIns(folder, behaviours),
        plan,
        say=said.append,
        watch=lambda address, cluster_id: FixedStatus(status or {}),
    )
    return outcome, said


def processes_of(folder: Path) -> dict[int, str]:
    """Live processes (pid to command line) that were started for this folder, whoever their parent is now."""
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


if __name__ == "__main__":
    outcome, said = run_standins(Path(sys.argv[1]), json.loads(sys.argv[2]), servers=2, trainers=2)
    print("\n".join(said))
    sys.exit(outcome.exit_code)
