"""``pslib plan`` and ``pslib bench calibrate``: from options to a plan, and the costs that it counts with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from launch.cli.command import FILE, choice, command, flag, group, json_option, option, show, together
from pslib.errors import EXIT_DONE

if TYPE_CHECKING:
    from pslib.planner.workload import MachineSpec
    from pslib.table.optimizers import Optimizer


UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
WIRE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
MACHINE = "cores=32,memory=256GB,network=25Gbit"


def amount(text: str) -> float:
    """Parse a number such as 5e9, 5_000_000 or 5G."""
    found = re.fullmatch(r"([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)([kMGT]?)", text)
    value = float(found[1]) * UNITS[found[2]] if found else math.inf
    if value == math.inf:
        raise click.BadParameter(f"expected a number like 5e9 or 2M, got {text!r}")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers; an empty text is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise click.BadParameter(f"expected whole numbers with commas between, got {text!r}")
    return tuple(map(int, words))


def _machine_spec(text: str) -> MachineSpec:
    """Parse ``cores=32,memory=256GB,network=25Gbit[,latency_us=50][,open_files=524288]``."""
    from pslib.errors import ConfigurationError
    from pslib.planner.workload import MachineSpec

    values: dict[str, Any] = {}
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        if name not in READERS:
            raise ConfigurationError(f"--machine: expected {KNOWN}, got {word!r}; as in {MACHINE}")
        field, read = READERS[name]
        try:
            values[field] = read(value)
        except ValueError:
            raise ConfigurationError(f"--machine: {name}: got {value!r}, expected as in {MACHINE}") from None
    if missing := [name for name in NEEDED if READERS[name][0] not in values]:
        raise ConfigurationError(f"--machine: {', '.join(missing)} missing, expected as in {MACHINE}")
    return MachineSpec(**values)


def _with_unit(unit: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        found = re.fullmatch(rf"([0-9.]+)\s*([kMGT]?|[KMG]i){unit}", text)
        if not found:
            raise ValueError(text)
        return float(found[1]) * UNITS[found[2]]

    return read


READERS: dict[str, tuple[str, Callable[[str], float]]] = {
    "cores": ("cores", int),
    "memory": ("memory_bytes", _with_unit("B")),
    "network": ("network_bit_s", _with_unit("bit")),
    "latency_us": ("latency_us", float),
    "open_files": ("open_files", int),
}
KNOWN = ", ".join(READERS)
NEEDED = ("cores", "memory", "network")


def _optimizer(name: str) -> Optimizer:
    from pslib.errors import ConfigurationError
    from pslib.suggestions import unknown_value
    from pslib.table.optimizers import OPTIMIZERS

    plain = {known.lower(): kind for known, kind in OPTIMIZERS.items()}
    kind = plain.get(name.replace("_", "").lower())
    if kind is None:
        raise ConfigurationError(unknown_value("--optimizer", name, OPTIMIZERS))
    return kind()


@command(
    "plan",
    """
