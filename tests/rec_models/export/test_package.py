"""The package scores as the loaded model does, without pslib: every model, every kind of column."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.table.initializers import Normal, Uniform
from rec_models import FM, DeepFM
from rec_models.by_name import EVERY, SESSION_MODELS
from rec_models.export.package import write_package
from tests.support.models.zoo import CLICKS, Trained, model_named

WORDS = ("Фильм №", "日本", "🎬 ", "", "a rather long name of a film, of more than eight bytes")


def in_words(table: pa.Table) -> pa.Table:
    """Replace names of films by texts of other alphabets and lengths; the empty text is one."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if not isinstance(value, str):
            return value
        number = int(value[1:])
        word = WORDS[number % len(WORDS)]
        return f"{word}{number}" if word else "" if number == 3 else str(number)

    columns = {name: table[name] for name in table.column_names}
    for name, column in columns.items():
        if not pa.types.is_primitive(column.type):
            columns[name] = pa.chunked_array([[renamed(one) for one in column.to_pylist()]])
    return pa.table(columns)


def with_dictionaries(table: pa.Table) -> pa.Table:
    """Encode texts by dictionaries."""
    return pa.table(
        {
            name: table[name].dictionary_encode() if table[name].type == pa.string() else table[name]
            for name in table.column_names
        }
    )


def package_of(model: Any, folder: Path) -> Any:
    """Write a package and open it by its own scorer."""
    write_package(model, folder)
    spec = spec_from_file_location("scorer", folder / "scorer.py")
    assert spec is not None
    assert spec.loader is not None
    scorer = module_from_spec(spec)
    sys.modules["scorer"] = scorer
    try:
        spec.loader.exec_module(scorer)
    finally:
        del sys.modules["scorer"]
    return scorer.Package(folder)


@pytest.mark.parametrize("name", EVERY)
def test_a_package_scores_as_the_model_that_it_was_made_of(name: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named(name), in_words)
    trained.run()
    model, table = pslib.load(trained.checkpoint), pq.read_table(trained.test)
    package = package_of(model, tmp_path / "package")
    for graph in package.graphs:
        for given in (table, with_dictionaries(table), table.slice(17, 30)):
            if graph != "model":
                asked = given.drop_columns(["prefix"]).append_column("prefix", given["session"])
                expected = model.vectors(graph, asked)
                expected = expected[:, 1:] if name in SESSION_MODELS else expected  # a 1 for the bias
            elif model.schema.labels:
                expected = model.predict(given)
            else:
                continue
            found = package.run(graph, given)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def transformed(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = pa.array(rng.normal(size=rows) * 100, mask=rng.random(rows) < 0.1)
    with_nan = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows) * 1e6)
    cities = [["Zürich", "Oslo", "", None][i] for i in rng.integers(0, 4, rows)]
    tags = [[None, "", "a|b", "a||c", "|", "Ünïcode|b"][i] for i in rng.integers(0, 6, rows)]
    ids = [[None, "7|8", "007|true", "-3|x y|99999999999999999999", "7"][i] for i in rng.integers(0, 5, rows)]
    seconds = rng.integers(0, 2_000_000_000, rows)
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "price": numbers,
            "views": pa.array(with_nan, from_pandas=False),
            "user": pa.array(rng.integers(-5, 5 + seed, rows), mask=rng.random(rows) < 0.1),
            "big": pa.array(rng.integers(2**63, 2**63 + 9, rows, dtype=np.uint64)),
            "member": pa.array([[True, False, None][i] for i in rng.integers(0, 3, rows)]),
            "city": cities,
            "time": pa.array(seconds, pa.int64())
            .cast(pa.timestamp("s"))
            .cast(pa.timestamp("us", "Asia/Tokyo")),
            "day": pa.array(seconds // 86_400, pa.int32()).cast(pa.date32()),
            "seconds": pa.array(seconds),
            "tags": tags,
            "ids": ids,
            "seen": pa.array(
                [[None, [], [1, 2], [2, None, 2], [seed]][i] for i in rng.integers(0, 5, rows)],
                pa.list_(pa.int64()),
            ),
        }
    )


