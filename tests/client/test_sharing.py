"""Trainers of one model share rows and dense parameters; trainers of another model are refused at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.shard.shard import Shard
from pslib.table.descriptions import model_description
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD, Adagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.transport import ZmqTransport
from pslib.wire.messages import Setup
from rec_models import FM, LR
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, STEP, CountingModel, write_examples
from tests.support.training import counts_of, trainer_on

FIELDS = Schema(label="label", sparse=["id", "same"])


class OtherModel(CountingModel):
    """A model as large as a CountingModel, in rows and in dense parameters."""


class OwnTable(CountingModel):
    def table(self) -> TableSpec:
        return TableSpec("own", super().table().parts)


class OwnRows(OwnTable):
    """No dense parameters, so that it can live beside another model."""

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def initial_dense(self, seed: int) -> dict[str, np.ndarray]:
        return {}

    def loss_and_gradients(self, batch, rows, dense, step_seed):
        step = super().loss_and_gradients(batch, rows, dense, step_seed)
        return type(step)(step.loss, step.logits, step.rows_gradient, {})


def trainer_of(model, cluster: pslib.Cluster, **settings) -> pslib.Trainer:
    return pslib.Trainer(model, cluster, progress=False, **settings)


# --- in one process


def test_a_second_trainer_of_a_cluster_is_refused_before_it_touches_a_row(tmp_path: Path) -> None:
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        trainer.fit(write_examples(tmp_path / "a.parquet", 40))
        saves = cluster.client.member.on_cut
        with pytest.raises(ConfigurationError) as refusal:
            trainer_on(cluster)
        assert cluster.client.member.on_cut == saves, "the first one's checkpoints are still its own"
        assert str(refusal.value) == (
            "this cluster has a Trainer already, of CountingModel and table counts, whose rows and dense "
            "parameters another one would train too: use that one, give this CountingModel a cluster of its "
            "own (pslib.connect() again), or say Trainer(..., share=True) if both shall train the same "
            "parameters"
        )
        assert (counts_of(cluster, np.arange(40)) == 1).all()


def test_a_second_trainer_that_shares_goes_on_with_what_the_first_has_learned(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with pslib.connect() as cluster:
        trainer_on(cluster).fit(path)
        trainer_on(cluster, share=True).fit(path)
        assert (counts_of(cluster, np.arange(40)) == 2).all()


def test_a_trainer_that_was_refused_is_in_no_others_way() -> None:
    with pslib.connect() as cluster:
        cluster.client.setup([TableSpec("counts", (PartSpec("n", 2, STEP, Constant(0.0)),))])
        with pytest.raises(ConfigurationError, match="table counts exists with another description"):
            trainer_on(cluster)
        trainer_of(LR(FIELDS), cluster)


def test_clusters_of_one_process_share_nothing(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with pslib.connect() as one, pslib.connect() as other:
        trainer_on(one).fit(path)
        trainer_on(other).fit(path)
        assert (counts_of(other, np.arange(40)) == 1).all()


def test_models_with_tables_of_their_own_do_not_share_dense_parameters_either() -> None:
    with pslib.connect() as cluster:
        trainer_on(cluster)
        with pytest.raises(
            ConfigurationError, match="are those of CountingModel and table counts, got OwnTable"
        ):
            trainer_on(cluster, OwnTable())


def test_a_model_without_dense_parameters_lives_beside_another_one(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with pslib.connect() as cluster:
        trainer_on(cluster).fit(path)
        trainer_on(cluster, OwnRows())
        assert (counts_of(cluster, np.arange(40)) == 1).all()


# --- several processes of one cluster

SCRIPT = """
import sys
import pslib
from tests.client.test_sharing import CountingModel, OtherModel, trainer_on

with pslib.connect(sys.argv[1], cluster_id=sys.argv[2]) as cluster:
    trainer_on(cluster, globals()[sys.argv[3]](), share=len(sys.argv) > 4)
    print("made")
