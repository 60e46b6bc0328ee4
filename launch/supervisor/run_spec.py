"""What a launcher is to run, where, and how it ended: values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launch.supervisor.process import Command, Task
from launch.supervisor.resume import Identity
from pslib.config import ClusterConfig

if TYPE_CHECKING:
    from pslib.transport import Keys

__all__ = ["Launcher", "Outcome", "Plan"]


class Launcher(Protocol):
    """A place to run processes."""

    def command(self, task: Task) -> Command:
        """How to start a task there; see `Command` for what the command must keep to."""
        ...

    def listen(self, task: Task) -> str:
        """Address on which the task, a coordinator or server, is to listen; port 0 is any free one."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes
    ----------
    config : ClusterConfig
    cluster_id : str
        Known to all processes of this cluster and to no other.
    trainer_arguments : tuple of str
        What each trainer runs: ``--job FILE``, or a script and its arguments.
    logs : Path
        Folder for one log a process; must exist.
    echo : bool
        Whether to show what trainers print.
    keys : mapping of str to Keys, or None
        By role, to encrypt with; each process is given its own. The coordinator has a server's.
    log : str or None
        Folder of the update logs and the coordinator's journal, on the machines where these run.
    launch : Identity or None
        Of a run that was launched before; None: of no other.
    saves : bool
        Whether to save the training when the launcher is asked to leave.
    """

    config: ClusterConfig
    cluster_id: str
    trainer_arguments: tuple[str, ...]
    logs: Path
    echo: bool = False
    keys: Mapping[str, Keys] | None = field(default=None, repr=False)
    log: str | None = None
    launch: Identity | None = None
    saves: bool = False

    def key_of(self, role: str) -> Keys | None:
        """The key of a coordinator, server, trainer, or of the launcher itself ("admin")."""
        return None if self.keys is None else self.keys["server" if role == "coordinator" else role]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    exit_code : int
        0, or why not: see `pslib.errors`.
    results : list of dict
        What trainers reported as their results, in the order in which they did.
    status : dict
        The coordinator's last status; empty when there was none.
    reason : str or None
        What ended a run that failed, in one line.
    final : bool
        Whether it would only end so again.
    """

    exit_code: int
    results: list[dict[str, Any]] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    final: bool = False
