"""Records of a run without a launcher: progress bar, metrics.jsonl, summary.json and the plot.

Under a launcher, `launch.supervisor.run_records` writes them for all trainers together.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pslib.clock import SystemClock
from pslib.cluster import Cluster
from pslib.coordinator.results import EVALUATIONS, of_kind
from pslib.errors import ConfigurationError, PslibError
from pslib.recorder import RunRecorder
from pslib.recorder.event_files import check_event_files
from pslib.storage import check_local, unwritable

log = logging.getLogger("pslib")

LOOK_S = 0.5
"""Status interval: fine enough for a bar; a status costs the coordinator well below a millisecond."""


def check_out(cluster: Cluster, out: str | os.PathLike[str] | None, tensorboard: bool) -> None:
    """Check that `record` can write there, before the cluster counts a trainer.

    Raises
    ------
    ConfigurationError
        If it is a URI, or the folder or a file in it can't be made; or if event files are requested that
        can't be written, or without a folder.
    """
    if tensorboard and cluster.embedded:  # else the launcher writes the records
        check_event_files()
        if out is None:
            raise ConfigurationError("tensorboard: expected out beside it, the folder of its files")
    check_local("out", out)
    if cluster.embedded and out is not None and (why := unwritable(Path(out))):
        raise ConfigurationError(
            f"out: {out} can't be written to: {why}; give another folder, or leave it out"
        )


def record(
    cluster: Cluster,
    out: str | os.PathLike[str] | None,
    progress: bool,
    seed: int,
    tensorboard: bool = False,
) -> None:
    """Record an embedded cluster until it closes; do nothing elsewhere, or when nothing is requested.

    Parameters
    ----------
    cluster : Cluster
        Its end callback receives the last status.
    out : path or None
        Folder of the records; None writes no file.
    progress : bool
        True to show a bar.
    seed : int
        For the summary.
    tensorboard : bool
        True to write event files too.
    """
    if not cluster.embedded or (out is None and not progress):
        return
    recorder = RunRecorder(
        Path(out) if out is not None else None, SystemClock(), progress=progress, tensorboard=tensorboard
    )
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            try:
                recorder.observe(of_kind(cluster.status(), *EVALUATIONS))
            except PslibError:  # the cluster is closing; `end` gets its last status
                return

    thread = threading.Thread(target=look, name="pslib-recorder", daemon=True)
    thread.start()

    def stop_looking() -> None:
        over.set()
        thread.join(5.0)

    def end(status: Mapping[str, Any]) -> None:
        recorder.observe(of_kind(status, *EVALUATIONS))
        servers, trainers = status["servers_configured"], status["trainers_configured"]
        try:
            recorder.finish({"seed": seed, "servers": servers, "trainers": trainers})
        except OSError as error:  # the script already has its results
            log.warning("pslib: %s: %s; its records are not all there", out, error.strerror or error)

    cluster.at_close(stop_looking, end)