pslib plan --rows 5e9 --examples-per-s 2e6 --machine cores=32,memory=256GB,network=25Gbit
pslib plan --rows 5e9 --dim 16 --optimizer rowwise_adagrad --trainers 64 --coefficients costs.json
""",
)
@together(
    option("--rows", "N", "rows of the table when it is full, 5e9", amount),
    option("--parameters", "N", "in place of --rows: floats of all rows", amount),
    option("--dim", "N[,N]", "floats of a row, of each part (default 16)", whole_numbers, default="16"),
    option("--optimizer", "NAME", "of the rows (default Adagrad)", str, default="Adagrad"),
    option("--storage", "NAME", "of weights in memory (default float32)", str, default="float32"),
    option("--wire", "NAME", "how rows and gradients travel (default float32)", str, default="float32"),
    option("--examples-per-s", "N", "wanted rate", amount),
    option("--servers", "N", "given, not planned", int),
    option("--trainers", "N", "given, not planned: trainer processes", int),
    option("--trainer-cores", "N", "cores of one trainer process (default 4)", int, default=4),
    option("--batch-rows", "N", "examples of a batch (default 4096)", int, default=4096),
    option("--staleness", "N", "batches a trainer may run ahead (default 2)", int, default=2),
    option("--keys", "N", "keys of an example (default 26)", int, default=26),
    option("--dense-fields", "N", "numbers of an example (default 13)", int, default=13),
    option(
        "--hidden", "N[,N]", "units of the tower (default 400,400,400)", whole_numbers, default="400,400,400"
    ),
    option("--zipf", "S", "P(k-th most frequent key of a field) ~ k^-S (default 1.05)", float, default=1.05),
    option("--distinct", "SHARE", "of a batch's keys, in place of --zipf", float),
    option("--machine", "SPEC", f"each of them (default {MACHINE})", str, default=MACHINE),
    option("--coefficients", "FILE", "from pslib bench calibrate (default: those shipped)", FILE),
)
@json_option
def plan_command(
    rows: float | None,
    parameters: float | None,
    dim: tuple[int, ...],
    optimizer: str,
    storage: str,
    wire: str,
    examples_per_s: float | None,
    servers: int | None,
    trainers: int | None,
    trainer_cores: int,
    batch_rows: int,
    staleness: int,
    keys: int,
    dense_fields: int,
    hidden: tuple[int, ...],
    zipf: float,
    distinct: float | None,
    machine: str,
    coefficients: str | None,
    as_json: bool,
) -> int:
    """Say how many machines a model needs and what breaks first."""
    from pslib.errors import ConfigurationError
    from pslib.planner.coefficients import read_coefficients, shipped_coefficients
    from pslib.planner.plan import PlanRequest, make_plan, plan_lines
    from pslib.planner.workload import Workload, distinct_share
    from pslib.table.tables import PartSpec, TableSpec

    if (rows is None) == (parameters is None):
        raise click.UsageError("expected one of --rows and --parameters")
    if not 0 <= zipf < math.inf:
        raise ConfigurationError(f"--zipf: expected 0 or more, got {zipf:g}")
    costs = read_coefficients(coefficients) if coefficients else shipped_coefficients()
    step = _optimizer(optimizer)
    parts = tuple(PartSpec(f"part{number}", floats, step) for number, floats in enumerate(dim))
    if rows is None:
        rows = (parameters or 0.0) / max(sum(dim), 1)
    if distinct is None:
        distinct = distinct_share(max(batch_rows, 1), rows / max(keys, 1), zipf)
    workload = Workload(
        rows=rows,
        table=TableSpec("embedding", parts, storage=storage),
        keys=keys,
        dense_fields=dense_fields,
        hidden=hidden,
        batch_rows=batch_rows,
        staleness=staleness,
        distinct=distinct,
        wire_float_bytes=_wire_bytes(wire),
    )
    plan = make_plan(
        PlanRequest(
            workload=workload,
            machine=_machine_spec(machine),
            costs=costs,
            examples_per_s=examples_per_s,
            servers=servers,
            trainers=trainers,
            trainer_cores=trainer_cores,
        )
    )
    show(plan.to_dict(), plan_lines(plan), as_json)
    return EXIT_DONE  # also when the plan reports an exceeded limit


def _wire_bytes(name: str) -> float:
    from pslib.errors import ConfigurationError

    if name not in WIRE_BYTES:
        raise ConfigurationError(f"--wire: expected one of {', '.join(WIRE_BYTES)}, got {name!r}")
    return WIRE_BYTES[name]


@group("bench", "pslib bench calibrate --json costs.json")
def bench_command() -> None:
    """Measure this machine."""


@bench_command.command("calibrate", examples="pslib bench calibrate --json costs.json")
@option("--json", "FILE", "write the coefficients there, for pslib plan", FILE, to="file")
@flag("--quick", "in seconds, and less exactly")
@choice(
    "--products",
    ("float32", "bfloat16"),
    "what trainings multiply in, as training.products of a job file (default: float32)",
    default="float32",
)
def calibrate_command(file: str | None, quick: bool, products: str) -> int:
    """Measure what pslib plan counts with, in about two minutes."""
    from launch.calibration.calibrate import run_calibrate

    return run_calibrate(file, quick=quick, products=products)
