"""``pslib demo``: DeepFM on 2 servers and 2 trainers, on data with a known best possible AUC."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.job.job import read_job
from launch.job.preflight import RUN_FILES
from launch.job.sections import schema_section
from launch.job.yaml12 import write_yaml
from launch.places.options import RunOptions
from launch.runs.train import run_job
from pslib.errors import ConfigurationError
from pslib.recorder.display import is_terminal

JOB_FILE = "demo.yaml"

TRAIN_ROWS = 1_500_000
"""Training examples: about half a minute on two cores."""


def demo_job(data: str, out: str) -> dict[str, Any]:
    """Return the job of ``examples/demo.yaml`` with other data and output folders."""
    from pslib.data.synthetic.generator import GeneratorConfig, generated_schema

    return {
        "data": {
            "train": f"{data}/train.parquet",
            "test": f"{data}/test.parquet",
            "schema": schema_section(generated_schema(GeneratorConfig())),
        },
        "model": {"name": "deepfm", "dim": 8, "hidden": [128, 64]},
        "optimizers": {
            "rows": {"name": "Adagrad", "learning_rate": 0.05, "initial_accumulator": 1e-6},
            "dense": {"name": "Adam", "learning_rate": 0.001},
        },
        "training": {"batch_rows": 1024, "staleness": 2, "epochs": 1, "seed": 1},
        "cluster": {"servers": 2, "trainers": 2},
        "out": out,
    }


def run_demo(out: Path, *, progress: bool, ui: int | None = None) -> int:
    """Generate data below ``out`` where it is absent, write the job file there, and train it.

    Parameters
    ----------
    out : Path
        Folder of the run; an earlier demo in it is replaced, its data is kept.
    progress : bool
        True to show a bar.
    ui : int or None
        Port of the run's page, 0 for any; None: no page.

    Returns
    -------
    int
        The run's exit code.

    Raises
    ------
    ConfigurationError
        When ``out`` holds a run that is not a demo, or can't be written to.
    """
    from pslib.data.synthetic.generator import FILES, GeneratorConfig, generate

    earlier = [path for name in RUN_FILES for path in sorted(out.glob(name))]
    if earlier and not (out / JOB_FILE).exists():
        raise ConfigurationError(
            f"--out: {out} holds {earlier[0].name}, which no demonstration has made: give another --out"
        )
    data = out / "data"
    if not all((data / name).exists() for name in FILES):
        print(f"generating data in {data}", file=sys.stderr)
        config = GeneratorConfig(train_rows=TRAIN_ROWS)
        for line in generate(data, config, overwrite=True, progress=_bar() if progress else None).lines():
            print(line, file=sys.stderr)
    file = out / JOB_FILE
    try:
        file.write_text(write_yaml(demo_job("data", ".")), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be written: {error.strerror}") from error
    print(f"training {file}", file=sys.stderr)
    return run_job(read_job(file), RunOptions(overwrite=True, quiet=not progress, ui=ui))


def _bar() -> Callable[[int, int], None]:
    """Show the generator's progress on a terminal."""

    def show(done: int, total: int) -> None:
        if is_terminal(sys.stderr):
            print(
                f"\r{done:,} of {total:,} rows",
                end="\n" if done == total else "",
                file=sys.stderr,
                flush=True,
            )

    return show
