"""Where a running cluster is, or how it ended: what a launcher leaves in a run's folder, and who reads it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pslib.clock import utc_text
from pslib.environment import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import EXIT_DONE, ConfigurationError, UnavailableError
from pslib.words import counted

if TYPE_CHECKING:
    from pslib.config import ClusterConfig

__all__ = ["BEGAN_WITH", "NOTE", "EndedRun", "ended_run", "find_cluster", "note_cluster"]

NOTE = "cluster.json"
"""In the folder of a run's logs: the coordinator's address and the cluster's id."""

BEGAN_WITH = ("servers", "partition_bits", "dense_blocks")
"""Numbers that say where rows lie in a run's logs: those that its first launch had."""


def note_cluster(
    logs: Path,
    address: str,
    cluster_id: str,
    launch: int = 0,
    log: str | None = None,
    config: ClusterConfig | None = None,
) -> None:
    """Write down where the cluster and its update logs are, how often it was launched before, and its size.

    A launch that goes on with logs keeps what its first one has written of `BEGAN_WITH`, were it nothing. A
    full disk is no reason to stop.
    """
    began = {} if config is None else {name: getattr(config, name) for name in BEGAN_WITH}
    if launch:
        with suppress(OSError, ValueError, AttributeError):
            before = json.loads((logs / NOTE).read_text(encoding="utf-8"))
            if before.get("log") == log:
                began = {name: before[name] for name in BEGAN_WITH if name in before}
    with suppress(OSError):
        about = {"coordinator": address, "cluster_id": cluster_id, "launch": launch, "log": log, **began}
        text = json.dumps(about)
        (logs / NOTE).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a run has ended, as its ``summary.json`` tells it.

    Attributes
    ----------
    folder : Path
    ended_utc : str
    exit_code : int
    error : str or None
    epochs, examples : int
        Finished ones, and examples, of the whole training.
    """

    folder: Path
    ended_utc: str
    exit_code: int
    error: str | None
    epochs: int
    examples: int

    def line(self) -> str:
        """For people: when, with what result, and what is left of it."""
        from launch.resuming import what_is_left

        how = "done" if self.exit_code == EXIT_DONE else f"exit code {self.exit_code}"
        said = f": {self.error}" if self.error else ""
        trained = f"{counted(self.epochs, 'finished epoch')}, {counted(self.examples, 'example')}"
        left = what_is_left(self.folder, self.exit_code == EXIT_DONE)
        return f"{self.folder}: that run ended at {self.ended_utc}, {how}{said} ({trained}); {left}"


def ended_run(where: str | Path) -> EndedRun | None:
    """The run in a folder, if it has ended; None while it goes on, and where nobody knows.

    Parameters
    ----------
    where : str or Path
        The run's folder, or that of its logs.
    """
    for folder in (Path(where), Path(where).parent):
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted_s = (folder / "logs" / NOTE).stat().st_mtime
            told = folder / "summary.json"
            ended_s = told.stat().st_mtime
            if ended_s < noted_s:  # of a launch before: the run goes on
                return None
            plain = json.loads(told.read_text(encoding="utf-8"))
            code, error = int(plain["exit_code"]), plain.get("error")
            counts = (int(plain.get("epochs") or 0), int(plain.get("examples") or 0))
            return EndedRun(folder, utc_text(ended_s), code, None if error is None else str(error), *counts)
    return None


def find_cluster(where: str | None, cluster_id: str | None) -> tuple[str, str]:
    """Address and id of the cluster that somebody means.

    Parameters
    ----------
    where : str or None
        ``tcp://host:port``, or a run's folder (or that of its logs); None: what the environment says.
    cluster_id : str or None
        For an address; default: the environment's PSLIB_CLUSTER_ID.

    Raises
    ------
    ConfigurationError
        When there is no such note, or an address has no cluster id.
    UnavailableError
        When the run in this folder has ended.
    """
    where = where or os.environ.get(COORDINATOR_VARIABLE)
    if not where:
        raise ConfigurationError("which cluster? give the folder of its run, or the coordinator's address")
    if "://" in where:
        known = cluster_id or os.environ.get(CLUSTER_ID_VARIABLE)
        if not known:
            raise ConfigurationError(f"coordinator {where}: its cluster id is missing; give --cluster-id ID")
        return where, known
    if ended := ended_run(where):
        raise UnavailableError(f"{ended.line()}; nothing of it runs any more")
    for note in (Path(where) / NOTE, Path(where) / "logs" / NOTE):
        with suppress(OSError, ValueError, KeyError, TypeError):
            plain = json.loads(note.read_text(encoding="utf-8"))
            return str(plain["coordinator"]), str(plain["cluster_id"])
    raise ConfigurationError(
        f"{where}: expected the folder of a run that has started, with logs/{NOTE}, or tcp://host:port"
    )
