"""Simulation scenes: a cluster of machines, scaled down if large, or one machine for all processes."""

from __future__ import annotations

import math
from dataclasses import replace

from pslib.planner.coefficients import Coefficients
from pslib.planner.demand import Demand
from pslib.planner.limits import Cluster
from pslib.planner.simulate import Scene, Simulated, simulate
from pslib.planner.workload import MachineSpec, Workload

PAIRS_MAX = 256
"""Most server-trainer pairs simulated one by one: 16 batches of each then take half a second."""
FEWEST = 4
BATCHES = 16
JITTER = 0.1
"""Variation of batch times: about the spread of reading and step times in real runs."""


def cluster_rate(demand: Demand, machine: MachineSpec, cluster: Cluster) -> Simulated:
    """Simulate servers and trainers on machines of their own.

    A large cluster is scaled down: each trainer then stands for several, as does each message of a trainer.
    """
    servers, trainers = cluster.servers, cluster.trainers
    few_servers, few_trainers = _fewer(servers, trainers)
    server_weight, trainer_weight = trainers / few_trainers, servers / few_servers
    machines = -(-few_trainers // cluster.a_machine)
    byte_s = 8.0 / machine.network_bit_s
    scene = Scene(
        machine_cores=(float(machine.cores),) * (few_servers + machines),
        servers=tuple(range(few_servers)),
        trainers=tuple(few_servers + number // cluster.a_machine for number in range(few_trainers)),
        batch=demand.batch_cost(few_servers, few_trainers / trainers),
        batch_rows=demand.workload.batch_rows,
        staleness=demand.workload.staleness,
        shard_threads=demand.shard_threads,
        network_byte_s=(byte_s * server_weight,) * few_servers + (byte_s * trainer_weight,) * machines,
        latency_s=machine.latency_us * 1e-6,
        jitter=JITTER,
    )
    result = simulate(scene, BATCHES)
    return replace(result, examples_per_s=result.examples_per_s * trainers / few_trainers)


def _fewer(servers: int, trainers: int) -> tuple[int, int]:
    """Scale numbers down in about the same proportion, to at most `PAIRS_MAX` pairs and at least one each."""
    shrink = max(1.0, math.sqrt(servers * trainers / PAIRS_MAX))
    most = PAIRS_MAX // min(trainers, FEWEST)
    few_servers = min(servers, max(FEWEST, min(round(servers / shrink), most)))
    return few_servers, min(trainers, max(FEWEST, min(round(trainers / shrink), PAIRS_MAX // few_servers)))


def one_machine_rate(
    workload: Workload,
    costs: Coefficients,
    *,
    servers: int,
    trainers: int,
    shard_threads: int = 1,
    cores: int | None = None,
    batches: int = 60,
) -> Simulated:
    """Simulate all processes of a cluster on one machine, as ``pslib train`` starts them.

    Parameters
    ----------
    workload : Workload
    costs : Coefficients
    servers, trainers, shard_threads : int
    cores : int or None
        Default: those of the measured machine.
    batches : int
        Batches of each trainer.
    """
    cores = cores or costs.cores
    demand = Demand(workload, costs, servers, shard_threads, max(1.0, cores / trainers))
    scene = Scene(
        machine_cores=(float(cores),),
        servers=(0,) * servers,
        trainers=(0,) * trainers,
        batch=demand.batch_cost(servers, 1.0),
        batch_rows=workload.batch_rows,
        staleness=workload.staleness,
        shard_threads=shard_threads,
        own_byte_s=1 / (costs.loopback_mb_s * 1e6),
        jitter=JITTER,
    )
    return simulate(scene, batches)
