"""Discovery of a running cluster, or of the end of a run, by the files in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.job.paths import from_here
from pslib.config import COORDINATOR_VARIABLE
from pslib.errors import EXIT_DONE, CheckpointError, ConfigurationError, UnavailableError
from pslib.monitor.run_folder import NOTE, RunEnd, cluster_at, ended_run, read_record
from pslib.storage import is_uri, shown
from pslib.text import counted

if TYPE_CHECKING:
    from launch.job.job import Job
    from pslib.config import ClusterConfig


TARGETS = "metrics_targets.json"
"""File in the folder of a run: where its processes serve metrics, as Prometheus reads it."""

BEGAN_WITH = ("servers", "partition_bits", "dense_blocks")
"""Settings of the first launch that determine the layout of rows in a run's logs."""

EARLIER = "checkpoints-before.json"
"""File in the logs of a run: checkpoints that existed at its save paths before it began."""

SAVED = "checkpoint-saved.json"
"""File in the logs of a run that is done: its checkpoint at a ``checkpoint.path``."""


def note_cluster(
    logs: Path,
    address: str,
    cluster_id: str,
    launch: int = 0,
    log: str | None = None,
    config: ClusterConfig | None = None,
    launcher: Mapping[str, Any] | None = None,
) -> None:
    """Write the addresses of the cluster and its update logs, its number of launches, its size and launcher.

    A launch that resumes from logs keeps the `BEGAN_WITH` values of the first launch, even if there are none.
    A full disk does not end the run.
    """
    began = {} if config is None else {name: getattr(config, name) for name in BEGAN_WITH}
    if launch:
        before = read_record(logs / NOTE)
        if before and before.get("log") == log:
            began = {name: before[name] for name in BEGAN_WITH if name in before}
    with suppress(OSError):
        about = {"coordinator": address, "cluster_id": cluster_id, "launch": launch, "log": log, **began}
        about |= {"launcher": launcher} if launcher else {}
        text = json.dumps(about)
        (logs / NOTE).write_text(text, encoding="utf-8")


def note_targets(file: Path, metrics: Mapping[str, str]) -> None:
    """Write the addresses of the processes' metrics, for ``file_sd_configs`` of Prometheus.

    A full disk does not end the run.

    Parameters
    ----------
    file : Path
    metrics : mapping of str to str
        ``host:port`` by the name of the process.
    """
    from pslib.data.atomic_files import atomic_output  # brings pyarrow; `pslib --help` needs none

    targets = [
        {"targets": [address], "labels": {"process": name}} for name, address in sorted(metrics.items())
    ]
    with suppress(OSError, ConfigurationError), atomic_output(file) as draft:  # Prometheus reads each change
        draft.write_text(json.dumps(targets, indent=1) + "\n", encoding="utf-8")


def logs_of(out: Path) -> str | None:
    """Return the folder of a run's logs; None: it has none, or this machine does not see them."""
    log = read_record(out / "logs" / NOTE).get("log")
    return log if isinstance(log, str) and Path(log).is_dir() else None


def end_line(ended: RunEnd) -> str:
    """Describe an ended run in one line for the user: time, result, and remaining files."""
    code = "not done" if ended.exit_code is None else f"exit code {ended.exit_code}"
    how = "done" if ended.exit_code == EXIT_DONE else code
    said = f": {ended.error}" if ended.error else ""
    trained = f"{counted(ended.epochs, 'finished epoch')}, {counted(ended.examples, 'example')}"
    left = what_is_left(ended.folder, ended.exit_code == EXIT_DONE)
    return f"{ended.folder}: that run ended at {ended.ended_utc}, {how}{said} ({trained}); {left}"


def find_cluster(where: str | None, cluster_id: str | None) -> tuple[str, str]:
    """Return address and id of the named cluster, as `cluster_at` does.

    Raises
    ------
    ConfigurationError
        When there is no such file, or an address has no cluster id.
    UnavailableError
        When the run in this folder has ended.
    """
    where = where or os.environ.get(COORDINATOR_VARIABLE)
    if where and "://" not in where and (ended := ended_run(where)):
        raise UnavailableError(f"{end_line(ended)}; nothing of it runs any more")
    return cluster_at(where, cluster_id)


def _newest_with_print(folder: str) -> tuple[str, str]:
    """Return the newest checkpoint in a folder, with a fingerprint that distinguishes others at its path."""
    from cython_ext.wire.checksums import crc32
    from pslib.checkpoint import manifest_bytes, newest

    place = newest(folder)
    return place, f"{crc32(manifest_bytes(place)):08x}"


