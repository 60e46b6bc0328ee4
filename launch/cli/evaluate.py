"""``pslib eval`` and ``recommend``: use the checkpoint of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING

from launch.cli.command import (
    FOLDER,
    checkpoint_option,
    command,
    data_option,
    flag,
    job_options,
    json_option,
    option,
    read_job_with,
    show,
)
from pslib.errors import EXIT_DONE

if TYPE_CHECKING:
    from pslib.metrics.metrics import EvalResult
    from pslib.metrics.ranking import RankResult


out_option = option("--out", "DIR", "folder for the Parquet files", FOLDER, required=True)


@command(
    "eval",
    """
pslib eval clicks.yaml --checkpoint runs/clicks/checkpoint --data later.parquet
pslib eval clicks.yaml --checkpoint runs/clicks/checkpoint --data new.parquet --predictions scores
""",
)
@job_options
@checkpoint_option
@data_option("in place of data.test; may be repeated")
@option(
    "--predictions", "DIR", "write the prediction of each example there (Parquet); needs no label", FOLDER
)
@option("--label", "NAME", "whose task, of several labels (default: the first)")
@json_option
def eval_command(
    config: str,
    overrides: tuple[str, ...],
    servers: int | None,
    checkpoint: str,
    data: tuple[str, ...],
    predictions: str | None,
    label: str | None,
    as_json: bool,
) -> int:
    """Evaluate a checkpoint."""
    from launch.worker.train_job import evaluate_checkpoint

    job = read_job_with(config, overrides, servers)
    result = evaluate_checkpoint(job, checkpoint, list(data) or None, predictions, label)
    show(asdict(result), _lines(result, predictions is not None), as_json)
    return EXIT_DONE


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


@command("recommend", "pslib recommend movies.yaml --checkpoint runs/movies/checkpoint --out best -k 20")
@job_options
@checkpoint_option
@out_option
@data_option("examples, in place of data.test; may be repeated")
@option("-k", "N", "items an example (default 20)", int, default=20)
@flag("--approximate", "by a graph of the items' vectors; needs faiss")
def recommend_command(
    config: str,
    overrides: tuple[str, ...],
    servers: int | None,
    checkpoint: str,
    out: str,
    data: tuple[str, ...],
    k: int,
    approximate: bool,
) -> int:
    """Write the best items of each example.

    For models that rank items. Examples are those of data.test, items those of data.items, and the history is
    the column that ranking names. Items of a model of sessions are the values of a column named item.
    """
    from launch.worker.train_job import recommend_items

    job = read_job_with(config, overrides, servers)
    recommend_items(job, checkpoint, list(data) or None, out, k, approximate)
    print(out)
    return EXIT_DONE
