"""Two billion live parameters on one machine: the speed of training as the table grows twelve times larger.

``python benchmarks/billion.py [--rows 120e6] [--small-rows 10e6] [--json FILE] [--picture PNG]``: two server
processes and one trainer process over loopback, DeepFM 400-400-400 with dim 1 + 16, row-wise Adagrad, batch
4,096, staleness 2, everything in: Parquet, hashing, pull, compute, push. The table is filled by pushes that
make its rows, in stages; at each stage the model trains on examples whose keys are spread evenly over all
rows, so that no cache helps. A second cluster then holds the small table alone. The comparison is of the rate
at all rows with the rates at ``--small-rows``, before and after it; each is a training of ``--examples``,
twice. ``--quick`` does the same with 200,000 rows, for tests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from launch.places.local import LocalLauncher
from launch.supervisor.run_spec import Plan
from launch.supervisor.supervisor import run_cluster
from pslib.cluster import Cluster, connect
from pslib.config import ClusterConfig
from pslib.data.columns import keys_of
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.table.optimizers import RowwiseAdagrad
from pslib.trainer import Trainer
from rec_models import DeepFM

FOLDER = Path("runs/billion")
FIELDS, DIM = 26, 16
PUSH_ROWS = 1 << 17
AHEAD = 3
LOOK_S = 0.5


def config_of(rows: int, examples: int) -> GeneratorConfig:
    """Examples whose keys are spread evenly over ``rows`` rows."""
    return GeneratorConfig(
        train_rows=examples,
        test_rows=1,
        vocabularies=(rows // FIELDS,) * FIELDS,
        zipf=0.0,
        sparse_type="integer",
        seed=5,
    )


def make_data(rows: int, examples: int) -> str:
    """Generate the examples for a table of so many rows unless they are there; the file to train on."""
    folder = FOLDER / f"data_{rows}_{examples}"
    if not (folder / "generated.json").exists():
        generate(folder, config_of(rows, examples), overwrite=True)
    return str(folder / "train.parquet")


class Watch:
    """Looks at the cluster twice a second."""

    def __init__(self, cluster: Cluster, start_s: float) -> None:
        self.points: list[dict[str, float]] = []
        self._cluster, self._start_s, self._over = cluster, start_s, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            status = self._cluster.status()
            names = ("rows", "memory_bytes", "examples")
            self.points.append(
                {"seconds": time.monotonic() - self._start_s} | {name: status.get(name, 0) for name in names}
            )

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()


def fill(cluster: Cluster, trainer: Trainer, first: int, last: int) -> float:
    """Make rows of ranks first..last of every field by pushes; rows a second."""
    schema, client = trainer.model.schema, cluster.client
    table = trainer.model.table()
    gradients = np.full((PUSH_ROWS, table.dim), 0.01, np.float32)
    flying: deque[Any] = deque()
    start = time.perf_counter()
    for field in schema.sparse:
        for at in range(first, last, PUSH_ROWS):
            ranks = np.arange(at, min(at + PUSH_ROWS, last), dtype=np.int64)
            keys = keys_of(pa.array(ranks), field.salt)
            flying.append(client.push({table.name: (keys, gradients[: keys.size])}))
            if len(flying) > AHEAD:
                flying.popleft().wait()
    while flying:
        flying.popleft().wait()
    return (last - first) * FIELDS / (time.perf_counter() - start)


def servers_resident_bytes() -> int:
    """Resident memory of all server processes beside this trainer."""
    parent = psutil.Process().parent()
    children = parent.children() if parent else []
    return sum(child.memory_info().rss for child in children if "server" in child.cmdline())


def inside(settings: dict[str, Any]) -> None:
    """Run the trainer process: fill, train, fill more, train again."""
    rows = RowwiseAdagrad(0.02)
    schema = generated_schema(config_of(FIELDS, 1))
    model = DeepFM(schema, dim=DIM, hidden=tuple(settings["hidden"]), w_optimizer=rows, v_optimizer=rows)
    phases: list[dict[str, Any]] = []
    start_s = time.monotonic()
    with connect() as cluster:
        table = replace(model.table(), storage=settings["storage"])
        trainer = Trainer(
            model, cluster, batch_rows=settings["batch_rows"], staleness=2, warmup_batches=0, table=table
        )
        watch = Watch(cluster, start_s)
        ranks = 0
        for stage in settings["stages"]:
            begun_s = time.monotonic() - start_s
            if stage["rows"] // FIELDS > ranks:
                made = fill(cluster, trainer, ranks, stage["rows"] // FIELDS)
                ranks = stage["rows"] // FIELDS
                phases.append({"what": "fill", "begun_s": begun_s, "rows_per_s": made})
            for _ in range(stage["times"]):
                begun_s, started = time.monotonic() - start_s, time.perf_counter()
                trainer.fit(stage["data"])
                took_s = time.perf_counter() - started
                stats = cluster.client.stats()
                phases.append(
                    {
                        "what": "train",
                        "begun_s": begun_s,
                        "took_s": took_s,
                        "examples_per_s": settings["examples"] / took_s,
                        "rows": stats["rows"],
                        "parameters": stats["parameters"],
                        "bytes_a_row": stats["tables"][table.name]["bytes_a_row"],
                        "servers_resident_bytes": servers_resident_bytes(),
                    }
                )
        watch.close()
    Path(settings["out"]).write_text(json.dumps({"phases": phases, "points": watch.points}), encoding="utf-8")


def run(settings: dict[str, Any], servers: int) -> dict[str, Any]:
    """One cluster of processes; what its trainer wrote down."""
    given, out = FOLDER / "settings.json", FOLDER / "found.json"
    given.write_text(json.dumps(settings | {"out": str(out.absolute())}), encoding="utf-8")
    logs = FOLDER / "logs"
    logs.mkdir(exist_ok=True)
    plan = Plan(
        config=ClusterConfig(servers=servers),
        cluster_id=secrets.token_hex(8),
        trainer_arguments=(str(Path(__file__).absolute()), "--inside", str(given.absolute())),
        logs=logs,
    )
    outcome = run_cluster(LocalLauncher(1), plan)
    if outcome.exit_code:
        sys.exit(f"billion: {outcome.reason}; logs in {logs}")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The growing cluster, then the small one."""
    rows, small = int(options.rows), int(options.small_rows)
    between = [small + (rows - small) * step // 3 for step in (1, 2)]
    sizes = [small, *between, rows]
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {size: make_data(size, options.examples) for size in sizes}
    if options.only_data:
        sys.exit(0)
    common = {
        "storage": options.storage,
        "batch_rows": options.batch_rows,
        "hidden": options.hidden,
        "examples": options.examples,
    }

    def stage(size: int, times: int) -> dict[str, Any]:
        return {"rows": size, "times": times, "data": str(Path(files[size]).absolute())}

    stages = [stage(small, 2), *(stage(size, 1) for size in between), stage(rows, 2)]
    grown = run(common | {"stages": stages}, options.servers)
    fresh = run(common | {"stages": [stage(small, 2)]}, options.servers)
    trained = [phase for phase in grown["phases"] if phase["what"] == "train"]
    again = [phase for phase in fresh["phases"] if phase["what"] == "train"]
    at_small = [phase["examples_per_s"] for phase in (*trained[:2], *again)]
    at_rows = [phase["examples_per_s"] for phase in trained[-2:]]
    last = trained[-1]
    figures = {
        "rows": last["rows"],
        "parameters": last["parameters"],
        "bytes_a_row": last["bytes_a_row"],
        "servers_resident_gb": last["servers_resident_bytes"] / 1e9,
        "examples_per_s_small": statistics.median(at_small),
        "examples_per_s": statistics.median(at_rows),
        "of_small": statistics.median(at_rows) / statistics.median(at_small),
        "fill_rows_per_s": statistics.median(
            phase["rows_per_s"] for phase in grown["phases"] if phase["what"] == "fill"
        ),
    }
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB",
        "date": time.strftime("%Y-%m-%d"),
        "options": vars(options),
        "figures": figures,
        "grown": grown,
        "fresh": fresh,
    }


