"""Pull and push through real sockets between processes, beside bare ZeroMQ; latency of small pulls.

``python benchmarks/wire.py [--only large|latency|shards] [--quick] [--rounds R] [--rows N] [--json FILE]
[--chart FILE]``

A coordinator, one server and a bare ZeroMQ server (ROUTER, tcp, the same sizes of messages, nothing done with
them) are processes of their own; this one is the client of both.

Large requests: pslib and bare ZeroMQ take turns in random order, each figure is a median over rounds, and the
share is pslib's rate over the bare one's of the same run. ``pull`` takes 106,496 Zipf(1.05) keys as they are
drawn, ``pull_distinct`` and ``push_distinct`` as many distinct ones.

Small pulls: the time of a pull of 1, 10 and 100 keys on an idle server, and of 100 keys while another process
pushes 106,496 keys at full rate; the same of the bare server while another process floods it; and the time of
one slice (8,192 rows pushed on a shard of this process). pslib and the bare server take turns in five blocks,
each with a flood of its own, one first in every second; figures are medians over the blocks' own percentiles,
and ``blocks_p99_us`` lists those of each block under the flood.

Shard threads: one client with four large requests on the way, servers with 1, 2, 4, ... threads; and shards
alone, threads of this process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from wire_processes import DIM, SCATTER, TABLES, Bare, bare_server, cluster, joined, make_rows, pusher

from cython_ext.wire.selection import group_by_owner
from pslib.client.client import Client
from pslib.client.session import PushName
from pslib.shard.shard import Shard
from pslib.shard.state import SLICE_ROWS
from pslib.wire.messages import Push, Setup

KEYS = 106_496  # 4,096 examples of 26 fields
SMALL = (1, 10, 100)
SMALL_ROWS = 1_000_000
"""Small pulls ask for rows that every size of table here has."""
STREAM = (1 << 63) + 1

Begin = Callable[[], Callable[[], object]]
"""Sends a request; what it returns waits for the answer."""
Ask = Callable[[np.ndarray], Callable[[], object]]
"""The same of a pull of these keys."""
BLOCKS = 5
"""Turns of pslib and of bare ZeroMQ, of small pulls."""


def zipf_numbers(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Numbers of rows, Zipf(1.05), with repeats."""
    found = np.empty(0, np.int64)
    while found.size < count:
        drawn = rng.zipf(1.05, 4 * count)
        found = np.concatenate([found, drawn[drawn <= rows] - 1])
    return found[:count]


def zipf_keys(rng: np.random.Generator, rows: int, count: int, distinct: bool) -> np.ndarray:
    """So many Zipf(1.05) keys, as they are drawn, or distinct in the order in which they first came."""
    size = count
    while True:
        numbers = zipf_numbers(rng, rows, size)
        if distinct:
            _values, first = np.unique(numbers, return_index=True)
            numbers = numbers[np.sort(first)]
        if numbers.size >= count:
            return numbers[:count].astype(np.uint64) * SCATTER
        size *= 2


def requests(client: Client, bare: Bare, rng: np.random.Generator, rows: int) -> dict[str, Begin]:
    """Large requests, each of KEYS rows; pslib's and the bare one of the same sizes."""
    drawn = [zipf_keys(rng, rows, KEYS, distinct=False) for _ in range(4)]
    distinct = [zipf_keys(rng, rows, KEYS, distinct=True) for _ in range(4)]
    gradients = np.full((KEYS, DIM), 0.01, np.float32)
    number = iter(range(1 << 60))
    turn = iter(range(1 << 60))

    def pull(batches: list[np.ndarray]) -> Begin:
        return lambda: client.pull({"rows": batches[next(turn) % 4]}).wait

    def push() -> Callable[[], object]:
        pushed = {"rows": (distinct[next(turn) % 4], gradients)}
        return client.push(pushed, name=PushName(STREAM, next(number))).wait

    return {
        "pull": pull(drawn),
        "pull_distinct": pull(distinct),
        "push_distinct": push,
        "bare_pull": lambda: bare.begin_pull(drawn[next(turn) % 4]),
        "bare_push": lambda: bare.begin_push(distinct[next(turn) % 4], gradients),
    }


def seconds_each(begin: Begin, count: int, in_flight: int) -> float:
    """Seconds a request when always so many are on their way."""
    start = time.perf_counter()
    waits = [begin() for _ in range(in_flight)]
    for _ in range(count - in_flight):
        waits.pop(0)()
        waits.append(begin())
    for wait in waits:
        wait()
    return (time.perf_counter() - start) / count


def large(client: Client, bare: Bare, rows: int, rounds: int) -> dict[str, Any]:
    """Million rows a second of each kind of request, and pslib's share of the bare rate."""
    rng = np.random.default_rng(1)
    cases = requests(client, bare, rng, rows)
    spent: dict[tuple[str, int], list[float]] = {(name, depth): [] for name in cases for depth in (1, 2)}
    for _ in range(rounds):
        for name, depth in rng.permutation(np.array(list(spent), object)):
            spent[name, depth].append(seconds_each(cases[name], 6, depth))
    rates = {key: KEYS / statistics.median(each) / 1e6 for key, each in spent.items()}
    figures: dict[str, Any] = {}
    for (name, depth), rate in rates.items():
        where = figures.setdefault(f"{depth}_on_the_way", {})
        where[f"{name}_mrows_s"] = rate
        if not name.startswith("bare"):
            where[f"{name}_of_bare"] = rate / rates["bare_" + name.partition("_")[0], depth]
    return figures


