"""Odd values thrown at every public constructor and call: only errors of ours come out, a line each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslib
import rec_models
from pslib.data.dataset import Paths
from pslib.errors import ConfigurationError
from pslib.trainer.settings import TrainerSettings
from pslib.validation import came, kind_problem
from tests.support.counting import write_examples
from tests.support.refused import error_of, refused
from tests.support.training import trainer_on

if TYPE_CHECKING:
    from decimal import Decimal

SCHEMA = pslib.Schema(label="y", dense=["d"], sparse=["a", "b"], ragged=["g"])
SESSIONS = pslib.Schema(label=None, ragged=["g"])
SCHEMAS = dict.fromkeys(("NARM", "SRGNN", "STAMP", "GRU4Rec", "SASRec", "Word2Vec"), SESSIONS)
SCHEMAS |= dict.fromkeys(("SSR", "TagSpace"), pslib.Schema(label="y", sparse=["a"], ragged=["g"]))
SCHEMAS |= {"NCF": pslib.Schema(label="y", sparse=["a", "b"])}
TASKS = pslib.Schema(label="y", sparse=["a", "b"], more_labels=["z"])
SCHEMAS |= dict.fromkeys(("ESMM", "MMoE"), TASKS)
PARTS = (pslib.PartSpec("v", 4),)
ODD: list[Any] = [
    None,
    -1,
    0,
    True,
    1.5,
    float("nan"),
    float("inf"),
    2**70,
    10**400,
    10**5000,
    "x",
    "",
    "two\nlines",
    b"x",
    [],
    [1, "a"],
    [None],
    ["q"],
    (),
    (0,),
    (2**40,),
    {},
    {"a": 1},
    {1, 2},
    np.array([1, 2]),
    np.array([["a"], ["b"]]),
    np.float32(0.5),
    np.int64(3),
    np.bool_(True),
    pa.table({"a": [1]}),
    object(),
    lambda: 1,
    int,
    pslib.SGD,
    pslib.SGD(),
    Path("x"),
]
NEEDED: dict[str, Any] = {
    "name": "n",
    "label": "y",
    "dim": 4,
    "parts": PARTS,
    "count": 3,
    "age": 3,
    "wide_from": "v",
    "path": "somewhere",
    "schema": SCHEMA,
}
ALSO: dict[str, dict[str, Any]] = {
    "Schema": {"sparse": ["a"]},
    "Compact": {"shows": 2},
    "CheckpointSettings": {"every_s": 9},
    "NCF": {"item": ("b",)},
    "SSR": {"item": ("a",)},
    "TagSpace": {"item": ("a",)},
    "TwoTower": {"item": ("a",)},
    "MultiViewSimnet": {"item": ("a",)},
}
"""Arguments of constructors beside those without a default."""
NOT_MADE = ("Cluster", "PslibError", "Trainer", "EvalResult", "Model", "StepResult", "TorchModel")
"""Classes that are not made here; a `TorchModel` needs PyTorch and has tests of its own."""


def constructors() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for home in (pslib, rec_models):
        for name in home.__all__:
            kind = getattr(home, name)
            if inspect.isclass(kind) and name not in NOT_MADE:
                schema = SCHEMAS.get(name, SCHEMA)
                needs = [p.name for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
                values = {**NEEDED, "schema": schema}
                yield name, kind, {key: values[key] for key in needs if key in values} | ALSO.get(name, {})


CONSTRUCTORS = {name: (kind, needed) for name, kind, needed in constructors()}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_what_the_odd_values_are_put_into_is_right_without_them(name: str) -> None:
    kind, needed = CONSTRUCTORS[name]
    assert isinstance(kind(**needed), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_an_odd_value_is_taken_or_told_in_a_line_that_names_its_argument(name: str) -> None:
    kind, needed = CONSTRUCTORS[name]
    for argument in inspect.signature(kind).parameters:
        for odd in ODD:
            refused(lambda odd=odd, argument=argument: kind(**{**needed, argument: odd}), argument)


@pytest.mark.parametrize("name", [name for name in CONSTRUCTORS if name not in ("ByBloom",)])
def test_nothing_takes_an_object_that_is_no_number_no_text_and_no_list(name: str) -> None:
    kind, needed = CONSTRUCTORS[name]
    for argument in inspect.signature(kind).parameters:
        assert refused(lambda argument=argument: kind(**{**needed, argument: object()}), argument)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@given(value=values, data=st.data())
def test_whatever_is_given_only_our_errors_come_out(value: Any, data: st.DataObject) -> None:
    kind, needed = CONSTRUCTORS[data.draw(st.sampled_from(sorted(CONSTRUCTORS)))]
    argument = data.draw(st.sampled_from(list(inspect.signature(kind).parameters)))
    error = error_of(lambda: kind(**{**needed, argument: value}))
    assert error is None or all(len(line.splitlines()) == 1 for line in error.problems)  # type: ignore[attr-defined]


@given(value=values)
def test_a_value_is_told_in_a_few_words_on_one_line(value: Any) -> None:
    assert len(came(value).splitlines()) == 1
    assert len(came(value)) < 200


@pytest.mark.parametrize("argument", list(inspect.signature(pslib.connect).parameters))
def test_connect_refuses_what_is_of_another_kind_and_starts_nothing(argument: str) -> None:
    for odd in (-1, 1.5, float("nan"), "", [], {}, b"x", object(), np.array([1, 2])):
        if argument in ("coordinator", "cluster_id", "keys") and isinstance(odd, str):
            continue  # an empty variable of the environment is none
        if argument == "server_memory_bytes" and not isinstance(odd, (int, float)):
            continue
        assert refused(lambda odd=odd: pslib.connect(**{argument: odd}), argument)


def test_a_name_of_a_model_and_its_options_are_of_their_kinds() -> None:
    for odd in (None, 5, [], object()):
        assert refused(lambda odd=odd: rec_models.build(odd, SCHEMA, {}), "name")
        assert refused(lambda odd=odd: rec_models.build("fm", odd, {}), "schema")
        assert refused(lambda odd=odd: rec_models.build("fm", SCHEMA, odd), "options")


@pytest.fixture(scope="module")
def trainer() -> Iterator[pslib.Trainer]:
    with pslib.connect() as cluster:
        yield pslib.Trainer(rec_models.FM(SCHEMA, dim=2), cluster, progress=False)


TRAINER_ARGUMENTS = [name for name in inspect.signature(pslib.Trainer).parameters if name != "self"]


@pytest.mark.parametrize("argument", TRAINER_ARGUMENTS)
def test_a_trainer_refuses_what_is_of_another_kind(trainer: pslib.Trainer, argument: str) -> None:
    given = {"model": trainer.model, "cluster": trainer.cluster}
    for odd in ("", -1.5, float("nan"), [], object(), np.array([1, 2]), rec_models.FM):
        if argument == "callbacks" and isinstance(odd, list):
            continue  # no callback is right
        assert refused(lambda odd=odd: pslib.Trainer(**{**given, argument: odd}), argument)


def test_a_bool_is_no_number_of_batches(trainer: pslib.Trainer) -> None:
    for argument in ("batch_rows", "staleness", "seed", "geo_rows"):
        assert refused(
            lambda a=argument: pslib.Trainer(trainer.model, trainer.cluster, **{a: True}), argument
        )


CALLS = {
    "fit": ("data", "epochs", "valid", "stopping", "best"),
    "evaluate": ("data", "label", "predictions", "name"),
    "save": ("path", "keep_last"),
    "load": ("path", "state", "tables", "resume"),
    "fit_stream": ("folder", "settings"),
}


@pytest.mark.parametrize(
    ("call", "argument"), [(call, one) for call, names in CALLS.items() for one in names]
)
def test_a_call_of_a_trainer_refuses_what_is_of_another_kind(
    trainer: pslib.Trainer, call: str, argument: str
) -> None:
    first = CALLS[call][0]
    for odd in (-1.5, float("nan"), [1], b"x", object(), np.array([1, 2]), {1}):
        assert refused(lambda odd=odd: getattr(trainer, call)(**{first: "nowhere", argument: odd}), argument)


PATHS = [("fit", "data"), ("fit", "valid"), ("evaluate", "data"), ("evaluate", "predictions")]
PATHS += [("fit_stream", "folder"), ("rank", "items"), ("recommend", "data"), ("export_vectors", "data")]


@pytest.mark.parametrize("odd", ["", [""], ["a", ""], [], ()])
@pytest.mark.parametrize(("call", "argument"), PATHS)
def test_an_empty_path_is_refused_by_the_name_of_its_argument(
    trainer: pslib.Trainer, call: str, argument: str, odd: Any
) -> None:
    method = getattr(trainer, call)
    needed = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty]
    (line,) = refused(lambda: method(**dict.fromkeys(needed, "nowhere") | {argument: odd}), argument)
    assert line.startswith(f"{argument}: expected ")


@pytest.mark.parametrize(
    ("kind", "needed", "argument"),
    [
        (pslib.DenseField, {}, "name"),
        (pslib.SparseField, {}, "name"),
        (pslib.RaggedField, {}, "name"),
        (pslib.SparseField, {"name": "a"}, "vocabulary"),
        (pslib.RaggedField, {"name": "a"}, "vocabulary"),
        (pslib.Schema, {"label": "y"}, "dense"),
        (pslib.Schema, {"label": "y"}, "sparse"),
        (pslib.Schema, {"label": "y"}, "ragged"),
        (pslib.Schema, {"sparse": ["a"]}, "label"),
        (pslib.Schema, {"label": "y", "sparse": ["a"]}, "weight"),
        (pslib.Schema, {"label": "y", "sparse": ["a"]}, "more_labels"),
    ],
)
def test_a_column_without_a_name_is_refused(kind: Any, needed: Any, argument: str) -> None:
    several = argument in ("dense", "sparse", "ragged", "more_labels")
    lines = refused(lambda: kind(**needed, **{argument: [""] if several else ""}), argument)
    assert len(lines) == 1
    assert lines[0].endswith("got ''")


@pytest.mark.parametrize("epochs", [0, -1, True, 1.5, "x", None])
def test_epochs_are_a_whole_number_from_1_on(trainer: pslib.Trainer, epochs: Any) -> None:
    assert refused(lambda: trainer.fit("nowhere", epochs=epochs), "epochs")


def test_a_class_in_place_of_a_model_is_told_with_what_to_write(trainer: pslib.Trainer) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"model: expected a model, .* got the class FM: make one of it, FM\(\.\.\.\)",
    ):
        pslib.Trainer(rec_models.FM, trainer.cluster)  # type: ignore[arg-type]


def test_numbers_of_numpy_become_pythons_own() -> None:
    optimizer = pslib.Adagrad(np.float32(0.5))
    assert type(optimizer.learning_rate) is float
    assert type(pslib.PartSpec("v", np.int64(3)).dim) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("batch_rows", "staleness", "warmup_batches", "lease_rows", "seed", "compute_threads", "ssp_bound"),
        *("maintain_every_batches", "geo_every_batches", "geo_rows", "damping"),
    ],
)
def test_settings_of_a_trainer_that_are_numbers_of_numpy_become_pythons_own(name: str) -> None:
    kind, number = (float, np.float32(0.5)) if name == "damping" else (int, np.int64(3))
    mode = {"ssp_bound": "ssp", "geo_every_batches": "geo", "geo_rows": "geo"}.get(name, "async")
    settings = TrainerSettings(**{name: number, "consistency": mode})  # type: ignore[arg-type]
    assert type(getattr(settings, name)) is kind
    assert getattr(settings, name) == number


def test_a_cache_and_epochs_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    cache = pslib.CacheSettings(age_batches=np.int64(2), rows=np.int32(9))  # type: ignore[arg-type]
    assert (type(cache.age_batches), type(cache.rows)) == (int, int)
    data = write_examples(tmp_path / "a.parquet", 20)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, seed=np.int64(3))
        trainer.fit(data, epochs=np.int64(2))  # type: ignore[arg-type]
        assert trainer.evaluate(data).examples == 20


@pytest.mark.parametrize("several", [list, tuple])
def test_numbers_of_numpy_in_a_list_become_pythons_own(several: Callable[[Any], Any]) -> None:
    field = pslib.SparseField("x", buckets=several(np.quantile(np.arange(9), [0.2, 0.5])))
    assert field.buckets == (1.6, 4.0)
    assert [type(one) for one in field.buckets] == [float, float]


@dataclass(frozen=True)
class Warmer(pslib.Adagrad):
    """A user's own, whose module imports a type for its checker only."""

    warms: Decimal | None = None


