"""This machine as a place to run: every process of a cluster is a child of the launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launch.supervisor.run_spec import THIS_MACHINE, Command, Task
from pslib.process.blas import TRAINERS_HERE


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Launcher that runs all processes on this machine, on the loopback address.

    Attributes
    ----------
    trainers : int
        Number of trainers that will share the cores.
    port : int
        Port of the coordinator; 0 is any free one.
    module : str
        Module to run with ``python -m``; replaced only in tests.
    """

    trainers: int
    port: int = 0
    module: str = "launch.worker.main"

    takes_more_servers: ClassVar[bool] = True
    """True: the launcher may start servers beyond the plan."""

    def command(self, task: Task) -> Command:
        """Return the command of the worker itself."""
        arguments = (sys.executable, *worker_arguments(task, module=self.module))
        return Command(arguments, worker_environment(os.environ, self.trainers), THIS_MACHINE)

    def hold(self, servers: int, trainers: int) -> AbstractContextManager[None]:
        """Return an empty context: this machine is there."""
        return nullcontext()

    def listen(self, task: Task) -> str:
        """Return the loopback address, which other machines can't reach."""
        return f"tcp://127.0.0.1:{self.port if task.role == 'coordinator' else 0}"


OWN_PACKAGES = "pslib.process.own_packages"
"""Module that runs another one, and finds pslib's own packages for it."""


def worker_arguments(
    task: Task, insecure_network: bool = False, module: str = "launch.worker.main"
) -> tuple[str, ...]:
    """Return the arguments of Python by which a worker is started.

    Parameters
    ----------
    task : Task
    insecure_network : bool
        True if it may listen without a key on an address that other machines reach.
    module : str
        Module of the worker.
    """
    flags = ("--insecure-network",) if insecure_network and task.role != "trainer" else ()
    # -P: a user's file named zmq.py must not shadow the package.
    return "-P", "-m", OWN_PACKAGES, module, "--guarded", task.role, *flags, *task.arguments


def worker_environment(inherited: Mapping[str, str], trainers: int) -> dict[str, str]:
    """Return the environment of a worker on this machine.

    Parameters
    ----------
    inherited : mapping
        The launcher's environment.
    trainers : int
        Number of trainers that share the cores.
    """
    return {**inherited, **checkout_path(inherited), TRAINERS_HERE: str(trainers)}


def checkout_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the PYTHONPATH for workers when pslib runs from a checkout; empty when it is installed."""
    root = Path(__file__).resolve().parents[2]
    if "site-packages" in root.parts:
        return {}
    path = [str(root), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