def small_pulls(ask: Ask, count: int, times: int, rng: np.random.Generator) -> dict[str, float]:
    """Microseconds of pulls of so many keys, one after the other."""
    spent = []
    for _ in range(times):
        keys = rng.integers(0, SMALL_ROWS, count).astype(np.uint64) * SCATTER
        start = time.perf_counter()
        ask(keys)()
        spent.append(time.perf_counter() - start)
    return {f"p{p}_us": float(np.percentile(spent, p)) * 1e6 for p in (50, 99)}


def slice_us(rows: int) -> dict[str, float]:
    """Microseconds in which a shard of this process pushes, and pulls, one slice; medians."""
    shard = Shard(12, 64)
    shard.own(np.arange(4096 + 64))
    tables = {"tables": [spec.to_dict() for spec in TABLES]}
    shard.setup(Setup(tables, 0, {}, np.empty(0, np.float32)))
    store, rng = shard.stores["rows"], np.random.default_rng(3)
    for start in range(0, rows, 500_000):
        keys = np.arange(start, min(start + 500_000, rows), dtype=np.uint64) * SCATTER
        store.push(keys, np.ones((keys.size, DIM), np.float32))
    gradients, out = np.full((SLICE_ROWS, DIM), 0.01, np.float32), np.empty((SLICE_ROWS, DIM), np.float32)
    pushed, pulled = [], []
    for number in range(200):
        keys = rng.choice(rows, SLICE_ROWS, replace=False, shuffle=False).astype(np.uint64) * SCATTER
        nothing = np.empty(0, np.uint32), np.empty(0, np.float32)
        push = Push(1, number, 0, number, 0, {"rows": keys}, {"rows": gradients}, *nothing)
        start_s = time.perf_counter()
        shard.push(push)
        middle_s = time.perf_counter()
        store.pull(keys, out)
        pushed.append(middle_s - start_s)
        pulled.append(time.perf_counter() - middle_s)
    return {"push_us": statistics.median(pushed) * 1e6, "pull_us": statistics.median(pulled) * 1e6}


def latency(client: Client, bare: Bare, cluster: tuple[str, str], rows: int, times: int) -> dict[str, Any]:
    """Small pulls on an idle server, and while another process pushes; pslib and bare ZeroMQ in turns."""

    def ask(keys: np.ndarray) -> Callable[[], object]:
        return client.pull({"rows": keys}).wait

    asked: dict[str, tuple[Ask, tuple[str, str]]] = {
        "pslib": (ask, cluster),
        "bare": (bare.begin_pull, (bare.address, "")),
    }
    report: dict[str, Any] = {"slice": slice_us(min(rows, 3_000_000))}
    blocks: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in asked}
    rng = np.random.default_rng(2)
    for block in range(BLOCKS):
        for name in sorted(asked, reverse=block % 2 == 0):
            blocks[name].append(latency_block(name, *asked[name], rows, times, rng))
    for name, each in blocks.items():
        report[name] = {case: medians_of([one[case] for one in each]) for case in each[0]}
        report[name]["blocks_p99_us"] = [round(one["100_pushing"]["p99_us"]) for one in each]
        bound_us = report[name]["100"]["p50_us"] + report["slice"]["push_us"]
        report[name]["p99_pushing_of_bound"] = report[name]["100_pushing"]["p99_us"] / bound_us
    return report


