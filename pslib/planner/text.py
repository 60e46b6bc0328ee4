"""Plan as text: a short table with reasons."""

from __future__ import annotations

from collections.abc import Iterator

from pslib.planner.plan import Plan

__all__ = ["plan_lines"]

SHOWN = 10


def plan_lines(plan: Plan) -> list[str]:
    """Format the plan for people, as lines."""
    return [*_workload(plan), "", *_cluster(plan), "", *_breaks(plan), *_problems(plan)]


def _workload(plan: Plan) -> Iterator[str]:
    work, costs, machine = plan.request.workload, plan.request.costs, plan.request.machine
    optimizers = sorted({type(part.optimizer).__name__ for part in work.table.parts})
    dims = " + ".join(str(part.dim) for part in work.table.parts)
    yield (
        f"{work.rows:,.0f} rows of {dims} floats, {work.parameters:,.0f} parameters, "
        f"{', '.join(optimizers)}, {work.table.storage}"
    )
    yield (
        f"batches of {work.batch_rows:,} examples of {work.keys} keys, {work.distinct:.2f} of them distinct; "
        f"{work.dense_floats:,} dense parameters"
    )
    yield (
        f"machines of {machine.cores} cores, {machine.memory_bytes / 1e9:,.0f} GB, "
        f"{machine.network_bit_s / 1e9:g} Gbit/s; cores like those of {costs.machine}, measured {costs.date}"
    )


def _cluster(plan: Plan) -> Iterator[str]:
    cluster, threads = plan.cluster, plan.shard_threads
    wanted = plan.request.examples_per_s
    asked = f" of {wanted:,.0f} wanted" if wanted else ""
    yield _row("servers", f"{cluster.servers:,}", f"{plan.servers_because}; shard_threads {threads}")
    yield _row(
        "trainers",
        f"{cluster.trainers:,}",
        f"{plan.trainers_because}; on {cluster.trainer_machines:,} machines, "
        f"{min(cluster.a_machine, cluster.trainers)} on each",
    )
    yield _row("examples/s", f"{cluster.examples_per_s:,.0f}", f"simulated{asked}")
    yield _row(
        "memory a server",
        f"{plan.server_bytes / 1e9:,.1f} GB",
        f"{plan.row_bytes:.1f} bytes a row with index and state",
    )
    yield _row(
        "network a server",
        _bits(plan.server_bit_s),
        f"{plan.keys_a_message:,.0f} keys a message; a trainer's machine {_bits(plan.trainer_bit_s)}",
    )
    yield _row(
        "checkpoint",
        f"{plan.checkpoint_bytes / 1e9:,.0f} GB",
        f"before compression; {plan.checkpoint_s:,.0f} s when every server writes its own",
    )
    yield _row("partition_bits", str(plan.partition_bits), "16 partitions a server, 2^20 rows each at most")
    work = plan.request.workload
    flying = cluster.trainers * (work.staleness + 1) * work.batch_rows
    yield _row(
        "on their way",
        f"{flying:,}",
        f"examples whose gradients are not applied, at staleness {work.staleness}",
    )


def _breaks(plan: Plan) -> Iterator[str]:
    yield "what breaks first (share of it used at that rate)"
    for limit in plan.limits[:SHOWN]:
        yield f"  {limit.share:5.0%}  {limit.name}: {limit.used}"
        if limit is plan.limits[0] or limit.share > 1:
            yield f"         then: {limit.remedy}"


def _problems(plan: Plan) -> Iterator[str]:
    if plan.problems:
        yield ""
        yield "as it stands this does not run:"
        yield from (f"  {problem}" for problem in plan.problems)


def _row(name: str, value: str, why: str) -> str:
    return f"{name:18}{value:>14}  {why}"


def _bits(bit_s: float) -> str:
    return f"{bit_s / 1e9:.2f} Gbit/s" if bit_s >= 1e8 else f"{bit_s / 1e6:.1f} Mbit/s"
