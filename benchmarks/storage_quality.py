"""Measure the quality lost to rows in fewer bits: the demonstration's model, every storage, several seeds.

    python benchmarks/storage_quality.py --json FILE [--rows 200000] [--seeds 3] [--storages float32 int8]

One process and one trainer without staleness, so that the storage is all that differs; storages take turns
within a seed. Prints AUC, log loss and calibration of each run, and for each storage the mean difference
of each figure to the first one with its standard error.
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
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pslib
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.metrics.metrics import EvalResult
from pslib.table.optimizers import Adam
from pslib.table.policies import STORAGES
from rec_models import DeepFM


def result_of(data: Generated, storage: str, seed: int) -> EvalResult:
    """Test figures after one epoch with the settings of ``pslib demo``."""
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
        return trainer.evaluate(data.test_path)


def compared(name: str, results: list[EvalResult], base: list[EvalResult]) -> dict[str, Any]:
    """Values of a figure, their mean, and the mean difference to ``base`` with its standard error."""
    values, others = ([getattr(one, name) for one in some] for some in (results, base))
    differences = [value - other for value, other in zip(values, others, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    means = {"mean": statistics.mean(values), "difference": statistics.mean(differences)}
    return {"values": values, **means, "error": error}


def main() -> None:
    """Train all, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--storages", nargs="+", default=list(STORAGES), choices=STORAGES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[EvalResult]] = {storage: [] for storage in options.storages}
    with tempfile.TemporaryDirectory() as folder:
        data = generate(Path(folder) / "data", GeneratorConfig(train_rows=options.rows))
        print(f"best possible AUC {data.test.best_auc:.4f}, log loss {data.test.best_logloss:.4f}")
        for seed in range(1, options.seeds + 1):
            for storage in options.storages:
                started = time.perf_counter()
                found[storage].append(one := result_of(data, storage, seed))
                print(
                    f"seed {seed} {storage:9} AUC {one.auc:.5f}, log loss {one.logloss:.5f}, "
                    f"calibration {one.calibration:.3f} {time.perf_counter() - started:5.1f} s",
                    flush=True,
                )
    base = found[options.storages[0]]
    figures = {}
    for storage, results in found.items():
        figures[storage] = {name: compared(name, results, base) for name in ("auc", "logloss", "calibration")}
        texts = [
            f"{name} {one['mean']:.5f}, {one['difference']:+.5f} +- {one['error']:.5f}"
            for name, one in figures[storage].items()
        ]
        print(f"{storage:9} mean " + "; ".join(texts))
    if options.json:
        options.json.write_text(json.dumps({"rows": options.rows, "storages": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
