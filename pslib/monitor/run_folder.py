"""Folder of a run: where its cluster is, and how it has ended."""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pslib.clock import utc_text
from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.text import counted, listed

NOTE = "cluster.json"
"""File in the folder of a run's logs: the coordinator's address and the cluster's id."""

METRICS = "metrics.jsonl"
"""File in the folder of a run: its records."""

SUMMARY = "summary.json"
"""File in the folder of a run that has ended: its figures."""

MONITOR = "monitor.json"
"""File in the folder of a run: its last state and its samples."""


def read_record(file: Path) -> dict[str, Any]:
    """Read a JSON object from a run's folder; empty if the file is missing, unreadable or something else."""
    with suppress(OSError, ValueError):
        plain = json.loads(file.read_text(encoding="utf-8"))
        return plain if isinstance(plain, dict) else {}
    return {}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """End of a run, from its ``summary.json``.

    Attributes
    ----------
    folder : Path
    ended_utc : str
    exit_code : int or None
        None: that of a script without a launcher, whose training was not done.
    error : str or None
    epochs, examples : int
        Finished epochs and trained examples of the whole training.
    """

    folder: Path
    ended_utc: str
    exit_code: int | None
    error: str | None
    epochs: int
    examples: int


def ended_run(where: str | Path) -> RunEnd | None:
    """Return the end of the run in a folder; None while it runs, or if unknown.

    Parameters
    ----------
    where : str or Path
        Folder of the run or of its logs, or that a script without a launcher has as ``out``.
    """
    for folder in (Path(where), Path(where).parent):
        with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            note, told = folder / "logs" / NOTE, folder / SUMMARY
            noted_s = (note if note.exists() else folder / METRICS).stat().st_mtime
            ended_s = told.stat().st_mtime
            if ended_s < noted_s:  # of an earlier launch: the run continues
                return None
            plain = json.loads(told.read_text(encoding="utf-8"))
            if "exit_code" in plain:
                code: int | None = int(plain["exit_code"])
            else:  # of a script, whose own is unknown
                code = EXIT_DONE if plain["phase"] == "done" else None
            error = plain.get("error")
            counts = (int(plain.get("epochs") or 0), int(plain.get("examples") or 0))
            return RunEnd(folder, utc_text(ended_s), code, None if error is None else str(error), *counts)
    return None


def runs_in(folder: str | Path) -> str:
    """Name the runs in a folder, for the end of a message about it; empty where there is none."""
    with suppress(OSError, ValueError):
        found = [one for one in sorted(Path(folder).iterdir()) if (one / "logs" / NOTE).exists()]
        return f"; runs in it: {listed(str(one) for one in found)}" if found else ""
    return ""


def records_of_script(where: str | Path) -> str | None:
    """Describe the records of a script without a launcher in a folder; None if it holds something else."""
    from pslib.recorder.records import read_records  # 0.2 s, which most readers of a folder do not need

    file = Path(where) / METRICS
    if (Path(where) / "logs").exists() or not file.exists():
        return None
    last = deque(read_records(file), maxlen=1)
    how = (f": {counted(one.epoch, 'finished epoch')}, {counted(one.examples, 'example')}" for one in last)
    at = utc_text(file.stat().st_mtime)
    return f"{where}: records of a training in a script's own process, the last of {at}{''.join(how)}"


def cluster_at(where: str | None, cluster_id: str | None) -> tuple[str, str]:
    """Return address and id of the named cluster, whether it runs or not.

    Parameters
    ----------
    where : str or None
        ``tcp://host:port``, or the folder of a run or of its logs; None: from the environment.
    cluster_id : str or None
        For an address; default: the environment's PSLIB_CLUSTER_ID.

    Raises
    ------
    ConfigurationError
        When there is no such file, or an address has no cluster id.
    """
    where = where or os.environ.get(COORDINATOR_VARIABLE)
    if not where:
        raise ConfigurationError("which cluster? give the folder of its run, or the coordinator's address")
    if "://" in where:
        known = cluster_id or os.environ.get(CLUSTER_ID_VARIABLE)
        if not known:
            raise ConfigurationError(f"coordinator {where}: its cluster id is missing; give --cluster-id ID")
        return where, known
    for note in map(read_record, (Path(where) / NOTE, Path(where) / "logs" / NOTE)):
        if {"coordinator", "cluster_id"} <= note.keys():
            return str(note["coordinator"]), str(note["cluster_id"])
    if about := records_of_script(where):
        raise ConfigurationError(f"{about}; it has no address to ask: only {METRICS} tells how it goes")
    raise ConfigurationError(
        f"{where}: expected the folder of a run that has started, with logs/{NOTE}, or tcp://host:port"
        f"{runs_in(where)}"
    )