TRANSFORMS = Schema(
    label="click",
    dense=[DenseField("price", fill=3.5, log1p=True), DenseField("views", fill=-1)],
    sparse=[
        "user",
        "big",
        "member",
        SparseField("place", of="city"),
        SparseField("user_city", of=("user", "city", "member")),
        SparseField("hour", of="time", take="hour"),
        SparseField("weekday", of="day", take="weekday"),
        SparseField("month", of="seconds", take="month"),
        SparseField("date", of="time", take="day"),
        SparseField("cheap", of="price", buckets=(-10.0, 0.0, 50.0)),
        SparseField("popular", of="views", buckets="log"),
    ],
    ragged=[
        RaggedField("tags", separator="|", pooling="sum"),
        RaggedField("ids", separator="|", vocabulary="user"),
        RaggedField("seen", vocabulary="user"),
    ],
)


@pytest.mark.parametrize("initializer", [Uniform(0.3), Normal(0.3)])
def test_a_package_transforms_columns_as_the_training_did(initializer: Any, tmp_path: Path) -> None:
    trained = Trained(tmp_path, FM(TRANSFORMS, dim=3, v_initializer=initializer))
    pq.write_table(transformed(300, 1), trained.train)
    trained.run()
    model, table = pslib.load(trained.checkpoint), transformed(200, 9)
    package = package_of(model, tmp_path / "package")
    expected = model.predict(table)
    assert expected.std() > 0.01
    np.testing.assert_allclose(package.run("model", table), expected, rtol=0, atol=1e-5)
    empty = table.set_column(table.column_names.index("seen"), "seen", pa.nulls(200))
    np.testing.assert_allclose(package.run("model", empty), model.predict(empty), rtol=0, atol=1e-5)


def test_a_column_of_another_kind_than_in_training_is_refused_by_the_scorer(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("fm"))
    trained.run()
    package = package_of(pslib.load(trained.checkpoint), tmp_path / "package")
    table = pq.read_table(trained.test)
    for name, other in (("user", ["u1"] * 90), ("movie", [1] * 90), ("genres", [[1]] * 90)):
        wrong = table.set_column(table.column_names.index(name), name, pa.array(other))
        with pytest.raises(TypeError, match=r"expected (integer|string) keys, as in the training, got "):
            package.run("model", wrong)


def test_the_scorer_takes_whole_floats_for_integers_as_the_model_does(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("fm"))
    trained.run()
    model, table = pslib.load(trained.checkpoint), pq.read_table(trained.test)
    package = package_of(model, tmp_path / "package")
    user = table.column_names.index("user")
    floats = table.set_column(user, "user", table["user"].cast(pa.float64()))
    np.testing.assert_array_equal(package.run("model", floats), package.run("model", table))
    np.testing.assert_array_equal(model.predict(floats), model.predict(table))
    none, nan = (pa.array([value] * len(table), pa.float64()) for value in (None, float("nan")))
    for missing in (none, nan):
        lacks = table.set_column(user, "user", missing)
        np.testing.assert_allclose(package.run("model", lacks), model.predict(lacks), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="truncated"):
        package.run("model", table.set_column(user, "user", pa.array([1.5] * len(table))))


def test_the_scorer_refuses_numbers_that_are_not_finite_as_the_model_does(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("deepfm"))
    trained.run()
    table = pq.read_table(trained.test)
    package = package_of(pslib.load(trained.checkpoint), tmp_path / "package")
    for value in (1e300, float("inf")):
        wrong = table.set_column(table.column_names.index("age"), "age", pa.array([value] * len(table)))
        with pytest.raises(ValueError, match="column 'age': expected numbers that are finite in float32"):
            package.run("model", wrong)


