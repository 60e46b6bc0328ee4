"""A coordinator and one server without a launcher: processes as `launch.worker.main` runs them, by
hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pslib.config import ClusterConfig

__all__ = ["ByHand", "processes_by_hand"]


@dataclass(frozen=True)
class ByHand:
    """The coordinator's address, and both processes."""

    address: str
    coordinator: subprocess.Popen[str]
    server: subprocess.Popen[str]


@contextmanager
def processes_by_hand(config: ClusterConfig, cluster_id: str, log: Path | None = None) -> Iterator[ByHand]:
    """Start both, and kill what is left of them at the end; ``log``: a folder for the logs."""
    worker = [sys.executable, "-m", "launch.worker.main"]
    listen = ["--cluster-id", cluster_id, "--listen", "tcp://127.0.0.1:0"]
    journal = [] if log is None else ["--journal", str(log / "coordinator")]
    coordinator = subprocess.Popen(
        [*worker, "coordinator", *listen, "--config", json.dumps(config.to_dict()), *journal],
        stdout=subprocess.PIPE,
        text=True,
    )
    started = [coordinator]
    try:
        assert coordinator.stdout is not None
        lines = iter(coordinator.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("pslib-listening"))
        logs = [] if log is None else ["--rank", "0", "--log", str(log)]
        server = subprocess.Popen(
            [*worker, "server", *listen, "--coordinator", address, *logs],
            stdout=subprocess.DEVNULL,
            text=True,
        )
        started.append(server)
        yield ByHand(address, coordinator, server)
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
