"""Freshness: how soon a scorer that follows a training serves what has been pushed, and what that costs.

``python benchmarks/freshness.py [--rows N] [--rate R] [--seconds S] [--follow-s S] [--rounds N]``: a cluster
of two servers over ZeroMQ, in processes of `pslib launch`, whose trainer pushes ``--rate`` (100,000) changed
rows a second, of a table of ``--rows`` (1 million) rows of 16 floats, some of them hot, in pushes of 5,000,
with 100,000 dense parameters; and a follower, in this process.

- ``p50_s``, ``p99_s``: from the acknowledgement of a push until the follower has applied its rows: each push
  writes its time into a row of its own, which the follower looks at after each version;
- ``bytes_share``: bytes that came for versions, by those of a full copy for each version;
- ``rate_share``: rows that a trainer pushes a second that computes between pushes, so long that it makes
  ``--rate`` alone, while the follower followed, by those without it; median of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from pslib import SGD, Constant, PartSpec, TableSpec, connect
from pslib.clock import SystemClock
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.serving.follower import Follower
from pslib.serving.settings import ServeSettings
from pslib.table.tables import DenseSpec
from pslib.trainer.pipeline.dense import DenseLayout

DIM, FLOATS, PUSH_ROWS = 16, 100_000, 5_000
SPEC = TableSpec("t", (PartSpec("v", DIM, SGD(learning_rate=1.0), Constant(0.0)),))
CLOCK_KEY = 1 << 60
"""Keys from here on are rows of pushes: their first float is the time of the acknowledgement before."""


def train(folder: Path, rows: int, rate: float, seconds: float, rounds: int) -> None:
    """Push for so many seconds at the rate, then in rounds with work between, followed or not."""
    choice = np.random.default_rng(0)
    with connect() as cluster:
        client = cluster.client
        client.setup([SPEC], DenseSpec(FLOATS, SGD()), np.zeros(FLOATS, np.float32))
        for start in range(0, rows, 100_000):
            keys = np.arange(start, min(start + 100_000, rows), dtype=np.uint64)
            client.push({"t": (keys, np.ones((keys.size, DIM), np.float32))}).wait()
        (folder / "ready").touch()
        gradients = choice.standard_normal((PUSH_ROWS + 1, DIM)).astype(np.float32)

        def push(number: int) -> None:
            keys = np.unique((rows * choice.random(PUSH_ROWS) ** 2).astype(np.uint64))
            keys = np.append(keys, np.uint64(CLOCK_KEY + number))
            client.push({"t": (keys, gradients[: keys.size])}, np.ones(FLOATS, np.float32)).wait()

        _wait(folder / "begin")
        acknowledged, pushed, began_s = [], 0, time.monotonic()
        while time.monotonic() < began_s + seconds:
            push(len(acknowledged))
            acknowledged.append(time.monotonic())
            pushed += PUSH_ROWS
            time.sleep(max(0.0, began_s + pushed / rate - time.monotonic()))
        (folder / "pushes.part").write_text(
            json.dumps({"acknowledged": acknowledged, "rate": pushed / (time.monotonic() - began_s)})
        )
        (folder / "pushes.part").rename(folder / "pushes.json")
        matrix, began_s, products = np.ones((128, 128), np.float32), time.monotonic(), 0
        while time.monotonic() < began_s + PUSH_ROWS / rate - 0.005:
            matrix @ matrix
            products += 1
        for number in range(2 * rounds):
            _wait(folder / f"round-{number}")
            began_s, pushed = time.monotonic(), 0
            while time.monotonic() < began_s + seconds / 2:
                for _ in range(products):
                    matrix @ matrix
                push(0)
                pushed += PUSH_ROWS
            (folder / "rate.part").write_text(str(pushed / (time.monotonic() - began_s)))
            (folder / "rate.part").rename(folder / f"rate-{number}")


def _wait(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def follow(folder: Path, follow_s: float) -> tuple[Follower, FollowedParameters]:
    """Begin to follow, with the first copy."""
    settings = ServeSettings(follow_s=follow_s)
    follower = Follower(str(folder / "out"), None, settings, SystemClock(), print)
    parameters = follower.open("", cast(Any, None), SPEC, DenseLayout({"w": (FLOATS,)}))
    follower.start()
    return follower, parameters


def watch_pushes(folder: Path, parameters: FollowedParameters) -> dict[int, float]:
    """Return when the row of each push was first there, until all are."""
    seen: dict[int, float] = {}
    version = -1
    while True:
        over = (folder / "pushes.json").exists()
        if parameters.version != version:
            version = parameters.version
            keys = np.arange(CLOCK_KEY + len(seen), CLOCK_KEY + len(seen) + 1000, dtype=np.uint64)
            with parameters.reading():
                there = int((parameters.rows(keys) != 0).any(axis=1).sum())
            seen |= dict.fromkeys(range(len(seen), len(seen) + there), time.monotonic())
        if over and len(seen) >= len(json.loads((folder / "pushes.json").read_text())["acknowledged"]):
            return seen
        time.sleep(0.002)


def measure(folder: Path, rows: int, follow_s: float, rounds: int) -> dict[str, float]:
    """Follow the training in a folder, and return the figures."""
    _wait(folder / "ready")
    began_s = time.monotonic()
    follower, parameters = follow(folder, follow_s)
    copy_s, copied = time.monotonic() - began_s, parameters.count
    first_bytes, first_version = follower.bytes, parameters.version
    (folder / "begin").touch()
    seen = watch_pushes(folder, parameters)
    pushes = json.loads((folder / "pushes.json").read_text())
    late = np.array([seen[n] - at for n, at in enumerate(pushes["acknowledged"])])
    versions, sent = parameters.version - first_version, follower.bytes - first_bytes
    follower.close()
    rates: list[list[float]] = [[], []]
    for number in range(2 * rounds):
        follower = follow(folder, follow_s)[0] if number % 2 else None
        (folder / f"round-{number}").touch()
        _wait(folder / f"rate-{number}")
        rates[number % 2].append(float((folder / f"rate-{number}").read_text()))
        if follower is not None:
            follower.close()
    full = rows * (8 + 4 * DIM) + 4 * FLOATS
    return {
        "rows_per_s": pushes["rate"],
        "first_copy_s": copy_s,
        "first_copy_rows": copied,
        "versions": versions,
        "p50_s": float(np.percentile(late, 50)),
        "p99_s": float(np.percentile(late, 99)),
        "max_s": float(late.max()),
        "bytes_per_changed_row": sent
        / (pushes["rate"] * (pushes["acknowledged"][-1] - pushes["acknowledged"][0])),
        "bytes_share": sent / max(1, versions) / full,
        "rate_share": statistics.median(b / a for a, b in zip(*rates, strict=True)),
        "rows_per_s_alone": statistics.median(rates[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=100_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--follow-s", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a table of 50,000 rows, for 2 seconds")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.rows, given.seconds, given.rounds = 50_000, 2.0, 1
    if given.train:
        train(given.train, given.rows, given.rate, given.seconds, given.rounds)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "launch.cli.main", "launch", "--servers", "2", "--trainers", "1"]
        script = ["--train", name, *sys.argv[1:]]
        running = subprocess.Popen(
            [*command, "--out", str(folder / "out"), __file__, *script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            figures = measure(folder, given.rows, given.follow_s, given.rounds)
        finally:
            running.terminate()
            running.wait()
    for key, value in figures.items():
        print(f"{key:24} {value:,.4g}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
