"""Each format of an export holds the parameters of the loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.data.columns import keys_of
from pslib.errors import CheckpointError, ConfigurationError
from pslib.schema import Schema, SparseField
from rec_models import DeepFM, GRU4Rec, TorchModel, TwoTower
from tests.support.models.zoo import CLICKS, QUERIES, SESSIONS, Trained


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trained = Trained(tmp_path_factory.mktemp("clicks"), DeepFM(CLICKS, dim=4, hidden=(8,)))
    trained.run()
    return trained


def test_numpy_has_keys_rows_and_dense_parameters(clicks: Trained, tmp_path: Path) -> None:
    model = pslib.load(clicks.checkpoint)
    assert pslib.export(model, "numpy", tmp_path / "model.npz") == [str(tmp_path / "model.npz")]
    with np.load(tmp_path / "model.npz") as found:
        assert found["rows"].shape == (model.rows, 5)
        np.testing.assert_array_equal(found["rows"], model.parameters.rows(found["keys"]))
        for name, value in model.parameters.dense.items():
            np.testing.assert_array_equal(found[f"dense/{name}"], value, err_msg=name)
        names = pa.array(["m1", "m2"])
        places = np.searchsorted(found["keys"], keys_of(names, SparseField("movie").salt))
        np.testing.assert_array_equal(found["rows"][places, 1:], model.vectors("movie", ["m1", "m2"]))


def test_parquet_is_the_tables_of_the_checkpoint(clicks: Trained, tmp_path: Path) -> None:
    files = pslib.export(clicks.checkpoint, "parquet", tmp_path / "tables")
    model = pslib.load(clicks.checkpoint)
    rows = pa.concat_tables(pq.read_table(one) for one in files if "dense" not in one)
    order = np.argsort(rows["key"].to_numpy())
    np.testing.assert_array_equal(rows["key"].to_numpy()[order], model.parameters.keys())
    again = pslib.export(model, "parquet", tmp_path / "again")
    assert [Path(one).name for one in again] == [Path(one).name for one in files]


def test_torch_has_the_state_dict_and_the_rows(clicks: Trained, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = pslib.load(clicks.checkpoint)
    pslib.export(model, "torch", tmp_path / "torch")
    state = torch.load(tmp_path / "torch" / "state.pt", weights_only=True)
    assert list(state) == list(model.parameters.dense)
    np.testing.assert_array_equal(state["mlp.0.w"].numpy(), model.parameters.dense["mlp.0.w"])
    rows = torch.load(tmp_path / "torch" / "rows.pt", weights_only=True)
    keys = rows["keys"].numpy().view(np.uint64)
    np.testing.assert_array_equal(rows["rows"].numpy(), model.parameters.rows(keys))


def test_a_network_of_pytorch_is_exported_for_any_number_of_examples(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(2 * 4 + 1, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
            )

        def forward(self, vectors: Any, dense: Any) -> Any:
            return self.layers(torch.cat([vectors.flatten(1), dense], 1))

    schema = Schema(label="click", dense=["age"], sparse=["user", "movie"])
    trained = Trained(tmp_path, TorchModel(schema, Network, dim=4))
    trained.run()
    model = pslib.load(trained.checkpoint, trained.model)
    files = pslib.export(model, "torch", tmp_path / "torch")
    assert sorted(Path(one).name for one in files) == ["network.pt2", "rows.pt", "state.pt"]
    network = torch.export.load(tmp_path / "torch" / "network.pt2").module()
    table = pq.read_table(trained.test)
    users, movies = (model.vectors(name, table.select(["user", "movie"])) for name in ("user", "movie"))
    age = table["age"].fill_null(0).to_numpy()[:, None].astype(np.float32)
    logits = network(torch.from_numpy(np.stack([users, movies], 1)), torch.from_numpy(age))
    expected = model.predict(table)
    np.testing.assert_allclose(torch.sigmoid(logits).detach().numpy()[:, 0], expected, rtol=0, atol=1e-5)
    with pytest.raises(ConfigurationError, match="a TorchModel is exported to torch"):
        pslib.export(model, "onnx", tmp_path / "package")
    with pytest.raises(CheckpointError, match=r"no model of rec_models; give it: pslib\.load"):
        pslib.export(trained.checkpoint, "torch", tmp_path / "other")


def nearest_of(folder: Path, queries: Any, k: int) -> tuple[list[Any], Any]:
    """Return ids and products of the nearest vectors of the first query."""
    ids = pq.read_table(folder / "ids.parquet").column(0)
    products, places = faiss.read_index(str(folder / "index.faiss")).search(np.ascontiguousarray(queries), k)
    return ids.take(pa.array(places[0])).to_pylist(), products[0]


def test_faiss_finds_the_items_that_are_recommended(tmp_path: Path) -> None:
    trained = Trained(tmp_path, TwoTower(QUERIES, item=("movie", "genres"), hidden=(8,), out=4))
    trained.run()
    model = pslib.load(trained.checkpoint, items=trained.train)
    pslib.export(trained.checkpoint, "faiss", tmp_path / "index", among=trained.train)
    asked = pq.read_table(trained.test).slice(5, 1)
    best = model.recommend(asked, k=5)
    names, products = nearest_of(tmp_path / "index", model.vectors("query", asked), 5)
    assert names == best["items"][0].as_py()
    np.testing.assert_allclose(products, best["scores"][0].as_py(), rtol=1e-5)


def test_faiss_has_the_items_that_are_given_beside_a_model(tmp_path: Path) -> None:
    trained = Trained(tmp_path, TwoTower(QUERIES, item=("movie", "genres"), hidden=(8,), out=4))
    trained.run()
    some = pq.read_table(trained.train).slice(0, 5)
    for name, model in (
        ("alone", pslib.load(trained.checkpoint)),
        ("of_others", pslib.load(trained.checkpoint, items=trained.train)),
    ):
        pslib.export(model, "faiss", tmp_path / name, among=some)
        assert set(pq.read_table(tmp_path / name / "ids.parquet")["movie"].to_pylist()) == set(
            some["movie"].to_pylist()
        )


def test_faiss_finds_the_next_items_of_a_session_with_their_biases(tmp_path: Path) -> None:
    trained = Trained(tmp_path, GRU4Rec(SESSIONS, dim=4, negatives=4))
    trained.run()
    model = pslib.load(trained.checkpoint, items=trained.train)
    pslib.export(model, "faiss", tmp_path / "index")
    asked = pa.table({"prefix": [["m1", "m4"]]})
    names, _products = nearest_of(tmp_path / "index", model.vectors("query", asked), 5)
    assert names == model.recommend(asked, k=5)["items"][0].as_py()


def test_faiss_finds_the_nearest_values_of_a_field(clicks: Trained, tmp_path: Path) -> None:
    model = pslib.load(clicks.checkpoint)
    pslib.export(model, "faiss", tmp_path / "index", field="movie", among=clicks.train)
    vector = model.vectors("movie", ["m1"])
    names, cosines = nearest_of(tmp_path / "index", vector / np.linalg.norm(vector), 4)
    found = model.nearest("movie", "m1", 3, among=clicks.train)
    assert names == ["m1", *found["value"].to_pylist()]
    np.testing.assert_allclose(cosines[1:], found["cosine"].to_numpy(), rtol=1e-5)


def test_what_can_not_be_exported_is_said_in_a_line(clicks: Trained, tmp_path: Path) -> None:
    model = pslib.load(clicks.checkpoint)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for given, to, out, more, told in (
        (
            model,
            "tensorrt",
            "x",
            {},
            "to: expected one of onnx, numpy, parquet, torch, faiss, got 'tensorrt'",
        ),
        (
            model,
            "onnx",
            "full",
            {},
            f"{tmp_path}/full exists already: remove it, or overwrite its files with",
        ),
        (model, "onnx", "file", {}, f"{tmp_path}/file is a file: expected the name of a folder"),
        (model, "numpy", "model.csv", {}, "out: expected the name of a NumPy file, got "),
        (model, "faiss", "x", {}, "field: expected the field whose vectors are indexed, got none"),
        (
            model,
            "faiss",
            "x",
            {"field": "film"},
            "field: expected one of user, movie, liked, genres, got 'film'",
        ),
        (
            model,
            "numpy",
            "x.npz",
            {"field": "movie"},
            "field: only the format faiss takes it, got to 'numpy'",
        ),
        (model, "onnx", "x", {"state": True}, "state: only the format parquet takes it, got to 'onnx'"),
        (
            tmp_path / "full",
            "numpy",
            "x.npz",
            {},
            "no manifest.json there; a checkpoint is a folder with one",
        ),
    ):
        with pytest.raises((ConfigurationError, CheckpointError)) as raised:
            pslib.export(given, to, tmp_path / out, **more)
        assert told in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="expected a local path, got s3://bucket/x; only parquet"):
        pslib.export(model, "onnx", "s3://bucket/x")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "full"]


def test_files_of_an_earlier_export_are_replaced_where_it_is_asked_for(
    clicks: Trained, tmp_path: Path
) -> None:
    pslib.export(clicks.checkpoint, "onnx", tmp_path)
    (tmp_path / "rows.arrow").write_text("old")
    pslib.export(clicks.checkpoint, "onnx", tmp_path, overwrite=True)
    with pa.memory_map(str(tmp_path / "rows.arrow")) as file:
        assert len(pa.ipc.open_file(file).get_batch(0)) == pslib.load(clicks.checkpoint).rows


def test_no_graph_of_an_earlier_model_stays_in_a_folder(clicks: Trained, tmp_path: Path) -> None:
    trained = Trained(tmp_path, TwoTower(QUERIES, item=("movie", "genres"), hidden=(8,), out=4))
    trained.run()
    pslib.export(trained.checkpoint, "onnx", tmp_path / "package")
    files = pslib.export(clicks.checkpoint, "onnx", tmp_path / "package", overwrite=True)
    assert sorted(map(str, (tmp_path / "package").iterdir())) == sorted(files)


@pytest.mark.parametrize(("to", "package"), [("onnx", "onnx"), ("torch", "torch"), ("faiss", "faiss")])
def test_what_is_not_installed_is_named_before_anything_is_written(
    clicks: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"to {to}: .*not installed; .*pip install") as raised:
        pslib.export(clicks.checkpoint, to, tmp_path / "out", among=clicks.train if to == "faiss" else None)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
