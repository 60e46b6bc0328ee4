"""The PyTorch twin of `train.py`: the same DeepFM or DNN in one process, embeddings with sparse gradients.

``python benchmarks/train_torch.py --data FOLDER --model deepfm --batch-rows 4096 [--batches 40] [--auc]
[--autocast] [--json FILE]``: needs torch, which pslib does not. Tables are plain tensors of 10 million rows;
keys are taken modulo their number, nothing is hashed, looked up or sent. Batches are read before the clock
starts, so the figure is of the steps alone: forward, backward, Adagrad on touched rows, Adam on dense
parameters, with torch's own choice of threads. With ``--auc`` it trains the whole epoch, with ordinary rates
that nobody has tuned, and says the AUC on the test part and the best possible one; ``--model lr`` is
first-order terms alone. With ``--autocast`` what PyTorch thinks fit is computed in bfloat16, the MLP's
products among it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.data.synthetic.generator import GeneratorConfig, generated_schema
from pslib.metrics.metrics import EvalResult, ScoreCounts

KEYS, FIELDS, DENSE, DIM, HIDDEN = 10_000_000, 26, 13, 16, (400, 400, 400)


class Twin(nn.Module):
    """DeepFM; without the FM and first-order terms DNN; without the embeddings LR."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.v = nn.Embedding(KEYS, DIM, sparse=True)
        nn.init.normal_(self.v.weight, std=0.01)
        self.w, self.deep = None, model != "lr"
        if model != "dnn":
            self.w = nn.EmbeddingBag(KEYS, 1, mode="sum", sparse=True)
            nn.init.zeros_(self.w.weight)
            self.dense_w = nn.Linear(DENSE, 1, bias=False)
        layers: list[nn.Module] = []
        for n, m in pairwise((FIELDS * DIM + DENSE, *HIDDEN)):
            layers += [nn.Linear(n, m), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, places: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        if self.w is not None and not self.deep:
            return self.w(places)[:, 0] + self.dense_w(dense)[:, 0] + self.mlp[-1].bias
        e = self.v(places)
        y = self.mlp(torch.cat([e.flatten(1), dense], 1))[:, 0]
        if self.w is None:
            return y
        total = e.sum(1)
        pairs = 0.5 * (total * total - (e * e).sum(1)).sum(1)
        return y + pairs + self.w(places)[:, 0] + self.dense_w(dense)[:, 0]


def read(folder: Path, part: str, batch_rows: int, count: int | None) -> Iterator[Batch]:
    """The first batches of an epoch (None: all), in the order in which a trainer would read them."""
    schema = generated_schema(GeneratorConfig(dense_fields=DENSE))
    data = ParquetData([str(folder / f"{part}.parquet")], schema)
    order = Order(1, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows))
    reader = LeaseReader(data, schema, order, batch_rows)
    leases = (batch for lease in range(order.leases(0)) for batch in reader.batches(0, lease))
    whole = (batch for batch in leases if len(batch) == batch_rows)
    return leases if count is None else islice(whole, count)


def test_result(model: Twin, folder: Path) -> EvalResult:
    """Figures on the test part."""
    parts = []
    with torch.no_grad():
        for batch in read(folder, "test", 4096, None):
            places, numbers, labels = tensors(batch)
            parts.append(ScoreCounts.of(torch.sigmoid(model(places, numbers)).numpy(), labels.numpy()))
    return ScoreCounts.merge(parts).result()


def tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    places = (batch.keys % np.uint64(KEYS)).astype(np.int64)[batch.sparse]
    return torch.from_numpy(places), torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=["deepfm", "dnn", "lr"], default="deepfm")
    parser.add_argument("--batch-rows", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--auc", action="store_true", help="train the whole epoch and test")
    parser.add_argument("--autocast", action="store_true", help="to bfloat16")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = Twin(options.model)
    sparse = [table.weight for table in (model.v, model.w) if table is not None]
    dense = [p for p in model.parameters() if all(p is not table for table in sparse)]
    steps = [torch.optim.Adagrad(sparse, lr=0.05), torch.optim.Adam(dense, lr=1e-3)]
    lost = nn.BCEWithLogitsLoss()
    seconds = []
    count = None if options.auc else options.batches
    given = map(tensors, read(options.data, "train", options.batch_rows, count))
    for places, numbers, labels in given if options.auc else list(given):
        start = time.perf_counter()
        for step in steps:
            step.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
            logits = model(places, numbers)
        lost(logits.float(), labels).backward()
        for step in steps:
            step.step()
        seconds.append(time.perf_counter() - start)
    figures: dict[str, float] = {}
    if options.auc:
        test = json.loads((options.data / "generated.json").read_text())["test"]
        figures = asdict(test_result(model, options.data))
        figures |= {name: test[name] for name in ("best_auc", "best_logloss")}
    rate = options.batch_rows / statistics.median(seconds[3:])
    threads = torch.get_num_threads()
    print(
        f"{options.model} {options.batch_rows}: {rate:,.0f} examples/s with {threads} threads {figures or ''}"
    )
    if options.json:
        report = {"examples_per_s": rate, "threads": threads, "torch": torch.__version__, **figures}
        Path(options.json).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
