"""SASRec on MovieLens 100K beside popularity: HR@10 and NDCG@10 of each user's last film, all ranked.

``python benchmarks/movielens_sequences.py [--data FOLDER] [--epochs N] [--seeds 1 2 3] [--valid]
[--json FILE] [--quick]``: ratings of ``FOLDER/ml100k/ml-100k.inter`` count as clicks from 4 on. A user's
clicks are ordered by time; the last one is to be found, the model trains on those before it (users with fewer
than three clicks are left out), and all films of the training data are ranked but those that the user has
clicked on already. Popularity ranks by the number of clicks in the same training data. ``--valid`` looks for
the last but one instead and never reads the last: settings were picked that way. One server and one trainer,
threads of this process. The data is not ours to hand on; its folder is ``PSLIB_TEST_DATA``, else ``data``.
``--quick`` is two epochs.
"""

from __future__ import annotations

import os
import sys

from pslib.process.blas import kernels_for

os.environ |= kernels_for()  # before NumPy is loaded

import argparse
import csv
import json
import logging
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pslib
from pslib.metrics.ranking import RankResult, counts_of_ranks, mean_ranks, result_of_ranks
from rec_models import SASRec

RATING_MIN = 4.0
CLICKS_MIN = 3
K = 10
EPOCHS = 20
SCHEMA = pslib.Schema(label=None, ragged=["items"])


def clicks_of(file: Path) -> list[list[int]]:
    """Films that each user has clicked on, in the order of time, then of their numbers."""
    by_user: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with file.open(encoding="utf-8") as lines:
        rows = csv.reader(lines, delimiter="\t")
        next(rows)
        for user, item, rating, at_s in rows:
            if float(rating) >= RATING_MIN:
                by_user[user].append((float(at_s), int(item)))
    users = [[item for _, item in sorted(clicks)] for _, clicks in sorted(by_user.items())]
    return [items for items in users if len(items) >= CLICKS_MIN]


def popularity(histories: list[list[int]], targets: list[int]) -> RankResult:
    """Return the result of ranking by the number of clicks, without the items that the user has seen."""
    items, counts = np.unique(np.concatenate([np.asarray(one) for one in histories]), return_counts=True)
    scores = np.tile(counts.astype(np.float32), (len(histories), 1))
    for row, seen in enumerate(histories):
        scores[row, np.searchsorted(items, seen)] = -np.inf
    places = np.minimum(np.searchsorted(items, targets), items.size - 1)
    columns = np.where(items[places] == targets, places, -1)
    return result_of_ranks(counts_of_ranks(mean_ranks(scores, columns)), (K,))


def trained(train: Path, test: Path, epochs: int, seed: int) -> list[dict[str, float]]:
    """Figures of SASRec after each fifth epoch and the last one."""
    rows = pslib.Adagrad(0.1, initial_accumulator=1e-6)
    model = SASRec(SCHEMA, dim=64, blocks=2, length_max=200, dropout=0.3, negatives=1024, v_optimizer=rows)
    found = []
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=32,
            staleness=1,
            warmup_batches=0,
            dense_optimizer=pslib.Adam(0.001),
            seed=seed,
            progress=False,
        )
        began_s = time.perf_counter()
        for epoch in range(1, epochs + 1):
            trainer.fit(train)
            if epoch % 5 and epoch != epochs:
                continue
            ranks = trainer.rank(test, train, at=(K,), exclude_seen=True)
            found.append({"epoch": epoch, "hr": ranks.recall[K], "ndcg": ranks.ndcg[K]})
            told = f"HR@{K} {ranks.recall[K]:.4f}, NDCG@{K} {ranks.ndcg[K]:.4f}"
            print(f"seed {seed}, epoch {epoch}: {told}, {time.perf_counter() - began_s:.0f} s", flush=True)
    return found


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA", "data"))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--valid", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pslib").setLevel(logging.ERROR)
    file = options.data / "ml100k" / "ml-100k.inter"
    if not file.is_file():
        print(f"{file}: no such file; --data FOLDER has ml100k/", file=sys.stderr)
        return 64
    users = [items[:-1] if options.valid else items for items in clicks_of(file)]
    histories, targets = [items[:-1] for items in users], [items[-1] for items in users]
    report: dict[str, Any] = {
        "users": len(users),
        "films": len({one for items in histories for one in items}),
    }
    found = popularity(histories, targets)
    print(f"{report}; popularity: HR@{K} {found.recall[K]:.4f}, NDCG@{K} {found.ndcg[K]:.4f}", flush=True)
    report["popularity"] = {"hr": found.recall[K], "ndcg": found.ndcg[K]}
    with tempfile.TemporaryDirectory() as scratch:
        train, test = Path(scratch) / "train.parquet", Path(scratch) / "test.parquet"
        lists = pa.array(histories, pa.list_(pa.int32()))
        pq.write_table(pa.table({"items": lists}), train)
        pq.write_table(pa.table({"prefix": lists, "target": targets}), test)
        epochs = 2 if options.quick else options.epochs
        report["sasrec"] = {str(seed): trained(train, test, epochs, seed) for seed in options.seeds}
    last = [figures[-1]["hr"] / found.recall[K] for figures in report["sasrec"].values()]
    print(f"HR@{K} is {float(np.mean(last)):.2f} times that of popularity, mean of {len(last)} seeds")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
