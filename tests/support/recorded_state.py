"""States and samples of a run as recorded ones are: any number of processes, the same for the same seed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

__all__ = ["NOW_S", "RecordedRun", "recorded_samples", "recorded_state"]

NOW_S = 1_790_000_000.0
"""Unix time at which recorded runs begin."""

STEADY_S = 10.0
"""Time after which rates are those of a run that goes on."""

BITS = 12
EXAMPLES_TOTAL, EPOCHS = 90_000_000, 3
FIELDS = ("user", "item", "city", "genres", "device", "campaign", "hour_of_week", "referrer")
TABLES = ("embeddings", "wide")
COLUMNS = (
    "seconds",
    "examples",
    "examples_per_s",
    "loss",
    "auc",
    "calibration",
    "staleness",
    "rows",
    "memory_bytes",
    "bytes_in_flight",
    "ack_p99_s",
)


def _learned(seconds: float) -> tuple[float, float]:
    """Return loss and AUC after some seconds."""
    return 0.412 + 0.24 * math.exp(-seconds / 90), 0.807 - 0.25 * math.exp(-seconds / 70)


def recorded_state(servers: int, trainers: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Return the state of a run that has trained for some seconds.

    The last of more than three trainers is a straggler; a partition is on its way while ``seconds`` is in the
    second half of a minute.
    """
    draw = Random(f"{seed} {servers} {trainers} {int(seconds)}")
    steady = Random(f"{seed} {servers} {trainers}")
    warm = min(1.0, seconds / STEADY_S)
    speed = 30_000.0 * trainers * warm
    examples = min(int(30_000 * trainers * max(0.0, seconds - STEADY_S / 2)), EXAMPLES_TOTAL)
    loss, auc = _learned(seconds)
    rows = int(40_000_000 * (1 - math.exp(-seconds / 400)) / max(servers, 1))
    found = [_server(rank, rows, draw, steady) for rank in range(servers)]
    ends = [((rank + 1 << BITS) + servers - 1) // servers for rank in range(servers)]
    owners = [[rank, end - start] for rank, (start, end) in enumerate(pairwise([0, *ends]))]
    for server, (_, count) in zip(found, owners, strict=True):
        server["partitions"] = count
    epoch = int(examples * EPOCHS / EXAMPLES_TOTAL)
    moving = [[7, 0, servers - 1]] if servers > 1 and seconds % 60 >= 30 else []
    last_save = seconds % 60
    return {
        "format": 1,
        "now_s": NOW_S + seconds,
        "run": {
            "name": "clicks",
            "folder": "/data/runs/clicks",
            "cluster_id": "5f3a91c0",
            "pslib": "0.1.0",
            "model": "deepfm",
            "state": "running",
            "phase": "training",
            "error": None,
            "epoch": epoch,
            "epochs": EPOCHS,
            "examples": examples,
            "examples_total": EXAMPLES_TOTAL,
            "seconds": seconds,
            "eta_s": (EXAMPLES_TOTAL - examples) / speed if speed else None,
            "examples_per_s": speed * draw.uniform(0.97, 1.03),
            "loss": loss + draw.gauss(0, 0.003),
            "auc": auc + draw.gauss(0, 0.001),
            "calibration": 1 + draw.gauss(0, 0.01),
            "checkpoint": None
            if seconds < 60
            else {
                "path": "/data/runs/clicks/checkpoint-unfinished/000007",
                "age_s": last_save,
                "bytes": 9_300_000_000,
                "took_s": 14.2,
            },
        },
        "processes": [
            _process("coordinator", 0, {}, draw),
            *(_process("server", rank, {"busy": draw.uniform(0.3, 0.5)}, draw) for rank in range(servers)),
            *(_trainer(rank, trainers, draw) for rank in range(trainers)),
        ],
        "servers": found,
        "imbalance": {"rows": 1.03, "bytes": 1.02, "requests": 1.11}
        if servers
        else dict.fromkeys(("rows", "bytes", "requests")),
        "partitions": {"bits": BITS, "owners": owners, "moving": moving},
        "traffic": {
            "staleness_counts": [4100, 8800, 3100, 420, 31],
            "staleness_mean": 1.01,
            "staleness_max": 4,
            "bytes_in_flight": int(2_400_000 * trainers * draw.uniform(0.8, 1.2)),
            "ack_p50_s": 0.0031 * draw.uniform(0.9, 1.1),
            "ack_p99_s": 0.0212 * draw.uniform(0.8, 1.4),
            "sent_per_s": 8.1e6 * trainers * warm,
            "received_per_s": 1.3e7 * trainers * warm,
        },
        "tables": [_table(name, rows * servers, 1 + 15 * (name == "embeddings")) for name in TABLES],
        "keys": {
            "cache_hit_share": 0.341,
            "hot_share": 0.42,
            "distinct_share": 0.233,
            "fields": [
                {
                    "name": name,
                    "keys_per_batch": 4096.0 * (3.4 if name == "genres" else 1),
                    "distinct_per_batch": float(steady.randint(20, 3900)),
                }
                for name in FIELDS
            ],
        },
        "ledger": {
            "sent": examples // 4096 + 64,
            "applied": examples // 4096,
            "resent": 3,
            "missing": 0,
        },
        "checkpoints": [
            {
                "at_s": NOW_S + at,
                "path": f"/data/runs/clicks/checkpoint-unfinished/{number:06}",
                "kind": "full" if number % 4 == 1 else "increment",
                "bytes": 9_300_000_000 if number % 4 == 1 else 410_000_000,
                "took_s": 14.2,
                "pause_s": 0.08,
            }
            for number, at in enumerate(range(60, int(seconds) + 1, 60), 1)
        ][-20:],
        "log": {"durability": "log", "bytes": 5_200_000_000, "replay_bytes": 810_000_000},
        "events": _events(servers, trainers, seconds),
    }


def _process(role: str, rank: int, time: dict[str, float], draw: Random) -> dict[str, Any]:
    if "busy" in time:
        time["idle"] = 1 - time["busy"]
    return {
        "role": role,
        "rank": rank,
        "state": "live",
        "where": f"node-{rank % 16:02} pid {4100 + rank}",
        "address": f"tcp://10.0.{rank // 200}.{rank % 200 + 1}:7000",
        "silent_s": draw.uniform(0, 1),
        "rss_bytes": int(draw.uniform(1.8e9, 2.2e9)),
        "examples_per_s": None,
        "time": time or None,
        "straggler": False,
        "waits": [],
    }


def _trainer(rank: int, trainers: int, draw: Random) -> dict[str, Any]:
    slow = trainers > 3 and rank == trainers - 1
    wait = draw.uniform(0.5, 0.6) if slow else draw.uniform(0.05, 0.15)
    read, push = draw.uniform(0.04, 0.08), draw.uniform(0.03, 0.06)
    batch = draw.uniform(0.01, 0.03)
    shares = {"read": read, "wait_batch": batch, "wait_rows": wait, "push": push}
    shares["compute"] = 1 - sum(shares.values())
    plain = _process("trainer", rank, shares, draw)
    rate = 30_000 * (0.45 if slow else draw.uniform(0.95, 1.05))
    waits = ["a pull to server 0 for 2 s"] if slow else []
    return plain | {"examples_per_s": rate, "straggler": slow, "waits": waits}


def _server(rank: int, rows: int, draw: Random, steady: Random) -> dict[str, Any]:
    own = int(rows * steady.uniform(0.97, 1.03))
    return {
        "rank": rank,
        "partitions": 0,
        "rows": own,
        "memory_bytes": own * 172,
        "memory_limit_bytes": 8 << 30,
        "requests_per_s": draw.uniform(900, 1100),
        "queue": draw.choice((0, 0, 1, 2)),
        "request_p50_s": draw.uniform(0.0004, 0.0006),
        "request_p99_s": draw.uniform(0.003, 0.005),
        "log_bytes": 40_000_000,
        "log_replay_bytes": 6_300_000,
        "hot_share": draw.uniform(0.38, 0.46),
    }


def _table(name: str, rows: int, floats: int) -> dict[str, Any]:
    row_bytes = 8 + 8 * floats
    return {
        "name": name,
        "rows": rows,
        "memory_bytes": rows * row_bytes,
        "bytes_per_row": float(row_bytes),
        "memory_limit_bytes": 512 << 30,
        "admitted": rows + rows // 9,
        "turned_away": rows * 2,
        "evicted": rows // 9,
    }


def _events(servers: int, trainers: int, seconds: float) -> list[dict[str, Any]]:
    told: list[tuple[float, str, str, int, str]] = [
        *((1.0, "joined", "server", rank, f"server {rank} joined") for rank in range(servers)),
        *((2.0, "joined", "trainer", rank, f"trainer {rank} joined") for rank in range(trainers)),
        (45.0, "lost", "server", 0, "server 0 is lost: silent for 3.0 s"),
        (49.0, "back", "server", 0, "server 0 is back, with its log"),
        *((float(at), "saved", "", -1, "checkpoint saved, 9.3 GB in 14 s") for at in range(60, 3600, 60)),
    ]
    return [
        {
            "number": number,
            "at_s": NOW_S + at,
            "kind": kind,
            "role": role or None,
            "rank": rank if role else None,
            "text": text,
        }
        for number, (at, kind, role, rank, text) in enumerate(sorted(told, key=lambda one: one[0]), 1)
        if at <= seconds
    ][-500:]


def recorded_samples(seconds: float, seed: int = 0) -> dict[str, Any]:
    """Return the samples of a run of four trainers: at most 720, at equal distances."""
    draw = Random(seed)
    count = max(1, min(720, int(seconds)))
    rows = []
    for index in range(1, count + 1):
        at = seconds * index / count
        loss, auc = _learned(at)
        wave = 1 + 0.02 * math.sin(at / 20)
        rows.append(
            [
                at,
                int(120_000 * max(0.0, at - STEADY_S / 2)),
                120_000 * min(1.0, at / STEADY_S) * wave + draw.gauss(0, 900),
                loss + draw.gauss(0, 0.003),
                auc + draw.gauss(0, 0.001) if at > 30 else None,
                1 + draw.gauss(0, 0.02) if at > 30 else None,
                1.0 + draw.gauss(0, 0.05),
                int(40_000_000 * (1 - math.exp(-at / 400))),
                int(6_880_000_000 * (1 - math.exp(-at / 400))),
                9_600_000 + draw.gauss(0, 400_000),
                0.021 + abs(draw.gauss(0, 0.004)),
            ]
        )
    return {"columns": list(COLUMNS), "rows": rows}


class RecordedRun:
    """Source of recorded states, which a test moves on by hand.

    Parameters
    ----------
    servers, trainers : int
    seconds : float
        Seconds that the run has trained for.
    change : callable, optional
        Called with each state before it is shown, to alter it.
    """

    def __init__(
        self,
        servers: int,
        trainers: int,
        seconds: float,
        change: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.servers, self.trainers, self.seconds = servers, trainers, seconds
        self.change = change
        self.number, self.closed = 1, False
        self.dumped: list[tuple[str, int]] = []
        self._turn = threading.Condition()

    def advance(self, seconds: float = 1.0) -> None:
        """Let the run train for some more seconds."""
        with self._turn:
            self.seconds += seconds
            self.number += 1
            self._turn.notify_all()

    def state(self) -> dict[str, Any]:
        """Return the present state."""
        state = recorded_state(self.servers, self.trainers, self.seconds)
        if self.change is not None:
            self.change(state)
        return state

    def samples(self) -> dict[str, Any]:
        """Return the samples so far."""
        return recorded_samples(self.seconds)

    def changed(self, number: int, timeout_s: float) -> int:
        """Wait until there is a newer state than that of a number; return the number of the present one."""
        with self._turn:
            self._turn.wait_for(lambda: self.number > number or self.closed, timeout_s)
            return self.number

    def dump(self, role: str, rank: int) -> str:
        """Return stacks of a process."""
        self.dumped.append((role, rank))
        return f"Thread 0x7f01 (most recent call first):\n  {role} {rank}, in <module>\n"

    def close(self) -> None:
        """End all waits."""
        with self._turn:
            self.closed = True
            self._turn.notify_all()