def note_earlier(job: Job, out: Path) -> None:
    """Record the checkpoints that exist at a run's save paths: they belong to an earlier run.

    ``--overwrite`` removes the contents of ``out``. A ``checkpoint.path`` may be anywhere, and hold
    checkpoints in use elsewhere. The run's first save there replaces or follows them.
    """
    found = {}
    for folder in _places(job):
        with suppress(CheckpointError):
            place, print_ = _newest_with_print(folder)
            found[shown(place)] = print_
    if found:
        (out / "logs" / EARLIER).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def note_saved(job: Job, out: Path) -> None:
    """Record the last checkpoint of a run that is done, if it is at a ``checkpoint.path``.

    Other runs may have the same path, so a stream goes on with the checkpoint there only while it is its own.
    """
    from launch.job.job import shared_place

    path = shared_place(job)
    if path is None:
        return
    with suppress(CheckpointError, OSError):  # a full disk does not end the run
        place, print_ = _newest_with_print(path)
        (out / "logs" / SAVED).write_text(json.dumps({shown(place): print_}) + "\n", encoding="utf-8")


def _places(job: Job) -> tuple[str, ...]:
    """Return the save paths of a run: the regular one, and that of a training that is not done."""
    from launch.job.job import (  # 0.3 s, which most readers of a folder do not need
        saved_place,
        unfinished_place,
    )

    return tuple(dict.fromkeys((saved_place(job), unfinished_place(job))))


def _saved_since(
    out: Path, places: Sequence[str], shared: str | None
) -> tuple[list[tuple[str, str]], CheckpointError | None]:
    """Return time and path of the run's newest checkpoint at each place, and why there is none elsewhere.

    At ``shared``, the ``checkpoint.path``, it is the run's only if noted by `note_saved`.
    """
    from pslib.checkpoint import read_manifest

    found: list[tuple[str, str]] = []
    why, earlier, own = None, read_record(out / "logs" / EARLIER), read_record(out / "logs" / SAVED)
    for folder in places:
        try:
            place, print_ = _newest_with_print(folder)
            saved_utc = read_manifest(place).saved_utc
            known = shown(place)
            if own.get(known) == print_ if folder == shared else earlier.get(known) != print_:
                found.append((saved_utc, place))
                continue
            which = "another" if folder == shared else "an earlier"
            why = CheckpointError(
                f"{known} was saved by {which} run, at {saved_utc}; to begin with it, say load.path"
            )
        except CheckpointError as error:
            why = why or error
    return found, why


def what_is_left(out: Path, done: bool) -> str:
    """Describe the checkpoints and logs left by an ended run, by the same check as ``--resume``."""
    from launch.job.job import CHECKPOINT, UNFINISHED, read_job, shared_place
    from pslib.checkpoint import list_checkpoints

    logs = "" if done or not (log := logs_of(out)) else f"all that was acknowledged is in its logs, {log}; "
    try:
        job = read_job(out / "job.yaml").model_copy(update={"out": str(out.resolve())})
        places, none, path = _places(job), "it left no checkpoint", shared_place(job)
    except ConfigurationError:  # the run of a script
        places = tuple(str(out.resolve() / name) for name in (CHECKPOINT, f"{CHECKPOINT}-{UNFINISHED}"))
        none, path = "its folder holds no checkpoint", None
    if remote := next((place for place in places if is_uri(place)), None):  # no wait for a store
        return f"{logs}its checkpoints, if any, are in {shown(remote)}"
    found, _ = _saved_since(out, places, path)
    for place in [max(found)[1]] if found else (one for one in places if one != path):
        with suppress(CheckpointError):
            for one in list_checkpoints(place)[:1]:
                where = shown(one.path) if is_uri(one.path) else from_here(Path(one.path))
                if one.state == "complete":
                    return f"{logs}its checkpoint is {where}"
                return f"{logs}its checkpoint {where} is {one.state}: {one.problem}"
    return logs + none


def what_saves(job: Job) -> str:
    """Return advice on settings that save a run which ends early."""
    if job.checkpoint.every_s or job.checkpoint.every_batches:
        return "a smaller checkpoint.every_s or every_batches saves sooner"
    return "checkpoint.every_s or every_batches saves while a run goes on"


def from_checkpoint(job: Job) -> Job:
    """Return the job, set to start from the last complete checkpoint of its run.

    Raises
    ------
    CheckpointError
        When there is no checkpoint.
    """
    from launch.job.job import shared_place
    from pslib.trainer.settings import LoadSettings

    found, why = _saved_since(Path(job.out), _places(job), shared_place(job))
    if not found:
        raise CheckpointError(
            f"--resume: nothing to go on from: {why}; begin anew without --resume ({what_saves(job)})"
        )
    return job.model_copy(update={"load": LoadSettings(path=max(found)[1])})


def can_go_on(out: Path) -> bool:
    """Return whether the run in a folder has update logs, or a checkpoint of its own, to go on with."""
    from launch.job.job import read_job

    if read_record(out / "logs" / NOTE).get("log"):
        return True
    try:
        from_checkpoint(read_job(out / "job.yaml").model_copy(update={"out": str(out)}))
    except (ConfigurationError, CheckpointError):  # the former for the run of a script
        return False
    return True