def latency_block(
    name: str, ask: Ask, where: tuple[str, str], rows: int, times: int, rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """One turn: so many pulls of each size, and of 100 keys under a flood that begins and ends with it."""
    figures = {str(count): small_pulls(ask, count, times, rng) for count in SMALL}
    with pusher(name, *where, rows, KEYS, in_flight=2) as rate:
        small_pulls(ask, 100, times // 10, rng)
        figures["100_pushing"] = small_pulls(ask, 100, times, rng)
    return figures | {"pusher": {"mrows_s": rate[0]}}


def medians_of(blocks: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(one[name] for one in blocks) for name in blocks[0]}


# --- shard threads -----------------------------------------------------------------------------------------


class AloneShards:
    """Shard threads of this process, without a wire."""

    def __init__(self, threads: int, rows: int) -> None:
        self.threads, self._rows = threads, rows
        self._pool = ThreadPoolExecutor(threads)
        self._owner = (np.arange(4096) % threads).astype(np.uint16)
        tables = {"tables": [spec.to_dict() for spec in TABLES]}
        self._stores = []
        for index in range(threads):
            shard = Shard(12, 64, index, threads)
            shard.setup(Setup(tables, 0, {}, np.empty(0, np.float32)))
            self._stores.append(shard.stores["rows"])
        for start in range(0, rows, 100_000):
            keys = np.arange(start, min(start + 100_000, rows), dtype=np.uint64) * SCATTER
            self.each("push", keys, np.ones((keys.size, DIM), np.float32))

    def each(self, what: str, keys: np.ndarray, floats: np.ndarray) -> float:
        """Seconds in which all threads together push, or pull, these keys."""
        grouped = np.empty_like(keys)
        _order, starts = group_by_owner(keys, 12, self._owner, self.threads, grouped)

        def work(index: int) -> None:
            mine, store = slice(starts[index], starts[index + 1]), self._stores[index]
            (store.push if what == "push" else store.pull)(grouped[mine], floats[mine])

        start_s = time.perf_counter()
        list(self._pool.map(work, range(self.threads)))
        return time.perf_counter() - start_s


def alone_curve(counts: list[int], rows: int, rounds: int) -> dict[int, dict[str, float]]:
    """Million rows a second of shards alone; numbers of threads take turns."""
    rng, floats = np.random.default_rng(5), np.full((KEYS, DIM), 0.01, np.float32)
    contenders = [AloneShards(count, rows) for count in counts]
    spent: dict[tuple[int, str], list[float]] = {}
    for _ in range(4 * rounds):
        keys = rng.choice(rows, KEYS, replace=False, shuffle=False).astype(np.uint64) * SCATTER
        for one in contenders:
            for what in ("push", "pull"):
                spent.setdefault((one.threads, what), []).append(one.each(what, keys, floats))
    rates = {key: KEYS / statistics.median(each) / 1e6 for key, each in spent.items()}
    return {n: {f"{what}_mrows_s": rates[n, what] for what in ("push", "pull")} for n in counts}


def wire_curve(counts: list[int], rows: int, rounds: int) -> dict[int, dict[str, float]]:
    """The same through sockets, four requests on the way; servers with so many threads take turns."""
    rng, gradients = np.random.default_rng(4), np.full((KEYS, DIM), 0.01, np.float32)
    batches = [rng.choice(rows, KEYS, replace=False).astype(np.uint64) * SCATTER for _ in range(4)]
    number, spent = iter(range(1 << 60)), {}
    with ExitStack() as stack:
        cases: dict[tuple[int, str], Begin] = {}
        for count in counts:
            address, cluster_id, _pids = stack.enter_context(cluster(1, count))
            client = stack.enter_context(joined(address, cluster_id))
            make_rows(client, rows)

            def push(client: Client = client) -> Callable[[], object]:
                n = next(number)
                return client.push({"rows": (batches[n % 4], gradients)}, name=PushName(STREAM, n)).wait

            def pull(client: Client = client) -> Callable[[], object]:
                return client.pull({"rows": batches[next(number) % 4]}).wait

            cases |= {(count, "pull"): pull, (count, "push"): push}
        for _ in range(rounds):
            for case, begin in cases.items():
                spent.setdefault(case, []).append(seconds_each(begin, 8, 4))
    rates = {case: KEYS / statistics.median(each) / 1e6 for case, each in spent.items()}
    return {n: {f"{what}_mrows_s": rates[n, what] for what in ("push", "pull")} for n in counts}


def shard_curve(rows: int, rounds: int) -> dict[str, Any]:
    """1, 2, 4, ... shard threads, up to the cores."""
    counts = [count for count in (1, 2, 4, 8) if count <= max(2, os.cpu_count() or 1)]
    wire, alone = wire_curve(counts, rows, rounds), alone_curve(counts, rows, rounds)
    return {str(count): {"wire": wire[count], "alone": alone[count]} for count in counts}


def draw(curve: dict[str, Any], path: Path) -> None:
    """Rows a second by shard threads."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    threads = [int(count) for count in curve]
    for where, style in (("wire", "-o"), ("alone", "--s")):
        for what, colour in (("pull", "tab:blue"), ("push", "tab:orange")):
            rates = [curve[str(count)][where][f"{what}_mrows_s"] for count in threads]
            said = "through sockets" if where == "wire" else "shards alone"
            axes.plot(threads, rates, style, color=colour, label=f"{what}, {said}")
    axes.set(xlabel="shard threads of one server", ylabel="million rows/s", xticks=threads)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: to see that it runs")
    parser.add_argument("--only", choices=("large", "latency", "shards"), help="one part")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="a picture of the shard threads")
    options = parser.parse_args()
    rows, rounds = (1_000_000, 3) if options.quick else (options.rows, options.rounds)
    report: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "rows": rows}
    if options.only != "shards":
        with (
            cluster(1, 1) as (address, cluster_id, _pids),
            joined(address, cluster_id) as client,
            bare_server() as bare,
        ):
            make_rows(client, rows)
            if options.only != "latency":
                report["large"] = large(client, bare, rows, rounds)
            if options.only != "large":
                report["latency"] = latency(client, bare, (address, cluster_id), rows, 20 * rounds)
    if options.only in (None, "shards"):
        report["shard_threads"] = shard_curve(min(rows, 3_000_000), rounds)
        if options.chart:
            draw(report["shard_threads"], options.chart)
    text = json.dumps(rounded(report), indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers as one reads them."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return round(value, 3 if value < 100 else 0) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
