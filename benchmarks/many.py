"""Hundreds of processes: what a message costs when each of many servers is asked for a few keys.

``python benchmarks/many.py [--servers 1,4,16,64,128] [--trainers 64] [--json FILE] [--chart FILE] [--quick]``

For each number of servers it starts a coordinator, the servers and the trainers as processes of their own, as
``pslib launch`` would. Each trainer joins, makes one small table and waits; when all are there, each pulls
and pushes ``--keys`` random keys a server for ``--rounds`` rounds and leaves. One request goes to every
server, so with 128 servers a round of one trainer is 128 pulls, 128 pushes and as many answers.

A *message* is a request or an answer: a round trip is two. Its cost is the CPU time (user and system, of all
threads of all processes, as the scheduler counts it) between the first and the last round, over the messages
that trainers sent and received meanwhile. Heartbeats and the coordinator are in the time and not in the
count. Kernels (look-ups and optimizer steps of the table) are in it too: their share is measured in this
process on a table of the same size, and printed beside the whole, as is what ZeroMQ alone takes for a message
in the same shape (`many_bare.py`). Memory is private (``smaps_rollup``), before any data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from many_bare import bare_us, process_cpu_s

from pslib.config import ClusterConfig, Timing
from pslib.errors import WaitTimeoutError

DIM = 16
TABLE = "rows"
KEYS_LIVE = 1_000_000
SERVERS = (1, 4, 16, 64, 128)


def private_bytes(pid: int | str = "self") -> int:
    """Memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10


def files_open(pid: int | str = "self") -> int:
    """File descriptors in use."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def trainer_script(rounds: int, keys_a_server: int) -> None:
    """Run one trainer: join, say so, wait for the word, work, report, wait, leave."""
    import pslib

    cluster = pslib.connect()
    client = cluster.client
    client.setup([pslib.TableSpec(TABLE, (pslib.PartSpec("v", DIM, pslib.RowwiseAdagrad()),))])
    rng = np.random.default_rng(cluster.rank)
    count = keys_a_server * len(client.servers)
    _say("ready", {"private_bytes": private_bytes(), "files": files_open()})
    for command in map(str.strip, sys.stdin):
        if command == "work":
            _say("worked", _work(client, rng, rounds, count))
        elif command == "stats":
            _say("stats", {name: client.stats()[name] for name in ("pushes_applied", "updates_applied")})
        elif command == "leave":
            break
    cluster.close()


def _work(client: Any, rng: np.random.Generator, rounds: int, count: int) -> dict[str, Any]:
    endpoint, session = client.endpoint, client.session
    before = (endpoint.messages_sent, endpoint.messages_received)
    seconds, timeouts = [], 0
    for _ in range(rounds):
        keys = np.unique(rng.integers(0, KEYS_LIVE, count, dtype=np.uint64))
        start_s = time.monotonic()
        try:
            rows = client.pull({TABLE: keys}).wait().rows[TABLE]
            client.push({TABLE: (keys, rows * np.float32(0.01))}).wait()
        except WaitTimeoutError:
            timeouts += 1
        seconds.append(time.monotonic() - start_s)
    return {
        "messages": endpoint.messages_sent + endpoint.messages_received - sum(before),
        "resent": endpoint.requests.resent,
        "timeouts": timeouts,
        "pushes_sent": session.pushes_sent,
        "updates_sent": session.updates_sent,
        "round_seconds": seconds,
        "private_bytes_after": private_bytes(),
        "files": files_open(),
    }


def _say(word: str, values: dict[str, Any]) -> None:
    print(f"many-{word} {json.dumps(values)}", flush=True)


class Process:
    """A worker of the cluster and the pipe to it."""

    def __init__(self, role: str, *arguments: str) -> None:
        self.role = role
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch.worker.main", role, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )

        self.pid = self._process.pid

    def hear(self, word: str) -> str:
        """The rest of the next line that begins with ``word``."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word + " "):
                return line[len(word) :].strip()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()[-1:]
        raise RuntimeError(f"{self.role} {self.pid} ended before it said {word}: {said}")

    def say(self, command: str) -> None:
        """A line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        """CPU seconds of all its threads."""
        return process_cpu_s(self.pid)

    def wait(self, limit_s: float) -> int:
        """The exit code."""
        return self._process.wait(limit_s)

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, in the units of the names; medians where there are many processes."""

    servers: int
    trainers: int
    rounds: int
    keys_a_server: int
    sent_is_applied: bool
    timeouts: int
    resent: int
    messages: int
    start_seconds: float
    work_seconds: float
    cpu_seconds: float
    message_cpu_us: float
    message_kernels_us: float
    message_cpu_outside_kernels_us: float
    message_bare_zeromq_us: float
    cpu_us_servers: float
    cpu_us_trainers: float
    cpu_us_coordinator: float
    round_p50_ms: float
    round_p99_ms: float
    server_private_mb: float
    trainer_private_mb: float
    coordinator_private_mb: float
    server_files: int
    trainer_files: int
    coordinator_files: int


