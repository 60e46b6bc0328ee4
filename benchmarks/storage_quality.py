"""Measure the quality lost to rows in fewer bits: the demonstration's model, every storage, several seeds.

    python benchmarks/storage_quality.py --json FILE [--rows 200000] [--seeds 3] [--storages float32 int8]

One process and one trainer without staleness, so that the storage is all that differs; storages take turns
within a seed. Prints the AUC of each run, and for each storage the mean difference to the first one with its
standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pslib
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.table.optimizers import Adam
from pslib.table.policies import STORAGES
from rec_models import DeepFM


def auc_of(data: Generated, storage: str, seed: int) -> float:
    """Test AUC after one epoch with the settings of ``pslib demo``."""
    rows = pslib.Adagrad(0.05, initial_accumulator=1e-6)
    schema = generated_schema(GeneratorConfig())
    model = DeepFM(schema, dim=8, hidden=(128, 64), seed=seed, w_optimizer=rows, v_optimizer=rows)
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=1024,
            staleness=0,
            dense_optimizer=Adam(0.001),
            seed=seed,
            table=replace(model.table(), storage=storage),
            progress=False,
        )
        trainer.fit(data.train_path)
        return trainer.evaluate(data.test_path).auc


def main() -> None:
    """Train all, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--storages", nargs="+", default=list(STORAGES), choices=STORAGES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[float]] = {storage: [] for storage in options.storages}
    with tempfile.TemporaryDirectory() as folder:
        data = generate(Path(folder) / "data", GeneratorConfig(train_rows=options.rows))
        print(f"best possible AUC {data.test.best_auc:.4f}")
        for seed in range(1, options.seeds + 1):
            for storage in options.storages:
                started = time.perf_counter()
                found[storage].append(auc_of(data, storage, seed))
                print(
                    f"seed {seed} {storage:9} AUC {found[storage][-1]:.5f} "
                    f"{time.perf_counter() - started:5.1f} s",
                    flush=True,
                )
    base = found[options.storages[0]]
    figures = {}
    for storage, aucs in found.items():
        differences = [auc - other for auc, other in zip(aucs, base, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
        figures[storage] = {"aucs": aucs, "difference": statistics.mean(differences), "error": error}
        mean, difference = statistics.mean(aucs), statistics.mean(differences)
        print(f"{storage:9} mean AUC {mean:.5f}, {difference:+.5f} +- {error:.5f}")
    if options.json:
        options.json.write_text(json.dumps({"rows": options.rows, "storages": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
