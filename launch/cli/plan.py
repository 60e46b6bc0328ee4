"""``pslib plan``: from options to a plan, printed as text or JSON."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslib.planner.workload import MachineSpec, Workload
    from pslib.table.optimizers import Optimizer

__all__ = ["add_plan", "run_plan"]

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
WIRE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
MACHINE = "cores=32,memory=256GB,network=25Gbit"


def amount(text: str) -> float:
    """Parse a number such as 5e9, 5_000_000 or 5G, for argparse."""
    found = re.fullmatch(r"([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)([kMGT]?)", text)
    value = float(found[1]) * UNITS[found[2]] if found else math.inf
    if value == math.inf:
        raise argparse.ArgumentTypeError(f"expected a number like 5e9 or 2M, got {text!r}")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers for argparse; an empty text is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas between, got {text!r}")
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
    from launch.job.errors import unknown_value
    from pslib.errors import ConfigurationError
    from pslib.table.optimizers import OPTIMIZERS

    plain = {known.lower(): kind for known, kind in OPTIMIZERS.items()}
    kind = plain.get(name.replace("_", "").lower())
    if kind is None:
        raise ConfigurationError(unknown_value("--optimizer", name, OPTIMIZERS))
    return kind()


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``pslib plan``."""
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--rows", type=amount, metavar="N", help="rows of the table when it is full, 5e9")
    size.add_argument("--parameters", type=amount, metavar="N", help="in place of --rows: floats of all rows")
    numbers, whole, some = whole_numbers, int, amount
    for flag, kind, default, name, text in (
        ("--dim", numbers, (16,), "N[,N]", "floats of a row, of each part (default 16)"),
        ("--optimizer", str, "Adagrad", "NAME", "of the rows (default Adagrad)"),
        ("--storage", str, "float32", "NAME", "of weights in memory (default float32)"),
        ("--wire", str, "float32", "NAME", "how rows and gradients travel (default float32)"),
        ("--examples-per-s", some, None, "N", "wanted rate"),
        ("--servers", whole, None, "N", "given, not planned"),
        ("--trainers", whole, None, "N", "given, not planned: trainer processes"),
        ("--trainer-cores", whole, 4, "N", "cores of one trainer process (default 4)"),
        ("--batch-rows", whole, 4096, "N", "examples of a batch (default 4096)"),
        ("--staleness", whole, 2, "N", "batches a trainer may run ahead (default 2)"),
        ("--keys", whole, 26, "N", "keys of an example (default 26)"),
        ("--dense-fields", whole, 13, "N", "numbers of an example (default 13)"),
        ("--hidden", numbers, (400, 400, 400), "N[,N]", "units of the tower (default 400,400,400)"),
        ("--zipf", float, 1.05, "S", "P(k-th most frequent key of a field) ~ k^-S (default 1.05)"),
        ("--distinct", float, None, "SHARE", "of a batch's keys, in place of --zipf"),
    ):
        parser.add_argument(flag, type=kind, default=default, metavar=name, help=text)
    parser.add_argument(
        "--machine", default=MACHINE, metavar="SPEC", help=f"each of them (default {MACHINE})"
    )
    parser.add_argument(
        "--coefficients", metavar="FILE", help="from pslib bench calibrate (default: those shipped)"
    )
    parser.add_argument("--json", action="store_true", help="the plan as JSON")


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan and return 0, also when the plan reports an exceeded limit."""
    from pslib.errors import EXIT_DONE
    from pslib.planner.coefficients import read_coefficients, shipped_coefficients
    from pslib.planner.plan import PlanRequest, make_plan, plan_lines

    costs = read_coefficients(options.coefficients) if options.coefficients else shipped_coefficients()
    request = PlanRequest(
        workload=_workload(options),
        machine=_machine_spec(options.machine),
        costs=costs,
        examples_per_s=options.examples_per_s,
        servers=options.servers,
        trainers=options.trainers,
        trainer_cores=options.trainer_cores,
    )
    plan = make_plan(request)
    print(json.dumps(plan.to_dict(), indent=1) if options.json else "\n".join(plan_lines(plan)))
    return EXIT_DONE


def _wire_bytes(name: str) -> float:
    from pslib.errors import ConfigurationError

    if name not in WIRE_BYTES:
        raise ConfigurationError(f"--wire: expected one of {', '.join(WIRE_BYTES)}, got {name!r}")
    return WIRE_BYTES[name]


def _workload(options: argparse.Namespace) -> Workload:
    from pslib.errors import ConfigurationError
    from pslib.planner.workload import Workload, distinct_share
    from pslib.table.tables import PartSpec, TableSpec

    optimizer = _optimizer(options.optimizer)
    parts = tuple(PartSpec(f"part{i}", dim, optimizer) for i, dim in enumerate(options.dim))
    rows = options.parameters / max(sum(options.dim), 1) if options.rows is None else options.rows
    distinct = options.distinct
    if not 0 <= options.zipf < math.inf:
        raise ConfigurationError(f"--zipf: expected 0 or more, got {options.zipf:g}")
    if distinct is None:
        distinct = distinct_share(max(options.batch_rows, 1), rows / max(options.keys, 1), options.zipf)
    return Workload(
        rows=rows,
        table=TableSpec("embedding", parts, storage=options.storage),
        keys=options.keys,
        dense_fields=options.dense_fields,
        hidden=options.hidden,
        batch_rows=options.batch_rows,
        staleness=options.staleness,
        distinct=distinct,
        wire_float_bytes=_wire_bytes(options.wire),
    )
