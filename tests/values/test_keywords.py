"""Keywords that a call does not take: one line with the name that is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pslib
import rec_models
from pslib.errors import PslibError
from pslib.recorder.history import History
from pslib.scoring import LoadedModel
from rec_models import DeepFM

SCHEMA = pslib.Schema(label="click", sparse=["user"])


@pytest.fixture(scope="module")
def trainer() -> Iterator[pslib.Trainer]:
    with pslib.connect() as cluster:
        yield pslib.Trainer(DeepFM(SCHEMA, dim=2), cluster, progress=False)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda t: DeepFM(SCHEMA, embedding_dim=8),
            "DeepFM: unknown keyword 'embedding_dim'; did you mean 'dim'?",
        ),
        (lambda t: DeepFM(SCHEMA, hidn=(8,)), "DeepFM: unknown keyword 'hidn'; did you mean 'hidden'?"),
        (lambda t: pslib.Adam(lr=0.1), "Adam: unknown keyword 'lr'; did you mean 'learning_rate'?"),
        (
            lambda t: pslib.Schema(categorical=["a"]),
            "Schema: unknown keyword 'categorical'; did you mean 'sparse'?",
        ),
        (
            lambda t: pslib.TableSpec("t", (), hasher=1),
            "TableSpec: unknown keyword 'hasher'; it takes name, ",
        ),
        (lambda t: pslib.connect(server=2), "connect: unknown keyword 'server'; did you mean 'servers'?"),
        (
            lambda t: pslib.Trainer(t.model, t.cluster, lr=1),
            "Trainer: unknown keyword 'lr'; learning rates and",
        ),
        (lambda t: pslib.Trainer(t.model, t.cluster, batch_size=1), "did you mean 'batch_rows'?"),
        (
            lambda t: t.fit("x", num_epochs=2),
            "Trainer.fit: unknown keyword 'num_epochs'; did you mean 'epochs'?",
        ),
        (lambda t: t.fit("x", batch_size=2), "the size of a batch is Trainer(batch_rows=...)"),
        (
            lambda t: pslib.split("x", 0.1, test_by="time"),
            "split: unknown keyword 'test_by'; did you mean 'by'?",
        ),
        (lambda t: pslib.split("x", test_size=0.1), "did you mean 'test_share'?"),
        (lambda t: LoadedModel.nearest(t, "item", 1, data="x"), "did you mean 'among'?"),
        (lambda t: pslib.CacheSettings(size=3), "CacheSettings: unknown keyword 'size'; it takes "),
    ],
)
def test_an_unknown_keyword_is_one_line_with_the_one_that_is_meant(
    trainer: pslib.Trainer, call: Callable[[pslib.Trainer], Any], line: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(trainer)
    assert isinstance(caught.value, PslibError)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__  # a notebook would print Python's own traceback above it


def test_a_missing_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'schema'"):
        DeepFM()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Trainer: missing a required argument: 'cluster'"):
        pslib.Trainer(DeepFM(SCHEMA))  # type: ignore[call-arg]


def test_a_trainer_says_which_object_predicts(trainer: pslib.Trainer) -> None:
    with pytest.raises(AttributeError, match=r"pslib\.load\(trainer\.save\(FOLDER\)\)\.predict"):
        trainer.predict  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(trainer, "fitt")
    with pytest.raises(AttributeError, match="no attribute 'eval'; did you mean 'evaluate'"):
        trainer.eval  # type: ignore[attr-defined]  # noqa: B018


def test_a_model_and_a_schema_are_shown_by_what_is_not_a_default() -> None:
    schema = pslib.Schema(label="click", sparse=["user"], dense=[pslib.DenseField("price", log1p=True)])
    assert repr(DeepFM(schema, dim=2)) == f"DeepFM(schema={schema!r}, dim=2)"
    assert repr(schema) == (
        "Schema(label='click', dense=[DenseField(name='price', log1p=True)], sparse=['user'])"
    )


def test_completion_shows_the_public_names_alone() -> None:
    shown = [name for name in dir(pslib) if not name.startswith("_")]
    assert shown == [name for name in pslib.__all__ if not name.startswith("_")]
    assert {"Trainer", "connect", "load"} <= set(shown)


@pytest.mark.parametrize(
    ("name", "told"),
    [("Triner", "did you mean 'Trainer'?"), ("DeepFM", "models are in rec_models"), ("nothing", "")],
)
def test_a_name_that_pslib_lacks_is_told_the_nearest(name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
        getattr(pslib, name)
    assert told in str(caught.value)


def test_a_model_that_is_misspelt_is_told_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DeepFN'; did you mean 'DeepFM'"):
        rec_models.DeepFN  # noqa: B018


# --- calls as other libraries have them


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pslib.Trainer, Any]]:
    """A trainer, and the model that it has saved."""
    schema = pslib.Schema(label="click", sparse=["user"])
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(DeepFM(schema, dim=2), cluster, progress=False)
        yield trainer, pslib.load(trainer.save(tmp_path_factory.mktemp("saved")))


X = {"user": [1, 2, 1, 2]}
Y = [0, 1, 0, 1]
DATA = X | {"click": Y}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t, _: t.fit(X, Y), "epochs: expected a whole number, got [0, 1, 0, 1]; the label is"),
        (lambda t, _: t.fit(X, np.array(Y)), "(4,) int64; the label is a column of data, which the"),
        (lambda t, _: t.fit(DATA, DATA), ", and data to evaluate on is valid=..."),
        (lambda t, _: t.fit(X, y=Y), "Trainer.fit: unknown keyword 'y'; the label is a column of data"),
        (lambda t, _: t.fit(DATA, 1, None, 4), "expected data, epochs, valid and, by name, stopping=..."),
        (lambda t, _: t.fit(), "Trainer.fit() missing 1 required positional argument: 'data'"),
        (lambda t, _: t.evaluate(X, Y), "Trainer.evaluate: expected data and, by name, label=..., pred"),
        (lambda t, _: t.fit(pa.array([1, 2])), "a table, got one column (an Int64Array): select it as a"),
        (lambda _, m: m.evaluate(X, Y), "LoadedModel.evaluate: expected data and, by name, label=..., got 2"),
        (lambda _, m: m.predict_proba(X), "has no attribute 'predict_proba'; did you mean 'predict'?"),
        (lambda _, m: m.predit(X), "has no attribute 'predit'; did you mean 'predict'?"),
        (lambda t, _: t.save(__file__), "save: expected a folder, new or a checkpoint's, got the file /"),
        (lambda t, _: t.history.hist(), "a History has no 'hist': its to_pandas() is a frame, its table"),
        (lambda _, m: m.vectors("user", "bob"), "file or folder: bob; of one value give a list: ['bob']"),
        (lambda *_: pslib.RaggedField("tags", sep="|"), "unknown keyword 'sep'; did you mean 'separator'?"),
        (lambda *_: pslib.describe, "no attribute 'describe'; the command is: pslib describe"),
        (lambda *_: pslib.predict, "no attribute 'predict'; pslib.load(checkpoint).predict(...)"),
        (lambda _, m: m.fit(DATA), "a loaded model has no fit: pslib.Trainer(model.model, cluster) goes on"),
    ],
)
def test_a_call_as_another_library_has_it_is_one_line_that_says_what_is_meant(
    trained: tuple[pslib.Trainer, Any], call: Callable[[Any, Any], Any], words: str
) -> None:
    with pytest.raises((PslibError, TypeError, AttributeError)) as refused:
        call(*trained)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [pslib.Trainer, LoadedModel, History])
def test_a_property_that_fails_has_its_own_error(kind: Any) -> None:
    class Own(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        @property
        def rate(self) -> Any:
            return ().size  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"^'tuple' object has no attribute 'size'$"):
        Own().rate  # noqa: B018
