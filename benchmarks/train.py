"""Examples/s of training with processes over sockets, everything in: Parquet, hashing, pull, compute, push.

``python benchmarks/train.py [--model deepfm dnn lr] [--batch-rows 4096 512] [--exact] [--equal] [--no-torch]
[--torch-auc] [--saves ROUNDS] [--repeats N] [--products bfloat16] [--paddle [PYTHON]] [--json FILE]
[--quick]``:
26 sparse and 13 dense fields, 10 million possible keys, Zipf(1.05), dim 16, MLP 400-400-400, one server and
one trainer process, asynchronous. 2,000,000 and 200,000 examples of a planted model (seed 7) are made once,
in ``--folder``; the best AUC that any model can have on them is told.
Compared in the same run:

- with the bound that the model's matrix products alone set, on all cores: the same shapes, nothing between
  them, measured before and after, by OpenBLAS's own threads and by one thread a core with a part of the batch
  each, whichever was fastest;
- with `train_torch.py`, the same model in one process of PyTorch, before and after, where torch is installed;
- with ``--paddle``, with PaddlePaddle's own parameter server, `train_paddle.py`, before and after, by the
  interpreter that is named (else this one); what is not comparable stands there;
- with ``--exact``, with an exact run (staleness 0): its AUC;
- with ``--torch-auc``, with the AUC of PyTorch after the same epoch, at ordinary rates;
- with ``--products bfloat16``, whose factors are rounded, with the same training in float32 before or after
  it (its rate and AUC) and with PyTorch under autocast to bfloat16; bound and ``times_torch`` stay those of
  float32, ``--exact`` and ``--saves`` are of bfloat16;
- with ``--saves``, with runs that save everything again as soon as a save is done, taking turns;
- with ``--model lr``, with the AUC of first-order terms alone: the task must not be that easy.

With ``--repeats N`` the bound, PyTorch, PaddlePaddle and the training take turns N times (all but the last
once more at the end). Medians are told, of ratios those of each turn's own; bound, PyTorch and PaddlePaddle
of a turn are the better of before and after. N is 1 without it. Rates of each turn stand in the report
(``turns``).

``--quick`` trains 200,000 examples of DeepFM at batch 4096: its rate is not that of a whole epoch.
"""

from __future__ import annotations

import os
import sys

from pslib.process.blas import blas_threads, cores_given, kernels_for

os.environ |= kernels_for()  # before NumPy is loaded

import argparse
import importlib.util
import json
import platform
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from launch.job.yaml12 import write_yaml
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.trainer.pipeline.overlap import ComputeThreads
from rec_models.stepper import parts_of

HERE = Path(__file__).parent
DIM, HIDDEN = 16, (400, 400, 400)
SCORES = ("auc", "logloss", "calibration")
FIELDS, KEYS = 26, 10_000_000
TEST_ROWS = 200_000
FADE = 0.1
"""Rate at which rarer values lose signal: with 0 most of the signal is in keys too rare to be learnt."""


@dataclass(frozen=True)
class Rates:
    """Settings of a model and batch size, chosen by the test AUC on data of seed 8, a quarter as large.

    The bound on staleness rises evenly from 0 over ``warmup_batches``: early batches move a new model far,
    and learn badly from what it was before. Over the last ``falling`` of the epoch learning rates fall to 0.
    DNN at 4,096 is near the edge of stability at full rates: its bound rises over the whole epoch (489
    batches), and is at a half when rates begin to fall.
    """

    rows: float
    accumulator: float
    dense: float
    warmup_batches: int
    staleness: int
    falling: float = 0.0
    beta1: float = 0.9


_WITH_WEIGHTS = {4096: Rates(0.05, 6e-7, 1e-3, 50, 1), 512: Rates(0.05, 3e-5, 1e-3, 500, 2)}
TUNED = {
    "deepfm": _WITH_WEIGHTS,
    "lr": _WITH_WEIGHTS,
    "dnn": {4096: Rates(1.0, 6e-7, 1e-3, 489, 1, 0.5, 0.95), 512: Rates(0.5, 1e-5, 1e-3, 3907, 2, 0.3)},
}
"""DNN has no first-order weight that learns what a key says in a few steps, and all that fields say together
it has to learn from vectors that are large enough for its relus to bend."""


