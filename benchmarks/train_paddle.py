"""Examples/s of PaddlePaddle's own parameter server with the workload of `train.py`: one server, one trainer.

``python benchmarks/train_paddle.py --data FOLDER [--python PATH] [--model dnn] [--batch-rows 4096 512]
[--examples N] [--threads 2] [--text FOLDER] [--json FILE]``: needs an interpreter with paddlepaddle, which
pslib does not: ``pip install paddlepaddle==3.0.0 'protobuf<6'`` into an environment of its own, named with
``--python``. With protobuf 7 Paddle 3.0.0 fails: "a_sync_configs is not a attribute". The version that ran is
the one that Paddle says itself; it stands in the report. FOLDER is one that `train.py` made.

This process, with pslib, reads the Parquet in the order of a trainer, hashes keys as pslib does and writes
them as text (63 of their 64 bits), one line an example. Then it starts the server and the trainer, both on
loopback, asynchronous (``a_sync``), and ends them whatever happens: each wait has an end (``--timeout``). The
trainer loads all text into memory (``InMemoryDataset``, through ``cat``) and trains one epoch of it with
``train_from_dataset``.

The clock runs from the first batch to the last: starting processes, reading, hashing and loading are **not**
counted, nor what is still on its way to the server after the last batch (``stop_seconds`` in the report is
how long sending that and stopping took). `pslib train` counts reading and hashing. Also unlike:

- a row's first number is apart from the other fifteen, with one sum of squares each (``SparseAccessor`` with
  ``SparseAdaGradSGDRule``); pslib's Adagrad has a sum for each number, so more to do and to keep;
- threads take batches in no given order, without a bound on staleness;
- learning rates and first values are ordinary ones that nobody has tuned, and no AUC is measured: equal rates
  of examples say nothing of equal learning.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

FIELDS, DENSE, DIM, HIDDEN = 26, 13, 16, (400, 400, 400)
ORDER_ROWS = 4096
"""Examples of a batch while text is written: its order is the same for all batch sizes."""
LAST_WORDS = 2_000
"""Characters of a process's output that are told when it fails."""


