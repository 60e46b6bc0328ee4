"""``pslib verify``: compare training on the cluster with sequential training."""

from __future__ import annotations

from dataclasses import asdict

from launch.cli.command import (
    FOLDER,
    choice,
    command,
    flag,
    job_options,
    json_option,
    option,
    say,
    show,
    trainers_option,
)

TOLERANCE = 0.002
"""Tolerance of AUC and log loss: the size of the difference between two seeds of one training."""


@command("verify", "pslib verify clicks.yaml --seeds 3")
@job_options
@trainers_option
@choice("--kill", ("server", "trainer", "coordinator"), "kill -9 one on the way")
@option("--seeds", "N", "train N times (default 1)", int, default=1)
@option("--tolerance", "X", f"default {TOLERANCE}; see docs/guide/train.md", float, default=TOLERANCE)
@option("--out", "DIR", "folder of all runs (default: the file's, and -verify)", FOLDER)
@flag("--overwrite", "replace earlier runs in that folder")
@json_option
def verify_command(
    config: str,
    overrides: tuple[str, ...],
    servers: int | None,
    trainers: int | None,
    kill: str | None,
    seeds: int,
    tolerance: float,
    out: str | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Compare the cluster's training with that of one batch after the other.

    Exit code 1: a mode of the cluster is worse than the tolerance, or a push did not count once.
    """
    from launch.job.job import Job, read_job
    from launch.runs.verify import VerifyOptions, line_of, run_verify
    from pslib.errors import EXIT_DONE
    from pslib.storage import check_local

    check_local("out", out)
    numbers = {"cluster.servers": servers, "cluster.trainers": trainers}
    given: dict[str, object] = {name: number for name, number in numbers.items() if number is not None}

    def read(more: dict[str, object]) -> Job:
        return read_job(config, overrides, given | more)

    options = VerifyOptions(kill, seeds, tolerance, overwrite)
    verified, verdict, code = run_verify(read, out, options, say(as_json))
    runs = [asdict(one) | {"balances": one.balances} for one in verified]
    plain = {"ok": code == EXIT_DONE, "verdict": verdict, "runs": runs}
    show(plain, [*map(line_of, verified), verdict], as_json)
    return code
