"""TagSpace and word2vec beside their twins in PyTorch: the same batches, the same first values.

``python benchmarks/texts.py [--data FOLDER] [--model tagspace word2vec] [--epochs N] [--seed 1] [--json FILE]
[--quick]`` (needs torch, which pslib does not).

tagspace: news of ``FOLDER/paddlerec_samples``, 1,000 lines to train on and 1,000 to test on, one of 4 tags
each; the figure is the share of test lines whose tag is ranked first. The data is not ours to hand on; the
default folder is that of ``PSLIB_TEST_DATA``, else ``data``.

word2vec: texts that are made here, each of words of one of 20 topics (25 words each, a few far more frequent
than others) and of words that all topics share; the figure is the share of the 10 nearest words of a topic's
word that are of the same topic: 1 is the best possible, 0.05 what chance gives.
"""

from __future__ import annotations

import os
import sys

from pslib.process.blas import kernels_for

os.environ |= kernels_for()  # before NumPy is loaded

import argparse
import json
import logging
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pslib
from pslib.metrics.top_k import top_k
from rec_models import build

sys.path.insert(0, str(Path(__file__).parent))

from torch_matching import TorchTwin

ADAGRAD = {"name": "Adagrad", "learning_rate": 0.1, "initial_accumulator": 1e-6}
TOPICS, WORDS, SHARED = 20, 25, 10
NEAR = 10
FILES = {"train": "train_data_small_train", "test": "test_data_small_test"}


def tagged(source: Path, folder: Path) -> None:
    """Lines ``tag,word word ...`` as train.parquet, test.parquet and tags.parquet."""
    for name, file in FILES.items():
        lines = (source / f"contentunderstanding_tagspace__{file}.csv").read_text().splitlines()
        parts = [line.partition(",") for line in lines if line.strip()]
        tags = [int(tag) for tag, _, _ in parts]
        words = [[int(word) for word in text.split()] for _, _, text in parts]
        pq.write_table(pa.table({"tag": tags, "words": words}), folder / f"{name}.parquet")
        pq.write_table(pa.table({"tag": sorted(set(tags))}), folder / "tags.parquet")


def topical(folder: Path, seed: int) -> None:
    """Texts of 20 words as train.parquet, the words of topics as words.parquet."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(4000):
        topic = int(rng.integers(TOPICS))
        own = np.minimum(rng.zipf(1.3, 20) - 1, WORDS - 1) + topic * WORDS
        common = TOPICS * WORDS + rng.integers(0, SHARED, 20)
        texts.append(np.where(rng.random(20) < 0.3, common, own).tolist())
    pq.write_table(pa.table({"words": texts}), folder / "train.parquet")
    pq.write_table(pa.table({"word": list(range(TOPICS * WORDS))}), folder / "words.parquet")


def same_topic(vectors: np.ndarray) -> float:
    """Share of the nearest words that are of the same topic; ``vectors`` in the order of words.parquet."""
    places, _ = top_k(vectors, vectors, NEAR + 1)
    words = np.arange(len(vectors))
    others = [[near for near in row if near != word][:NEAR] for word, row in enumerate(places.tolist())]
    return float((np.array(others) // WORDS == words[:, None] // WORDS).mean())


def trained(
    name: str,
    model: Any,
    train: Path,
    batch_rows: int,
    epochs: int,
    seed: int,
    figure: Callable[[pslib.Trainer], float],
    twin_figure: Callable[[TorchTwin], float],
) -> dict[str, Any]:
    """Train here and in PyTorch; the figures of both after each epoch."""
    found: list[dict[str, float]] = []
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=batch_rows,
            staleness=0,
            dense_optimizer=pslib.Adam(0.001),
            seed=seed,
            progress=False,
        )
        twin = TorchTwin(name, model, train, cluster.client, batch_rows, seed)
        for epoch in range(epochs):
            trainer.fit(train)
            twin.epoch(epoch)
            found.append({"pslib": figure(trainer), "torch": twin_figure(twin)})
            both = f"{found[-1]['pslib']:.4f}, PyTorch {found[-1]['torch']:.4f}"
            print(f"{name}, epoch {epoch + 1}: {both}", flush=True)
    return {"model": name, "seed": seed, "epochs": found}


def tagspace(source: Path, folder: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Share of test lines whose tag is ranked first."""
    tagged(source, folder)
    schema = pslib.Schema(label=None, sparse=["tag"], ragged=["words"])
    options = {"item": ["tag"], "dim": 50, "units": 100, "window": 5, "margin": 0.1, "negatives": 16}
    model = build("tagspace", schema, options | {"seed": seed, "v_optimizer": ADAGRAD})
    test, tags = folder / "test.parquet", folder / "tags.parquet"
    return trained(
        "tagspace",
        model,
        folder / "train.parquet",
        50,
        epochs,
        seed,
        lambda trainer: trainer.rank(test, tags, at=(1,)).recall[1],
        lambda twin: twin.rank(test, tags, (1,), None).recall[1],
    )


def word2vec(folder: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Share of near words that are of the same topic."""
    topical(folder, seed)
    schema = pslib.Schema(label=None, ragged=["words"])
    options = {"dim": 32, "window": 5, "subsample": 0.001, "seed": seed}
    model = build("word2vec", schema, options | {"v_optimizer": ADAGRAD, "w_optimizer": ADAGRAD})
    words = folder / "words.parquet"

    def figure(trainer: pslib.Trainer) -> float:
        trainer.export_vectors(words, folder / "vectors")
        return same_topic(np.array(pq.read_table(folder / "vectors")["vector"].to_pylist(), np.float32))

    return trained(
        "word2vec",
        model,
        folder / "train.parquet",
        50,
        epochs,
        seed,
        figure,
        lambda twin: same_topic(twin.item_vectors(words)),
    )


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA", "data"))
    parser.add_argument(
        "--model", nargs="+", default=["tagspace", "word2vec"], choices=["tagspace", "word2vec"]
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pslib").setLevel(logging.ERROR)
    source = options.data / "paddlerec_samples"
    if "tagspace" in options.model and not source.is_dir():
        print(f"{source}: no such folder; --data FOLDER has paddlerec_samples/", file=sys.stderr)
        return 64
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    for name in options.model:
        with tempfile.TemporaryDirectory() as scratch:
            epochs = 1 if options.quick else options.epochs or {"tagspace": 5, "word2vec": 3}[name]
            if name == "tagspace":
                report[name] = tagspace(source, Path(scratch), epochs, options.seed)
            else:
                report[name] = word2vec(Path(scratch), epochs, options.seed)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
