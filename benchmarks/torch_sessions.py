"""GRU4Rec in PyTorch, for `sessions.py`: the same batches, negatives, loss and rates, one process.

``torch.nn.GRU`` over a packed batch, `torch.nn.Embedding` for items and biases, Adagrad; one step a batch.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence

import pslib
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.trainer.retrieval.towers import sampler_of
from rec_models import GRU4Rec

__all__ = ["TorchGRU4Rec"]

DIM, RATE, DROPOUT = 100, 0.1, 0.2


class TorchGRU4Rec:
    """Reads all batches first, so that only training is timed.

    Parameters
    ----------
    path : Path
    batch_rows : int
    seed : int
    """

    def __init__(self, path: Path, batch_rows: int, seed: int) -> None:
        torch.manual_seed(seed)
        model = GRU4Rec(pslib.Schema(label=None, ragged=["items"]), dim=DIM)
        data = ParquetData(str(path), model.schema)
        order = Order(
            seed, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows)
        )
        sampler = sampler_of(model, data, seed)
        assert sampler is not None
        self._ids = sampler.keys
        reader = LeaseReader(data, model.schema, order, batch_rows, sampler)
        log_q_all = torch.from_numpy(sampler.log_q(self._ids))
        self._batches = []
        for lease in range(order.leases(0)):
            for batch in reader.batches(0, lease):
                places = torch.from_numpy(np.searchsorted(self._ids, batch.keys))
                lists = batch.ragged["items"]
                values = torch.from_numpy(lists.values.astype(np.int64))
                sessions = [
                    places[values[first:last]]
                    for first, last in zip(lists.offsets[:-1], lists.offsets[1:], strict=True)
                    if last - first > 1
                ]
                negatives = places[torch.from_numpy(batch.negatives.astype(np.int64))]
                self._batches.append((sessions, negatives, log_q_all))

    def rate(self, sparse: bool, threads: int) -> float:
        """Events/s of one epoch, with sparse or dense gradients of items, by so many threads."""
        torch.set_num_threads(threads)
        items = torch.nn.Embedding(self._ids.size, DIM, sparse=sparse)
        torch.nn.init.uniform_(items.weight, -0.1, 0.1)
        biases = torch.nn.Embedding(self._ids.size, 1, sparse=sparse)
        torch.nn.init.zeros_(biases.weight)
        cell, drop = torch.nn.GRU(DIM, DIM), torch.nn.Dropout(DROPOUT)
        parameters = [*items.parameters(), *biases.parameters(), *cell.parameters()]
        optimizer = torch.optim.Adagrad(parameters, lr=RATE, initial_accumulator_value=1e-6)
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        events, began_s = 0, time.perf_counter()
        for sessions, negatives, log_q in self._batches:
            inputs = pack_sequence([items(one[:-1]) for one in sessions], enforce_sorted=False)
            targets = pack_sequence([one[1:] for one in sessions], enforce_sorted=False).data
            states = drop(cell(inputs)[0].data)
            own = (states * items(targets)).sum(1) + biases(targets)[:, 0] - log_q[targets]
            others = states @ items(negatives).T + biases(negatives)[:, 0] - log_q[negatives]
            others = others.masked_fill(targets[:, None] == negatives[None, :], float("-inf"))
            scores = torch.cat([own[:, None], others], dim=1)
            loss = torch.nn.functional.cross_entropy(scores, torch.zeros(targets.numel(), dtype=torch.int64))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            events += targets.numel()
        return events / (time.perf_counter() - began_s)