def lines(folder: Path, examples: int | None) -> Iterator[str]:
    """Text of a batch at a time: for each slot how many values, then the values."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from pslib.data.dataset import ParquetData
    from pslib.data.order import Order, default_lease_rows
    from pslib.data.reader import LeaseReader
    from pslib.data.synthetic.generator import GeneratorConfig, generated_schema

    schema = generated_schema(GeneratorConfig(dense_fields=DENSE))
    data = ParquetData([str(folder / "train.parquet")], schema)
    order = Order(1, [group.rows for group in data.row_groups], default_lease_rows(data.rows, ORDER_ROWS))
    reader = LeaseReader(data, schema, order, ORDER_ROWS)
    left = data.rows if examples is None else min(examples, data.rows)
    for lease in range(order.leases(0)):
        for batch in reader.batches(0, lease):
            if left <= 0:
                return
            keys = (batch.keys & np.uint64(2**63 - 1))[batch.sparse[:left]]  # int64 in a slot of Paddle
            columns = [*batch.dense[:left].T, *keys.T]
            texts = [pc.cast(pa.array(column), pa.string()) for column in columns]
            labels = pc.cast(pa.array(batch.labels[:left].astype(np.int8)), pa.string())
            counted = [pc.binary_join_element_wise("1", text, " ") for text in (labels, *texts[DENSE:])]
            dense = [pa.scalar(str(DENSE)), *texts[:DENSE]]
            yield "\n".join(pc.binary_join_element_wise(counted[0], *dense, *counted[1:], " ").to_pylist())
            left -= min(left, len(batch))


def write_text(data: Path, examples: int | None, parts: int, folder: Path) -> Path:
    """Text files of the examples, one a thread: written only if they are not there."""
    place = folder / f"{data.resolve().name}_{'all' if examples is None else examples}_in_{parts}"
    if place.exists():
        return place
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    files = [(unfinished / f"part-{part}.txt").open("w", encoding="utf-8") for part in range(parts)]
    rows = 0
    for number, text in enumerate(lines(data, examples)):
        files[number % parts].write(text + "\n")
        rows += text.count("\n") + 1
    for file in files:
        file.close()
    (unfinished / "rows").write_text(str(rows), encoding="utf-8")
    unfinished.rename(place)
    return place


def network(paddle: Any, model: str) -> tuple[list[Any], Any]:
    """Slots and the loss: DNN, or DeepFM with its first-order terms in a second table."""
    static, width = paddle.static, FIELDS * DIM + DENSE
    label = static.data("label", [None, 1], "int64")
    dense = static.data("dense", [None, DENSE], "float32")
    slots = [static.data(f"key_{i}", [None, 1], "int64") for i in range(FIELDS)]

    def rows(name: str, dim: int) -> list[Any]:
        first = paddle.nn.initializer.Uniform(-0.01, 0.01)
        attr = paddle.ParamAttr(name=name, initializer=first)
        found = [static.nn.sparse_embedding(slot, [10_000_000, dim], param_attr=attr) for slot in slots]
        return [paddle.reshape(row, [-1, dim]) for row in found]

    vectors = rows("vectors", DIM)
    x = paddle.concat([*vectors, dense], axis=1)
    for n, m in pairwise((width, *HIDDEN)):
        x = paddle.nn.functional.relu(paddle.nn.Linear(n, m)(x))
    logit = paddle.nn.Linear(HIDDEN[-1], 1)(x)
    if model == "deepfm":
        total = paddle.add_n(vectors)
        squares = paddle.add_n([paddle.square(row) for row in vectors])
        logit += 0.5 * paddle.sum(paddle.square(total) - squares, axis=1, keepdim=True)
        logit += paddle.add_n(rows("weights", 1)) + paddle.nn.Linear(DENSE, 1, bias_attr=False)(dense)
    cost = paddle.nn.functional.binary_cross_entropy_with_logits(logit, paddle.cast(label, "float32"))
    return [label, dense, *slots], cost


def table_settings(name: str) -> dict[str, Any]:
    """Adagrad with one sum of squares a part of a row; everything else is Paddle's choice."""
    start = f"table_parameters.{name}."
    settings: dict[str, Any] = {
        f"{start}table_class": "MemorySparseTable",
        f"{start}accessor.accessor_class": "SparseAccessor",
    }
    for part in ("embed_sgd_param", "embedx_sgd_param"):
        rule = f"{start}accessor.{part}."
        settings[f"{rule}name"] = "SparseAdaGradSGDRule"
        settings[f"{rule}adagrad.learning_rate"] = 0.05
        settings[f"{rule}adagrad.initial_g2sum"] = 0.1
        settings[f"{rule}adagrad.initial_range"] = 0.01
        settings[f"{rule}adagrad.weight_bounds"] = [-10.0, 10.0]
    return settings