"""


def in_a_process(running, *arguments: str) -> tuple[int, str]:
    about = [running.embedded.address, running.embedded.cluster_id, *arguments]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *about], capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_another_model_of_another_process_is_refused_and_the_same_one_is_welcome() -> None:
    with cluster_of(servers=2, transport=ZmqTransport(), listen="tcp://127.0.0.1:0") as running:
        trainer_on(running.join())
        assert in_a_process(running, "CountingModel") == (0, "made\n")
        code, said = in_a_process(running, "OtherModel")
        assert (code, len(said.splitlines())) == (64, 2), "its line, and that of the script"
        assert (
            "table counts is trained as another model: it is CountingModel, got OtherModel; give the other "
            "model a cluster of its own, or say Trainer(..., share=True) if both shall train the same "
            "parameters"
        ) in said
        assert in_a_process(running, "OtherModel", "share") == (0, "made\n")


@pytest.mark.parametrize(
    ("mine", "other", "text"),
    [
        (
            LR(FIELDS),
            LR(Schema(label="label", sparse=["id", "other"])),
            "it reads columns id, same, got id, other",
        ),
        (
            LR(SCHEMA),
            LR(Schema(label="label", dense=[pslib.DenseField("score", log1p=True)], sparse=["id", "same"])),
            "it reads columns score, id, same, got the same, read in another way",
        ),
        (FM(FIELDS, dim=4), FM(FIELDS, dim=8), r"part v: it has dim 4, got 8; use the same one"),
        (
            LR(FIELDS, w_optimizer=SGD(0.5)),
            LR(FIELDS, w_optimizer=Adagrad(0.5)),
            r"part w: it has optimizer SGD\(.*\), got Adagrad\(",
        ),
        (LR(FIELDS), FM(FIELDS, dim=4), r"table embedding .*it has parts \['w'\], got \['w', 'v'\]"),
    ],
    ids=["columns", "options", "dim", "optimizer", "parts"],
)
def test_a_refusal_says_what_is_there_and_what_came(mine, other, text: str) -> None:
    with cluster_of() as running:
        trainer_of(mine, running.join())
        with pytest.raises(ConfigurationError, match=text):
            trainer_of(other, running.join())


def test_dense_parameters_of_as_many_numbers_are_told_apart_by_their_names() -> None:
    class Renamed(CountingModel):
        def dense_shapes(self) -> dict[str, tuple[int, ...]]:
            return {"batches": (1,)}

        def initial_dense(self, seed: int) -> dict[str, np.ndarray]:
            return {"batches": np.zeros(1, np.float32)}

    Renamed.__name__ = "CountingModel"
    with cluster_of() as running:
        trainer_on(running.join())
        with pytest.raises(ConfigurationError, match="it has dense parameters examples, got batches"):
            trainer_on(running.join(), Renamed())
        with pytest.raises(ConfigurationError, match=r"it has optimizer SGD\(.*, got Adagrad\("):
            trainer_on(running.join(), dense_optimizer=Adagrad(0.1))


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/records"])
def test_a_trainer_whose_records_have_no_place_is_refused_before_the_cluster_counts_it(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pslib.connect() as cluster:
        with pytest.raises(
            ConfigurationError, match=r"^out: \S+ can't be written to: .*; give another"
        ) as error:
            trainer_of(CountingModel(), cluster, out=tmp_path / place)
        assert len(error.value.problems) == 1
        trainer_of(CountingModel(), cluster, out=tmp_path / "records")
    assert (tmp_path / "records" / "summary.json").exists()
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_same_columns_with_another_label_are_the_same_model() -> None:
    with cluster_of() as running:
        trainer_of(LR(FIELDS), running.join())
        trainer_of(LR(Schema(label="unknown", sparse=["id", "same"])), running.join())


def test_a_client_that_names_no_model_shares_with_all() -> None:
    with cluster_of() as running:
        trainer_on(running.join())
        client = running.join().client
        client.setup([CountingModel().table()], DenseSpec(1, STEP), np.zeros(1, np.float32))


# --- what outlives a server


def test_a_cluster_that_comes_back_from_its_log_knows_the_model_of_its_rows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        with pslib.connect(durability="log", log=log) as cluster:
            trainer_on(cluster)
    with (
        pslib.connect(durability="log", log=log) as cluster,
        pytest.raises(ConfigurationError, match="it is CountingModel, got OtherModel"),
    ):
        trainer_on(cluster, OtherModel())


def test_a_server_that_joins_later_hears_it_with_the_tables() -> None:
    old, new = Shard(4, 2), Shard(4, 2)
    model = model_description("t", "DeepFM", SCHEMA.to_dict(), [])
    plain = TableSpec("t", (PartSpec("v", 2),)).to_dict()
    old.setup(Setup({"tables": [plain], "models": [model]}, 0, {}, np.empty(0, np.float32)))
    new.setup(old.setup_message())
    with pytest.raises(ConfigurationError, match="it is DeepFM, got FM"):
        new.setup(
            Setup({"tables": [plain], "models": [model | {"model": "FM"}]}, 0, {}, np.empty(0, np.float32))
        )
