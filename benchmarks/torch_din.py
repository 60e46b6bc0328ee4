"""DIN's twin in PyTorch: the same batches of MovieLens 100K, from the same first values, padded and masked.

``python benchmarks/torch_din.py [--data FOLDER] [--epochs 2] [--activation prelu|dice] [--softmax]
[--seeds 0 1 2] [--json FILE]`` (needs torch, which pslib does not): trains `interests.py`'s DIN without
dropout here and in PyTorch, with Adagrad on rows and Adam on dense parameters, and says loss and AUC of both
on the test part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from interests import BATCH_ROWS, HIDDEN, written
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import pslib
from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.schema import RaggedField, Schema
from rec_models import DIN

SCHEMA = Schema(
    label="click", sparse=["user", "item"], ragged=["genres", RaggedField("viewed", vocabulary="item")]
)
ITEM, UNIT = 1, "attention.viewed"


class Twin(nn.Module):
    """DIN as one writes it in PyTorch.

    Parameters
    ----------
    model : DIN
    seed : int
        Seed of the dense parameters' first values.
    keys : (K,) uint64
        All keys of the data, ascending.
    rows : (K, D) float32
        Their first values.
    """

    def __init__(self, model: DIN, seed: int, keys: np.ndarray, rows: np.ndarray) -> None:
        super().__init__()
        self.model, self.keys = model, keys
        self.table = nn.Parameter(torch.from_numpy(rows.copy()))
        self.dense = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(torch.from_numpy(value))
                for name, value in model.initial_dense(seed).items()
            }
        )

    def layers(self, a: torch.Tensor, name: str) -> torch.Tensor:
        """Hidden layers with PReLU or Dice, and the output; Dice with the statistics of these examples."""
        number = 0
        while f"{name}/{number}/w" in self.dense:
            w, b, alpha = (self.dense[f"{name}/{number}/{one}"] for one in ("w", "b", "alpha"))
            s = functional.linear(a, w.T, b)
            if self.model.activation == "dice":
                p = torch.sigmoid(functional.batch_norm(s, None, None, training=True))
                a = p * s + (1 - p) * alpha * s
            else:
                a = functional.prelu(s, alpha)
            number += 1
        bias = self.dense.get(f"{name}/out/b", 0.0)
        return (a @ self.dense[f"{name}/out/w"] + bias).flatten()

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits."""
        places = torch.from_numpy(np.searchsorted(self.keys, batch.keys))
        e = self.table[places[torch.from_numpy(batch.sparse.astype(np.int64))]]
        genres, viewed = batch.ragged["genres"], batch.ragged["viewed"]
        pooled = functional.embedding_bag(
            places[torch.from_numpy(genres.values.astype(np.int64))],
            self.table,
            torch.from_numpy(genres.offsets),
            mode="mean",
            include_last_offset=True,
        )
        pieces = np.split(viewed.values.astype(np.int64), viewed.offsets[1:-1])
        h = self.table[places[pad_sequence([torch.from_numpy(one) for one in pieces], batch_first=True)]]
        mask = torch.arange(h.shape[1])[None] < torch.from_numpy(viewed.lengths)[:, None]
        t = e[:, ITEM][:, None].expand_as(h)
        scores = self.layers(torch.cat([h, t, h - t, h * t], 2)[mask], UNIT.replace(".", "/"))
        weights = torch.full(mask.shape, -torch.inf if self.model.softmax else 0.0)
        weights = weights.masked_scatter(mask, scores)
        if self.model.softmax:
            weights = torch.softmax(weights, 1).nan_to_num(0.0)
        interest = (weights[:, :, None] * h).sum(1)
        return self.layers(torch.cat([e.flatten(1), pooled, interest], 1), "mlp")


def batches(file: Path, epoch: int, seed: int | None) -> Iterator[Batch]:
    """Yield the batches of an epoch as one trainer reads them; without a seed in the file's order."""
    data = ParquetData([str(file)], SCHEMA)
    lease_rows = default_lease_rows(data.rows, BATCH_ROWS)
    order = Order(seed or 0, [group.rows for group in data.row_groups], lease_rows, shuffle=seed is not None)
    reader = LeaseReader(data, SCHEMA, order, BATCH_ROWS)
    for lease in range(order.leases(epoch)):
        yield from reader.batches(epoch, lease)


def of_twin(twin: Twin, where: Path, epochs: int, seed: int) -> EvalResult:
    """Train the twin and evaluate it."""
    trained = [value for name, value in twin.dense.items() if not name.endswith(("mean", "inv_std"))]
    steps = [
        torch.optim.Adagrad([twin.table], lr=0.1, initial_accumulator_value=1e-6),
        torch.optim.Adam(trained, lr=0.001),
    ]
    for epoch in range(epochs):
        for batch in batches(where / "train.parquet", epoch, seed):
            for step in steps:
                step.zero_grad()
            lost = functional.binary_cross_entropy_with_logits(twin(batch), torch.from_numpy(batch.labels))
            lost.backward()
            for step in steps:
                step.step()
    with torch.no_grad():
        parts = [
            ScoreCounts.of(torch.sigmoid(twin(batch)).numpy(), batch.labels)
            for batch in batches(where / "test.parquet", 0, None)
        ]
    return ScoreCounts.merge(parts).result()


def both(model: DIN, where: Path, epochs: int, seed: int) -> tuple[EvalResult, EvalResult]:
    """Train the model here and its twin from the same first values."""
    files = [where / f"{part}.parquet" for part in ("train", "test")]
    keys = np.unique(np.concatenate([one.keys for file in files for one in batches(file, 0, None)]))
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=BATCH_ROWS, staleness=0, seed=seed, progress=False)
        rows = cluster.client.pull({"embedding": keys}).wait().rows["embedding"]
        twin = Twin(model, seed, keys, rows)
        trainer.fit(files[0], epochs)
        return trainer.evaluate(files[1]), of_twin(twin, where, epochs, seed)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--activation", choices=["prelu", "dice"], default="prelu")
    parser.add_argument("--softmax", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one epoch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.data is None or not (folder := Path(options.data) / "ml100k").is_dir():
        sys.exit(f"expected a folder with ml100k in it, got {options.data}; give --data FOLDER")
    epochs = 1 if options.quick else options.epochs
    report = []
    with tempfile.TemporaryDirectory() as made:
        written(folder, Path(made))
        for seed in options.seeds:
            how = {"activation": options.activation, "softmax": options.softmax}
            model = DIN(SCHEMA, dim=16, hidden=HIDDEN, seed=seed, **how)
            ours, theirs = both(model, Path(made), epochs, seed)
            print(
                f"seed {seed}: test AUC {ours.auc:.4f} here, {theirs.auc:.4f} in PyTorch; "
                f"log loss {ours.logloss:.4f}, {theirs.logloss:.4f}; "
                f"calibration {ours.calibration:.3f}, {theirs.calibration:.3f}",
                flush=True,
            )
            report.append([asdict(ours), asdict(theirs)])
    if options.json:
        options.json.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
