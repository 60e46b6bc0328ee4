"""A checkpoint belongs to one model: loading another model's is refused; which models count as the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import pslib
from launch.cli.main import main
from pslib import checkpoint
from pslib.data.synthetic.generator import generate, generated_schema
from pslib.errors import CheckpointIncompatibleError
from pslib.schema import Schema, SparseField
from pslib.table.descriptions import model_description
from pslib.table.optimizers import Adam
from pslib.trainer.pipeline.dense import DenseLayout
from rec_models.deepfm import DeepFM
from rec_models.wide_deep import WideDeep
from tests.checkpoint.test_checkpoint_start import COLUMNS, CONFIG, FITS, JOB, ROWS, saved_by_a_trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return saved_by_a_trainer(folder / "one", generate(folder / "data", CONFIG))


def test_numbers_that_another_model_has_learned_are_refused_unless_they_are_meant(saved: Path) -> None:
    """They fit, so a slip in a job file would only show in its figures."""
    schema, outcomes = generated_schema(CONFIG), []
    swapped = replace(schema, sparse=tuple(reversed(schema.sparse)))
    for model in (
        DeepFM(schema, dim=2, hidden=(3,), **ROWS),
        WideDeep(schema, dim=2, hidden=(3,), **ROWS),
        DeepFM(swapped, dim=2, hidden=(3,), **ROWS),
    ):
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(model, cluster, dense_optimizer=Adam(0.005), progress=False)
            for other_model in (False, True):
                outcome = ""
                try:
                    trainer.load(saved, other_model=other_model)
                except CheckpointIncompatibleError as error:
                    outcome = str(error)
                outcomes.append((outcome, cluster.client.stats()["rows"] > 0))
            trainer.load(saved, state=False)
            trainer.load(saved, tables=["embedding"])
    assert [text for text, _rows in outcomes[:2]] == ["", ""]
    assert [text for text, _rows in outcomes[3::2]] == ["", ""]
    assert [rows for _text, rows in outcomes] == [True, True, False, True, False, True]
    assert f"{saved} is of another model: it is DeepFM, got WideDeep; give what" in outcomes[2][0]
    assert "it reads columns " in outcomes[4][0]


def test_a_model_that_shares_its_parameters_loads_what_the_other_one_has_saved(saved: Path) -> None:
    class Distilled(DeepFM):
        """Another class of the same parameters."""

    model = Distilled(generated_schema(CONFIG), dim=2, hidden=(3,), **ROWS)
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, dense_optimizer=Adam(0.005), progress=False, share=True)
        trainer.load(saved)
        assert cluster.client.stats()["rows"]


@pytest.mark.parametrize(
    "same",
    [SparseField("C1", vocabulary="C1"), SparseField("C1", of="C1"), SparseField("C1", of=("C1",))],
    ids=["vocabulary", "of", "of one"],
)
def test_columns_that_say_what_is_so_anyway_make_no_other_model(saved: Path, same: SparseField) -> None:
    schema = generated_schema(CONFIG)
    assert [field.name for field in schema.sparse] == ["C1", "C2"]
    spelled = replace(schema, sparse=(same, schema.sparse[1]))
    other = replace(schema, sparse=(SparseField("C1", vocabulary="C2"), schema.sparse[1]))
    layout = DenseLayout(DeepFM(schema, dim=2, hidden=(3,)).dense_shapes())
    manifest = checkpoint.read_manifest(str(saved))

    def check(schema: Schema) -> None:
        described = model_description("embedding", "DeepFM", schema.to_dict(), layout.describe())
        checkpoint.check_model(manifest, str(saved), described)

    check(spelled)
    with pytest.raises(CheckpointIncompatibleError, match="the same, read in another way"):
        check(other)


@pytest.mark.parametrize(
    "schema", [None, [], "columns", {}, {"label": "l", "sparse": 5}, {"label": "l", "sparse": [{"new": 1}]}]
)
def test_a_checkpoint_with_columns_that_can_not_be_read_is_of_no_model(saved: Path, schema: object) -> None:
    manifest = checkpoint.read_manifest(str(saved))
    manifest.about["schema"] = schema
    dense = manifest.dense["parameters"]
    checkpoint.check_model(manifest, str(saved), model_description("embedding", "DeepFM", {}, dense))


def test_fields_that_columns_have_got_since_a_checkpoint_was_written_make_no_other_model(
    saved: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(saved, older)
    manifest = checkpoint.read_manifest(str(older))
    for column in manifest.about["schema"]["sparse"]:
        assert column.keys() > {"name"}
        for name in [name for name in column if name != "name"]:
            del column[name]
    checkpoint.commit(str(older), manifest)
    with pslib.connect() as cluster:
        trainer_on_cluster = pslib.Trainer(
            DeepFM(generated_schema(CONFIG), dim=2, hidden=(3,), **ROWS),
            cluster,
            dense_optimizer=Adam(0.005),
            progress=False,
        )
        trainer_on_cluster.load(older)


def test_a_job_file_goes_on_with_what_another_model_has_learned_where_it_says_so(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = saved.parent / "data"
    settings = [f"data.train={data / 'train.parquet'}", f"data.test={data / 'test.parquet'}", COLUMNS, FITS]
    settings += ["optimizers.dense={name: Adam}", "model.name=wide_deep", f"load.path={saved}"]
    settings += ["training.epochs=1", f"out={tmp_path / 'run'}"]
    (tmp_path / "job.yaml").write_text(JOB)

    def run(command: str, *options: str, meant: str) -> int:
        words = [word for one in (*settings, f"load.other_model={meant}") for word in ("--set", one)]
        return main([command, str(tmp_path / "job.yaml"), *words, *options])

    assert run("train", meant="false") == 64
    assert run("eval", "--checkpoint", str(saved), meant="false") == 64
    said = capsys.readouterr().err.splitlines()
    assert ["is of another model: it is DeepFM, got WideDeep" in line for line in said] == [True, True]
    assert run("eval", "--checkpoint", str(saved), meant="true") == 0
    assert run("train", meant="true") == 0