def role(options: argparse.Namespace) -> None:
    """Be the server or the trainer, as the environment says."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive its parent
    signal.alarm(int(options.timeout) + 5)  # kills also what hangs in C++
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    paddle.seed(1)
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    slots, cost = network(paddle, options.model)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    tables = ["vectors"] + (["weights"] if options.model == "deepfm" else [])
    strategy.sparse_table_configs = {name: table_settings(name) for name in tables}
    fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3, lazy_mode=True), strategy).minimize(cost)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    dataset = paddle.distributed.InMemoryDataset()
    batch_rows = options.batch_rows[0]
    dataset.init(batch_size=batch_rows, thread_num=options.threads, pipe_command="cat", use_var=slots)
    dataset.set_filelist([str(file) for file in sorted(options.text.glob("part-*.txt"))])
    dataset.load_into_memory()
    rows = int(dataset.get_memory_data_size())
    start = time.perf_counter()
    executor.train_from_dataset(paddle.static.default_main_program(), dataset)
    seconds = time.perf_counter() - start
    fleet.stop_worker()
    report = {
        "examples_per_s": rows / seconds,
        "examples": rows,
        "seconds": seconds,
        "stop_seconds": time.perf_counter() - start - seconds,
        "threads": options.threads,
        "paddle": paddle.__version__,
    }
    Path(options.json).write_text(json.dumps(report), encoding="utf-8")


def free_ports(count: int) -> list[int]:
    """Ports of loopback without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def paddle_run(options: argparse.Namespace, batch_rows: int, text: Path) -> dict[str, Any]:
    """Examples/s of one training in two processes of their own; ends with their last words if one fails."""
    port, own = free_ports(2)
    shared = os.environ | {
        "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINERS_NUM": "1",
        "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{own}",
        "PADDLE_TRAINER_ID": "0",
        "POD_IP": "127.0.0.1",
        "PADDLE_WITH_GLOO": "0",
        "FLAGS_enable_pir_api": "0",  # the parameter server rewrites programs of the older form only
        "OMP_NUM_THREADS": "1",  # each of the trainer's threads computes a batch of its own
        "CPU_NUM": str(options.threads),
    }
    rows = int((text / "rows").read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [options.python, str(Path(__file__).resolve()), "--role", "--text", str(text.resolve())]
        command += ["--batch-rows", str(batch_rows), "--model", options.model, "--json", str(out / "report")]
        command += ["--threads", str(options.threads), "--timeout", str(options.timeout)]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for name, at in (("PSERVER", port), ("TRAINER", own)):
                with (out / name).open("wb") as said:
                    own_environment = shared | {"TRAINING_ROLE": name, "PADDLE_PORT": str(at)}
                    started.append(
                        subprocess.Popen(
                            command, env=own_environment, cwd=out, stdout=said, stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )  # fmt: skip
            wait_for_both(started, options.timeout)
        finally:
            for process in started:
                end(process)
        if not (out / "report").exists():
            words = [f"PaddlePaddle did not train to the end (it may take {options.timeout:g} s)"]
            for name, process in zip(("PSERVER", "TRAINER"), started, strict=True):
                said_last = (out / name).read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
                words.append(f"{name}, exit code {process.returncode}: ...{said_last}")
            raise SystemExit("\n".join(words))
        report = json.loads((out / "report").read_text())
    if report["examples"] != rows:
        raise SystemExit(f"PaddlePaddle loaded {report['examples']} of {rows} examples")
    return report


def wait_for_both(started: list[subprocess.Popen[bytes]], timeout: float) -> None:
    """Until the trainer is done, or one of the two has failed, or time is up."""
    server, trainer = started
    until = time.monotonic() + timeout
    while trainer.poll() is None and time.monotonic() < until:
        if server.poll():  # 0: it was told to stop, and the trainer is about to end
            return
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder that train.py made: train.parquet")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with paddlepaddle")
    parser.add_argument("--model", choices=["dnn", "deepfm"], default="dnn")
    parser.add_argument("--batch-rows", nargs="+", type=int, default=[4096, 512])
    parser.add_argument("--examples", type=int, default=None, help="default: all")
    parser.add_argument("--threads", type=int, default=2, help="of the trainer")
    parser.add_argument("--text", type=Path, default=None, help="keep the text there, for further runs")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one training, with loading")
    parser.add_argument("--json", default=None)
    parser.add_argument("--role", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role(options)
        return
    if options.data is None:
        parser.error("--data: expected a folder that train.py made")
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(options.data, options.examples, options.threads, options.text or Path(folder))
        for batch_rows in options.batch_rows:
            run = paddle_run(options, batch_rows, text)
            cases.append({"model": options.model, "batch_rows": batch_rows, **run})
            of = f"PaddlePaddle {run['paddle']} with {run['threads']} threads, the training alone"
            print(f"{options.model} {batch_rows}: {run['examples_per_s']:,.0f} examples/s, {of}")
    if options.json:
        Path(options.json).write_text(json.dumps({"cases": cases}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
