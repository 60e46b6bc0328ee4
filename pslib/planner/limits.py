"""Limits of a cluster and their utilisation, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pslib.config import ClusterConfig
from pslib.planner.demand import US, Demand
from pslib.planner.workload import MachineSpec
from pslib.process.machine import files_for

PARTITION_ROWS = 1 << 20
"""Planned rows of one partition."""
PARTITIONS_A_SERVER = 16
PARTITION_BITS_MAX = 20
LEASE_ROWS = 65_536
HEARTBEATS_PER_S = 1.0
CARD = "network of a trainer's machine"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Size and rate of a cluster.

    Attributes
    ----------
    servers : int
        One per machine.
    trainers : int
        Processes.
    a_machine : int
        Trainer processes of one machine.
    examples_per_s : float
        Rate of all trainers.
    """

    servers: int
    trainers: int
    a_machine: int
    examples_per_s: float

    @property
    def trainer_machines(self) -> int:
        """Number of machines with trainers."""
        return -(-self.trainers // self.a_machine)


@dataclass(frozen=True, slots=True)
class Limit:
    """Limited resource and its utilisation.

    Attributes
    ----------
    name : str
    share : float
        Used share; 1 is all.
    used : str
        The used amount in its own unit.
    remedy : str
        Change of the cluster or job that relieves it.
    grows_with : {"rate", "rows", "processes"}
        The quantity that increases its use.
    """

    name: str
    share: float
    used: str
    remedy: str
    grows_with: str


def partition_bits(rows: float, servers: int) -> int:
    """Return the bits of the smallest partition count with 16 per server and at most 2^20 rows each."""
    wanted = max(servers * PARTITIONS_A_SERVER, rows / PARTITION_ROWS, ClusterConfig().partitions)
    return max(4, (int(-(-wanted // 1)) - 1).bit_length())


def limits_of(demand: Demand, machine: MachineSpec, cluster: Cluster) -> list[Limit]:
    """Return all limits, tightest first."""
    found = [
        *_server_limits(demand, machine, cluster),
        *_trainer_limits(demand, machine, cluster),
        *_cluster_limits(demand, machine, cluster),
    ]
    return sorted(found, key=lambda limit: -limit.share)


def rates_of(demand: Demand, machine: MachineSpec, cluster: Cluster) -> tuple[float, float]:
    """Return the largest examples/s of the servers, and of the trainers, without any waiting."""

    def most(limits: Iterator[Limit]) -> float:
        share = max(limit.share for limit in limits if limit.grows_with == "rate")
        return cluster.examples_per_s / share

    return most(_server_limits(demand, machine, cluster)), most(_trainer_limits(demand, machine, cluster))


def _server_limits(demand: Demand, machine: MachineSpec, cluster: Cluster) -> Iterator[Limit]:
    work, costs = demand.workload, demand.costs
    batches = cluster.examples_per_s / work.batch_rows
    table_bytes = work.rows * costs.row_bytes(work.payload_bytes) / cluster.servers
    used_bytes = table_bytes + costs.server_process_bytes
    yield Limit(
        "memory of a server",
        used_bytes / machine.memory_bytes,
        f"{used_bytes / 1e9:,.1f} of {machine.memory_bytes / 1e9:,.0f} GB",
        "more servers, storage bfloat16 or int8, admission and eviction",
        "rows",
    )
    cores = batches * demand.server_s
    yield Limit(
        "cores of a server",
        cores / machine.cores,
        f"{cores:,.1f} of {machine.cores}",
        "more servers",
        "rate",
    )
    messages = 2 * batches
    yield Limit(
        "messages of a server",
        messages * demand.message_s,
        f"{messages:,.0f}/s with {demand.rows_each:,.0f} keys each",
        "larger batches: more servers do not help, each batch asks all of them",
        "rate",
    )
    busy = batches * (demand.pull_rows_s + demand.push_rows_s)
    yield Limit(
        "threads of a server that own rows",
        busy / demand.shard_threads,
        f"{busy:,.2f} of {demand.shard_threads}",
        "more shard_threads, more servers",
        "rate",
    )
    yield Limit(
        "thread of a server that moves bytes",
        batches * demand.server_bytes_s,
        f"{batches * (demand.server_in_bytes + demand.server_out_bytes) / 1e6:,.0f} MB/s",
        "more servers, bfloat16 on the wire, a cache of hot rows",
        "rate",
    )
    bit_s = 8 * batches * max(demand.server_in_bytes, demand.server_out_bytes)
    yield Limit(
        "network of a server",
        bit_s / machine.network_bit_s,
        f"{bit_s / 1e9:,.2f} of {machine.network_bit_s / 1e9:,.0f} Gbit/s",
        "more servers, bfloat16 on the wire, a cache of hot rows",
        "rate",
    )


def _trainer_limits(demand: Demand, machine: MachineSpec, cluster: Cluster) -> Iterator[Limit]:
    work = demand.workload
    batches = cluster.examples_per_s / work.batch_rows / cluster.trainers
    cores = batches * demand.trainer_s
    yield Limit(
        "cores of a trainer",
        cores / demand.trainer_cores,
        f"{cores:,.1f} of {demand.trainer_cores:g}",
        "more trainers",
        "rate",
    )
    stages = {
        "reading": demand.read_s / demand.read_width,
        "pulling": demand.asking_s,
        "the step and its push": demand.compute_s / demand.compute_width + demand.between_s + demand.asking_s,
        "taking answers": 2 * demand.asking_s,
        "moving bytes": demand.trainer_bytes_s,
    }
    slowest = max(stages, key=lambda name: stages[name])
    yield Limit(
        f"a trainer's thread: {slowest}",
        batches * stages[slowest],
        f"{batches:,.2f} batches/s of {1 / stages[slowest]:,.2f}",
        "more trainers, each with fewer cores",
        "rate",
    )
    on_one = min(cluster.a_machine, cluster.trainers)
    byte_s = batches * on_one * demand.servers * max(demand.server_in_bytes, demand.server_out_bytes)
    yield Limit(
        CARD,
        8 * byte_s / machine.network_bit_s,
        f"{8 * byte_s / 1e9:,.2f} of {machine.network_bit_s / 1e9:,.0f} Gbit/s",
        "more machines, bfloat16 on the wire, a cache of hot rows",
        "rate",
    )


def _cluster_limits(demand: Demand, machine: MachineSpec, cluster: Cluster) -> Iterator[Limit]:
    work, servers = demand.workload, cluster.servers
    peers = servers + cluster.trainers
    bits = partition_bits(work.rows, servers)
    yield Limit(
        "partitions",
        (1 << bits) / (1 << PARTITION_BITS_MAX),
        f"2^{bits} of 2^{PARTITION_BITS_MAX}",
        "none: 16 a server and 2^20 rows each are the plan's own rules",
        "rows",
    )
    yield Limit(
        "servers that a map may name",
        servers / ClusterConfig.SERVERS_MAX,
        f"{servers:,} of {ClusterConfig.SERVERS_MAX:,}",
        "larger machines",
        "processes",
    )
    files = files_for(peers)  # of the coordinator; a server or trainer has fewer
    yield Limit(
        "open files of a process",
        files / machine.open_files,
        f"{files:,} of {machine.open_files:,} at the coordinator",
        "the hard limit, ulimit -Hn",
        "processes",
    )
    asked = peers * HEARTBEATS_PER_S + 2 * cluster.examples_per_s / LEASE_ROWS
    yield Limit(
        "messages of the coordinator",
        asked * demand.costs.server_message_us * US,
        f"{asked:,.0f}/s, heartbeats and leases",
        "fewer, larger processes",
        "processes",
    )
