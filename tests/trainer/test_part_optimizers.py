"""Learning rate and optimizer by part: what a job file says of one part is done to that part and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.job.job import Job, read_job
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate
from rec_models import MODELS
from tests.support.checkpoints import content_of
from tests.support.clusters import cluster_of
from tests.support.definitions.table import first_values

CONFIG = GeneratorConfig(
    train_rows=512, test_rows=64, seed=3, vocabularies=(7, 60), dense_fields=1, row_group_rows=256
)
STILL = "{name: SGD, learning_rate: 1e-12}"
HASTY = "{name: SGD, learning_rate: 0.5}"
KINDS = {
    "Momentum": "{name: Momentum, learning_rate: 0.5, nesterov: true}",
    "RowwiseAdagrad": "{name: RowwiseAdagrad, learning_rate: 0.1, clip_norm: 0.01}",
    "Adagrad": "{name: Adagrad, learning_rate: 0.1, cowclip_ratio: 1.0, cowclip_floor: 1e-3}",
    "FTRL": "{name: FTRL, learning_rate: 0.1, beta: 0.01, l1: 1e-5, l2: 1e-3}",
}


SMALL = {"dim": 3, "hidden": [4], "hidden_1": [4], "hidden_2": [4], "heads": 2, "attention_dim": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """Generated data, with a column V of the up to three values of C2 in the rows before."""
    made = generate(tmp_path_factory.mktemp("parts"), CONFIG)
    table = pq.read_table(made.train_path)
    texts = table["C2"].to_pylist()
    before = [[text for text in texts[max(i - 3, 0) : i] if text] for i in range(len(texts))]
    pq.write_table(table.append_column("V", pa.array(before)), made.train_path, row_group_size=256)
    return made


def job_of(folder: Path, data: Generated, model: str, rows: str) -> Job:
    options = {
        option: value for option, value in SMALL.items() if option in MODELS[model].__dataclass_fields__
    }
    small = "".join(f", {option}: {value}" for option, value in options.items())
    file = folder / "job.yaml"
    lists = ", ragged: [{name: V, vocabulary: C2}]" if model == "din" else ""
    file.write_text(
        f"data: {{train: {data.train_path}, "
        f"schema: {{label: label, dense: [I1], sparse: [C1, C2]{lists}}}}}\n"
        f"model: {{name: {model}{small}}}\n"
        f"optimizers: {{rows: {rows}}}\n"
    )
    return read_job(file)


def parts_that_moved(folder: Path, data: Generated, model: str, rows: str) -> dict[str, bool]:
    """Return, for each part, True if training as the job says has changed the rows' weights."""
    job = job_of(folder, data, model, rows)
    table = job.build_model().table()
    with cluster_of(2) as running:
        trainer = pslib.Trainer(job.build_model(), running.join(), batch_rows=64, staleness=0, progress=False)
        trainer.fit(job.data.train)
        trainer.save(folder / "saved")
    found = content_of(folder / "saved").rows
    keys = np.asarray(list(found), np.uint64)
    weights = np.stack([np.frombuffer(row, np.float32) for row in found.values()])
    assert len(keys) > 40
    ends = np.cumsum([part.dim for part in table.parts]).tolist()
    return {
        part.name: bool(
            np.abs(
                weights[:, end - part.dim : end]
                - first_values(part.initializer, keys, part.dim, table.part_seed(part))
            ).max()
            > 1e-6
        )
        for part, end in zip(table.parts, ends, strict=True)
    }


@pytest.mark.parametrize("model", MODELS)
def test_the_rate_of_a_part_moves_that_part(tmp_path: Path, data: Generated, model: str) -> None:
    parts = [part.name for part in job_of(tmp_path, data, model, HASTY).build_model().table().parts]
    for hasty in parts:
        rows = f'{{"*": {STILL}, {hasty}: {HASTY}}}'
        (tmp_path / hasty).mkdir()
        moved = parts_that_moved(tmp_path / hasty, data, model, rows)
        assert moved == {part: part == hasty for part in parts}


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_has_the_optimizer_that_is_named_for_it(tmp_path: Path, data: Generated, kind: str) -> None:
    moved = parts_that_moved(tmp_path, data, "deepfm", f"{{w: {STILL}, v: {KINDS[kind]}}}")
    assert moved == {"w": False, "v": True}