def vocabularies(equal: bool) -> tuple[int, ...]:
    """Keys of each field, 10 million in all, from 1,311 to 2,622,625 as in click logs; or all equal."""
    if equal:
        return (KEYS // FIELDS,) * FIELDS
    sizes = np.geomspace(1, 2_000, FIELDS)
    return tuple((sizes * (KEYS / sizes.sum())).astype(int).tolist())


def data(folder: Path, rows: int, equal: bool) -> tuple[Path, GeneratorConfig]:
    """Generate the data unless it is there."""
    config = GeneratorConfig(
        train_rows=rows, test_rows=TEST_ROWS, vocabularies=vocabularies(equal), seed=7, fade=FADE
    )
    place = folder / f"{'equal' if equal else 'data'}_{rows}_fade_{FADE}"
    if not (place / "generated.json").exists():
        generate(place, config, overwrite=True)
    return place, config


SAVED = re.compile(r"saved \S+ \(\w+, (\d+) MB\) in ([\d.]+) s, pause ([\d.]+) s")
Layer = tuple[np.ndarray, np.ndarray, np.ndarray]


def _layers(batch_rows: int) -> list[Layer]:
    """Inputs, weights and gradients of outputs of each layer of the tower."""
    widths = (FIELDS * DIM + 13, *HIDDEN, 1)
    rng = np.random.default_rng(0)
    return [
        (
            rng.random((batch_rows, n), np.float32),
            rng.random((n, m), np.float32),
            rng.random((batch_rows, m), np.float32),
        )
        for n, m in pairwise(widths)
    ]


def _products(layers: list[Layer]) -> None:
    """The three matrix products of each layer."""
    for x, w, g in layers:
        _ = x @ w, x.T @ g, g @ w.T


def products_bound(batch_rows: int, repeats: int = 15) -> dict[str, float]:
    """Examples/s if a step were nothing but its matrix products, by the way of sharing out the cores."""
    cores, layers = cores_given(), _layers(batch_rows)
    parts = [[(x[cut], w, g[cut]) for x, w, g in layers] for cut in parts_of(batch_rows)]
    threads = ComputeThreads(cores)
    ways = {
        "blas": (cores, partial(_products, layers)),
        "parts": (1, partial(threads.run, [partial(_products, part) for part in parts])),
    }
    rates = {}
    for name, (blas, work) in ways.items():
        with blas_threads(blas):
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            rates[name] = batch_rows / statistics.median(seconds)
    threads.close()
    return rates


def torch_run(model: str, batch_rows: int, place: Path, out: Path, *how: str) -> dict[str, float]:
    """Examples/s of the PyTorch twin in its own process, with ``--auc`` test figures; empty without torch."""
    if importlib.util.find_spec("torch") is None:
        return {}
    file = out / "torch.json"
    command = [sys.executable, str(HERE / "train_torch.py"), "--data", str(place), "--model", model]
    command += ["--batch-rows", str(batch_rows), "--batches", str(40 if batch_rows > 1000 else 150)]
    subprocess.run([*command, *how, "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
    plain = json.loads(file.read_text())
    return {name: plain[name] for name in ("examples_per_s", *SCORES) if name in plain}


def paddle_run(model: str, batch_rows: int, place: Path, out: Path, python: str) -> dict[str, float]:
    """Examples/s of PaddlePaddle's parameter server in processes of its own; the text it reads is kept."""
    file = out / "paddle.json"
    command = [sys.executable, str(HERE / "train_paddle.py"), "--data", str(place), "--python", python]
    command += ["--model", model, "--batch-rows", str(batch_rows), "--text", str(out / "paddle")]
    subprocess.run([*command, "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
    return {"examples_per_s": json.loads(file.read_text())["cases"][0]["examples_per_s"]}


def job_of(model: str, batch_rows: int, place: Path, config: GeneratorConfig, options: Any) -> dict[str, Any]:
    """The job file of one run, but for its staleness and folder."""
    schema, rates = generated_schema(config), TUNED[model][batch_rows]
    rows = {"name": "Adagrad", "learning_rate": rates.rows, "initial_accumulator": rates.accumulator}
    return {
        "data": {
            "train": str((place / "train.parquet").resolve()),
            "test": str((place / "test.parquet").resolve()),
            "schema": {
                "label": schema.label,
                "dense": [{"name": field.name, "log1p": True} for field in schema.dense],
                "sparse": [field.name for field in schema.sparse],
            },
        },
        "model": {"name": model} | ({} if model == "lr" else {"dim": DIM, "hidden": list(HIDDEN)}),
        "optimizers": {
            "rows": rows,
            "dense": {"name": "Adam", "learning_rate": rates.dense, "beta1": rates.beta1},
        },
        "cluster": {"servers": options.servers, "trainers": options.trainers},
        "training": {
            "batch_rows": batch_rows,
            "seed": options.seed,
            "warmup_batches": rates.warmup_batches,
            "schedule": _schedule(rates, -(-config.train_rows // batch_rows)),
            "products": options.products,
        },
    }


def _schedule(rates: Rates, batches: int) -> dict[str, Any]:
    """Return the learning rate schedule of an epoch of so many batches."""
    if not rates.falling:
        return {"name": "Constant"}
    return {"name": "Linear", "batches": batches, "hold": int(batches * (1 - rates.falling))}


def train(job: dict[str, Any], staleness: int, out: Path) -> dict[str, Any]:
    """One run through the command line; gives its summary, and what its lines said of saves."""
    training = job["training"] | {"staleness": staleness}
    file = out / "train.yaml"
    file.write_text(write_yaml(job | {"training": training, "out": "train"}), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "train", str(file), "--overwrite", "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"the training ended with {run.returncode}:\n{run.stderr}")
    saves = [tuple(map(float, found)) for found in SAVED.findall(run.stderr)]
    return {**json.loads((out / "train" / "summary.json").read_text()), "saves": saves}


def saving(job: dict[str, Any], staleness: int, out: Path, rounds: int) -> dict[str, float]:
    """Measure the cost of back-to-back saves to a training: runs with and without them, in turns.

    ``kept`` is a ratio of whole runs, in which a save was under way for ``share`` of the time; what is kept
    while one is, if the rest goes on as without, is ``kept_meanwhile``.
    """
    often = {"checkpoint": {"every_batches": 1, "keep_last": 1}}
    rates: dict[bool, list[float]] = {False: [], True: []}
    shares, written = [], []
    for number in range(rounds):
        for with_saves in (number % 2 == 0, number % 2 == 1):
            run = train(job | (often if with_saves else {}), staleness, out)
            rates[with_saves].append(run["examples_per_s"])
            if with_saves:
                if not run["saves"]:
                    raise SystemExit("no save was done: expected a longer training, with more --rows")
                sizes, seconds, pauses = map(sum, zip(*run["saves"], strict=True))
                shares.append(seconds / run["training_seconds"])
                written.append(sizes / (seconds - pauses))
    kept = statistics.median(rates[True]) / statistics.median(rates[False])
    share = statistics.median(shares)
    return {
        "saving_kept": kept,
        "saving_share": share,
        "saving_kept_meanwhile": 1.0 - (1.0 - kept) / share,
        "saving_mb_s": statistics.median(written),
    }


def measure(
    model: str, batch_rows: int, place: Path, config: GeneratorConfig, options: Any
) -> dict[str, Any]:
    """All figures of one model and batch size."""
    out, job = options.folder, job_of(model, batch_rows, place, config, options)
    compared = model != "lr"
    with_torch, rounded = compared and not options.no_torch, options.products != "float32"
    in_float32 = job | {"training": job["training"] | {"products": "float32"}}
    staleness = TUNED[model][batch_rows].staleness if options.staleness is None else options.staleness
    bounds: list[dict[str, float]] = []
    twins: list[dict[str, float]] = []
    casts: list[dict[str, float]] = []
    paddles: list[dict[str, float]] = []
    runs: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    for turn in range(options.repeats + 1):
        bounds += [products_bound(batch_rows)] if compared else []
        twins += [torch_run(model, batch_rows, place, out)] if with_torch else []
        casts += [torch_run(model, batch_rows, place, out, "--autocast")] if with_torch and rounded else []
        if compared and options.paddle:
            paddles.append(paddle_run(model, batch_rows, place, out, options.paddle))
        if turn < options.repeats:
            both = [(runs, job), (plain, in_float32)] if rounded else [(runs, job)]
            for kept, one in both[::-1] if turn % 2 else both:  # a call's first run is its slowest
                kept.append(train(one, staleness, out))
    peers = {"torch": twins, "torch_bfloat16": casts, "paddle": paddles}
    turns = [turn_of(number, run, bounds, peers, plain) for number, run in enumerate(runs)]
    names = (*SCORES, "rows", "staleness_mean", "pushes_sent", "pushes_applied")
    figures = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    figures |= {name: statistics.median(run[name] for run in runs) for name in names}
    if options.torch_auc and (whole := torch_run(model, batch_rows, place, out, "--auc")):
        figures |= {f"torch_{name}": whole[name] for name in SCORES}
    if options.saves:
        figures |= saving(job, staleness, out, options.saves)
    if options.exact:
        exact = train(job, 0, out)
        figures |= {f"exact_{name}": exact[name] for name in (*SCORES, "examples_per_s")}
    raw = {"bounds": bounds, **peers, "turns": turns}
    return {"model": model, "batch_rows": batch_rows, **raw, "figures": figures}


def turn_of(
    number: int,
    run: dict[str, Any],
    bounds: list[dict[str, float]],
    peers: dict[str, list[dict[str, float]]],
    plain: list[dict[str, Any]],
) -> dict[str, float]:
    """Rates of one turn, beside the better of what was measured before and after it.

    ``plain`` are runs in float32 of the same turns, if any.
    """
    rate = run["examples_per_s"]
    figures = {"examples_per_s": rate}
    if bounds:
        bound = max(each for some in bounds[number : number + 2] for each in some.values())
        figures |= {"products_bound_per_s": bound, "of_bound": rate / bound}
    for peer, runs in peers.items():
        beside = [each["examples_per_s"] for each in runs[number : number + 2] if each]
        if beside:
            figures |= {f"{peer}_per_s": max(beside), f"times_{peer}": rate / max(beside)}
    if plain:
        other = plain[number]
        figures |= {"float32_per_s": other["examples_per_s"], "float32_auc": other["auc"]}
        figures["times_float32"] = rate / other["examples_per_s"]
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=list(TUNED), default=["deepfm", "dnn"])
    parser.add_argument("--batch-rows", nargs="+", type=int, choices=[512, 4096], default=[4096, 512])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=None, help="default: 1 at batch 4096, 2 at 512")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact", action="store_true", help="train once more, with staleness 0")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument(
        "--paddle", nargs="?", const=sys.executable, default=None, metavar="PYTHON",
        help="compare with PaddlePaddle's parameter server, run by this interpreter",
    )  # fmt: skip
    parser.add_argument("--products", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--torch-auc", action="store_true", help="train the twin for a whole epoch too")
    parser.add_argument("--saves", type=int, default=0, metavar="ROUNDS", help="train in turns, with saves")
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="turns, of which medians are told"
    )
    parser.add_argument("--equal", action="store_true", help="all fields with 384,615 keys: few repeat")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats: expected 1 or more, got {options.repeats}")
    if options.quick:
        options.rows, options.model, options.batch_rows = 200_000, ["deepfm"], [4096]
    options.folder.mkdir(parents=True, exist_ok=True)
    place, config = data(options.folder, options.rows, options.equal)
    best = json.loads((place / "generated.json").read_text())["test"]
    print(f"best possible on the test part: AUC {best['best_auc']:.4f}, log loss {best['best_logloss']:.4f}")
    cases = []
    for model in options.model:
        for batch_rows in options.batch_rows:
            cases.append(measure(model, batch_rows, place, config, options))
            print(f"{model}, batch {batch_rows}")
            for name, value in cases[-1]["figures"].items():
                print(f"    {name:24} {value:14,.4f}")
    if options.json:
        machine = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
        plain = {name: str(value) if name == "folder" else value for name, value in vars(options).items()}
        report = {**machine, "options": plain, "best": best, "cases": cases}
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
