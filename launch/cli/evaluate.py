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
from pslib.errors import EXIT_DONE, CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from launch.job.job import Job
    from pslib.metrics.metrics import EvalResult
    from pslib.metrics.ranking import RankResult
    from pslib.serving.comparison import Comparison

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
pslib eval runs/clicks --against http://127.0.0.1:8080
""",
)
@run_options
@option(
    "--predictions", "DIR", "write the prediction of each example there (Parquet); needs no label", FOLDER
)
@option("--label", "NAME", "whose task, of several labels (default: the first)")
@option("--against", "URL", "compare the predictions with those of a server of pslib serve")
@option("--against-model", "MODEL", "its name there (default: the only one)")
@json_option
def eval_command(
    run: str,
    data: tuple[str, ...],
    checkpoint: str | None,
    servers: int | None,
    overrides: tuple[str, ...],
    predictions: str | None,
    label: str | None,
    against: str | None,
    against_model: str | None,
    as_json: bool,
) -> int:
    """Evaluate the model of a run, on its test data or on other data.

    With --against the exit code is 1 if the server has the checkpoint's version and other predictions.
    """
    from launch.worker.train_job import evaluate_checkpoint

    job, place = _asked(run, checkpoint, servers, overrides)
    if against is not None:
        if predictions is not None:
            raise ConfigurationError("--predictions: expected it without --against")
        found = _compared(job, place, list(data), label, against, against_model)
        plain = asdict(found) | {"other_version": found.is_other_version}
        show(plain, _compared_lines(found, against), as_json)
        return EXIT_DONE if found.agrees else 1
    if against_model is not None:
        raise ConfigurationError("--against-model: expected --against with it")
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


def _compared(
    job: Job, place: str, data: list[str], label: str | None, url: str, name: str | None
) -> Comparison:
    """Score files by a checkpoint and by a server."""
    from pslib.clock import SystemClock
    from pslib.serving.comparison import compare, scorer_at
    from pslib.trainer.evaluation.scoring import task_of
    from rec_models.saved import load

    files = data or job.data.test
    if not files:
        raise ConfigurationError("--against: expected DATA, or files in data.test of the job file")
    model = load(place)
    score = scorer_at(url, name, SystemClock().sleep_s)
    return compare(model, files, score, task_of(model.schema, label))


def _compared_lines(found: Comparison, url: str) -> Iterator[str]:
    versions = ", ".join(f"{version} ({rows:,} rows)" for version, rows in found.versions.items())
    yield f"rows        {found.rows:,}; checkpoint {found.version}, {url} has {versions or 'none asked'}"
    yield (
        f"difference  mean {found.mean:.2g}, largest {found.largest:.2g}; "
        f"{100 * found.same_share:.2f} % the same within 1e-5"
    )
    if found.offline is not None and found.served is not None:
        for title, name in (("AUC", "auc"), ("log loss", "logloss"), ("calibration", "calibration")):
            offline, served = getattr(found.offline, name), getattr(found.served, name)
            yield f"{title:11} {'-' if isnan(offline) else f'{offline:.6f}, served {served:.6f}'}"
    if not found.agrees:
        yield f"{url} has the version of the checkpoint, and other predictions"
    elif found.is_other_version:
        yield f"{url} answers with another version than the checkpoint's: predictions may differ"


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
