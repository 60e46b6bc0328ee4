"""Test figures of ESMM and MMoE on planted clicks and conversions, beside the truth and one model a label.

``python benchmarks/tasks.py [--rows 200000] [--seeds 0 1 2] [--epochs 2] [--json FILE]``: one server and one
trainer in one process tree. An impression has a user, an item, its category, an hour and a place; click and
conversion have logits of their own, linear in what is planted for each value and with a product of user and
item vectors, half of it shared by both. About one impression in eight is clicked, one click in ten converts.

``click`` and ``both`` (click and conversion) are judged on all impressions, ``conversion`` on those that
were clicked: AUC, log loss and calibration. ``planted`` is what the true probabilities reach: nothing can do
better but by chance.
``dnn`` is an MLP trained for one label, for ``conversion`` on clicked impressions alone: the base of ESMM's
paper.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pslib
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.schema import Schema
from rec_models import DNN, ESMM, MMoE, Model

FIELDS = {"user": 2000, "item": 500, "category": 40, "hour": 24, "place": 8}
SCHEMA = Schema(label="click", more_labels=["both"], sparse=list(FIELDS))
BIAS = {"click": -2.3, "conversion": -2.6}
TEST_ROWS = 100_000
BATCH_ROWS = 512
HIDDEN = (64, 32)
JUDGED = ("click", "both", "conversion")
FIGURES = ("auc", "logloss", "calibration")


def planted(rows: int, seed: int) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """Impressions with their labels, and the true probability of each label."""
    world, rng = np.random.default_rng(12345), np.random.default_rng(seed)
    shared = {name: world.normal(size=size) for name, size in FIELDS.items()}
    common = [world.normal(size=(FIELDS[name], 4)) for name in ("user", "item")]
    values = {name: rng.integers(0, size, rows) for name, size in FIELDS.items()}
    values["category"] = values["item"] % FIELDS["category"]
    chances = {}
    for task, bias in BIAS.items():
        z = np.full(rows, bias)
        for name, size in FIELDS.items():
            z += 0.4 * (shared[name] + world.normal(size=size))[values[name]]
        own = [(one + world.normal(size=one.shape)) / 2 for one in common]
        z += 0.6 * np.einsum("nd,nd->n", own[0][values["user"]], own[1][values["item"]])
        chances[task] = 1 / (1 + np.exp(-z))
    click = rng.random(rows) < chances["click"]
    both = click & (rng.random(rows) < chances["conversion"])
    chances["both"] = chances["click"] * chances["conversion"]
    return pa.table({"click": click.astype(np.int8), "both": both.astype(np.int8), **values}), chances


def result_of(scores: np.ndarray, labels: np.ndarray) -> EvalResult:
    """Exact figures of some predictions."""
    return ScoreCounts.of(np.clip(scores, 0, 1).astype(np.float32), labels).result()


def judged(table: pa.Table, chances: dict[str, np.ndarray]) -> dict[str, EvalResult]:
    """Figures of click, both, and conversion among clicked impressions, of what there are scores for."""
    click, both = (table[name].to_numpy() for name in ("click", "both"))
    found = {
        name: result_of(chances[name], table[name].to_numpy())
        for name in ("click", "both")
        if name in chances
    }
    if "conversion" in chances:
        found["conversion"] = result_of(chances["conversion"][click == 1], both[click == 1])
    return found


def scores_of(model: Model, train: Path, test: Path, epochs: int, seed: int) -> dict[str, np.ndarray]:
    """Train, and give the probabilities of the test impressions by label."""
    found = {}
    with pslib.connect() as cluster, tempfile.TemporaryDirectory() as made:
        trainer = pslib.Trainer(model, cluster, batch_rows=BATCH_ROWS, staleness=0, seed=seed, progress=False)
        trainer.fit(train, epochs)
        for label in model.schema.labels:
            out = Path(made) / label
            trainer.evaluate(test, label=label, predictions=out)
            found[label] = pq.read_table(out)["prediction"].to_numpy().astype(np.float64)
    return found


def measured(rows: int, seed: int, epochs: int, where: Path) -> dict[str, dict[str, EvalResult]]:
    """Figures of everything for one seed."""
    files = {name: where / f"{name}_{seed}.parquet" for name in ("train", "clicked", "test")}
    table, _ = planted(rows, 2 * seed)
    tested, chances = planted(TEST_ROWS, 2 * seed + 1)
    pq.write_table(table, files["train"], row_group_size=50_000)
    pq.write_table(table.filter(pa.array(table["click"].to_numpy() == 1)), files["clicked"])
    pq.write_table(tested, files["test"])
    found = {"planted": judged(tested, chances)}

    def trained(model: Model, on: str = "train") -> dict[str, np.ndarray]:
        return scores_of(model, files[on], files["test"], epochs, seed)

    alone = {}
    for label in ("click", "both"):
        alone |= trained(DNN(replace(SCHEMA, label=label, more_labels=()), hidden=HIDDEN, seed=seed))
    of_clicked = DNN(replace(SCHEMA, label="both", more_labels=()), hidden=HIDDEN, seed=seed)
    alone["conversion"] = trained(of_clicked, "clicked")["both"]
    found["dnn"] = judged(tested, alone)
    for name, model in (
        ("esmm", ESMM(SCHEMA, hidden=HIDDEN, seed=seed)),
        ("mmoe", MMoE(SCHEMA, hidden=(32,), experts=4, expert_hidden=(64,), seed=seed)),
    ):
        scores = trained(model)
        scores["conversion"] = scores["both"] / np.maximum(scores["click"], 1e-9)
        found[name] = judged(tested, scores)
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="20,000 impressions, one seed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, seeds = (20_000, [0]) if options.quick else (options.rows, options.seeds)
    with tempfile.TemporaryDirectory() as where:
        runs = [measured(rows, seed, options.epochs, Path(where)) for seed in seeds]
    for figure in FIGURES:
        print(f"{figure:11}  {'   '.join(f'{name:>10}' for name in JUDGED)}   (test, mean of seeds {seeds})")
        for name in runs[0]:
            means = [statistics.mean(getattr(run[name][what], figure) for run in runs) for what in JUDGED]
            print(f"{name:11}  {'   '.join(f'{mean:10.4f}' for mean in means)}")
    if options.json:
        plain = [{name: {k: asdict(v) for k, v in of.items()} for name, of in run.items()} for run in runs]
        report: dict[str, Any] = {"rows": rows, "seeds": seeds, "runs": plain}
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