@pytest.mark.parametrize("name", ["deepfm", "esmm", "two_tower", "srgnn"])
def test_a_table_without_rows_has_no_scores(name: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named(name))
    trained.run()
    model, table = pslib.load(trained.checkpoint), pq.read_table(trained.test).slice(0, 0)
    package = package_of(model, tmp_path / "package")
    for graph in package.graphs:
        full = package.run(graph, pq.read_table(trained.test))
        assert package.run(graph, table).shape == (0, *full.shape[1:])


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_rows_of_fewer_bits_and_what_decay_they_missed_are_in_the_package(
    storage: str, tmp_path: Path
) -> None:
    decayed = pslib.AdamW(0.01, weight_decay=0.5)
    given = DeepFM(CLICKS, dim=4, hidden=(8,), v_optimizer=decayed, v_initializer=Uniform(0.3))
    trained = Trained(tmp_path, given)
    trained.run(table=replace(given.table(), storage=storage))
    model, table = pslib.load(trained.checkpoint), pq.read_table(trained.test)
    package = package_of(model, tmp_path / "package")
    np.testing.assert_allclose(package.run("model", table), model.predict(table), rtol=0, atol=1e-5)


def test_the_scorer_of_a_package_runs_alone(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("deepfm"))
    trained.run()
    model = pslib.load(trained.checkpoint)
    write_package(model, tmp_path / "package")
    code = "import sys; sys.modules.update(dict.fromkeys(('pslib', 'rec_models', 'cython_ext')));"
    code += f"sys.argv = ['scorer.py', {str(trained.test)!r}];"
    code += f"import runpy; runpy.run_path({str(tmp_path / 'package' / 'scorer.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    found = np.array([float(line) for line in done.stdout.splitlines()])
    np.testing.assert_allclose(found, model.predict(trained.test), rtol=0, atol=2e-6)
    lacks = pq.read_table(trained.test).drop_columns(["user"])
    pq.write_table(lacks, tmp_path / "lacks.parquet")
    texts = lacks.append_column("user", pa.array(["u1"] * len(lacks)))
    pq.write_table(texts, tmp_path / "texts.parquet")
    for words, told in (
        ([], "expected files of Parquet"),
        (["lacks.parquet"], "user"),
        (["texts.parquet"], "expected integer keys"),
        (["none"], "FileNotFoundError: none"),
    ):
        script = [sys.executable, str(tmp_path / "package" / "scorer.py"), *words]
        done = subprocess.run(script, check=False, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("scorer.py: ")
        assert told in line


def test_a_package_says_what_it_was_made_of(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("sasrec"))
    trained.run()
    model = pslib.load(trained.checkpoint)
    files = write_package(model, tmp_path / "package")
    assert sorted(one.name for one in files) == sorted(one.name for one in (tmp_path / "package").iterdir())
    assert {one.name for one in files} >= {
        "query.onnx",
        "rows.arrow",
        "schema.json",
        "scorer.py",
        "README.md",
    }
    schema = json.loads((tmp_path / "package" / "schema.json").read_text())
    (field,) = schema["graphs"]["query"]["ragged"]
    assert (field["name"], field["kind"], field["items_max"]) == ("session", "string", 50)
    with pa.memory_map(str(tmp_path / "package" / "rows.arrow")) as file:
        rows = pa.ipc.open_file(file).get_batch(0)
        assert len(rows) == model.rows
        assert np.all(np.diff(rows["key"].to_numpy()) > 0)
    assert "SASRec" in (tmp_path / "package" / "README.md").read_text()


def test_the_script_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(tmp_path, model_named("din"))
    trained.run()
    model = pslib.load(trained.checkpoint)
    write_package(model, tmp_path / "model-package")
    pq.write_table(pq.read_table(trained.test), tmp_path / "new.parquet")
    page = (Path(pslib.__file__).parents[1] / "docs" / "guide" / "checkpoints.md").read_text("utf-8")
    *_, script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "model-package"))
    monkeypatch.delitem(sys.modules, "scorer", raising=False)
    names: dict[str, Any] = {}
    exec(script, names)
    monkeypatch.delitem(sys.modules, "scorer")
    np.testing.assert_allclose(names["probabilities"], model.predict(trained.test), rtol=0, atol=1e-5)
