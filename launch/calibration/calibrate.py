"""``pslib bench calibrate``: measure costs on this machine, for ``pslib plan --coefficients``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launch.calibration.measure import workload_of
from launch.job.job import read_job
from launch.job.paths import literal
from launch.job.preflight import hold_port
from launch.job.sections import schema_section
from launch.job.yaml12 import write_yaml
from launch.places.local import LocalLauncher
from launch.places.options import RunOptions
from launch.runs.train import run_job
from launch.supervisor.run_spec import Outcome, Plan
from launch.supervisor.supervisor import end_as_asked, run_cluster
from pslib.clock import utc_now_text
from pslib.config import ClusterConfig
from pslib.data.atomic_files import atomic_output
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.errors import EXIT_DONE, ConfigurationError, UnavailableError
from pslib.planner.coefficients import FORMAT, Coefficients
from pslib.planner.scenes import one_machine_rate
from pslib.planner.workload import Workload
from pslib.process.machine import cores, quota_words
from pslib.process.platform import processor_text
from pslib.schema import Schema
from pslib.storage import unwritable
from pslib.transport import addresses

SCRIPT = Path(__file__).parent / "measure.py"
FIELDS, KEYS = 26, 1_000_000
BATCH_ROWS = 2048
MORE_THREADS = 4
TOGETHER = (0.25, 8.0)
"""Bounds of the mutual slowdown of stages; below 1 where stages were measured slower than they are."""
BATCH_US = (0.0, 20_000.0)
HALVINGS = 12


@dataclass(frozen=True, slots=True)
class Run:
    """One training of DeepFM on this machine.

    Attributes
    ----------
    servers, trainers, batch_rows, dim : int
    hidden : tuple of int
    epochs : int
        Passes over the data.
    staleness : int
    products : "float32" or "bfloat16"
        See `pslib.trainer.Trainer`.
    """

    servers: int = 1
    trainers: int = 1
    batch_rows: int = 2048
    dim: int = 16
    hidden: tuple[int, ...] = (256, 256)
    epochs: int = 1
    staleness: int = 2
    products: str = "float32"

    @property
    def name(self) -> str:
        """One-line name."""
        hidden = "-".join(map(str, self.hidden))
        return (
            f"{self.servers} server{'s' * (self.servers > 1)} x {self.trainers} trainer"
            f"{'s' * (self.trainers > 1)}, batch {self.batch_rows}, dim {self.dim}, {hidden}"
        )


WHOLE = (Run(batch_rows=2048, hidden=(256, 256), epochs=3), Run(batch_rows=512, hidden=(64,), epochs=3))
"""Runs of a calibration, large batches first."""


@contextlib.contextmanager
def over_tcp() -> Iterator[None]:
    """Make processes started meanwhile connect by TCP, as on several machines, which the planner models."""
    before = os.environ.get(addresses.VARIABLE)
    os.environ[addresses.VARIABLE] = "tcp"
    try:
        yield
    finally:
        del os.environ[addresses.VARIABLE]
        if before is not None:
            os.environ[addresses.VARIABLE] = before


def run_calibrate(file: str | None, *, quick: bool, products: str) -> int:
    """Measure, write the requested file and print the result."""
    if file:
        _check_place(Path(file))
    costs = calibrate(quick=quick, say=print, products=products)
    if file:
        with atomic_output(Path(file)) as draft:
            draft.write_text(json.dumps(costs.to_dict(), indent=1) + "\n", encoding="utf-8")
    for line in _lines(costs):
        print(line)
    return EXIT_DONE


def _check_place(file: Path) -> None:
    """Refuse an output path that can't be written, before minutes of measurement."""
    if why := "it is a folder" if file.is_dir() else unwritable(file.parent):
        raise ConfigurationError(f"--json: {file} can't be written: {why}; give another")


