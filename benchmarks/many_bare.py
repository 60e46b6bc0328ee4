"""Measure the cost of a message in ZeroMQ alone, in the shape of `many.py`: the floor for any use of pyzmq.

As many servers and clients as processes, at Unix sockets as processes of one machine meet (at the loopback
address with ``PSLIB_SAME_HOST=tcp``). In a round each client sends 300 bytes to every server and takes an
echo from each; nothing is read, looked up or kept. A message is one of either, as in `many.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import zmq

BYTES = 300


def process_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process, as the scheduler counts them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def serve() -> None:
    """Run a server: an echo."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as frames:
        if os.environ.get("PSLIB_SAME_HOST") == "tcp":
            frames.bind("tcp://127.0.0.1:*")
        else:
            frames.bind(f"ipc://@many-bare-{os.getpid()}")
        print(frames.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
        while True:
            frames.send_multipart(frames.recv_multipart())


def ask(rounds: int, addresses: Sequence[str]) -> None:
    """Run a client: one socket to all servers; one line of input starts the rounds, another ends it."""
    names = [b"%d" % number for number in range(len(addresses))]
    with zmq.Context() as context, context.socket(zmq.ROUTER) as frames:
        for name, address in zip(names, addresses, strict=True):
            frames.setsockopt(zmq.CONNECT_ROUTING_ID, name)
            frames.connect(address)
        body = bytes(BYTES)
        for round_number in range(rounds + 1):
            for name in names:
                frames.send_multipart([name, body])
            for _ in names:
                frames.recv_multipart()
            if round_number == 0:  # all are connected
                print("ready", flush=True)
                sys.stdin.readline()
        print("done", flush=True)
        sys.stdin.readline()


def bare_us(servers: int, clients: int, messages: int = 40_000) -> float:
    """CPU microseconds a message, both ends, over about so many messages."""
    rounds = max(10, messages // (2 * servers * clients))
    command = [sys.executable, str(Path(__file__).resolve())]
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, text=True))
        return processes[-1]

    try:
        addresses = [_hear(one) for one in [start("serve") for _ in range(servers)]]
        asking = [start("ask", str(rounds), *addresses) for _ in range(clients)]
        for one in asking:
            _hear(one)
        before_s = sum(process_cpu_s(one.pid) for one in processes)
        for one in asking:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        for one in asking:
            _hear(one)
        spent_s = sum(process_cpu_s(one.pid) for one in processes) - before_s
    finally:
        for one in processes:
            one.kill()
            one.communicate()
    return spent_s / (2 * rounds * servers * clients) * 1e6


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit(f"benchmarks/many_bare.py: {process.args} ended before it spoke")
    return line


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        ask(int(sys.argv[2]), sys.argv[3:])
