"""Test AUC, log loss and calibration of the click models on the Frappe log, beside what is published.

``python benchmarks/papers.py [--data FOLDER] [--models M ...] [--seeds 0 1 2] [--epochs N] [--two]
[--keep FOLDER] [--json FILE]``:
one server and one trainer in one process tree; ``--two`` trains the first seed once more with two servers and
two asynchronous trainers, each a process. FOLDER (default: what PSLIB_TEST_DATA names) holds
``ctr_frappe_x1/{train_rebuilt,valid,test}.parquet``: the 7:2:1 split "frappe_x1" of BARS (reczoo/BARS), app
uses with 10 sparse fields. The data may not be given on, so it is not here.

Settings follow BARS where it matters: embeddings of 10, MLPs of 400-400-400, batch norm, dropout, batches of
4,096 (of DCN-v2 and FinalMLP 1,024, which is better on valid), Adam with L2 on rows that counts at every step
of the training (`AdamL2`), and the rates lowered on plateaus. The defaults of `pslib.EarlyStopping` say when,
and choose the epoch by log loss on valid. DCN-v2 has the dropout and layers of DCN there, NFM batch norm and
dropout 0.2: their own need more epochs. AutoInt is of half the width and depth, for the time that it takes,
and its batches are of 256: without batch norm it is the number of steps that takes it beyond first-order
terms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pslib
from pslib.table.optimizers import Adam, AdamL2
from rec_models import MODELS, build

FIELDS = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
SCHEMA = pslib.Schema(label="label", sparse=FIELDS)
TRAIN_ROWS = 202_027
DEEP = {"hidden": [400, 400, 400], "batch_norm": True}


@dataclass(frozen=True)
class Paper:
    """Settings of a model's training here, and its published result.

    Attributes
    ----------
    auc, logloss : float
        Published, on test: of BARS' leaderboard for frappe_x1.
    options : dict
        Options of the model.
    l2 : float
        Coefficient for rows.
    rate : float
        Learning rate of rows and dense parameters.
    batch_rows : int
        Examples of a batch.
    """

    auc: float
    logloss: float
    options: dict[str, Any] = field(default_factory=dict)
    l2: float = 0.05
    rate: float = 0.001
    batch_rows: int = 4096


PAPERS: dict[str, Paper] = {
    "lr": Paper(0.9356, 0.3076, l2=1e-5, rate=0.01),
    "fm": Paper(0.9671, 0.2065, l2=1e-5, rate=0.01),
    "nfm": Paper(0.9804, 0.2058, DEEP | {"dropout": 0.2}, l2=0.01),
    "dnn": Paper(0.9833, 0.1622, DEEP | {"dropout": 0.2}),
    "wide_deep": Paper(0.9841, 0.1490, DEEP | {"dropout": 0.2}),
    "deepfm": Paper(0.9842, 0.1482, DEEP | {"dropout": 0.2}),
    "dcn": Paper(0.9839, 0.1527, DEEP | {"dropout": 0.2}),
    "dcnv2": Paper(0.9845, 0.1491, DEEP | {"dropout": 0.2, "cross_layers": 3}, batch_rows=1024),
    "xdeepfm": Paper(0.9845, 0.1466, DEEP | {"dropout": 0.2, "cin": [64]}),
    "autoint": Paper(
        0.9831,
        0.1637,
        {"attention_layers": 3, "attention_dim": 64, "heads": 2},
        l2=0.003,
        rate=0.003,
        batch_rows=256,
    ),
    "pnn": Paper(0.9841, 0.1540, DEEP | {"dropout": 0.3}),
    "fibinet": Paper(0.9832, 0.1941, DEEP | {"dropout": 0.2}),
    "dlrm": Paper(0.9840, 0.1444, DEEP | {"dropout": 0.2, "interaction": "cat"}),
    "finalmlp": Paper(
        0.9861,
        0.1484,
        {"hidden_1": [400], "hidden_2": [100], "dropout_1": 0.2, "dropout_2": 0.2, "batch_norm": True},
        batch_rows=1024,
    ),
}
EPOCHS = 50
"""Most epochs; all but first-order models stop far earlier."""


def trainer_of(name: str, seed: int, cluster: pslib.Cluster) -> pslib.Trainer:
    """A trainer as `PAPERS` says."""
    paper = PAPERS[name]
    rows = AdamL2(paper.rate, l2=paper.l2)
    options = dict(paper.options) | {"v_optimizer": rows, "w_optimizer": rows, "seed": seed}
    for option in {"v_optimizer", "w_optimizer"} - set(MODELS[name].__dataclass_fields__):
        del options[option]
    return pslib.Trainer(
        build(name, SCHEMA, options),
        cluster,
        batch_rows=paper.batch_rows,
        dense_optimizer=Adam(paper.rate),
        seed=seed,
        progress=False,
    )


def trained(name: str, seed: int, data: Path, epochs: int, state: Path) -> dict[str, Any]:
    """Train one model and evaluate its best epoch on test, unless the record of that is in ``state``."""
    record = state / "run.json"
    if record.exists():
        kept: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return kept
    train, valid, test = (data / f"{part}.parquet" for part in ("train_rebuilt", "valid", "test"))
    start = time.monotonic()
    with pslib.connect() as cluster:
        trainer = trainer_of(name, seed, cluster)
        seen = trainer.fit(train, epochs, valid, stopping=pslib.EarlyStopping(), best=state / "best")
        run = {"seconds": time.monotonic() - start, "valid": [asdict(one) for one in seen]}
        run["test"] = asdict(trainer.evaluate(test))
    record.write_text(json.dumps(run), encoding="utf-8")
    return run


def with_two(name: str, seed: int, data: Path, epochs: int, keep: Path) -> float:
    """Test AUC with two servers and two asynchronous trainers: this script under ``pslib launch``."""
    keep.mkdir(parents=True, exist_ok=True)
    script: list[object] = [__file__, "--data", data.parent, "--models", name, "--seeds", seed]
    script += ["--epochs", epochs, "--keep", keep, "--json", keep / "found.json"]
    pslib_command = "import sys; from launch.cli.main import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as out:
        launch = ["launch", "--servers", 2, "--trainers", 2, "--out", Path(out) / "run"]
        command = [str(word) for word in (sys.executable, "-c", pslib_command, *launch, *script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: expected two trainers to end well, got {done.returncode}:\n{done.stderr[-4000:]}")
    report = json.loads((keep / "found.json").read_text(encoding="utf-8"))
    return float(report[name]["runs"][str(seed)]["test"]["auc"])


def measure(
    names: list[str], seeds: list[int], data: Path, epochs: int, keep: Path, two: bool
) -> dict[str, Any]:
    """All runs, a line for each model."""
    report: dict[str, Any] = {}
    print("test        AUC     published  log loss  published  calibration  best epoch  seconds  AUCs")
    for name in names:
        paper = PAPERS[name]
        runs = [trained(name, seed, data, epochs, keep / f"{name}_{seed}") for seed in seeds]
        report[name] = {"paper": asdict(paper), "runs": dict(zip(seeds, runs, strict=True))}
        best = ", ".join(str(1 + epoch_of(run)) for run in runs)
        auc, logloss, calibration = (
            statistics.mean(run["test"][one] for run in runs) for one in ("auc", "logloss", "calibration")
        )
        of_two = ""
        if two:
            report[name]["two"] = with_two(name, seeds[0], data, epochs, keep / f"{name}_{seeds[0]}_two")
            of_two = f"; with two trainers {report[name]['two']:.4f}"
        print(
            f"{name:10}  {auc:.4f}  {paper.auc:.4f}     {logloss:.4f}    {paper.logloss:.4f}     "
            f"{calibration:.3f}        {best:10}  {sum(run['seconds'] for run in runs):7.0f}  "
            + " ".join(f"{run['test']['auc']:.4f}" for run in runs)
            + of_two,
            flush=True,
        )
    return report


def epoch_of(run: dict[str, Any]) -> int:
    """Index of the epoch whose parameters a run has ended with."""
    losses = [one["logloss"] for one in run["valid"]]
    return losses.index(min(losses))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA"))
    parser.add_argument("--models", nargs="+", choices=list(PAPERS), default=list(PAPERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--two", action="store_true", help="with two asynchronous trainers, too")
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch: that everything runs")
    parser.add_argument("--keep", type=Path, help="folder for states, from which the next call goes on")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.data is None or not (folder := Path(options.data) / "ctr_frappe_x1").is_dir():
        sys.exit(f"expected a folder with ctr_frappe_x1 in it, got {options.data}; give --data FOLDER")
    seeds, epochs = ([0], 1) if options.quick else (options.seeds, options.epochs)
    with tempfile.TemporaryDirectory() as nowhere:
        report = measure(options.models, seeds, folder, epochs, options.keep or Path(nowhere), options.two)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
