"""Serving of a DeepFM: start, memory, latency at a rate, candidates/s over HTTP and ZeroMQ.

``python benchmarks/serve.py [--rows N] [--seconds S] [--rate N] [--folder DIR] [--json FILE] [--quick]``:
a checkpoint of DeepFM (dim 16, MLP 400-400-400, 26 sparse and 13 dense fields) with ``--rows`` rows
(10 million), made once in ``--folder``, served by `pslib serve` in a process of its own. Clients are threads
of this process, on the same cores:

- ``start_s``: from the start of the process to its first answer; ``memory_mb``: its own memory after it
  (private pages, not those of the mapped file); ``memory_times_rows``: at the end, with the pages of the file
  that it has read, by the bytes of the rows' keys and weights;
- ``http_p50_ms``, ``http_p99_ms``: requests of 10 candidates, binary tensors, at ``--rate`` a second (500)
  whether or not the ones before are answered; time counts from when a request was due;
- ``http_candidates_per_s``, ``zmq_candidates_per_s``: requests of 100 candidates, 4 clients, each asks when
  it is answered.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import fs

import pslib
from pslib.checkpoint import commit, read_manifest
from pslib.checkpoint.arrow_files import write_file
from pslib.checkpoint.manifest import ROWS
from pslib.checkpoint.rows import BatchBuilder, table_schema
from pslib.data.columns import keys_of
from pslib.serving.client import ScoringClient
from pslib.table.tables import RowLayout
from rec_models import DeepFM

SPARSE, DENSE = [f"c{i}" for i in range(26)], [f"d{i}" for i in range(13)]
KEYS_A_FIELD = 400_000
BATCH_ROWS = 8192
CLIENTS = 4


def columns(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return examples with ids of the whole range of each field."""
    sparse = {name: rng.integers(0, KEYS_A_FIELD, rows) for name in SPARSE}
    return sparse | {name: rng.random(rows, np.float32) for name in DENSE}


def checkpoint(folder: Path, rows: int) -> Path:
    """Make a checkpoint with so many rows, unless it is there: that of a short training, and more rows."""
    place = folder / f"deepfm_{rows}"
    if (place / "manifest.json").exists():
        return place
    rng = np.random.default_rng(0)
    table = pa.table(columns(BATCH_ROWS, rng)).append_column("label", [rng.integers(0, 2, BATCH_ROWS)])
    schema = pslib.Schema(label="label", sparse=SPARSE, dense=DENSE)
    with pslib.connect() as cluster:
        model = DeepFM(schema, dim=16, hidden=(400, 400, 400))
        trainer = pslib.Trainer(model, cluster, batch_rows=512, progress=False)
        trainer.fit(table)
        trainer.save(place)
    manifest = read_manifest(str(place))
    (file,) = (one for one in manifest.files if one.table and one.kind == ROWS)
    spec = manifest.specs[file.table]
    builder, layout = BatchBuilder(table_schema(spec), RowLayout.of(spec)), RowLayout.of(spec)
    keys = _keys(schema, rows, rng)

    def batches() -> Any:
        for start in range(0, keys.size, BATCH_ROWS):
            some = keys[start : start + BATCH_ROWS]
            weights = rng.standard_normal((some.size, layout.dim)).astype(np.float32) * np.float32(0.05)
            yield builder.batch(some, weights, np.ones((some.size, layout.state_floats), np.float32))

    name = re.sub(r"\.[0-9a-f]{8}-", ".feedbeef-", file.name)
    sums, count = write_file(fs.LocalFileSystem(), str(place), name, table_schema(spec), batches())
    larger = replace(
        file, name=name, bytes=sums.bytes, crc32=sums.crc32, rows=count, blocks=tuple(sums.blocks)
    )
    commit(str(place), replace(manifest, files=[larger if one is file else one for one in manifest.files]))
    return place


