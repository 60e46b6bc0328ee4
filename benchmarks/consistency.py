"""Bytes and test figures of async, sync, ssp and geo with 1, 2 and 4 trainers, on data of a planted model.

``python benchmarks/consistency.py [--quick] [--rows R] [--seeds N] [--trainers 1 2 4]
[--modes async sync ssp geo] [--rate R] [--json FILE]``:
DeepFM on 10 sparse and 4 dense fields with Zipf(1.05) keys, batches of 512, one server process. All modes
of one seed run one after the other on the same data. Bytes are all that trainers send and receive while
they train; AUC, log loss and calibration are those of the test data, and the best possible AUC and log loss
on it, which the true probabilities have, are told for each seed. ``geo`` sends every 10 batches; ``ssp`` has
one trainer that is made slow, by a pause in each of its batches, and the largest lead over it is printed
beside the bound. Each run of ``sync`` is done twice, and the checkpoints are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import pslib
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.table.optimizers import Adagrad, Adam
from rec_models.deepfm import DeepFM

FOLDER = Path("runs/bench_consistency")
BATCH_ROWS, DIM, HIDDEN = 512, 8, (64, 32)
MODES: dict[str, dict[str, Any]] = {
    "async": {"consistency": "async"},
    "sync": {"consistency": "sync"},
    "ssp": {"consistency": "ssp", "ssp_bound": 4},
    "geo": {"consistency": "geo", "geo_every_batches": 10},
}


def config_of(rows: int, seed: int) -> GeneratorConfig:
    """Data of one seed: 10 fields of 40 to 50,000 keys."""
    vocabularies = (40, 200, 1000, 2000, 5000, 10_000, 20_000, 30_000, 40_000, 50_000)
    return GeneratorConfig(
        train_rows=rows, test_rows=max(rows // 5, 2000), seed=seed, vocabularies=vocabularies, dense_fields=4
    )


def data(rows: int, seed: int) -> Path:
    """Its folder; made once."""
    folder = FOLDER / f"data_{rows}_{seed}"
    if not (folder / "generated.json").exists():
        generate(folder, config_of(rows, seed), overwrite=True)
    return folder


def best_possible(rows: int, seed: int) -> dict[str, float]:
    """Return the best AUC and log loss on the test data: only chance exceeds them."""
    test = json.loads((data(rows, seed) / "generated.json").read_text())["test"]
    return {name: float(test[name]) for name in ("best_auc", "best_logloss")}


def work(options: argparse.Namespace) -> None:
    """Run one trainer process."""
    mode, folder = MODES[options.mode], data(options.rows, options.seed)
    model = DeepFM(
        generated_schema(config_of(options.rows, options.seed)),
        dim=DIM,
        hidden=HIDDEN,
        seed=options.seed,
        v_optimizer=Adagrad(options.rate, initial_accumulator=1e-6),
        w_optimizer=Adagrad(options.rate, initial_accumulator=1e-6),
    )
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            Slow(model) if options.mode == "ssp" and cluster.rank else model,
            cluster,
            batch_rows=BATCH_ROWS,
            lease_rows=BATCH_ROWS * 20,
            dense_optimizer=Adam(0.002),
            seed=options.seed,
            compute_threads=1,
            progress=False,
            share=options.mode == "ssp",  # with a model that is slow, so another one by its description
            **mode,
        )
        endpoint = cluster.client.endpoint
        before = np.array([endpoint.bytes_sent, endpoint.bytes_received])
        began = time.perf_counter()
        trainer.fit(folder / "train.parquet")
        seconds = time.perf_counter() - began
        moved = np.array([endpoint.bytes_sent, endpoint.bytes_received]) - before
        result = trainer.evaluate(folder / "test.parquet")
        place = trainer.save(Path(options.figures).absolute() / "checkpoint")
        lead = trainer._progress.lead_max
        figures = {"bytes": moved.tolist(), **asdict(result), "seconds": seconds, "lead": lead}
        between, own = cluster.client.session.between, trainer._progress
        figures["between"] = [between.sum, between.count, between.max]
        figures["staleness"] = [own.staleness_sum, own.staleness_count, own.staleness_max]
        figures["bits"] = bits_of(Path(place)) if cluster.rank == 0 else ""
        to = Path(options.figures, f"trainer_{cluster.rank}.json")
        to.write_text(json.dumps(figures), encoding="utf-8")


class Slow:
    """A model whose steps take 5 ms longer."""

    def __init__(self, model: DeepFM) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "stepper":  # so that the trainer takes it as a whole
            raise AttributeError(name)
        return getattr(self._model, name)

    def loss_and_gradients(self, *arguments: Any) -> Any:
        """One step, and a pause."""
        step = self._model.loss_and_gradients(*arguments)
        time.sleep(0.005)
        return step


def bits_of(checkpoint: Path) -> str:
    """A fingerprint of all rows and dense parameters, whatever the names of files are."""
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.rglob("*.arrow"))
    return " ".join(digests)


def run(mode: str, trainers: int, rows: int, seed: int, rate: float) -> dict[str, Any]:
    """One training with processes; sums and figures of its trainers."""
    out = FOLDER / f"{mode}_{trainers}"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("trainer_*.json"):
        old.unlink()
    own = ["--work", "--mode", mode, "--rows", str(rows), "--seed", str(seed), "--rate", str(rate)]
    places = ["launch", "--on", "local", "--servers", "1", "--trainers", str(trainers)]
    script = ["--quiet", __file__, *own, "--figures", str(out)]
    subprocess.run(
        [sys.executable, "-m", "launch.cli.main", *places, *script], check=True, stdout=subprocess.DEVNULL
    )
    figures = [json.loads(path.read_text()) for path in sorted(out.glob("trainer_*.json"))]
    sent, received = np.sum([one["bytes"] for one in figures], axis=0).tolist()
    return {
        "sent_mb": sent / 1e6,
        "received_mb": received / 1e6,
        **{name: figures[0][name] for name in ("auc", "logloss", "calibration")},
        "seconds": max(one["seconds"] for one in figures),
        "lead": max(one["lead"] for one in figures),
        **{name: mean_and_max([one[name] for one in figures]) for name in ("staleness", "between")},
        "bits": figures[0]["bits"],
    }


def mean_and_max(counted: list[list[int]]) -> list[float]:
    """Return the mean and maximum over all trainers, each of which reports a sum, a count and a maximum."""
    total, count = (sum(one[place] for one in counted) for place in (0, 1))
    return [total / count if count else 0.0, max(one[2] for one in counted)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--json", default=None)
    for name in ("--mode", "--figures"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    if options.quick:
        options.rows, options.seeds = min(options.rows, 100_000), 1
    report = {"cores": len(os.sched_getaffinity(0)), "options": vars(options), "runs": measure(options)}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, and a line for each mode."""
    runs = []
    best = {seed: best_possible(options.rows, seed) for seed in range(1, options.seeds + 1)}
    for seed, one in best.items():
        print(f"best possible, seed {seed}: AUC {one['best_auc']:.4f}, log loss {one['best_logloss']:.4f}")
    print(
        "trainers   mode      AUC  to async  log loss  calibration   sent  received  examples/s"
        "    (sent, received: of async)"
    )
    print("  at the end: own batches not applied when a pull began, pushes of all between it and its push")
    for trainers in options.trainers:
        rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in options.modes}
        for seed in range(1, options.seeds + 1):
            for mode in options.modes:
                one = run(mode, trainers, options.rows, seed, options.rate)
                if mode == "sync":
                    again = run(mode, trainers, options.rows, seed, options.rate)
                    one["repeatable"] = one["bits"] == again["bits"]
                rows[mode].append(one)
                runs.append({"mode": mode, "trainers": trainers, "seed": seed} | best[seed] | one)
        for mode in options.modes:
            print_line(mode, trainers, options.rows, rows[mode], rows.get("async", rows[mode]))
    return runs


