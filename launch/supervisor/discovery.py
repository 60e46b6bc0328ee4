"""Where a running cluster is, or how it ended: what a launcher leaves in a run's folder, and who reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launch.job.paths import from_here
from pslib.clock import utc_text
from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import EXIT_DONE, CheckpointError, ConfigurationError, UnavailableError
from pslib.storage import is_uri, shown
from pslib.text import counted

if TYPE_CHECKING:
    from launch.job.job import Job
    from pslib.config import ClusterConfig

__all__ = [
    "BEGAN_WITH",
    "NOTE",
    "EndedRun",
    "ended_run",
    "find_cluster",
    "from_checkpoint",
    "logs_of",
    "note_cluster",
    "note_earlier",
    "what_is_left",
    "what_saves",
]

NOTE = "cluster.json"
"""In the folder of a run's logs: the coordinator's address and the cluster's id."""

BEGAN_WITH = ("servers", "partition_bits", "dense_blocks")
"""Numbers that say where rows lie in a run's logs: those that its first launch had."""

EARLIER = "checkpoints-before.json"
"""In the logs of a run: which checkpoints stood where it saves before it began."""


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


def logs_of(out: Path) -> str | None:
    """Where the logs of a run are; None: it has none, or this machine does not see them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        log = json.loads((out / "logs" / NOTE).read_text(encoding="utf-8"))["log"]
        return str(log) if log is not None and Path(log).is_dir() else None
    return None


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


def _newest_with_print(folder: str) -> tuple[str, str]:
    """The newest checkpoint in a folder, and what tells it from another one at its place."""
    from cython_ext.wire.checksums import crc32
    from pslib.checkpoint import manifest_bytes, newest

    place = newest(folder)
    return place, f"{crc32(manifest_bytes(place)):08x}"


def note_earlier(job: Job, out: Path) -> None:
    """Write down which checkpoints stand where a run saves: they are an earlier run's, however it goes.

    ``--overwrite`` removes what lies in ``out``; a ``checkpoint.path`` may be anywhere, and hold what others
    need. The run's first save there replaces it or follows it.
    """
    found = {}
    for folder in _places(job):
        with suppress(CheckpointError):
            place, print_ = _newest_with_print(folder)
            found[shown(place)] = print_
    if found:
        (out / "logs" / EARLIER).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _earlier(out: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        noted = json.loads((out / "logs" / EARLIER).read_text(encoding="utf-8"))
        return noted if isinstance(noted, dict) else {}
    return {}


def _places(job: Job) -> tuple[str, ...]:
    """Where a run saves, and where it does so when it is asked to leave."""
    from launch.job.job import (  # 0.3 s, which most readers of a folder do without
        preempted_place,
        saved_place,
    )

    return tuple(dict.fromkeys((saved_place(job), preempted_place(job))))


def _saved_since(out: Path, places: Sequence[str]) -> tuple[list[tuple[str, str]], CheckpointError | None]:
    """When a run saved what is newest at each of some places, and its path; why there is none elsewhere."""
    from pslib.checkpoint import read_manifest

    found: list[tuple[str, str]] = []
    why, earlier = None, _earlier(out)
    for folder in places:
        try:
            place, print_ = _newest_with_print(folder)
            saved_utc = read_manifest(place).saved_utc
            if earlier.get(shown(place)) != print_:
                found.append((saved_utc, place))
                continue
            why = CheckpointError(
                f"{shown(place)} was saved by an earlier run, at {saved_utc}; to begin with it, say load.path"
            )
        except CheckpointError as error:
            why = why or error
    return found, why


def what_is_left(out: Path, done: bool) -> str:
    """What an ended run has left of its training, for people, by the look that ``--resume`` takes at it."""
    from launch.job.job import CHECKPOINT, PREEMPTED, read_job
    from pslib.checkpoint import list_checkpoints

    logs = "" if done or not (log := logs_of(out)) else f"all that was acknowledged is in its logs, {log}; "
    try:
        job = read_job(out / "job.yaml").model_copy(update={"out": str(out.resolve())})
        places, none = _places(job), "it left no checkpoint"
    except ConfigurationError:  # that of a script
        places = tuple(str(out.resolve() / name) for name in (CHECKPOINT, f"{CHECKPOINT}-{PREEMPTED}"))
        none = "its folder holds no checkpoint"
    if remote := next((place for place in places if is_uri(place)), None):  # a line waits for no store
        return f"{logs}its checkpoints, if any, are in {shown(remote)}"
    found, _ = _saved_since(out, places)
    for place in [max(found)[1]] if found else places:
        with suppress(CheckpointError):
            for one in list_checkpoints(place)[:1]:
                where = shown(one.path) if is_uri(one.path) else from_here(Path(one.path))
                if one.state == "complete":
                    return f"{logs}its checkpoint is {where}"
                return f"{logs}its checkpoint {where} is {one.state}: {one.problem}"
    return logs + none


def what_saves(job: Job) -> str:
    """What is to be set so that a run that ends early has saved something."""
    if job.checkpoint.every_s or job.checkpoint.every_batches:
        return "a smaller checkpoint.every_s or every_batches saves sooner"
    return "checkpoint.every_s or every_batches saves while a run goes on"


def from_checkpoint(job: Job) -> Job:
    """The same job, to begin at the last complete checkpoint of its run.

    Raises
    ------
    CheckpointError
        When there is none.
    """
    from launch.job.job import LoadSection

    found, why = _saved_since(Path(job.out), _places(job))
    if not found:
        out = Path(job.out)
        how = "with --overwrite" if out.is_dir() and any(out.iterdir()) else "without --resume"
        raise CheckpointError(f"--resume: nothing to go on from: {why}; begin anew {how} ({what_saves(job)})")
    return job.model_copy(update={"load": LoadSection(path=max(found)[1])})