def draw(report: dict[str, Any], file: str) -> None:
    """Rows, bytes a row and examples/s against time, and the small cluster beside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), dpi=100, layout="constrained")
    rows, size, rate = figure.subplots(3, 1, sharex=True)
    figures = report["figures"]
    figure.suptitle(
        f"{figures['parameters'] / 1e9:.2f} billion parameters in {figures['rows'] / 1e6:.0f} million rows: "
        f"{figures['of_small']:.2f} of the rate at {report['options']['small_rows'] / 1e6:.0f} million"
    )
    looks = [
        (point["seconds"], point["rows"], point["memory_bytes"] / point["rows"])
        for point in report["grown"]["points"]
        if point["rows"]
    ]
    looks += [  # a short run may be over before the first heartbeat has told its rows
        (phase["begun_s"] + phase["took_s"], phase["rows"], phase["bytes_a_row"])
        for phase in report["grown"]["phases"]
        if phase["what"] == "train"
    ]
    seconds, counts, sizes = zip(*sorted(looks), strict=True)
    rows.plot(seconds, [count / 1e6 for count in counts], color="#1f6fb4")
    rows.set_ylabel("million rows")
    size.plot(seconds, sizes, color="#d1495b")
    size.set_ylabel("bytes a row")
    ends = [(report["grown"], "#2e8b57", "growing table"), (report["fresh"], "#999999", "small table alone")]
    shift = max(seconds)
    for number, (run_of, colour, name) in enumerate(ends):
        trainings = [phase for phase in run_of["phases"] if phase["what"] == "train"]
        for phase in trainings:
            begun, label = phase["begun_s"] + shift * number, name if phase is trainings[0] else ""
            values = [phase["examples_per_s"]] * 2
            rate.plot(
                [begun, begun + phase["took_s"]],
                values,
                color=colour,
                lw=4,
                label=label,
                solid_capstyle="butt",
            )
    rate.set_ylabel("examples/s of each training")
    rate.set_xlabel("seconds")
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    rate.legend(frameon=False, loc="lower left")
    for axes in (rows, size, rate):
        axes.set_ylim(0, 1.12 * axes.dataLim.ymax)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main() -> None:
    """Measure, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=120e6)
    parser.add_argument("--small-rows", type=float, default=10e6)
    parser.add_argument("--examples", type=int, default=262_144, help="of each training")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batch-rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, nargs="+", default=[400, 400, 400])
    parser.add_argument("--storage", default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, for tests")
    parser.add_argument("--only-data", action="store_true", help="make the examples and end")
    parser.add_argument("--json", default=None)
    parser.add_argument("--picture", default=None, help="a PNG file")
    parser.add_argument("--draw", default=None, metavar="JSON", help="draw an earlier report again")
    parser.add_argument("--inside", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(json.loads(Path(options.inside).read_text(encoding="utf-8")))
        return
    if options.draw:
        draw(json.loads(Path(options.draw).read_text(encoding="utf-8")), options.picture)
        return
    if options.quick:
        options.rows, options.small_rows, options.examples = 200e3, 20e3, 8_192
        options.batch_rows, options.hidden = 1024, [32]
    report = measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    for name, value in report["figures"].items():
        print(f"{name:24} {value:18,.2f}")
    if options.picture:
        draw(report, options.picture)


if __name__ == "__main__":
    main()