class Cluster:
    """All processes of one run."""

    def __init__(self, servers: int, trainers: int, rounds: int, keys_a_server: int) -> None:
        self.shape = {
            "servers": servers,
            "trainers": trainers,
            "rounds": rounds,
            "keys_a_server": keys_a_server,
        }
        config = ClusterConfig(
            servers=servers, trainers=trainers, timing=Timing(start_s=300.0, silence_s=60.0)
        )
        self.all: list[Process] = []
        self._start_s = time.monotonic()
        identity = ["--cluster-id", f"many-{os.getpid()}"]
        listen = [*identity, "--listen", "tcp://127.0.0.1:0"]
        self.coordinator = self._add("coordinator", *listen, "--config", json.dumps(config.to_dict()))
        address = ["--coordinator", self.coordinator.hear("pslib-listening")]
        self.servers = [self._add("server", *listen, *address) for _ in range(servers)]
        script = [str(Path(__file__).resolve()), "--as-trainer", f"{rounds},{keys_a_server}"]
        self.trainers = [self._add("trainer", *identity, *address, *script) for _ in range(trainers)]

    def _add(self, role: str, *arguments: str) -> Process:
        self.all.append(Process(role, *arguments))
        return self.all[-1]

    def run(self, message_bare_us: float) -> Figures:
        """Start, work, leave; what came of it."""
        ready = self._ask_trainers(None, "ready")
        start_seconds = time.monotonic() - self._start_s
        servers_private = [private_bytes(server.pid) for server in self.servers]
        cpu_before = self._cpu()
        begun_s = time.monotonic()
        worked = self._ask_trainers("work", "worked")
        work_seconds = time.monotonic() - begun_s
        cpu = {role: after - cpu_before[role] for role, after in self._cpu().items()}
        self.trainers[0].say("stats")
        applied = json.loads(self.trainers[0].hear("many-stats"))
        files = {one.role: files_open(one.pid) for one in (self.coordinator, self.servers[0])}
        coordinator_private = private_bytes(self.coordinator.pid)
        for one in self.trainers:
            one.say("leave")
        codes = [one.wait(120.0) for one in (*self.trainers, *self.servers)]
        assert not any(codes), f"exit codes: {sorted(set(codes))}"
        messages = sum(one["messages"] for one in worked)
        cost = {role: seconds / messages * 1e6 for role, seconds in cpu.items()}
        kernels = kernels_us(self.shape["keys_a_server"], len(self.servers))
        rounds = [seconds * 1e3 for one in worked for seconds in one["round_seconds"]]
        sent = {name: sum(one[name] for one in worked) for name in ("pushes_sent", "updates_sent")}
        return Figures(
            **self.shape,
            sent_is_applied=sent["pushes_sent"] == applied["pushes_applied"]
            and sent["updates_sent"] == applied["updates_applied"],
            timeouts=sum(one["timeouts"] for one in worked),
            resent=sum(one["resent"] for one in worked),
            messages=messages,
            start_seconds=start_seconds,
            work_seconds=work_seconds,
            cpu_seconds=sum(cpu.values()),
            message_cpu_us=sum(cost.values()),
            message_kernels_us=kernels,
            message_cpu_outside_kernels_us=sum(cost.values()) - kernels,
            message_bare_zeromq_us=message_bare_us,
            cpu_us_servers=cost["server"],
            cpu_us_trainers=cost["trainer"],
            cpu_us_coordinator=cost["coordinator"],
            round_p50_ms=float(np.percentile(rounds, 50)),
            round_p99_ms=float(np.percentile(rounds, 99)),
            server_private_mb=statistics.median(servers_private) / 1e6,
            trainer_private_mb=statistics.median(one["private_bytes"] for one in ready) / 1e6,
            coordinator_private_mb=coordinator_private / 1e6,
            server_files=files["server"],
            trainer_files=max(one["files"] for one in worked),
            coordinator_files=files["coordinator"],
        )

    def _cpu(self) -> dict[str, float]:
        cpu = dict.fromkeys(("coordinator", "server", "trainer"), 0.0)
        for one in self.all:
            cpu[one.role] += one.cpu_s()
        return cpu

    def _ask_trainers(self, command: str | None, answer: str) -> list[dict[str, Any]]:
        for one in self.trainers if command else ():
            one.say(str(command))
        return [json.loads(one.hear(f"many-{answer}")) for one in self.trainers]

    def close(self) -> None:
        """End the remaining processes."""
        for one in self.all:
            one.kill()


