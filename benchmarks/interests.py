"""Test AUC, log loss and calibration on MovieLens 100K of DIN, and of what it adds to.

``python benchmarks/interests.py [--data FOLDER] [--models M ...] [--seeds 0 1 2] [--epochs 5]
[--json FILE]``: one server and one trainer in one process tree. FOLDER (default: what PSLIB_TEST_DATA
names) holds ``ml100k/ml-100k.{inter,item}`` as RecBole writes them; the data may not be given on, so it is
not here.

An example is a rating, a click where it is 4 or 5. Its features are user, item, the item's genres, and the
last 50 items that the user had rated 4 or 5 before that second. The first 80 % of all ratings by time train,
the next 10 % choose the epoch, the last 10 % test: most of their users are new then. ``dnn`` has no history,
``base`` pools it (DIN without attention, the paper's base model), ``din`` attends to it.

`torch_din.py` trains the same DIN in PyTorch on the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

import pslib
from pslib.schema import RaggedField, Schema
from rec_models import DIN, DNN, Model

HISTORY = 50
BATCH_ROWS = 256
HIDDEN = (200, 80)
KINDS = {"dnn": (DNN, None, {}), "base": (DIN, "viewed", {}), "din": (DIN, "item", {})}
KINDS |= {"din_dice": (DIN, "item", {"activation": "dice"}), "din_softmax": (DIN, "item", {"softmax": True})}


def read(path: Path) -> pa.Table:
    """Read one of RecBole's atomic files; column names lose their types."""
    table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter="\t", quote_char=False))
    return table.rename_columns([name.split(":")[0] for name in table.column_names])


def examples(folder: Path) -> pa.Table:
    """All ratings in order of time, with what the user had liked before."""
    inter, items = read(folder / "ml-100k.inter"), read(folder / "ml-100k.item")
    genres = dict(zip(items["item_id"].to_pylist(), items["class"].to_pylist(), strict=True))
    inter = inter.sort_by([("timestamp", "ascending"), ("user_id", "ascending"), ("item_id", "ascending")])
    liked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    histories = []
    columns = (inter[name].to_pylist() for name in ("user_id", "item_id", "rating", "timestamp"))
    for user, item, rating, second in zip(*columns, strict=True):
        histories.append([one for one, when in liked[user][-2 * HISTORY :] if when < second][-HISTORY:])
        if rating >= 4:
            liked[user].append((item, second))
    click = np.asarray(inter["rating"]) >= 4
    return pa.table(
        {
            "click": click.astype(np.int8),
            "user": inter["user_id"],
            "item": inter["item_id"],
            "genres": [(genres[item] or "").split() for item in inter["item_id"].to_pylist()],
            "viewed": pa.array(histories, pa.list_(pa.int64())),
        }
    )


def written(folder: Path, where: Path) -> None:
    """Write train, valid and test."""
    table = examples(folder)
    cuts = [0, len(table) * 8 // 10, len(table) * 9 // 10, len(table)]
    for name, first, last in zip(("train", "valid", "test"), cuts[:-1], cuts[1:], strict=True):
        pq.write_table(table.slice(first, last - first), where / f"{name}.parquet", row_group_size=10_000)


def model_of(kind: str, seed: int) -> Model:
    """A model; whether the history is a sequence is the schema's to say."""
    made, vocabulary, options = KINDS[kind]
    history = [] if vocabulary is None else [RaggedField("viewed", vocabulary=vocabulary)]
    schema = Schema(label="click", sparse=["user", "item"], ragged=["genres", *history])
    result: Model = made(schema, dim=16, hidden=HIDDEN, dropout=0.2, seed=seed, **options)
    return result


def trained(kind: str, seed: int, where: Path, epochs: int) -> dict[str, Any]:
    """Train, and evaluate the epoch that was best on valid."""
    best = where / f"best_{kind}_{seed}"
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model_of(kind, seed), cluster, batch_rows=BATCH_ROWS, staleness=0, seed=seed, progress=False
        )
        stopping = pslib.EarlyStopping(metric="auc", patience=3, factor=1.0)
        seen = trainer.fit(
            where / "train.parquet", epochs, where / "valid.parquet", stopping=stopping, best=best
        )
        result = trainer.evaluate(where / "test.parquet")
    return asdict(result) | {"valid": [one.auc for one in seen]}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA"))
    parser.add_argument("--models", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch: that everything runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.data is None or not (folder := Path(options.data) / "ml100k").is_dir():
        sys.exit(f"expected a folder with ml100k in it, got {options.data}; give --data FOLDER")
    seeds, epochs = ([0], 1) if options.quick else (options.seeds, options.epochs)
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        written(folder, Path(made))
        print("model        test AUC (of seeds)              log loss  calibration  epochs", flush=True)
        for kind in options.models:
            runs = [trained(kind, seed, Path(made), epochs) for seed in seeds]
            aucs = [run["auc"] for run in runs]
            logloss, calibration = (
                statistics.mean(run[one] for run in runs) for one in ("logloss", "calibration")
            )
            print(
                f"{kind:11}  {statistics.mean(aucs):.4f}  {' '.join(f'{one:.4f}' for one in aucs):23}  "
                f"{logloss:.4f}    {calibration:.3f}        "
                f"{' '.join(str(len(run['valid'])) for run in runs)}",
                flush=True,
            )
            report[kind] = runs
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
