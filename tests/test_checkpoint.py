"""Checkpoints: what is saved comes back bit for bit, anywhere, and damage never does."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pslib
from pslib import checkpoint
from pslib.checkpoint import load_shard, read_manifest
from pslib.config import Timing
from pslib.data.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import CheckpointCorruptError, CheckpointError, CheckpointIncompatibleError
from pslib.initializers import Constant, Normal, Uniform
from pslib.optimizers import SGD, Adagrad, Adam, Momentum, RowwiseAdagrad
from pslib.protocol.messages import Load, Save, Setup
from pslib.shard import Shard
from pslib.tables import DenseSpec, PartSpec, TableSpec
from rec_models.deepfm import DeepFM
from tests.checkpoints import Content, content_of
from tests.clusters import Trainers, cluster_of
from tests.definitions import DictTable
from tests.definitions_optimizers import full_step

README = Path(checkpoint.__file__).parent / "README.md"
GOLDEN = Path(__file__).parent / "golden" / "checkpoint_v1"
CONFIG = GeneratorConfig(
    train_rows=600, test_rows=100, seed=3, vocabularies=(7, 60, 300), dense_fields=2, row_group_rows=250
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("checkpoint"), CONFIG)


def trainer_on(
    running: Trainers,
    dim: int = 5,
    dense_optimizer=Adam(0.005),  # noqa: B008
    v_optimizer=Adagrad(),  # noqa: B008
) -> pslib.Trainer:
    model = DeepFM(
        generated_schema(CONFIG),
        dim=dim,
        hidden=(6,),
        dropout=0.2,
        w_optimizer=Adam(),
        v_optimizer=v_optimizer,
    )
    return pslib.Trainer(
        model,
        running.join(),
        batch_rows=64,
        staleness=0,
        dense_optimizer=dense_optimizer,
        seed=2,
        progress=False,
    )


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


def test_loading_replaces_all_that_was_there(
    data: Generated, saved: tuple[Path, Content], tmp_path: Path
) -> None:
    folder, _ = saved
    with cluster_of(2) as running:
        trainer = trainer_on(running)
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
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


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
    pytest.importorskip("pandas")
    folder, _ = saved
    names: dict[str, object] = {"folder": folder}
    for block in readme_blocks():
        exec(block, names)
    frame = names["frame"]
    assert set(frame.index) == set(content_of(folder).rows)  # type: ignore[attr-defined]
    assert list(frame.columns) == ["w", "w_state", "v", "v_state"]  # type: ignore[attr-defined]


def test_the_readme_names_every_entry_of_a_manifest(saved: tuple[Path, Content]) -> None:
    manifest = json.loads((saved[0] / "manifest.json").read_text())
    named = set(re.findall(r"^\| `(\w+)` \|", README.read_text(), re.MULTILINE))
    assert named == set(manifest)


# --- the golden checkpoint


GOLDEN_TABLE = TableSpec(
    "item",
    (
        PartSpec("a", 2, SGD(0.5), Constant(0.25)),
        PartSpec("b", 3, Adagrad(0.1, initial_accumulator=0.5), Uniform(0.5)),
        PartSpec("c", 2, RowwiseAdagrad(0.1), Normal(0.1)),
        PartSpec("d", 1, Adam(0.01), Uniform(1.0)),
    ),
    seed=7,
)
GOLDEN_DENSE = DenseSpec(5, Adam(0.01))
GOLDEN_KEYS = np.array([0, 1, 2, 3, 1 << 24, (1 << 24) + 1, 1 << 63, (1 << 64) - 1], np.uint64)


def golden_pushes() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    for number in range(3):
        keys = GOLDEN_KEYS[number:]
        ramp = np.arange(keys.size * 8 + 5, dtype=np.int64) * 7 + number
        floats = ((ramp % 11 - 5) / 8).astype(np.float32)
        yield keys, floats[5:].reshape(-1, 8), floats[:5]


def write_golden(folder: Path) -> None:
    """How the golden checkpoint was made; it is never made again."""
    with cluster_of(2, partition_bits=5, dense_blocks=3) as running:
        client = running.client()
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.linspace(-1, 1, 5, dtype=np.float32))
        for keys, gradients, dense in golden_pushes():
            client.push({"item": (keys, gradients)}, dense).wait()
        files = [checkpoint.ManifestFile(**entry) for entry in client.save_files(str(folder), "00000001")]
        manifest = checkpoint.Manifest(
            tables=[GOLDEN_TABLE.to_dict()],
            dense={"length": 5, "optimizer": GOLDEN_DENSE.optimizer.to_dict(), "parameters": []},
            files=files,
            servers=2,
            about={"epochs": 3},
            saved_utc="2026-11-21T09:00:00+00:00",
        )
        checkpoint.commit(str(folder), manifest)
        client.close()


def test_the_first_checkpoint_ever_still_loads(tmp_path: Path) -> None:
    table, dense = DictTable(GOLDEN_TABLE, 0), np.linspace(-1, 1, 5, dtype=np.float32)
    state = GOLDEN_DENSE.optimizer.initial_state(5)
    for keys, gradients, dense_gradient in golden_pushes():
        table.push(keys, gradients)
        full_step(GOLDEN_DENSE.optimizer, dense, state, dense_gradient)
    expected = {key: np.concatenate([*row.weights, *row.state]).tobytes() for key, row in table.table.items()}
    with cluster_of(3, partition_bits=7, dense_blocks=2) as running:
        client = running.client()
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.zeros(5, np.float32))
        assert client.load(str(GOLDEN)) == len(GOLDEN_KEYS)
        assert client.pull({}, dense=True).wait().dense.tobytes() == dense.tobytes()
        client.close()
    content = content_of(GOLDEN)
    assert content.rows == expected
    assert content.dense == dense.tobytes()
    assert content.dense_state == state.tobytes()


def test_the_first_checkpoint_ever_is_as_it_was() -> None:
    """Its bytes are the definition of format 1: a change of them is a new format."""
    digest = hashlib.sha256()
    for path in sorted(GOLDEN.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    assert digest.hexdigest()[:16] == "d4b95e4fc15e4827"


# --- damage


def golden_shard() -> Shard:
    shard = Shard(4, 2)
    shard.own(np.arange(18))
    plain = GOLDEN_DENSE.optimizer.to_dict()
    shard.setup(Setup({"tables": [GOLDEN_TABLE.to_dict()]}, 5, plain, np.zeros(5, np.float32)))
    shard.stores["item"].push(GOLDEN_KEYS[:4], np.ones((4, 8), np.float32))
    return shard


@pytest.fixture(scope="module")
def shard() -> Shard:
    return golden_shard()


def refused(shard: Shard, folder: Path) -> CheckpointError:
    """The error of a load that must fail, and change nothing."""
    before = [shard.stores["item"].export_partition(p) for p in range(16)]
    with pytest.raises(CheckpointError) as caught:
        load_shard(shard, str(folder))
    after = [shard.stores["item"].export_partition(p) for p in range(16)]
    for one, other in zip(before, after, strict=True):
        assert [array.tobytes() for array in one] == [array.tobytes() for array in other]
    assert "\n" not in str(caught.value).strip()
    return caught.value


def data_files() -> list[str]:
    return sorted(path.name for path in GOLDEN.glob("*.arrow"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "copy"
    shutil.copytree(GOLDEN, folder)
    return folder


@settings(max_examples=150, deadline=None)
@given(choice=st.data())
def test_any_damage_to_any_file_is_noticed_before_a_row_changes(
    shard: Shard, copy: Path, choice: st.DataObject
) -> None:
    name = choice.draw(st.sampled_from(data_files()))
    whole = (GOLDEN / name).read_bytes()
    place = choice.draw(st.integers(0, len(whole) - 1))
    damage = choice.draw(st.sampled_from(["flip", "cut", "grow", "zeros"]))
    spoilt = bytearray(whole)
    if damage == "flip":
        spoilt[place] ^= 1 << choice.draw(st.integers(0, 7))
    elif damage == "cut":
        del spoilt[place:]
    elif damage == "grow":
        spoilt[place:place] = b"\0"
    else:
        spoilt[place : place + 512] = bytes(len(spoilt[place : place + 512]))
    if bytes(spoilt) == whole:
        return
    try:
        (copy / name).write_bytes(spoilt)
        error = refused(shard, copy)
    finally:
        (copy / name).write_bytes(whole)
    assert isinstance(error, CheckpointCorruptError)
    assert name in str(error)


def test_a_change_of_any_byte_of_the_manifest_is_noticed(copy: Path) -> None:
    whole = (GOLDEN / "manifest.json").read_bytes()
    numbers = np.random.default_rng(1)
    for place in range(len(whole)):
        flipped = bytes([whole[place] ^ (1 << int(numbers.integers(8)))])
        spoilt_ones = [whole[:place] + flipped + whole[place + 1 :]]
        for spoilt in spoilt_ones if place % 10 else [*spoilt_ones, whole[:place]]:
            (copy / "manifest.json").write_bytes(spoilt)
            with pytest.raises(CheckpointError):
                read_manifest(str(copy))
    (copy / "manifest.json").write_bytes(whole)
    assert read_manifest(str(copy)) == read_manifest(str(GOLDEN))


@pytest.mark.parametrize("name", ["dense", "item"])
def test_a_missing_file_is_named(shard: Shard, tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    gone = next((tmp_path / "copy").glob(f"{name}.*"))
    gone.unlink()
    error = refused(shard, tmp_path / "copy")
    assert isinstance(error, CheckpointCorruptError)
    assert gone.name in str(error)


def recommitted(folder: Path, **changes: object) -> Path:
    """A copy of the golden checkpoint whose manifest says something else, under a good CRC."""
    shutil.copytree(GOLDEN, folder)
    manifest = read_manifest(str(folder))
    values = {name: getattr(manifest, name) for name in manifest.__slots__} | changes
    checkpoint.commit(str(folder), checkpoint.Manifest(**values))
    return folder


def test_dense_parameters_that_no_file_holds_are_missed(shard: Shard, tmp_path: Path) -> None:
    files = [entry for entry in read_manifest(str(GOLDEN)).files if entry.table]
    error = refused(shard, recommitted(tmp_path / "copy", files=files))
    assert isinstance(error, CheckpointCorruptError)
    assert "5 of 5 dense parameters missing" in str(error)


def test_a_newer_format_is_named(shard: Shard, tmp_path: Path) -> None:
    error = refused(shard, recommitted(tmp_path / "copy", format_version=3))
    assert isinstance(error, CheckpointIncompatibleError)
    assert "format 3 is newer" in str(error)


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file name"):
        checkpoint.ManifestFile("../secret", "item", 1, 1, 1)


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_a_place_without_a_checkpoint_is_named(shard: Shard, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    error = refused(shard, tmp_path / place)
    assert "no manifest.json there" in str(error)
    assert str(tmp_path / place) in str(error)


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
    with cluster_of() as running:
        client = running.client()
        client.setup([GOLDEN_TABLE])
        with pytest.raises(CheckpointError, match=r"no table 'item' in it; it has \['embedding'\]"):
            client.load(str(saved[0]))
        client.close()


# --- saving


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_saving_again_removes_the_older_files_and_nobody_elses(data: Generated, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.arrow").write_text("a user's file")
    (folder / "embedding.notes.arrow").write_text("another")
    with cluster_of(2) as running:
        trainer = trainer_on(running)
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
    with cluster_of(2) as running:
        trainer = trainer_on(running)
        trainer.save(folder)
        before = content_of(folder)
        trainer.fit(data.test_path)
        with monkeypatch.context() as patch:
            if when == "before the manifest":
                patch.setattr("pslib.trainer.trainer.commit", dying)
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
    with cluster_of(2) as running:
        trainer = trainer_on(running)
        with pytest.raises(CheckpointError, match=r"file/below.*can't write"):
            trainer.save(tmp_path / "file" / "below")
        trainer.fit(data.test_path)
        trainer.save(tmp_path / "good")
    assert content_of(tmp_path / "good").rows


def test_a_slow_save_is_written_once(tmp_path: Path) -> None:
    """Asked for again while it goes on, it must not be done again with later rows."""
    gate = threading.Event()
    with cluster_of(2) as running:
        client = running.client(Timing(retry_s=0.02, retry_max_s=0.02))
        client.setup([GOLDEN_TABLE])
        for server in running.embedded.servers:
            server._threads[0].put(lambda _shard: gate.wait(20.0))
        threading.Timer(0.3, gate.set).start()
        entries = client.save_files(str(tmp_path), "0000abcd")
        assert client.endpoint.requests.resent > 4
        for _ in range(3):
            client.push({"item": (GOLDEN_KEYS, np.ones((8, 8), np.float32))}).wait()
        time.sleep(0.1)
        for entry in entries:
            assert (tmp_path / entry["name"]).stat().st_size == entry["bytes"]
            with pa.OSFile(str(tmp_path / entry["name"])) as file:
                assert pa.ipc.open_file(file).read_all().num_rows == 0
        client.close()


def test_a_second_copy_of_a_load_does_not_undo_what_was_trained_since() -> None:
    with cluster_of(1) as running:
        client = running.client()
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.zeros(5, np.float32))
        message = Load(str(GOLDEN), "one load")
        client.endpoint.ask(client.servers[0], message).wait()
        client.push({"item": (GOLDEN_KEYS, np.ones((8, 8), np.float32))}).wait()
        rows = client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes()
        client.endpoint.ask(client.servers[0], message).wait()
        assert client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes() == rows
        client.endpoint.ask(client.servers[0], Load(str(GOLDEN), "another")).wait()
        assert client.pull({"item": GOLDEN_KEYS}).wait().rows["item"].tobytes() != rows
        client.close()


def test_a_save_that_failed_fails_again_when_its_copy_comes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with cluster_of(1) as running:
        client = running.client()
        client.setup([GOLDEN_TABLE])
        message = Save(str(tmp_path / "file"), "0000abcd-000")
        for _ in range(2):
            with pytest.raises(CheckpointError, match="can't write"):
                client.endpoint.ask(client.servers[0], message).wait()
            (tmp_path / "file").unlink(missing_ok=True)
        client.close()
