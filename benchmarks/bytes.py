"""Bytes of all messages of a trainer, counted at its endpoint, and what saving them costs in quality.

``python benchmarks/bytes.py [--parts bytes,cache,auc] [--kinds ...] [--dense-every N] [--seeds 1,2,3]
[--quick] [--json FILE]`` compares on the same data

- bytes: messages in float32, bfloat16, float16 and int8 (its dense parameters in float16), each with and
  without rows kept in the trainer for 8 batches (`CacheSettings`);
- cache: which share of the *keys* caches of several sizes, and one without limits, would serve (keys alone,
  no training; second half of 120 batches), and which share of the *bytes of pulls* they save: trainings on
  the same batches, without a cache, with one of 262,144 rows and with one without limits, and with both once
  more where dense parameters, which no cache keeps, are pulled every second batch (``--dense-every``). Bytes
  are counted message by message, "rows and keys" without dense parameters and headers, "pull messages" with
  all, requests and answers; second half of 120 batches and whole epoch. "as the trainer counts" is its own
  counter of saved bytes (`cache_bytes_saved`) over those of rows and keys without a cache;
- auc: AUC, log loss and calibration after one exact epoch (staleness 0) in batches of 1024, with caches also
  where dense parameters come every second batch; the difference to float32 of the same seed; and the best
  possible AUC and log loss of that test data, which the true probabilities have.

Bytes are those of workload W: DeepFM, 26 sparse and 13 dense fields, 10 million keys, Zipf(1.05), dim 16,
400-400-400, batches of 4096. Server and trainer are in this process; sockets would carry the same messages.
Data is made once, in ``runs/bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from cython_ext.model.row_cache import RowCache
from pslib.cluster import connect
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.table.wire_format import WireFormat
from pslib.trainer import Trainer
from pslib.trainer.settings import CacheSettings
from pslib.wire.codec import Buffer, Codec, Envelope
from pslib.wire.messages import Message, Pull, Pulled
from rec_models import DeepFM

FIELDS, KEYS, DIM, HIDDEN = 26, 10_000_000, 16, (400, 400, 400)
AGE = 8
CACHE_ROWS = 1 << 18
WIRES = {
    "float32": WireFormat(),
    "bfloat16": WireFormat("bfloat16", "bfloat16", "bfloat16"),
    "float16": WireFormat("float16", "float16", "float16"),
    "int8": WireFormat("int8", "int8", "float16"),
}
UNLIMITED = 1 << 22
SCORES = ("auc", "logloss", "calibration")
COUNTED = 120
"""Batches of the cache's figures, of which the second half counts: a cache is empty at first."""


@dataclass(frozen=True)
class Case:
    """One configuration: wire type (of `WIRES`), rows of the cache, and batches between dense pulls."""

    kind: str = "float32"
    cache_rows: int = 0
    dense_every_batches: int = 1


@dataclass
class Pulls:
    """Pulls with keys, in their order: how many keys, bytes of rows and keys, and of both messages whole."""

    keys: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)


@contextmanager
def counted_pulls() -> Iterator[Pulls]:
    """Counts what a client sends and is answered meanwhile: only clients write `Pull` and read `Pulled`."""
    encode, decode, pulls = Codec.encode, Codec.decode, Pulls()
    asked: dict[int, tuple[int, int]] = {}

    def counted_encode(self: Codec, request_id: int, message: Message) -> list[Buffer]:
        frames = encode(self, request_id, message)
        if isinstance(message, Pull):
            asked[request_id] = sum(keys.size for keys in message.keys.values()), size_of(frames)
        return frames

    def counted_decode(self: Codec, frames: Sequence[Buffer]) -> Envelope:
        envelope = decode(self, frames)
        if isinstance(envelope.message, Pulled):
            keys, request_bytes = asked.pop(envelope.request_id, (0, 0))
            if keys:
                answered = [*envelope.message.rows.values(), *envelope.message.row_scales.values()]
                pulls.keys.append(keys)
                pulls.rows.append(8 * keys + sum(array.nbytes for array in answered))
                pulls.messages.append(request_bytes + size_of(frames))
        return envelope

    Codec.encode, Codec.decode = counted_encode, counted_decode  # type: ignore[method-assign]
    try:
        yield pulls
    finally:
        Codec.encode, Codec.decode = encode, decode  # type: ignore[method-assign]


def size_of(frames: Sequence[Buffer]) -> int:
    """Bytes of a message."""
    return sum(memoryview(frame).nbytes for frame in frames)


