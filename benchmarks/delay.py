"""Training over a network with delay and loss: what the prefetch hides, and that the ledger is exact.

``python benchmarks/delay.py [--delay-ms 20] [--loss 0.01] [--rows N] [--turns N] [--json FILE] [--quick]``:
coordinator and server run on one host, the trainer on another (`pslib role`). The hosts are network
namespaces, so root is needed. Between them a TCP proxy holds all bytes for half of ``--delay-ms`` each way.
With ``--loss`` each segment of 1,448 bytes is lost with that probability, and all that follows it on its
connection waits for one more delay, as after a fast retransmission of TCP; the kernel's own netem is not
everywhere.

DeepFM (26 fields, dim 16, 400-400-400), batches of 512. In each turn, interleaved: staleness 8 without and
with the delay, staleness 0 without and with it. ``hidden`` is the part of the delay's cost at staleness 0
that staleness 8 does not pay: 1 - (t8 delayed - t8) / (t0 delayed - t0), t being seconds a batch; ``kept`` is
the rate at staleness 8 with the delay over that without. The run with loss comes once, last.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import heapq
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.job.yaml12 import write_yaml
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema

TRAINER, SERVER, COORDINATOR = "10.91.0.1", "10.91.0.2", "10.91.0.3"
LISTENERS = ((SERVER, 7078), (COORDINATOR, 7077))
SEGMENT_BYTES, PIECE_BYTES = 1448, 1 << 16
BATCH_ROWS, STALENESS = 512, 8
CLONE_NEWNET = 0x40000000


def run(*words: str) -> None:
    """Run a command, which must succeed."""
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def hosts() -> Iterator[dict[str, str]]:
    """Two hosts, and the two ends of the line between them; the ends have each other's addresses."""
    names = {role: f"pslib-{os.getpid()}-{role}" for role in ("near", "line-near", "line-far", "far")}
    addresses = {
        "near": [TRAINER],
        "line-near": [SERVER, COORDINATOR],
        "line-far": [TRAINER],
        "far": [SERVER, COORDINATOR],
    }
    try:
        for name in names.values():
            run("ip", "netns", "add", name)
        for number, (one, other) in enumerate((("near", "line-near"), ("far", "line-far"))):
            ends = [f"ps{os.getpid() % 10000}{number}{side}" for side in "ab"]
            run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for role, end in ((one, ends[0]), (other, ends[1])):
                run("ip", "link", "set", end, "netns", names[role])
                inside = ("ip", "netns", "exec", names[role], "ip")
                for address in addresses[role]:
                    run(*inside, "address", "add", f"{address}/24", "dev", end)
                run(*inside, "link", "set", end, "up")
                run(*inside, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def enter(host: str) -> None:
    """Let sockets that this thread makes be those of a host."""
    with open(f"/var/run/netns/{host}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


class Line:
    """The line between the hosts: it carries each connection to the same address of the other end.

    Parameters
    ----------
    near, far : str
        Namespaces of its ends.
    delay_s : float
        Of one way.
    loss : float
        Probability that a segment is lost.
    """

    def __init__(self, near: str, far: str, delay_s: float, loss: float) -> None:
        self._near, self._far, self._delay_s, self._loss = near, far, delay_s, loss
        self._random = random.Random(7)
        self.lost = 0
        self._sockets: list[socket.socket] = []
        ready = threading.Barrier(len(LISTENERS) + 1)
        for address in LISTENERS:
            threading.Thread(target=self._listen, args=(address, ready), daemon=True).start()
        ready.wait(30)

    def close(self) -> None:
        """Break all connections."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self, address: tuple[str, int], ready: threading.Barrier) -> None:
        enter(self._near)
        listener = socket.create_server(address, backlog=64)
        self._sockets.append(listener)
        ready.wait(30)
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near, address), daemon=True).start()

    def _carry(self, near: socket.socket, address: tuple[str, int]) -> None:
        enter(self._far)
        try:
            far = socket.create_connection(address, timeout=10)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        self._sockets += [near, far]
        for source, sink in ((near, far), (far, near)):
            for one in (source, sink):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._one_way, args=(source, sink), daemon=True).start()

    def _one_way(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass bytes on when their time has come, in order."""
        due: list[tuple[float, int, bytes]] = []
        arrived = threading.Condition()
        over = False

        def send() -> None:
            while True:
                with arrived:
                    arrived.wait_for(lambda: due or over)
                    if not due:
                        break
                    due_s, _, data = heapq.heappop(due)
                time.sleep(max(0.0, due_s - time.monotonic()))
                try:
                    sink.sendall(data)
                except OSError:
                    break
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()
        number, last_s = 0, 0.0
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                segments = -(-len(data) // SEGMENT_BYTES)
                lost = sum(self._random.random() < self._loss for _ in range(segments)) if self._loss else 0
                self.lost += lost
                last_s = max(time.monotonic() + self._delay_s, last_s) + lost * 2 * self._delay_s
                with arrived:
                    heapq.heappush(due, (last_s, number, data))
                    arrived.notify()
                number += 1
        with arrived:
            over = True
            arrived.notify()


def job_of(place: Path, config: GeneratorConfig, staleness: int, out: Path) -> dict[str, Any]:
    """Return the job of one run."""
    schema = generated_schema(config)
    return {
        "data": {
            "train": str(place / "train.parquet"),
            "test": str(place / "test.parquet"),
            "schema": {
                "label": schema.label,
                "dense": [field.name for field in schema.dense],
                "sparse": [field.name for field in schema.sparse],
            },
        },
        "model": {"name": "deepfm", "dim": 16, "hidden": [400, 400, 400]},
        "training": {"batch_rows": BATCH_ROWS, "staleness": staleness, "warmup_batches": 1},
        "cluster": {"durability": "log"},
        "out": str(out),
    }


def train(
    folder: Path, place: Path, config: GeneratorConfig, staleness: int, delay_s: float, loss: float
) -> dict:
    """Train once over a new line; return the summary."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary, hosts() as names:
        out = Path(temporary)
        file = out / "job.yaml"
        file.write_text(write_yaml(job_of(place, config, staleness, out / "run")), encoding="utf-8")
        line = Line(names["line-near"], names["line-far"], delay_s, loss)
        common = [str(file), "--cluster-id", "delay", "--insecure-network"]
        coordinator = f"tcp://{COORDINATOR}:7077"
        words = {
            "coordinator": ["--listen", coordinator, "--log", str(out / "log")],
            "server": ["--coordinator", coordinator, "--rank", "0", "--listen", f"tcp://{SERVER}:7078"],
            "trainer": ["--coordinator", coordinator, "--rank", "0"],
        }
        words["server"] += ["--log", str(out / "log")]
        processes = {}
        for role, own in words.items():
            host = names["near" if role == "trainer" else "far"]
            command = ["ip", "netns", "exec", host, sys.executable, "-m", "pslib", "role", role]
            with (out / f"{role}.txt").open("w") as said:
                processes[role] = subprocess.Popen([*command, *common, *own], stdout=said, stderr=said)
        try:
            code = processes["trainer"].wait(1200)
            if code:
                raise SystemExit((out / "trainer.txt").read_text())
            end_s = time.monotonic() + 60
            while not (out / "run" / "summary.json").exists() and time.monotonic() < end_s:
                time.sleep(0.1)
            summary: dict[str, Any] = json.loads((out / "run" / "summary.json").read_text())
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(60)
            line.close()
        return {**summary, "lost": line.lost}


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=20.0, help="there and back")
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one turn of 20,000 rows: that everything runs")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.turns = 20_000, 1
    if os.geteuid():
        raise SystemExit("delay.py: expected root, which makes network namespaces")
    config = GeneratorConfig(train_rows=options.rows, test_rows=5_000, seed=7)
    place = options.folder / f"delay_{options.rows}"
    if not (place / "generated.json").exists():
        generate(place, config, overwrite=True)
    one_way_s = options.delay_ms / 2000
    cases = {(stale, delayed): [] for stale in (STALENESS, 0) for delayed in (False, True)}
    for turn in range(options.turns):
        for stale, delayed in list(cases)[:: -1 if turn % 2 else 1]:
            summary = train(options.folder, place, config, stale, one_way_s if delayed else 0.0, 0.0)
            cases[stale, delayed].append(BATCH_ROWS / summary["examples_per_s"])
            print(
                f"staleness {stale}, {'with' if delayed else 'no'} delay: {summary['examples_per_s']:,.0f}/s"
            )
    lossy = train(options.folder, place, config, STALENESS, one_way_s, options.loss)
    of = {case: statistics.median(seconds) for case, seconds in cases.items()}
    cost_8, cost_0 = (of[stale, True] - of[stale, False] for stale in (STALENESS, 0))
    figures = {
        "delay_ms": options.delay_ms,
        "ms_a_batch": {f"staleness {s}{', delayed' if d else ''}": 1000 * t for (s, d), t in of.items()},
        "hidden": 1 - cost_8 / cost_0,
        "kept": of[STALENESS, False] / of[STALENESS, True],
        "loss": options.loss,
        "lossy_examples_per_s": lossy["examples_per_s"],
        "lost_segments": lossy["lost"],
        **{name: lossy[name] for name in ("examples", "pushes_sent", "pushes_applied", "pushes_missing")},
    }
    print(json.dumps(figures, indent=2))
    if lossy["pushes_sent"] != lossy["pushes_applied"] or lossy["examples"] != options.rows:
        raise SystemExit("the run with loss did not apply each push once")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
