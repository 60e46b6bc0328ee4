"""Learning rate and optimizer by part: what a job file says of one part is done to that part and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.job.job import Job, read_job
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate
from pslib.errors import ConfigurationError
from pslib.trainer.settings import OptimizerSettings, TrainerSettings
from rec_models import FM, MODELS
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


SGD, ADAGRAD, ADAM = pslib.SGD(0.5), pslib.Adagrad(0.05), pslib.Adam(0.01)


def dense_and_rows(folder: Path, data: Generated, model: object, **settings: object) -> tuple[bytes, object]:
    """Return the dense parameters and the rows after a training with some settings of the trainer."""
    with cluster_of(1) as running:
        trainer = pslib.Trainer(
            model,  # type: ignore[arg-type]
            running.join(),
            batch_rows=64,
            staleness=0,
            progress=False,
            **settings,  # type: ignore[arg-type]
        )
        trainer.fit(data.train_path)
        trainer.save(folder)
    found = content_of(folder)
    return found.dense, found.rows


@pytest.mark.parametrize(
    ("rows", "in_file", "of_model"),
    [
        (SGD, "{name: SGD, learning_rate: 0.5}", {"w_optimizer": SGD, "v_optimizer": SGD}),
        ({"v": SGD}, "{v: {name: SGD, learning_rate: 0.5}}", {"v_optimizer": SGD}),
        (
            {"*": ADAGRAD, "w": SGD},
            '{"*": {name: Adagrad, learning_rate: 0.05}, w: {name: SGD, learning_rate: 0.5}}',
            {"w_optimizer": SGD, "v_optimizer": ADAGRAD},
        ),
    ],
)
def test_optimizers_of_a_trainer_are_those_of_a_job_file_and_of_the_options_of_a_model(
    tmp_path: Path, data: Generated, rows: object, in_file: str, of_model: dict[str, pslib.SGD]
) -> None:
    job = job_of(tmp_path, data, "fm", in_file)
    own = FM(job.data.schema, dim=3)
    by_trainer = dense_and_rows(tmp_path / "a", data, own, optimizers={"rows": rows, "dense": ADAM})
    by_file = dense_and_rows(tmp_path / "b", data, job.build_model(), dense_optimizer=ADAM)
    by_model = dense_and_rows(tmp_path / "c", data, replace(own, **of_model), optimizers={"dense": ADAM})  # type: ignore[arg-type]
    assert by_trainer == by_file == by_model
    assert by_trainer != dense_and_rows(tmp_path / "d", data, own, dense_optimizer=ADAM)


def test_the_policies_of_a_table_and_its_optimizers_can_be_given_side_by_side(data: Generated) -> None:
    model = FM(pslib.Schema(label="label", sparse=["C1"]), dim=3)
    table = replace(model.table(), storage="bfloat16")
    with cluster_of(1) as running:
        trainer = pslib.Trainer(
            model, running.join(), table=table, optimizers={"rows": SGD}, progress=False, batch_rows=64
        )
        (found,) = trainer.cluster.client.take_tables()
    assert (found.storage, {part.optimizer for part in found.parts}) == ("bfloat16", {SGD})
    assert trainer.model.options()["v_optimizer"] == SGD.to_dict()  # type: ignore[attr-defined]


def test_an_optimizer_of_dense_parameters_beside_those_of_rows_is_taken() -> None:
    of_rows = TrainerSettings(optimizers=OptimizerSettings(rows=SGD))
    assert of_rows.dense_optimizer == pslib.Adam()
    for settings in (
        TrainerSettings(optimizers=OptimizerSettings(rows=SGD), dense_optimizer=ADAGRAD),
        replace(of_rows, dense_optimizer=ADAGRAD),
    ):
        assert settings.dense_optimizer == ADAGRAD
        assert settings.row_optimizers == {"*": SGD}


class OwnModel:
    """A class of a user's, which is no dataclass of options."""

    schema = pslib.Schema(label="label", sparse=["C1"])

    def __getattr__(self, name: str) -> object:
        return getattr(FM(self.schema, dim=3), name)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"optimizers": {"row": SGD}}, "optimizers.row: unknown key, did you mean 'rows'?"),
        ({"optimizers": {"rows": 0.1}}, "optimizers.rows: expected an Optimizer, as in pslib.Adagrad("),
        ({"optimizers": {"rows": {"v": 1}}}, "optimizers.rows.v: expected an Optimizer, as in"),
        ({"optimizers": {"rows": {"u": SGD}}}, "optimizers.rows.u: unknown key, known here: v, w"),
        ({"optimizers": {"dense": pslib.RowwiseAdagrad()}}, "optimizers.dense: RowwiseAdagrad mixes"),
        ({"optimizers": SGD}, 'optimizers: expected a dict, an OptimizerSettings or None, as in {"rows": '),
        (
            {"optimizers": {"dense": SGD}, "dense_optimizer": ADAGRAD},
            "dense_optimizer: the same is set by optimizers['dense']; remove one of them",
        ),
        (
            {"optimizers": OptimizerSettings(dense=SGD), "dense_optimizer": ADAGRAD},
            "dense_optimizer: the same is set by optimizers['dense']; remove one of them",
        ),
        (
            {"model": FM(OwnModel.schema, v_optimizer=ADAM), "optimizers": {"rows": SGD}},
            "optimizers.rows: FM was made with v_optimizer, an Adam; give one of them",
        ),
        (
            {"model": OwnModel(), "optimizers": {"rows": SGD}},
            "optimizers.rows: expected a model with options such as v_optimizer, got OwnModel, whose table()",
        ),
    ],
)
def test_optimizers_that_do_not_fit_are_refused_in_a_line(settings: dict[str, object], line: str) -> None:
    given = {"model": FM(OwnModel.schema, dim=3), "progress": False} | settings
    with cluster_of(1) as running, pytest.raises(ConfigurationError) as caught:
        pslib.Trainer(cluster=running.join(), **given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