def data(folder: Path, rows: int, test_rows: int) -> None:
    """Generate the data unless it is there."""
    if not (folder / "generated.json").exists():
        config = GeneratorConfig(
            train_rows=rows, test_rows=test_rows, vocabularies=(KEYS // FIELDS,) * FIELDS, seed=11
        )
        generate(folder, config, overwrite=True)


def schema_of(folder: Path) -> Any:
    plain = json.loads((folder / "generated.json").read_text())["config"]
    return generated_schema(GeneratorConfig(**plain | {"vocabularies": tuple(plain["vocabularies"])}))


def train(folder: Path, case: Case, batch_rows: int, seed: int, score: bool) -> dict[str, float]:
    """One epoch: bytes, share of rows that were not pulled, and with ``score`` `SCORES` on the test data."""
    with connect(servers=1) as cluster:
        trainer = Trainer(
            DeepFM(schema_of(folder), dim=DIM, hidden=HIDDEN),
            cluster,
            batch_rows=batch_rows,
            staleness=0,
            seed=seed,
            wire=replace(WIRES[case.kind], dense_every_batches=case.dense_every_batches),
            cache=CacheSettings(AGE if case.cache_rows else 0, case.cache_rows or CACHE_ROWS),
            progress=False,
        )
        trainer.fit(str(folder / "train.parquet"))
        endpoint, counters = cluster.client.endpoint, cluster.client.member.progress()
        figures = {
            "bytes": float(endpoint.bytes_sent + endpoint.bytes_received),
            "bytes_saved": float(counters["cache_bytes_saved"]),
            "hit_share": counters["cache_hits"] / max(counters["cache_lookups"], 1),
        }
        if score:
            result = trainer.evaluate(str(folder / "test.parquet"))
            figures |= {name: getattr(result, name) for name in SCORES}
        return figures


def batches_of(folder: Path, batch_rows: int, most: int) -> list[np.ndarray]:
    """Distinct keys of the first batches, as a trainer reads them."""
    parquet = ParquetData([str(folder / "train.parquet")], schema_of(folder))
    lease_rows = default_lease_rows(parquet.rows, batch_rows)
    order = Order(1, [group.rows for group in parquet.row_groups], lease_rows)
    reader = LeaseReader(parquet, schema_of(folder), order, batch_rows)
    leases = range(order.leases(0))
    try:
        read = (batch.keys for lease in leases for batch in reader.batches(0, lease))
        return list(islice(read, most))
    finally:
        reader.close()


def cache_shares(keys: list[np.ndarray]) -> dict[str, float]:
    """Share of look-ups that a cache serves, second half of the batches: with its rule and without limits."""
    half = len(keys) // 2
    shares = {}
    for name, rows in (
        ("65536", 1 << 16),
        ("131072", 1 << 17),
        ("262144", 1 << 18),
        ("unlimited", UNLIMITED),
    ):
        cache = RowCache(rows, [1], [0.1], [1], [0.0], 1, AGE)
        missed = [cache.plan(one)[1].size for one in keys]
        shares[name] = 1 - sum(missed[half:]) / sum(one.size for one in keys[half:])
    for name, age in (("unlimited, age 8 since the pull alone", AGE), ("unlimited, any age", 1 << 40)):
        pulled: dict[int, int] = {}
        hits = 0
        for number, one in zip(count(), keys, strict=False):
            old = [key for key in one.tolist() if number - pulled.get(key, -(1 << 50)) > age]
            hits += one.size - len(old) if number >= half else 0
            pulled.update(dict.fromkeys(old, number))
        shares[name] = hits / sum(one.size for one in keys[half:])
    return shares


def saved_of_pulls(folder: Path, dense_every: int) -> dict[str, dict[str, float]]:
    """Shares of keys, of bytes of rows and keys and of pull messages that trainings with a cache save."""
    cases = {"none": Case()}
    for every in (1, dense_every):
        seldom = f", dense every {every} batches" if every > 1 else ""
        for name, rows in ((f"{CACHE_ROWS} rows", CACHE_ROWS), ("unlimited rows", UNLIMITED)):
            cases[name + seldom] = Case(cache_rows=rows, dense_every_batches=every)
    runs: dict[str, tuple[Pulls, float]] = {}
    for name, case in cases.items():
        with counted_pulls() as pulls:
            figures = train(folder, case, 4096, 1, score=False)
        runs[name] = pulls, figures["bytes_saved"]
    plain, _nothing = runs.pop("none")
    batches = min(COUNTED, len(plain.keys))
    spans = {f"batches {batches // 2} to {batches}": slice(batches // 2, batches), "epoch": slice(None)}
    report: dict[str, dict[str, float]] = {}
    for name, (pulls, counted) in runs.items():
        for span, which in spans.items():
            report[f"saved by {name}, {span}"] = {
                "keys": saved(plain.keys[which], pulls.keys[which]),
                "bytes of rows and keys": saved(plain.rows[which], pulls.rows[which]),
                "bytes of pull messages": saved(plain.messages[which], pulls.messages[which]),
            }
        report[f"saved by {name}, epoch"]["as the trainer counts"] = round(counted / sum(plain.rows), 4)
    report["million bytes of pulls without a cache"] = {
        "rows and keys": round(sum(plain.rows) / 1e6, 1),
        "pull messages": round(sum(plain.messages) / 1e6, 1),
    }
    return report


def saved(without: list[int], with_cache: list[int]) -> float:
    """The share that is missing."""
    return round(1 - sum(with_cache) / sum(without), 4)


def bytes_of(folder: Path, kinds: list[str]) -> dict[str, Any]:
    """Bytes of all messages, as shares of float32's, and the share of keys that the cache served."""
    cases = {name: train(folder, case, 4096, 1, score=False) for name, case in named(kinds).items()}
    plain = cases["float32"]["bytes"]
    return {
        "bytes": {name: round(one["bytes"] / plain, 4) for name, one in cases.items()},
        "million bytes": {name: round(one["bytes"] / 1e6, 1) for name, one in cases.items()},
        "share of keys": {name: round(one["hit_share"], 4) for name, one in cases.items() if "cache" in name},
    }


def named(kinds: list[str]) -> dict[str, Case]:
    """Cases by name: every type, without and with a cache."""
    rows = {"": 0, " cache": CACHE_ROWS}
    return {f"{kind}{cache}": Case(kind, kept) for kind in kinds for cache, kept in rows.items()}


def scores_of(folder: Path, kinds: list[str], seeds: list[int], dense_every: int) -> dict[str, Any]:
    """`SCORES` of every seed, the mean differences to float32, and what nothing can do better than."""
    cases = named(kinds)
    if dense_every > 1:
        cases |= {
            f"{name}, dense every {dense_every}": replace(case, dense_every_batches=dense_every)
            for name, case in cases.items()
            if case.cache_rows
        }
    test = json.loads((folder / "generated.json").read_text())["test"]
    best = {name: round(test[f"best_{name}"], 5) for name in ("auc", "logloss")}
    print(f"best possible {best}", flush=True)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for seed in seeds:  # in turns
        for name, case in cases.items():
            runs[name].append(one := train(folder, case, 1024, seed, score=True))
            print(f"seed {seed}  {name:30} {' '.join(f'{one[score]:.5f}' for score in SCORES)}", flush=True)
    report: dict[str, Any] = {"best possible": best}
    for score in SCORES:
        values = {name: [round(one[score], 5) for one in each] for name, each in runs.items()}
        report[score] = values
        report[f"{score} difference"] = {
            name: round(float(np.mean(np.subtract(each, values["float32"]))), 5)
            for name, each in values.items()
        }
    return report


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The parts that are asked for."""
    parts, kinds = options.parts.split(","), options.kinds.split(",")
    report: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    wide, long = (Path(f"runs/bench/bytes_{rows}") for rows in (options.wide_rows, options.rows))
    data(wide, options.wide_rows, 1000)
    if "bytes" in parts:
        report |= bytes_of(wide, kinds)
    if "cache" in parts or "auc" in parts:
        data(long, options.rows, max(options.rows // 4, 1000))
    if "cache" in parts:
        keys = batches_of(long, 4096, COUNTED)
        report["distinct keys"] = {"of a batch": float(np.mean([one.size for one in keys]))}
        report["keys served by a cache"] = {
            name: round(share, 4) for name, share in cache_shares(keys).items()
        }
        report |= saved_of_pulls(long, options.dense_every)
    if "auc" in parts:
        report |= scores_of(
            long, kinds, [int(seed) for seed in options.seeds.split(",")], options.dense_every
        )
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="bytes,cache,auc")
    parser.add_argument("--kinds", default="float32,bfloat16,float16,int8", help="float32 first")
    parser.add_argument("--dense-every", type=int, default=2, help="batches, beside a cache")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rows", type=int, default=600_000, help="of one epoch, for the AUC")
    parser.add_argument("--wide-rows", type=int, default=160_000, help="for the bytes")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.wide_rows, options.seeds = 40_000, 40_000, "1"
    report = measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))
    for what, figures in report.items():
        for name, value in figures.items() if isinstance(figures, dict) else ():
            print(f"{what:60} {name:30} {value}")


if __name__ == "__main__":
    main()
