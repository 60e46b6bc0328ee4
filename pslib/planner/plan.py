"""Planner: number of servers and trainers for a workload and machine type, and the limits reached first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pslib.config import ClusterConfig
from pslib.errors import ConfigurationError
from pslib.planner.coefficients import TEXTS, Coefficients
from pslib.planner.demand import Demand
from pslib.planner.limits import CARD, Cluster, Limit, limits_of, partition_bits, rates_of
from pslib.planner.scenes import cluster_rate
from pslib.planner.simulate import Simulated
from pslib.planner.workload import MachineSpec, Workload

HEADROOM = 0.7
"""Planned share of memory, cores and network; the rest is for growth, uneven hashing, a failed peer."""
HELPED_BY_SERVERS = (
    "cores of a server",
    "network of a server",
    "thread of a server that moves bytes",
    "threads of a server that own rows",
)
SERVERS_MOST = 0.95
"""Share of the servers' capacity that trainers are planned for, if it is below the wanted rate."""
TURNS = 8
HELPS = 0.3
"""Share of the expected gain of more trainers that the simulated rate must reach to add them."""
SHARD_THREADS_MAX = 64
LIMITS_SHOWN = 10
SERVERS_MAX, TRAINERS_MAX = ClusterConfig.SERVERS_MAX, ClusterConfig.TRAINERS_MAX


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request for a plan.

    Attributes
    ----------
    workload : Workload
    machine : MachineSpec
    costs : Coefficients
    examples_per_s : float or None
        Wanted rate; None: that of the given servers and trainers.
    servers, trainers : int or None
        Given numbers of processes; None: as many as needed.
    trainer_cores : int
        Cores of one trainer process; a machine holds as many processes as fit.

    Raises
    ------
    ConfigurationError
        If there is neither a rate nor a number of trainers, or a number is out of range.
    """

    workload: Workload
    machine: MachineSpec
    costs: Coefficients
    examples_per_s: float | None = None
    servers: int | None = None
    trainers: int | None = None
    trainer_cores: int = 4

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise ConfigurationError(*problems)

    def _problems(self) -> Iterator[str]:
        if self.examples_per_s is None and self.trainers is None:
            yield "plan: expected a rate (examples_per_s) or a number of trainers, got neither"
        if self.examples_per_s is not None and not 0 < self.examples_per_s < math.inf:
            yield f"examples_per_s: expected more than 0, got {self.examples_per_s:g}"
        if self.trainer_cores < 1:
            yield f"trainer_cores: expected 1 or more, got {self.trainer_cores}"
        for name, value, most in (
            ("servers", self.servers, SERVERS_MAX),
            ("trainers", self.trainers, TRAINERS_MAX),
        ):
            if value is not None and not 1 <= value <= most:
                yield f"{name}: expected 1..{most}, got {value}"

    @property
    def a_machine(self) -> int:
        """Trainer processes per machine."""
        return max(1, self.machine.cores // self.trainer_cores)


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned cluster and its predicted figures. A GB is 10^9 bytes.

    Attributes
    ----------
    request : PlanRequest
    cluster : Cluster
        With the predicted examples/s.
    shard_threads : int
        Threads of one server that own rows.
    partition_bits : int
    servers_because, trainers_because : str
    row_bytes, server_bytes : float
        Memory of a row, and of a server with its rows.
    server_bit_s, trainer_bit_s : float
        Bit rate of the busier direction of a server's card, and of a trainer machine's, at the predicted
        rate.
    keys_a_message : float
        Keys of a batch per server.
    checkpoint_bytes, checkpoint_s : float
        Size of all rows before compression, and time to save them; each server writes its own.
    simulated : Simulated
    limits : tuple of Limit
        Limits at the predicted rate, tightest first.
    """

    request: PlanRequest
    cluster: Cluster
    shard_threads: int
    partition_bits: int
    servers_because: str
    trainers_because: str
    row_bytes: float
    server_bytes: float
    server_bit_s: float
    trainer_bit_s: float
    keys_a_message: float
    checkpoint_bytes: float
    checkpoint_s: float
    simulated: Simulated
    limits: tuple[Limit, ...]

    @property
    def problems(self) -> list[str]:
        """Reasons why the plan is not feasible, one line each."""
        problems = [
            f"{limit.name}: {limit.used}; {limit.remedy}"
            for limit in self.limits
            if limit.share > 1 and limit.grows_with != "rate"
        ]
        wanted = self.request.examples_per_s
        if wanted and self.cluster.examples_per_s < 0.97 * wanted:
            problems.append(
                f"{wanted:,.0f} examples/s were wanted, {self.cluster.examples_per_s:,.0f} are reached; "
                f"{self.limits_of_rate[0].name}: {self.limits_of_rate[0].remedy}"
            )
        return problems

    @property
    def limits_of_rate(self) -> list[Limit]:
        """Limits that grow with examples/s, tightest first."""
        return [limit for limit in self.limits if limit.grows_with == "rate"]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form for JSON."""
        plain = asdict(self)
        work = self.request.workload
        plain["request"] = {
            "rows": work.rows,
            "parameters": work.parameters,
            "table": work.table.to_dict(),
            "keys": work.keys,
            "dense_fields": work.dense_fields,
            "hidden": list(work.hidden),
            "batch_rows": work.batch_rows,
            "staleness": work.staleness,
            "distinct": work.distinct,
            "examples_per_s": self.request.examples_per_s,
            "machine": asdict(self.request.machine),
            "coefficients": {name: getattr(self.request.costs, name) for name in TEXTS},
        }
        return plain | {"problems": self.problems}


def make_plan(request: PlanRequest) -> Plan:
    """Choose servers and trainers, simulate them, and rank the limits."""
    for_memory = servers, because = _servers_for_memory(request)
    rate = goal = request.examples_per_s or 1.0
    trainers, threads, work = request.trainers or 1, 1, request.workload
    for _ in range(TURNS):
        threads = _shard_threads(_sized(request, servers, trainers, threads, goal)[0], request.machine, goal)
        demand, cluster = _sized(request, servers, trainers, threads, goal)
        server_rate, trainer_rate = rates_of(demand, request.machine, cluster)
        if request.examples_per_s is None:
            goal = min(server_rate, trainer_rate)
            continue
        if request.servers is None:
            more, why = _servers_for_rate(request, demand, cluster)
            servers, because = max((more, why), for_memory, key=lambda wanted: wanted[0])
        # Trainers beyond the servers' capacity would only wait; more servers share all load but messages.
        borne = server_rate if request.servers else work.batch_rows / (2 * demand.message_s)
        goal = min(rate, SERVERS_MOST * borne)
        if request.trainers is None:
            trainers = min(max(1, math.ceil(trainers * goal / (HEADROOM * trainer_rate))), TRAINERS_MAX)
    demand, cluster = _sized(request, servers, trainers, threads, goal)
    if request.trainers is None and (more := _trainers_for_cards(request, demand, cluster)) > trainers:
        demand, cluster = _sized(request, servers, more, threads, goal)
    return _finished(request, demand, cluster, because)


def _trainers_for_cards(request: PlanRequest, demand: Demand, cluster: Cluster) -> int:
    """Return the trainers for as many machines as their network cards require."""
    share = next(one.share for one in limits_of(demand, request.machine, cluster) if one.name == CARD)
    most = max(cluster.a_machine, cluster.trainers)
    return min(math.ceil(most * share / HEADROOM), TRAINERS_MAX) if share > HEADROOM else 1


def _sized(
    request: PlanRequest, servers: int, trainers: int, threads: int, rate: float
) -> tuple[Demand, Cluster]:
    cores = min(request.trainer_cores, request.machine.cores)
    demand = Demand(request.workload, request.costs, servers, threads, float(cores))
    return demand, Cluster(servers, trainers, request.a_machine, rate)


def _servers_for_memory(request: PlanRequest) -> tuple[int, str]:
    if request.servers is not None:
        return request.servers, "given"
    room = HEADROOM * request.machine.memory_bytes - request.costs.server_process_bytes
    if room <= 0:
        raise ConfigurationError(
            f"machine: memory: a server process alone takes "
            f"{request.costs.server_process_bytes / 1e6:,.0f} MB, {HEADROOM:.0%} of "
            f"{request.machine.memory_bytes / 1e6:,.0f} MB do not hold it; take larger machines"
        )
    need = request.workload.rows * request.costs.row_bytes(request.workload.payload_bytes)
    servers = max(1, math.ceil(need / room))
    if servers > SERVERS_MAX:
        raise ConfigurationError(
            f"rows: {need / 1e12:,.1f} TB need {servers:,} servers, {SERVERS_MAX:,} are the most; "
            "take larger machines or a smaller storage"
        )
    return servers, f"memory: {need / 1e9:,.1f} GB of rows in {HEADROOM:.0%} of their memory"


def _servers_for_rate(request: PlanRequest, demand: Demand, cluster: Cluster) -> tuple[int, str]:
    """Return the servers at the headroom each, and the binding limit; more do not reduce messages."""
    limits = limits_of(demand, request.machine, cluster)
    limit = next(limit for limit in limits if limit.name in HELPED_BY_SERVERS)
    servers = math.ceil(cluster.servers * limit.share / HEADROOM)
    return min(servers, SERVERS_MAX), f"{limit.name}: at most {HEADROOM:.0%} of it used"


def _shard_threads(demand: Demand, machine: MachineSpec, rate: float) -> int:
    """Return the threads for the rows of a server at that rate; each adds a small cost to every request."""
    busy = rate / demand.workload.batch_rows * (demand.pull_rows_s + demand.push_rows_s)
    return max(1, min(math.ceil(busy / HEADROOM), machine.cores - 1, SHARD_THREADS_MAX))


def _simulated(request: PlanRequest, demand: Demand, cluster: Cluster) -> tuple[Demand, Cluster, Simulated]:
    """Simulate; if the rate is missed add trainers, and where they do not help, servers."""
    goal, least = cluster.examples_per_s, 0.0
    for turn in range(TURNS):
        result = cluster_rate(demand, request.machine, cluster)
        rate = result.examples_per_s
        if request.examples_per_s is None or rate >= goal or turn == TURNS - 1:
            break
        servers, trainers = cluster.servers, cluster.trainers
        if request.trainers is None and rate > least:
            trainers = min(math.ceil(trainers * 1.05 * goal / rate), TRAINERS_MAX)
            least = rate * (1 + HELPS * (trainers / cluster.trainers - 1))
        elif request.servers is None:
            servers, least = min(math.ceil(1.25 * servers), SERVERS_MAX), 0.0
        if (servers, trainers) == (cluster.servers, cluster.trainers):
            break
        demand, cluster = _sized(request, servers, trainers, demand.shard_threads, goal)
    reached = min(result.examples_per_s, goal) if request.examples_per_s else result.examples_per_s
    return demand, replace(cluster, examples_per_s=reached), result


def _finished(request: PlanRequest, demand: Demand, cluster: Cluster, because: str) -> Plan:
    """Complete the plan of this cluster, or of a slightly larger one that reaches the rate."""
    servers = cluster.servers
    demand, cluster, result = _simulated(request, demand, cluster)
    if cluster.servers > servers:
        because = "the simulated rate: with fewer, trainers wait"
    limits = tuple(limits_of(demand, request.machine, cluster))
    work, costs = request.workload, request.costs
    row_bytes, saved = costs.row_bytes(work.payload_bytes), work.rows * work.saved_row_bytes
    bit_s = (
        8 * cluster.examples_per_s / work.batch_rows * max(demand.server_in_bytes, demand.server_out_bytes)
    )
    on_one = min(cluster.a_machine, cluster.trainers) / cluster.trainers
    tightest = next(limit for limit in limits if "trainer" in limit.name)
    return Plan(
        request=request,
        cluster=cluster,
        shard_threads=demand.shard_threads,
        partition_bits=partition_bits(work.rows, cluster.servers),
        servers_because=because,
        trainers_because="given" if request.trainers else f"{tightest.name}: {tightest.used}",
        row_bytes=row_bytes,
        server_bytes=work.rows * row_bytes / cluster.servers + costs.server_process_bytes,
        server_bit_s=bit_s,
        trainer_bit_s=bit_s * on_one * cluster.servers,
        keys_a_message=demand.rows_each,
        checkpoint_bytes=saved,
        checkpoint_s=saved / cluster.servers / (costs.checkpoint_mb_s * 1e6),
        simulated=result,
        limits=limits,
    )


# --- plan as text -------------------------------------------------------------------------------------------


def plan_lines(plan: Plan) -> list[str]:
    """Format the plan for people, as lines."""
    return [*_workload_lines(plan), "", *_cluster_lines(plan), "", *_limit_lines(plan), *_problem_lines(plan)]


def _workload_lines(plan: Plan) -> Iterator[str]:
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


def _cluster_lines(plan: Plan) -> Iterator[str]:
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


def _limit_lines(plan: Plan) -> Iterator[str]:
    yield "what breaks first (share of it used at that rate)"
    for limit in plan.limits[:LIMITS_SHOWN]:
        yield f"  {limit.share:5.0%}  {limit.name}: {limit.used}"
        if limit is plan.limits[0] or limit.share > 1:
            yield f"         then: {limit.remedy}"


def _problem_lines(plan: Plan) -> Iterator[str]:
    if plan.problems:
        yield ""
        yield "as it stands this does not run:"
        yield from (f"  {problem}" for problem in plan.problems)


def _row(name: str, value: str, why: str) -> str:
    return f"{name:18}{value:>14}  {why}"


def _bits(bit_s: float) -> str:
    return f"{bit_s / 1e9:.2f} Gbit/s" if bit_s >= 1e8 else f"{bit_s / 1e6:.1f} Mbit/s"
