"""The planner's predictions against real runs: ``python benchmarks/plan.py [--json FILE] [--quick]``.

First `pslib bench calibrate` measures this machine; its two whole runs (one server, one trainer, dim 16;
batch 2,048 with hidden 256-256, batch 512 with hidden 64) are all the training that it sees. Then
configurations that it has not seen are predicted by the simulation and run as ``pslib train`` runs them, with
processes over loopback: a small model on small batches, two servers with two trainers, large batches with a
large tower. Reported is predicted over measured examples/s, the median where a configuration runs more
than once; all of them take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from launch.calibration.calibrate import Run, calibrate, run_rate, run_workload
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.planner.coefficients import Coefficients, read_coefficients
from pslib.planner.scenes import one_machine_rate

FOLDER = Path("runs/plan")
FIELDS, KEYS = 26, 1_000_000
RUNS = (
    Run(batch_rows=1024, dim=8, hidden=(128,), epochs=4),
    Run(servers=2, trainers=2, batch_rows=2048, dim=16, hidden=(200, 100), epochs=3),
    Run(batch_rows=4096, dim=16, hidden=(400, 400, 400), epochs=2),
)
"""None of them is a run that `calibrate` makes."""


def predict(run: Run, costs: Coefficients, data: Path, schema: Any) -> dict[str, float]:
    """Return the simulated figures of a run."""
    work = run_workload(run, data, schema)
    result = one_machine_rate(work, costs, servers=run.servers, trainers=run.trainers)
    return {"predicted": result.examples_per_s, "distinct": work.distinct}


def main() -> None:
    """Calibrate, predict, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--coefficients", default=None, help="measured before, by this file's --json or calibrate"
    )
    parser.add_argument("--quick", action="store_true", help="30,000 examples, once, and a rough calibration")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.repeats = 30_000, 1
    config = GeneratorConfig(
        train_rows=options.rows, test_rows=1, vocabularies=(KEYS // FIELDS,) * FIELDS, seed=13
    )
    data, schema = FOLDER.absolute() / f"data_{options.rows}", generated_schema(config)
    if not (data / "generated.json").exists():
        generate(data, config, overwrite=True)
    if options.coefficients:
        costs = read_coefficients(options.coefficients)
    else:
        costs = calibrate(quick=options.quick, say=lambda line: print(line, file=sys.stderr))
        (FOLDER / "coefficients.json").write_text(json.dumps(costs.to_dict(), indent=1), encoding="utf-8")
    rates: dict[Run, list[float]] = {run: [] for run in RUNS}
    for _ in range(options.repeats):
        for run in RUNS:
            rates[run].append(run_rate(run, data, schema))
    figures = []
    for run in RUNS:
        measured = statistics.median(rates[run])
        said = predict(run, costs, data, schema)
        ratio = said["predicted"] / measured
        figures.append({"run": run.name, "measured": measured, "ratio": ratio, "rates": rates[run]} | said)
        print(
            f"{run.name:58} predicted {said['predicted']:10,.0f} measured {measured:10,.0f} ratio {ratio:.2f}"
        )
    if options.json:
        report = {"coefficients": costs.to_dict(), "figures": figures}
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
