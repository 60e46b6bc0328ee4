"""A machine and coefficients for tests of the planner: round numbers, not measured."""

from dataclasses import replace

from pslib.planner.coefficients import Coefficients, TableCost
from pslib.planner.plan import PlanRequest
from pslib.planner.workload import MachineSpec, Workload
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec

MACHINE = MachineSpec(cores=32, memory_bytes=256e9, network_bit_s=25e9)
TABLE = TableSpec("rows", (PartSpec("w", 1, RowwiseAdagrad()), PartSpec("v", 16, RowwiseAdagrad())))
COSTS = Coefficients(
    machine="a round machine",
    date="2026-11-21",
    about="made up",
    cores=2,
    tables=(TableCost("float32", 8, 0.04, 0.06, 0.2), TableCost("float32", 64, 0.08, 0.12, 0.4)),
    row_overhead_bytes=20.0,
    row_overhead_share=0.02,
    server_process_bytes=40e6,
    trainer_process_bytes=60e6,
    server_message_us=120.0,
    client_message_us=100.0,
    thread_job_us=20.0,
    server_row_us=0.02,
    client_row_us=0.03,
    server_mb_us=300.0,
    client_mb_us=300.0,
    hop_us=200.0,
    dense_step_us=4000.0,
    read_value_us=0.04,
    read_width=1.0,
    compute_width=1.5,
    step_us=500.0,
    key_us=0.02,
    multiply_add_us=20.0,
    float_us=1000.0,
    loopback_mb_s=2000.0,
    checkpoint_mb_s=200.0,
    batch_us=500.0,
    together=1.0,
)


def workload(**more) -> Workload:
    """Two billion rows of 1 + 16 floats, unless it says otherwise."""
    return Workload(**({"rows": 2e9, "table": TABLE} | more))


def request(work: Workload | None = None, **more) -> PlanRequest:
    """A million examples a second, unless it says otherwise."""
    if "examples_per_s" not in more and "trainers" not in more:
        more["examples_per_s"] = 1e6
    return PlanRequest(**({"workload": work or workload(), "machine": MACHINE, "costs": COSTS} | more))


def costs(**changes) -> Coefficients:
    """`COSTS` with some changed."""
    return replace(COSTS, **changes)