def print_line(
    mode: str, trainers: int, examples: int, runs: list[dict[str, Any]], asynchronous: list[dict[str, Any]]
) -> None:
    """Medians over seeds, and ratios to async of the same seed."""
    pairs = list(zip(runs, asynchronous, strict=True))
    auc, logloss, calibration = (
        statistics.median(one[name] for one in runs) for name in ("auc", "logloss", "calibration")
    )
    gap = statistics.median(one["auc"] - other["auc"] for one, other in pairs)
    sent = statistics.median(one["sent_mb"] / other["sent_mb"] for one, other in pairs)
    received = statistics.median(one["received_mb"] / other["received_mb"] for one, other in pairs)
    rate = examples / statistics.median(one["seconds"] for one in runs)
    also = {
        "sync": f"  same bits again: {all(one.get('repeatable') for one in runs)}",
        "ssp": f"  largest lead {max(one['lead'] for one in runs)} of {MODES['ssp']['ssp_bound']}",
    }.get(mode, "")
    stale = ", ".join(stale_text(name, [one[name] for one in runs]) for name in ("staleness", "between"))
    quality = f"{auc:8.4f} {gap:+9.4f} {logloss:9.4f} {calibration:12.3f}"
    line = f"{trainers:8} {mode:>6} {quality} {sent:6.2f} {received:9.2f} {rate:11,.0f}"
    print(f"{line}  {stale}{also}", flush=True)


def stale_text(name: str, runs: list[list[float]]) -> str:
    """The median of the runs' means, and the largest of all."""
    return f"{name} {statistics.median(one[0] for one in runs):.2f} at most {max(one[1] for one in runs):.0f}"


if __name__ == "__main__":
    main()