def calibrate(*, quick: bool, say: Callable[[str], object], products: str = "float32") -> Coefficients:
    """Measure this machine.

    Parameters
    ----------
    quick : bool
        Measure within seconds, less exactly.
    say : callable
        Called with a line before each part.
    products : "float32" or "bfloat16"
        Products in the measured steps and trainings; see `pslib.trainer.Trainer`.

    Raises
    ------
    UnavailableError
        When a process of the measurement fails.
    """
    with tempfile.TemporaryDirectory(prefix="pslib-calibrate-") as name:
        folder = Path(name)
        config = GeneratorConfig(
            train_rows=16_000 if quick else 300_000,
            test_rows=1,
            vocabularies=(KEYS // FIELDS,) * FIELDS,
            seed=11,
        )
        say("making examples")
        generate(folder / "data", config)
        schema = generated_schema(config)
        settings: dict[str, Any] = {
            "folder": str(folder / "data"),
            "schema": schema.to_dict(),
            "seconds": 0.02 if quick else 0.5,
            "table_rows": 140_000 if quick else 2_000_000,
            "wire_rows": 12_000 if quick else 1_000_000,
            "batch_rows": BATCH_ROWS,
            "products": products,
        }
        say("rows, messages, reading, steps")
        found = _in_trainer(folder, settings | {"part": "all"}, 1)
        more = _in_trainer(folder, settings | {"part": "threads"}, MORE_THREADS)
        if found["products"] != products:
            say(f"this machine has no fast {products}: it multiplies in {found['products']}")
        costs = _coefficients(found, more, quick)
        say("two whole runs")
        seen = []
        for whole in WHOLE:
            run = replace(whole, epochs=1 if quick else whole.epochs, products=products)
            work = run_workload(run, folder / "data", schema)
            seen.append(_Seen(work, run_rate(run, folder / "data", schema)))
        return _whole(costs, seen)


def run_workload(run: Run, data: Path, schema: Schema) -> Workload:
    """Convert a run to a planner workload, with the measured share of distinct keys."""
    distinct = _distinct_of(data, schema, run.batch_rows)
    return workload_of(
        schema, run.batch_rows, run.dim, run.hidden, staleness=run.staleness, distinct=distinct
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A measured run of one server and one trainer, and its rate."""

    work: Workload
    examples_per_s: float

    def too_slow(self, costs: Coefficients) -> bool:
        """Return whether the simulation with these costs is slower than the measured run."""
        result = one_machine_rate(self.work, costs, servers=1, trainers=1)
        return result.examples_per_s < self.examples_per_s


def _whole(costs: Coefficients, seen: list[_Seen]) -> Coefficients:
    """Fit two coefficients by bisection, so that the simulation gives the rates of both runs.

    Small batches determine the cost of a batch, large ones the mutual slowdown of its stages.
    """
    large, small = seen

    def with_both(batch_us: float) -> Coefficients:
        given = replace(costs, batch_us=batch_us)
        together = _halved(TOGETHER, lambda value: large.too_slow(replace(given, together=value)))
        return replace(given, together=together)

    found = with_both(_halved(BATCH_US, lambda value: small.too_slow(with_both(value))))
    return replace(found, batch_us=_rounded(found.batch_us), together=_rounded(found.together))


def _halved(bounds: tuple[float, float], too_large: Callable[[float], bool]) -> float:
    low, high = bounds
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return (low + high) / 2


def _in_trainer(folder: Path, settings: dict[str, Any], shard_threads: int) -> dict[str, Any]:
    """Run the script in the trainer of a separate cluster."""
    out, given = folder / "found.json", folder / "settings.json"
    given.write_text(json.dumps(settings | {"out": str(out)}), encoding="utf-8")
    plan = Plan(
        config=ClusterConfig(shard_threads=shard_threads),
        cluster_id=secrets.token_hex(8),
        trainer_arguments=(str(SCRIPT), str(given)),
        logs=folder,
    )
    with over_tcp():
        outcome = run_cluster(LocalLauncher(1, hold_port()), plan)
    end_as_asked(outcome)
    if outcome.exit_code != EXIT_DONE:
        raise UnavailableError(f"calibrate: a process failed: {outcome.reason}")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def _coefficients(found: dict[str, Any], more: dict[str, Any], quick: bool) -> Coefficients:
    """Combine the measurements; the cost of a message per further thread needs a server with more threads."""
    one, products = found.pop("few_keys_server_us"), found.pop("products")
    thread = max(0.0, (more["few_keys_server_us"] - one) / (MORE_THREADS - 1))
    plain = {name: _rounded(value) for name, value in found.items() if name != "tables"}
    tables = [{name: _rounded(value) for name, value in one.items()} for one in found["tables"]]
    about = f"Python {platform.python_version()}" + (", quick: a rough guess" if quick else "")
    about += "" if products == "float32" else f", matrix products in {products}"
    return Coefficients.from_dict(
        plain
        | {
            "format": FORMAT,
            "machine": _machine(),
            "date": utc_now_text()[:10],
            "about": about,
            "cores": cores(),
            "tables": tables,
            "thread_job_us": _rounded(thread),
            "batch_us": 0.0,
            "together": 1.0,
        },
        "calibrate",
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _machine() -> str:
    """Return the processor's name, and the cores of this process with the quota that limits them, if any."""
    name = platform.machine()
    for line in processor_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {cores()} cores{quota_words()}"


def _lines(costs: Coefficients) -> list[str]:
    plain = asdict(costs)
    lines = [f"{costs.machine}, {costs.date}, {costs.about}"]
    lines += [f"{name:24}{plain[name]:>18,.4g}" for name in plain if isinstance(plain[name], float)]
    lines += [
        f"{cost.storage:9} {cost.floats:3} floats: pull {cost.pull_us:.4f}, push {cost.push_us:.4f}, "
        f"insert {cost.insert_us:.4f} us a row"
        for cost in costs.tables
    ]
    return lines


def run_rate(run: Run, folder: Path, schema: Schema) -> float:
    """Measure examples/s from opening the data to the last push; ``folder`` holds ``train.parquet``.

    Raises
    ------
    UnavailableError
        When the run fails.
    KeyboardInterrupt, PreemptedError
        When the run is interrupted.
    """
    optimizer = {"name": "RowwiseAdagrad"}
    job = {
        "data": {"train": str(folder / "train.parquet"), "schema": schema_section(schema)},
        "model": {"name": "deepfm", "dim": run.dim, "hidden": list(run.hidden)},
        "optimizers": {"rows": {"w": optimizer, "v": optimizer}},
        "training": {
            "batch_rows": run.batch_rows,
            "staleness": run.staleness,
            "warmup_batches": 0,
            "epochs": run.epochs,
            "products": run.products,
        },
        "cluster": {"servers": run.servers, "trainers": run.trainers},
        "out": literal(str(folder / "run")),
    }
    file = folder / "run.yaml"
    file.write_text(write_yaml(job), encoding="utf-8")
    with over_tcp(), contextlib.redirect_stdout(io.StringIO()):
        code = run_job(read_job(file), RunOptions(overwrite=True, quiet=True))
    end_as_asked(Outcome(code))
    if code:
        raise UnavailableError(f"{run.name}: ended with exit code {code}; its logs are in {folder / 'run'}")
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return float(summary["examples_per_s"])


def _distinct_of(folder: Path, schema: Schema, batch_rows: int) -> float:
    """Estimate the share of distinct keys in a batch from some batches of the data."""
    data = ParquetData(str(folder / "train.parquet"), schema)
    order = Order(0, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows))
    reader = LeaseReader(data, schema, order, batch_rows)
    keys = examples = 0
    for batch in reader.batches(0, 0):
        keys += batch.keys.size
        examples += len(batch)
    reader.close()
    return keys / (examples * len(schema.sparse))
