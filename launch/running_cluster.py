"""Where a running cluster is: the note that a launcher leaves in the run's folder, and who reads it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from pslib.errors import ConfigurationError

__all__ = ["NOTE", "find_cluster", "note_cluster"]

NOTE = "cluster.json"
"""In the folder of a run's logs: the coordinator's address and the cluster's id."""


def note_cluster(logs: Path, address: str, cluster_id: str, launch: int = 0, log: str | None = None) -> None:
    """Write down where the cluster and its update logs are, and how often it was launched before.

    A full disk is no reason to stop.
    """
    with suppress(OSError):
        about = {"coordinator": address, "cluster_id": cluster_id, "launch": launch, "log": log}
        text = json.dumps(about)
        (logs / NOTE).write_text(text, encoding="utf-8")


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
    """
    where = where or os.environ.get("PSLIB_COORDINATOR")
    if not where:
        raise ConfigurationError("which cluster? give the folder of its run, or the coordinator's address")
    if "://" in where:
        known = cluster_id or os.environ.get("PSLIB_CLUSTER_ID")
        if not known:
            raise ConfigurationError(f"coordinator {where}: its cluster id is missing; give --cluster-id ID")
        return where, known
    for note in (Path(where) / NOTE, Path(where) / "logs" / NOTE):
        with suppress(OSError, ValueError, KeyError, TypeError):
            plain = json.loads(note.read_text(encoding="utf-8"))
            return str(plain["coordinator"]), str(plain["cluster_id"])
    raise ConfigurationError(
        f"{where}: expected the folder of a run that has started, with logs/{NOTE}, or tcp://host:port"
    )