def _keys(schema: pslib.Schema, rows: int, rng: np.random.Generator) -> Any:
    """Return keys of the ids that requests have, as far as there are rows, in any order."""
    each = pa.array(range(min(KEYS_A_FIELD, rows // len(SPARSE) + 1)), pa.int64())
    return rng.permutation(np.unique(np.concatenate([keys_of(each, one.salt) for one in schema.sparse])))[
        :rows
    ]


class Server:
    """`pslib serve` in a process of its own."""

    def __init__(self, place: Path) -> None:
        command = [sys.executable, "-m", "launch.cli.main", "serve", f"m={place}", "--refresh-s", "0"]
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--zmq", "tcp://127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        )
        self.port, self.zmq = 0, ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.port = int(found[1]) if (found := re.search(r"http://127.0.0.1:(\d+)", line)) else self.port
            if found := re.search(r"tcp://\S+", line):
                self.zmq = found[0]
                break
        if not self.zmq:
            raise SystemExit("the server did not start")
        Http(self.port).predict(columns(1, np.random.default_rng(0)))
        self.start_s = time.perf_counter() - started

    def memory(self) -> tuple[float, float]:
        """Return private and resident bytes."""
        found = psutil.Process(self.process.pid).memory_full_info()
        return float(found.uss), float(found.rss)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Http:
    """One kept connection, with binary tensors."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def predict(self, given: dict[str, Any]) -> None:
        inputs, data = [], []
        for name, values in given.items():
            datatype = "INT64" if values.dtype == np.int64 else "FP32"
            parameters = {"binary_data_size": values.nbytes}
            inputs.append(
                {"name": name, "datatype": datatype, "shape": [len(values)], "parameters": parameters}
            )
            data.append(values.tobytes())
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        self._connection.request("POST", "/v2/models/m/infer", head + b"".join(data), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"the server answered {answer.status}: {body!r:.200}")


def at_rate(port: int, rate: float, seconds: float, asked: list[dict[str, Any]]) -> list[float]:
    """Ask at a rate, whether or not earlier requests are answered; return their times since they were due."""
    times: list[float] = []
    number, start, lock = itertools.count(), time.perf_counter() + 0.5, threading.Lock()

    def client() -> None:
        connection = Http(port)
        while (mine := next(number)) < rate * seconds:
            due = start + mine / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.predict(asked[mine % len(asked)])
            with lock:
                times.append(time.perf_counter() - due)

    together([client] * 16)
    return times


def most(
    client: Callable[[], Callable[[dict[str, Any]], object]], seconds: float, asked: list[dict[str, Any]]
) -> float:
    """Return candidates/s of some clients that ask as soon as they are answered."""
    done, end = itertools.count(), time.perf_counter() + seconds

    def run() -> None:
        predict = client()
        for given in itertools.cycle(asked):
            if time.perf_counter() > end:
                return
            predict(given)
            next(done)

    together([run] * CLIENTS)
    return next(done) * len(next(iter(asked[0].values()))) / seconds


def together(functions: list[Callable[[], None]]) -> None:
    """Run functions in threads; raise what one raises."""
    with ThreadPoolExecutor(len(functions)) as threads:
        for done in [threads.submit(function) for function in functions]:
            done.result()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--json", default=None)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.seconds = 100_000, 2.0
    options.folder.mkdir(parents=True, exist_ok=True)
    place, rng = checkpoint(options.folder, options.rows), np.random.default_rng(1)
    small, large = ([columns(rows, rng) for _ in range(50)] for rows in (10, 100))
    server = Server(place)
    try:
        private, _ = server.memory()
        figures = {"start_s": server.start_s, "memory_mb": private / 1e6}
        times = np.sort(at_rate(server.port, options.rate, options.seconds, small)) * 1e3
        figures |= {f"http_p{share}_ms": float(np.percentile(times, share)) for share in (50, 99)}
        figures["http_candidates_per_s"] = most(lambda: Http(server.port).predict, options.seconds, large)

        def zmq_client() -> Callable[[dict[str, Any]], object]:
            return partial(ScoringClient(server.zmq).predict, "m", timeout_s=30.0)

        figures["zmq_candidates_per_s"] = most(zmq_client, options.seconds, large)
        figures["memory_times_rows"] = server.memory()[1] / (options.rows * (8 + 4 * 17))
    finally:
        server.close()
    for name, value in figures.items():
        print(f"{name:26} {value:12,.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": options.rows, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
