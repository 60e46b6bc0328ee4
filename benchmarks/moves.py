"""Growing from 2 servers to 4 and back while rows are pushed at full rate: how fast, and what pulls notice.

``python benchmarks/moves.py [--rows N] [--keys-a-push K] [--seconds S] [--quick] [--json FILE]``

Processes of their own, as under ``pslib launch``: a coordinator, 2 servers with N rows of 16 floats and
row-wise Adagrad, and a trainer that pushes K distinct keys a time, 2 pushes at once, without a pause. This
process pulls 512 keys, again and again, and notes how long each pull took:

    before    with 2 servers, for S seconds
    grow      two more servers have joined; from ``Scale 4`` until shares are even
    four      with 4 servers, for S seconds
    shrink    from ``Scale 2`` until two servers own everything

MB are those of the images that were sent (keys, weights, state), without marks and refusals. The longest
pull is the longest time in which this process got nothing; ``still_s`` is the same for the pushes of the
other one, as the counters of the servers show it, which are read ten times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from wire_processes import SCATTER, WORKER, cluster, joined, make_rows, pusher

from pslib.client.client import Client
from pslib.cluster import Watcher

PULL_KEYS = 512
LOOK_S = 0.1


class Pulls:
    """Pulls that go on, and what they and the pushes of others looked like meanwhile."""

    def __init__(self, client: Client, watcher: Watcher, rows: int) -> None:
        self._client, self._watcher, self._rows = client, watcher, rows
        self._random = np.random.default_rng(7)

    def until(self, over: Callable[[dict[str, Any]], bool]) -> dict[str, float]:
        """Pull until ``over`` holds of the status; milliseconds of the pulls, and seconds without pushes."""
        took: list[float] = []
        pushed, pushed_s = -1, time.perf_counter()
        looked_s = still_s = 0.0
        begin_s, first = time.perf_counter(), 0
        while True:
            keys = self._random.integers(0, self._rows, PULL_KEYS).astype(np.uint64) * SCATTER
            start_s = time.perf_counter()
            self._client.pull({"rows": keys}).wait()
            now_s = time.perf_counter()
            took.append(now_s - start_s)
            if now_s - looked_s < LOOK_S:
                continue
            looked_s = now_s
            applied = int(self._client.stats()["rows_pushed"])
            first = applied if pushed < 0 else first
            still_s = max(still_s, now_s - pushed_s)
            if applied > pushed:
                pushed, pushed_s = applied, now_s
            if over(self._watcher.status()):
                break
        seconds = time.perf_counter() - begin_s
        p50, p99 = np.percentile(took, [50, 99]) * 1e3
        return {
            "seconds": seconds,
            "pulls": len(took),
            "pull_p50_ms": float(p50),
            "pull_p99_ms": float(p99),
            "pull_max_ms": max(took) * 1e3,
            "pushed_mrows_s": (pushed - first) / seconds / 1e6,
            "still_s": still_s,
        }

    def during(self, seconds: float) -> dict[str, float]:
        """Pull for so long."""
        end_s = time.perf_counter() + seconds
        return self.until(lambda _status: time.perf_counter() > end_s)

    def scaled(self, servers: int) -> dict[str, float]:
        """Pull until so many servers own even shares."""
        self._watcher.scale(servers)
        figures = self.until(_is_even)
        moves = self._watcher.status()["moves"]
        moved = {"units": moves["moved"], "mb": moves["bytes"] / 1e6, "moving_s": moves["seconds"]}
        return figures | moved | {"mb_s": moves["bytes"] / 1e6 / max(moves["seconds"], 1e-9)}


def _is_even(status: dict[str, Any]) -> bool:
    moves = status["moves"]
    if moves["stopped"]:
        raise SystemExit(f"benchmarks/moves.py: {moves['stopped']}")
    return not moves["moving"] and not moves["awaited"] and moves["moved"] == moves["units"] > 0


def measure(rows: int, keys_a_push: int, seconds: float) -> dict[str, dict[str, float]]:
    """All four stretches."""
    figures: dict[str, dict[str, float]] = {}
    with cluster(2, 1) as (address, cluster_id, _pids), joined(address, cluster_id) as client:
        watcher = Watcher(address, cluster_id)
        make_rows(client, rows)
        pulls = Pulls(client, watcher, rows)
        with pusher("pslib", address, cluster_id, rows, keys_a_push, 2):
            figures["before"] = pulls.during(seconds)
            join = [*WORKER, "server", "--cluster-id", cluster_id, "--listen", "tcp://127.0.0.1:0"]
            more = [subprocess.Popen([*join, "--coordinator", address], stdout=-3) for _ in range(2)]
            pulls.until(lambda status: status["servers"] == 4)
            figures["grow"] = pulls.scaled(4)
            figures["four"] = pulls.during(seconds)
            figures["four"]["imbalance"] = _imbalance(watcher)
            figures["shrink"] = pulls.scaled(2)
            for process in more:
                process.wait(30)
        watcher.close()
    return figures


def _imbalance(watcher: Watcher) -> float:
    """Most rows of a server over the mean."""
    members = watcher.status(details=True)["members"]
    addresses = [one["address"] for one in members if one["role"] == "server"]
    rows = [int(one["rows"]) for one in watcher.server_stats(addresses) if one is not None]
    return max(rows) * len(rows) / sum(rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keys-a-push", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 2 seconds")
    parser.add_argument("--json", default=None, metavar="FILE")
    options = parser.parse_args()
    rows, seconds = (200_000, 2.0) if options.quick else (options.rows, options.seconds)
    figures = measure(rows, options.keys_a_push, seconds)
    report = {
        "rows": rows,
        "dim": 16,
        "keys_a_push": options.keys_a_push,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "figures": {
            name: {key: round(value, 3) for key, value in some.items()} for name, some in figures.items()
        },
    }
    text = json.dumps(report, indent=1)
    if options.json:
        Path(options.json).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
