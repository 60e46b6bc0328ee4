"""Measure the cost of checking pushes for non-finite values: with and without the check, taking turns.

python benchmarks/finite.py --servers 2 --processes
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

import pslib
from cython_ext.wire.packing import first_beyond
from pslib.client.session import PushName
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec

KEYS, DIM, SETS = 106_496, 16, 3
SERVERS = """
import sys
from pslib.cluster import Embedded
from pslib.config import ClusterConfig
from pslib.transport import ZmqTransport

servers = Embedded(ClusterConfig(servers=int(sys.argv[1])), ZmqTransport(), "tcp://127.0.0.1:0")
print(servers.address, servers.cluster_id, flush=True)
sys.stdin.read()
servers.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--processes", action="store_true", help="servers in another process, by sockets")
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    if not options.processes:
        measure(options, servers=options.servers)
        return
    command = [sys.executable, "-c", SERVERS, str(options.servers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        address, cluster_id = child.stdout.readline().split()
        measure(options, coordinator=address, cluster_id=cluster_id)


def measure(options: argparse.Namespace, **where: Any) -> None:
    looks = {"with": first_beyond, "without": lambda values, **_: values.size}
    numbers = np.random.default_rng(1)
    keys = [numbers.integers(0, 1 << 63, KEYS).astype(np.uint64) for _ in range(SETS)]
    gradients = [numbers.normal(size=(KEYS, DIM)).astype(np.float32) * np.float32(1e-3) for _ in range(SETS)]
    took: dict[str, list[float]] = {name: [] for name in looks}
    with pslib.connect(**where) as cluster:
        client = cluster.client
        client.setup([TableSpec("t", (PartSpec("v", DIM, RowwiseAdagrad()),))])
        end_s, turn = time.perf_counter() + options.seconds, 0
        while time.perf_counter() < end_s:
            for name in sorted(looks, reverse=bool(turn // 2 % 2)):
                vars(gradients)["first_beyond"] = looks[name]
                chosen = turn // 2 % SETS
                np.negative(gradients[chosen], out=gradients[chosen])  # as a step has just computed them
                start_s = time.perf_counter()
                client.push(
                    {"t": (keys[chosen], gradients[chosen])}, name=PushName((1 << 63) | 5, turn)
                ).wait()
                took[name] += [time.perf_counter() - start_s]
                turn += 1
    medians = {name: 1e3 * statistics.median(some[SETS:]) for name, some in took.items()}
    ratios = [a / b for a, b in zip(took["with"][SETS:], took["without"][SETS:], strict=True)]
    print(
        f"{options.servers} server(s){', processes' if options.processes else ''}: a push takes "
        f"{medians['with']:.3f} ms with and {medians['without']:.3f} ms without; median of {len(ratios)} "
        f"ratios {statistics.median(ratios):.4f}"
    )


if __name__ == "__main__":
    main()