def kernels_us(keys: int, servers: int) -> float:
    """Kernels' microseconds a message.

    A quarter of one pull and one push on a server's table, with their sorting by owner on the trainer.
    """
    from cython_ext.data.distinct import partitions_touched
    from cython_ext.wire.selection import group_by_owner
    from pslib.shard.stores import make_store
    from pslib.table.optimizers import RowwiseAdagrad
    from pslib.table.tables import PartSpec, TableSpec

    bits, repeats = 12, 2000
    store = make_store(TableSpec(TABLE, (PartSpec("v", DIM, RowwiseAdagrad()),)), bits)
    rng = np.random.default_rng(0)
    live = rng.integers(0, KEYS_LIVE, KEYS_LIVE // servers, dtype=np.uint64)
    store.push(np.unique(live), np.ones((np.unique(live).size, DIM), np.float32))
    owners = (np.arange(1 << bits) * servers >> bits).astype(np.uint16)
    few = [np.unique(rng.choice(live, keys)) for _ in range(repeats)]
    many = [np.unique(rng.choice(live, keys * servers)) for _ in range(max(1, repeats // servers))]
    out = np.zeros((keys, DIM), np.float32)
    start_s = time.process_time()
    for asked in few:
        store.pull(asked, out[: asked.size])
        store.push(asked, out[: asked.size])
    for asked in many:
        group_by_owner(asked, bits, owners, servers)
        group_by_owner(asked, bits, owners, servers)
        partitions_touched(asked, bits)
    return (time.process_time() - start_s) / repeats / 4 * 1e6


def run(servers: int, trainers: int, rounds: int, keys_a_server: int) -> Figures:
    message_bare_us = bare_us(servers, trainers)
    cluster = Cluster(servers, trainers, rounds, keys_a_server)
    try:
        return cluster.run(message_bare_us)
    finally:
        cluster.close()


def main() -> None:
    """Measure, print, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default=",".join(map(str, SERVERS)))
    parser.add_argument("--trainers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=0, help="0: as many as make 400,000 messages")
    parser.add_argument("--keys", type=int, default=4, help="drawn for each server and round")
    parser.add_argument("--quick", action="store_true", help="1 and 4 servers, 4 trainers")
    parser.add_argument("--json", help="figures of other numbers of servers in this file stay")
    parser.add_argument("--chart", help="a PNG")
    parser.add_argument("--as-trainer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_trainer:
        trainer_script(*map(int, options.as_trainer.split(",")))
        return
    counts = [1, 4] if options.quick else [int(count) for count in options.servers.split(",")]
    trainers = 4 if options.quick else options.trainers
    figures = []
    for servers in counts:
        rounds = options.rounds or max(10, min(1000, 400_000 // (4 * servers * trainers)))
        figures.append(run(servers, trainers, rounds, options.keys))
        print("  ".join(f"{name}={_short(value)}" for name, value in asdict(figures[-1]).items()), flush=True)
    if options.json:
        figures = store(figures, Path(options.json))
    if options.chart:
        draw(figures, Path(options.chart))


def store(figures: list[Figures], path: Path) -> list[Figures]:
    """Write figures to a file, beside those of other numbers of servers that are in it; all of them."""
    known = json.loads(path.read_text())["figures"] if path.exists() else []
    all_of_them = {one["servers"]: Figures(**one) for one in known} | {one.servers: one for one in figures}
    merged = [all_of_them[servers] for servers in sorted(all_of_them)]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    path.write_text(json.dumps({"machine": machine, "figures": [asdict(one) for one in merged]}, indent=1))
    return merged


def draw(figures: list[Figures], path: Path) -> None:
    """CPU a message and a round's time against the number of servers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    servers = [one.servers for one in figures]
    chart, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    shares = {
        "servers": [one.cpu_us_servers for one in figures],
        "trainers": [one.cpu_us_trainers for one in figures],
        "coordinator": [one.cpu_us_coordinator for one in figures],
    }
    places = range(len(servers))
    bottom = np.zeros(len(servers))
    for name, values in shares.items():
        left.bar(places, values, bottom=bottom, label=name)
        bottom += values
    bare = [one.message_bare_zeromq_us for one in figures]
    left.plot(places, bare, color="black", marker="_", markersize=24, linestyle="", label="ZeroMQ alone")
    left.axhline(40.0, color="black", linewidth=0.8, linestyle="--", label="the aim, 40")
    left.set(
        xlabel="servers", ylabel="CPU microseconds a message, both ends", xticks=places, xticklabels=servers
    )
    left.legend()
    right.plot(places, [one.round_p50_ms for one in figures], marker="o", label="median")
    right.plot(places, [one.round_p99_ms for one in figures], marker="o", label="99th percentile")
    right.set(
        xlabel="servers", ylabel="milliseconds a round (pull and push)", xticks=places, xticklabels=servers
    )
    right.set_yscale("log")
    right.legend()
    first = figures[0]
    chart.suptitle(
        f"{first.trainers} trainers, {first.keys_a_server} keys a server and request, {os.cpu_count()} cores"
    )
    chart.savefig(path, dpi=120)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
