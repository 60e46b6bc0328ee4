"""The golden log still gives the shard that wrote it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from pslib.update_log import DiskFiles, RollingLog
from pslib.update_log.shard_log import recover
from tests.update_log.test_replay import ABOUT, TABLES, Run, fingerprint

GOLDEN = Path(__file__).parents[1] / "golden" / "log_v1"
DIGEST = "9fca764ec9e468c6d8a49c40734239cb5e9f16d5dde829951b933ce8673aa66f"
STEPS = (
    "push",
    "sync_step",
    "push",
    "erase",
    "maintain",
    "release",
    "push",
    "adopt",
    "again",
    "finish_streams",
)


def write_golden(folder: Path) -> None:
    """Write the golden log: done once, and never again."""
    run = Run(TABLES["counted"], 11, log_bytes=1 << 40)
    for step in STEPS:
        getattr(run, step)()
    run.write_images()
    run.pace()
    for step in STEPS:
        getattr(run, step)()
    run.log.flush()
    files = DiskFiles(folder)
    for name, one in run.disk.folders["log"].items():
        files.append(name, [bytes(one.content)])
    files.close()


def recovered(folder: Path) -> tuple[RollingLog, dict[str, Any]]:
    log, shard = RollingLog(DiskFiles(folder), ABOUT), Run.blank()
    recover(log, shard, lambda *_: None)
    return log, fingerprint(shard)


def digest(state: dict[str, Any]) -> str:
    state = {name: value for name, value in state.items() if name != "tables"}
    return hashlib.sha256(repr(sorted(state.items())).encode()).hexdigest()


def test_the_golden_log_gives_the_same_bits_as_ever(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN, tmp_path / "log")
    log, state = recovered(Path(folder))
    assert not log.report
    assert digest(state) == DIGEST
    assert state["counters"]["pushes_applied"] == 7
