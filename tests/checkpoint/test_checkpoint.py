"""Checkpoints: what is saved comes back bit for bit, anywhere; damage stands in test_checkpoint_golden.py."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.checkpoint import read_manifest
from pslib.config import Timing
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import CheckpointError
from pslib.table.optimizers import SGD, Adagrad, Adam, Momentum
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Load, Save, Setup
from rec_models.deepfm import DeepFM
from tests.support.checkpoints import (
    GOLDEN,
    GOLDEN_DENSE,
    GOLDEN_KEYS,
    GOLDEN_TABLE,
    Content,
    content_of,
    save_tables,
    table_in,
)
from tests.support.clients import client_of, client_with
from tests.support.clusters import Trainers, cluster_of
from tests.support.processes.command import ROOT
from tests.support.waiting import PATIENCE_S, WAIT_S, wait_until

GUIDE = ROOT / "docs" / "guide" / "checkpoints.md"
FORMAT = ROOT / "docs" / "design" / "checkpoint.md"
CONFIG = GeneratorConfig(
    train_rows=600, test_rows=100, seed=3, vocabularies=(7, 60, 300), dense_fields=2, row_group_rows=250
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("checkpoint"), CONFIG)


@contextmanager
def one_trainer(servers: int = 2, **about: Any) -> Iterator[pslib.Trainer]:
    with cluster_of(servers) as running:
        yield trainer_on(running, **about)


def trainer_on(
    running: Trainers,
    dim: int = 5,
    dense_optimizer=Adam(0.005),  # noqa: B008
    v_optimizer=Adagrad(),  # noqa: B008
) -> pslib.Trainer:
    optimizers = {"w_optimizer": Adam(), "v_optimizer": v_optimizer}
    model = DeepFM(generated_schema(CONFIG), dim=dim, hidden=(6,), dropout=0.2, **optimizers)
    settings = {"batch_rows": 64, "staleness": 0, "seed": 2, "progress": False}
    return pslib.Trainer(model, running.join(), dense_optimizer=dense_optimizer, **settings)


@pytest.fixture(scope="module")
def saved(data: Generated, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    """A checkpoint after one epoch on 2 servers with 2 shard threads, and what a second epoch gives."""
    folder = tmp_path_factory.mktemp("saved")
    with cluster_of(2, shard_threads=2) as running:
        trainer = trainer_on(running)
        trainer.fit(data.train_path)
        trainer.save(folder / "one")
        trainer.fit(data.train_path)
        trainer.save(folder / "two")
    return folder / "one", content_of(folder / "two")


# --- what comes back


@pytest.mark.parametrize(
    ("servers", "shard_threads", "partition_bits", "dense_blocks"),
    [(1, 1, 7, 8), (2, 2, 7, 8), (3, 1, 9, 5), (4, 3, 6, 1), (1, 1, 4, 100)],
)
def test_a_checkpoint_loads_anywhere_and_training_goes_on_with_the_same_bits(
    data: Generated,
    saved: tuple[Path, Content],
    tmp_path: Path,
    servers: int,
    shard_threads: int,
    partition_bits: int,
    dense_blocks: int,
) -> None:
    folder, second_epoch = saved
    with cluster_of(
        servers, shard_threads=shard_threads, partition_bits=partition_bits, dense_blocks=dense_blocks
    ) as running:
        trainer = trainer_on(running)
        trainer.load(folder)
        trainer.save(tmp_path / "again")
        assert content_of(tmp_path / "again") == content_of(folder)
        trainer.fit(data.train_path)
        trainer.save(tmp_path / "on")
    assert content_of(tmp_path / "on") == second_epoch


def test_from_2_to_3_to_5_to_2_servers_no_bit_changes(
    data: Generated, saved: tuple[Path, Content], tmp_path: Path
) -> None:
    folder, second_epoch = saved
    for number, (servers, shard_threads, bits) in enumerate([(3, 2, 6), (5, 1, 8), (2, 2, 7)]):
        with cluster_of(servers, shard_threads=shard_threads, partition_bits=bits) as running:
            trainer = trainer_on(running)
            trainer.load(folder)
            folder = Path(trainer.save(tmp_path / str(number)))
            assert content_of(folder) == content_of(saved[0])
            if servers == 2:
                trainer.fit(data.train_path)
                trainer.save(tmp_path / "on")
    assert content_of(tmp_path / "on") == second_epoch


def test_loading_replaces_all_that_was_there(
    data: Generated, saved: tuple[Path, Content], tmp_path: Path
) -> None:
    folder, _ = saved
    with one_trainer(2) as trainer:
        trainer.fit(data.test_path, epochs=2)
        trainer.load(folder)
        trainer.save(tmp_path / "again")
    assert content_of(tmp_path / "again") == content_of(folder)


def test_loading_says_how_many_rows_came(saved: tuple[Path, Content]) -> None:
    folder, _ = saved
    with cluster_of(3, shard_threads=2) as running:
        trainer_on(running)
        client = running.clusters[0].client
        assert client.load(str(folder)) == len(content_of(folder).rows) == client.stats()["rows"]


def test_two_trainers_save_and_load_together(data: Generated, tmp_path: Path) -> None:
    def script(cluster: pslib.Cluster) -> float:
        model = DeepFM(generated_schema(CONFIG), dim=2, hidden=(3,))
        trainer = pslib.Trainer(model, cluster, batch_rows=32, progress=False)
        trainer.fit(data.train_path)
        before = trainer.evaluate(data.test_path)
        trainer.save(tmp_path / "both")
        trainer.fit(data.train_path)
        trainer.load(tmp_path / "both")
        assert trainer.evaluate(data.test_path) == before
        return before.auc

    with cluster_of(2, trainers=2) as running:
        first, second = running.run(script, script)
    assert isinstance(first, float)
    assert first == second


def test_an_untrained_model_saves_and_loads(tmp_path: Path) -> None:
    with cluster_of(2) as running:
        trainer = trainer_on(running)
        trainer.save(tmp_path / "empty")
        trainer.load(tmp_path / "empty")
        assert running.clusters[0].client.stats()["rows"] == 0
    assert content_of(tmp_path / "empty").rows == {}


# --- for strangers


def readme_blocks() -> list[str]:
    rows, _, _export = GUIDE.read_text().partition("\n## Export\n")  # whose blocks its own tests run
    return re.findall(r"```python\n(.*?)```", rows, re.DOTALL)


def test_the_recipe_in_the_readme_reads_rows_with_pyarrow(saved: tuple[Path, Content]) -> None:
    folder, _ = saved
    names: dict[str, object] = {"folder": folder}
    exec(readme_blocks()[0], names)
    with cluster_of() as running:
        trainer_on(running).load(folder)
        rows = running.clusters[0].client.pull({"embedding": names["keys"]}).wait().rows["embedding"]
    assert len(rows) == len(content_of(folder).rows)
    assert (names["embeddings"] == rows[:, 1:]).all()


def test_the_recipe_in_the_readme_reads_rows_with_pandas(saved: tuple[Path, Content]) -> None:
    pytest.importorskip(
        "pandas",
        reason="the recipe shown to users reads with pandas, which pslib does not need; the one with pyarrow "
        "alone, in the test above, reads the same rows everywhere",
    )
    folder, _ = saved
    names: dict[str, object] = {"folder": folder}
    for block in readme_blocks():
        exec(block, names)
    frame = names["frame"]
    assert set(frame.index) == set(content_of(folder).rows)  # type: ignore[attr-defined]
    assert list(frame.columns) == ["w", "w_state", "v", "v_state"]  # type: ignore[attr-defined]


def test_the_readme_names_every_entry_of_a_manifest(saved: tuple[Path, Content]) -> None:
    manifest = json.loads((saved[0] / "manifest.json").read_text())
    named = set(re.findall(r"^\| `(\w+)` \|", FORMAT.read_text(), re.MULTILINE))
    assert named == {*manifest, "cut", "increment"}  # which a plain save has not


# --- other models


OTHERS: dict[str, tuple[Callable[[Trainers], object], str]] = {
    "another dim": (
        lambda running: trainer_on(running, dim=4),
        "part v has dim 5 and Adagrad; expected v, dim 4",
    ),
    "another optimizer with state of the same length": (
        lambda running: trainer_on(running, v_optimizer=Momentum()),
        "part v has dim 5 and Adagrad; expected v, dim 5 and Momentum",
    ),
    "another dense optimizer": (
        lambda running: trainer_on(running, dense_optimizer=Adagrad()),
        "dense optimizer: expected Adagrad, the checkpoint has Adam",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_model_is_refused(
    saved: tuple[Path, Content], data: Generated, other: str
) -> None:
    make, text = OTHERS[other]
    with cluster_of(2) as running:
        trainer = make(running)
        trainer.fit(data.test_path)  # type: ignore[attr-defined]
        client = running.clusters[0].client
        before = client.stats()["rows"]
        with pytest.raises(CheckpointError, match=re.escape(text)):
            trainer.load(saved[0])  # type: ignore[attr-defined]
        assert client.stats()["rows"] == before > 0


def test_a_checkpoint_without_the_table_is_refused(saved: tuple[Path, Content]) -> None:
    told = r"no table 'item' in it; it has \['embedding'\]"
    with client_with(GOLDEN_TABLE) as client, pytest.raises(CheckpointError, match=told):
        client.load(str(saved[0]))


# --- saving


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_saving_again_removes_the_older_files_and_no_others(data: Generated, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.arrow").write_text("a user's file")
    (folder / "embedding.notes.arrow").write_text("another")
    with one_trainer(2) as trainer:
        trainer.save(folder)
        first = names_in(folder)
        trainer.fit(data.test_path)
        trainer.save(folder)
    files = {entry.name for entry in read_manifest(str(folder)).files}
    assert names_in(folder) == files | {"manifest.json", "mine.arrow", "embedding.notes.arrow"}
    assert not files & first


@pytest.mark.parametrize("when", ["before the manifest", "before it is moved"])
def test_a_save_that_dies_leaves_the_older_checkpoint(
    data: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def dying(*_arguments: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "here"
    with one_trainer(2) as trainer:
        trainer.save(folder)
        before = content_of(folder)
        trainer.fit(data.test_path)
        with monkeypatch.context() as patch:
            if when == "before the manifest":
                patch.setattr("pslib.trainer.checkpoints.save_load.commit", dying)
            else:
                patch.setattr("pslib.checkpoint.manifest.sync", dying)
            with pytest.raises(KeyboardInterrupt):
                trainer.save(folder)
        assert content_of(folder) == before
        trainer.load(folder)
        trainer.save(folder)
    assert names_in(folder) == {entry.name for entry in read_manifest(str(folder)).files} | {"manifest.json"}
    assert content_of(folder) == before


def test_a_place_that_cannot_be_written_is_named_and_training_goes_on(
    data: Generated, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with one_trainer(2) as trainer:
        with pytest.raises(CheckpointError, match=r"file/below.*can't write"):
            trainer.save(tmp_path / "file" / "below")
        trainer.fit(data.test_path)
        trainer.save(tmp_path / "good")
    assert content_of(tmp_path / "good").rows


def setup_of(dim: int) -> Setup:
    spec = TableSpec("more", (PartSpec("v", dim, SGD(1.0)),))
    return Setup({"tables": [spec.to_dict()]}, 0, {}, np.empty(0, np.float32))


def test_a_save_of_servers_that_have_different_tables_of_one_name_is_refused(tmp_path: Path) -> None:
    """No load could take both; a client that does not keep to the order of set-ups has made them."""
    with cluster_of(2) as running:
        trainer, client = trainer_on(running), running.client()
        for dim, server in enumerate(client.servers, 4):
            client.endpoint.ask(server, setup_of(dim)).wait()
        said = r"different tables 'more'.* part v: it has dim 4, got 5 in more\."
        with pytest.raises(CheckpointError, match=said):
            trainer.save(tmp_path / "saved")
        assert not (tmp_path / "saved" / "manifest.json").exists()
        client.close()


def test_a_file_with_columns_of_other_types_is_refused_with_both_types(tmp_path: Path) -> None:
    """Names alone would read "has columns ['key', 'v'], expected ['key', 'v']"."""
    with client_of(1) as (client, _running):
        client.endpoint.ask(client.servers[0], setup_of(5)).wait()
        save_tables(client, tmp_path, TableSpec("more", (PartSpec("v", 4, SGD(1.0)),)))
    with client_of(1) as (client, _running):
        client.endpoint.ask(client.servers[0], setup_of(4)).wait()
        said = r"columns \[.*'v: fixed_size_list.*\[5\]'\], expected \[.*'v: fixed_size_list.*\[4\]'\]"
        with pytest.raises(CheckpointError, match=said):
            client.load(str(tmp_path))


def test_a_slow_save_is_written_once(tmp_path: Path) -> None:
    """Asked for again while it goes on, it must not be done again with later rows."""
    gate = threading.Event()
    with cluster_of(2) as running:
        client = running.client(Timing(retry_s=0.02, retry_max_s=0.02))
        client.setup([GOLDEN_TABLE])
        for server in running.embedded.servers:
            server._threads[0].put(lambda _shard: gate.wait(20.0))
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(client.save_files, str(tmp_path), "0000abcd")
            wait_until(lambda: client.endpoint.requests.resent > 4, WAIT_S, "the save to be asked for again")
            gate.set()
            entries = saving.result(PATIENCE_S)
        for _ in range(3):
            client.push({"item": (GOLDEN_KEYS, np.ones((8, 8), np.float32))}).wait()
        time.sleep(0.1)
        for entry in entries:
            assert (tmp_path / entry["name"]).stat().st_size == entry["bytes"]
            assert table_in(tmp_path / entry["name"]).num_rows == 0
        client.close()


def test_a_second_copy_of_a_load_does_not_undo_what_was_trained_since() -> None:
    with client_of(1) as (client, _running):
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.zeros(5, np.float32))
        message = Load(str(GOLDEN), "one load")
        client.endpoint.ask(client.servers[0], message).wait()
        client.push({"item": (GOLDEN_KEYS, np.ones((8, 8), np.float32))}).wait()
        rows = client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes()
        client.endpoint.ask(client.servers[0], message).wait()
        assert client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes() == rows
        client.endpoint.ask(client.servers[0], Load(str(GOLDEN), "another")).wait()
        assert client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes() != rows


def test_a_save_that_failed_fails_again_when_its_copy_comes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with client_with(GOLDEN_TABLE) as client:
        message = Save(str(tmp_path / "file"), "0000abcd-000")
        for _ in range(2):
            with pytest.raises(CheckpointError, match="can't write"):
                client.endpoint.ask(client.servers[0], message).wait()
            (tmp_path / "file").unlink(missing_ok=True)
