"""``pslib eval`` and ``recommend``: use the checkpoint of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from launch.cli.command import (
    FILE,
    FOLDER,
    argument,
    command,
    flag,
    json_option,
    option,
    overrides_option,
    read_job_with,
    servers_option,
    show,
    together,
)
from pslib.errors import EXIT_DONE, CheckpointError

if TYPE_CHECKING:
    from launch.job.job import Job
    from pslib.metrics.metrics import EvalResult
    from pslib.metrics.ranking import RankResult

run_options = together(
    argument("run", "RUN", "the run's folder, or its job file", FILE),
    argument("data", "[DATA...]", "files or folders, in place of data.test", FILE, nargs=-1),
    option("--checkpoint", "DIR", "in place of the last one that the run has saved", FOLDER),
    servers_option,
    overrides_option,
)

out_option = option("--out", "DIR", "folder for the Parquet files", FOLDER, required=True)


@command(
    "eval",
    """
pslib eval runs/clicks
pslib eval runs/clicks later.parquet
pslib eval clicks.yaml new.parquet --checkpoint runs/clicks-2/checkpoint --predictions scores
""",
)
@run_options
@option(
    "--predictions", "DIR", "write the prediction of each example there (Parquet); needs no label", FOLDER
)
@option("--label", "NAME", "whose task, of several labels (default: the first)")
@json_option
def eval_command(
    run: str,
    data: tuple[str, ...],
    checkpoint: str | None,
    servers: int | None,
    overrides: tuple[str, ...],
    predictions: str | None,
    label: str | None,
    as_json: bool,
) -> int:
    """Evaluate the model of a run, on its test data or on other data."""
    from launch.worker.train_job import evaluate_checkpoint

    job, place = _asked(run, checkpoint, servers, overrides)
    result = evaluate_checkpoint(job, place, list(data) or None, predictions, label)
    show(asdict(result), _lines(result, predictions is not None), as_json)
    return EXIT_DONE


def _asked(
    run: str, checkpoint: str | None, servers: int | None, overrides: Sequence[str]
) -> tuple[Job, str]:
    """Return the job of a run, and the checkpoint to load: the given one, else the last one of the run."""
    from launch.job.job import saved_place
    from launch.supervisor.discovery import from_checkpoint

    of_run = Path(run) / "job.yaml"
    is_folder = of_run.is_file()  # it may have been moved: the job's own `out` is where it was
    job = read_job_with(str(of_run) if is_folder else run, overrides, servers, out=run if is_folder else None)
    if checkpoint is None:
        with suppress(CheckpointError):
            load = from_checkpoint(job).load
            checkpoint = load.path if load else None
    return job, checkpoint or saved_place(job)


def _lines(result: EvalResult | RankResult, predicted: bool) -> Iterator[str]:
    from pslib.metrics.ranking import RankResult

    if isinstance(result, RankResult):
        yield f"examples    {result.examples:,}"
        for k, recall in result.recall.items():
            yield f"at {k:<8} Recall {recall:.6f}, MRR {result.mrr[k]:.6f}, NDCG {result.ndcg[k]:.6f}"
        return
    if predicted and isnan(result.logloss):  # no label
        yield f"examples    {result.examples:,}, without a label: no figures"
        return
    yield f"examples    {result.examples:,} ({result.positives:,} positive)"
    one_sided = result.positives in (0, result.examples)
    why = f"- (every label is {int(result.positives > 0)}: no pair to put in order)"
    yield f"AUC         {why if one_sided else f'{result.auc:.6f}'}"
    yield f"log loss    {result.logloss:.6f}"
    yield f"calibration {f'{result.calibration:.4f}' if result.positives else '-'}"


@command("recommend", "pslib recommend runs/movies --out best -k 20")
@run_options
@out_option
@option("-k", "N", "items an example (default 20)", int, default=20)
@flag("--approximate", "by a graph of the items' vectors; needs faiss")
def recommend_command(
    run: str,
    data: tuple[str, ...],
    checkpoint: str | None,
    servers: int | None,
    overrides: tuple[str, ...],
    out: str,
    k: int,
    approximate: bool,
) -> int:
    """Write the best items of each example.

    For models that rank items. Examples are those of data.test, items those of data.items, and the history is
    the column that ranking names. Items of a model of sessions are the values of a column named item.
    """
    from launch.worker.train_job import recommend_items

    job, place = _asked(run, checkpoint, servers, overrides)
    recommend_items(job, place, list(data) or None, out, k, approximate)
    print(out)
    return EXIT_DONE