def test_a_class_of_ones_own_may_have_fields_of_types_that_are_not_imported_here() -> None:
    assert Warmer(np.float32(0.5), warms="anything").learning_rate == 0.5  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Warmer\.learning_rate: expected a number .*, got 'x'"):
        Warmer("x")  # type: ignore[arg-type]


class Place:
    """A path of another library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_data_is_a_path_of_any_library_several_or_what_glob_gives(tmp_path: Path) -> None:
    for name in "ab":
        write_examples(tmp_path / f"{name}.parquet", 50)
    schema = pslib.Schema(label="label", dense=["score"], sparse=["id"])
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(rec_models.FM(schema, dim=2), cluster, progress=False)
        for data in (Place(tmp_path), [Place(tmp_path / "a.parquet")], tmp_path.glob("*.parquet")):
            trainer.fit(data)
        one, both = (trainer.evaluate(data) for data in (tmp_path / "a.parquet", tmp_path.glob("*.parquet")))
        assert (one.examples, both.examples) == (50, 100)
        saved = trainer.save(Place(tmp_path / "saved"))
        trainer.load(Place(Path(saved)))


@pytest.mark.parametrize("data", [np.ones((2, 3)), [np.ones(2)], (np.ones(2), np.ones(2))])
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_arrays_as_data_are_told_how_they_become_a_table(
    trainer: pslib.Trainer, call: str, data: Any
) -> None:
    (line,) = refused(lambda: getattr(trainer, call)(data), "data")
    expected = "data: expected a text, a path, a list of texts or paths, a part of a split, a table"
    assert line.startswith(expected)
    assert line.endswith(': name its columns, {"price": array, ...}')
    assert "columns" not in str(kind_problem("n", np.ones(2), int))


def test_a_list_will_do_for_a_tuple() -> None:
    assert pslib.TableSpec("t", list(PARTS)).parts == PARTS  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "hint", "line"),
    [
        ("x", int, "n: expected a whole number, got 'x'"),
        (1.5, int | None, "n: expected a whole number or None, got 1.5"),
        (5, str | Path, "n: expected a text or a path, got 5"),
        ("a", list[str], "n: expected a list of texts, got 'a': write ['a']"),
        ("", str | Path, "n: expected a path, got ''; write '.' for the current folder"),
        (["a", ""], Paths, "n: expected a path, got ''; write '.' for the current folder"),
        ((), Paths, "n: expected at least one path, got ()"),
        (np.ones((2, 3)), float, "n: expected a number, got (2, 3) float64"),
        (pslib.SGD, pslib.SGD, "n: expected an SGD, got the class SGD: make one of it, SGD(...)"),
    ],
)
def test_a_line_says_what_was_expected_and_what_came(value: Any, hint: Any, line: str) -> None:
    assert kind_problem("n", value, hint) == line


def test_calls_of_every_batch_are_not_wrapped() -> None:
    from pslib.client.client import Client
    from pslib.client.pending import PendingPull

    for call in (Client.pull, Client.push, PendingPull.wait):
        assert not hasattr(call, "__wrapped__")
