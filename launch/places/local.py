"""This machine as a place to run: every process of a cluster is a child of the launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launch.supervisor.process import THIS_MACHINE, Command, Task
from pslib.process.blas import TRAINERS_HERE

__all__ = ["LocalLauncher", "checkout_path", "worker_environment"]


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Runs all processes on this machine, on the loopback address.

    Attributes
    ----------
    trainers : int
        How many trainers will share the cores.
    port : int
        Port of the coordinator; 0 is any free one.
    module : str
        What to run with ``python -m``; another one only in tests.
    """

    trainers: int
    port: int = 0
    module: str = "launch.worker.main"

    takes_more_servers: ClassVar[bool] = True
    """Whether a launcher may start servers that were not planned."""

    def command(self, task: Task) -> Command:
        """The worker itself."""
        # -P: a file of the user's that is called launch.py or zmq.py must not be taken for ours.
        arguments = (sys.executable, "-P", "-m", self.module, "--guarded", task.role, *task.arguments)
        return Command(arguments, worker_environment(os.environ, self.trainers), THIS_MACHINE)

    def listen(self, task: Task) -> str:
        """The loopback address, where other machines reach nobody."""
        return f"tcp://127.0.0.1:{self.port if task.role == 'coordinator' else 0}"


def worker_environment(inherited: Mapping[str, str], trainers: int) -> dict[str, str]:
    """Environment of a worker on this machine.

    Parameters
    ----------
    inherited : mapping
        The launcher's environment.
    trainers : int
        How many trainers share the cores.
    """
    return {**inherited, **checkout_path(inherited), TRAINERS_HERE: str(trainers)}


def checkout_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH for workers where pslib runs from a checkout; nothing where it is installed."""
    root = Path(__file__).resolve().parent.parent
    if "site-packages" in root.parts:
        return {}
    path = [str(root), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
