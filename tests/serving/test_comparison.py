"""Comparison of a server with a checkpoint: the same rows, differences, metrics of both, and patience."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.errors import ConfigurationError, DataError, UnavailableError
from pslib.scoring import LoadedModel
from pslib.serving import comparison
from pslib.serving.comparison import ROWS, TRIES, compare, scorer_at
from pslib.serving.http_client import BusyError, ask
from rec_models import LR
from tests.support.model_server import served
from tests.support.models.zoo import Trained


def never(seconds: float) -> None:
    raise AssertionError(f"waited for {seconds} s")


def offline_and(shift: float, model: LoadedModel, version: str) -> Callable[[list[dict[str, Any]]], Any]:
    """Return a stand-in of a server whose predictions are those of the model, and some more."""

    def score(records: list[dict[str, Any]]) -> tuple[np.ndarray, str]:
        return (model.predict(records) + np.float32(shift)).clip(0, 1), version

    return score


@pytest.fixture(scope="module")
def model(trained: Trained) -> LoadedModel:
    return pslib.load(trained.checkpoint)


def test_a_server_of_the_same_checkpoint_agrees_on_every_row(trained: Trained, model: LoadedModel) -> None:
    expected = model.evaluate(str(trained.test))
    with served({"m": trained.checkpoint}) as client:
        found = compare(model, [str(trained.test)], scorer_at(f"http://127.0.0.1:{client.port}", "m", never))
    assert found.rows == expected.examples
    assert found.versions == {str(model.steps): found.rows}
    assert found.largest < 1e-5
    assert found.same_share == 1
    assert found.agrees
    assert found.offline is not None
    assert found.served is not None
    assert found.offline.auc == pytest.approx(expected.auc, abs=1e-12)
    assert found.served.logloss == pytest.approx(expected.logloss, abs=1e-5)


def test_rows_of_several_requests_are_compared_with_their_own(
    trained: Trained, model: LoadedModel, tmp_path: Path
) -> None:
    table = pq.read_table(trained.train)
    many = pa.concat_tables([table, table, table])
    pq.write_table(many, tmp_path / "many.parquet")
    assert many.num_rows > 2 * ROWS
    found = compare(model, [str(tmp_path / "many.parquet")], offline_and(0.0, model, str(model.steps)))
    assert found.rows == many.num_rows
    assert found.largest < 1e-6


@pytest.mark.parametrize(
    ("shift", "version", "agrees", "other"),
    [(0.01, "same", False, False), (0.01, "77", True, True), (0.0, "same+3", True, True)],
)
def test_other_predictions_are_a_difference_unless_another_version_made_them(
    trained: Trained, model: LoadedModel, shift: float, version: str, agrees: bool, other: bool
) -> None:
    named = version.replace("same", str(model.steps))
    found = compare(model, [str(trained.test)], offline_and(shift, model, named))
    assert (found.agrees, found.is_other_version) == (agrees, other)
    assert found.mean == pytest.approx(shift, abs=1e-3)
    assert found.same_share == (0 if shift else 1)


def test_data_without_a_label_is_compared_without_metrics(
    trained: Trained, model: LoadedModel, tmp_path: Path
) -> None:
    names = [name for name in model.schema.columns if name not in model.schema.labels]
    pq.write_table(pq.read_table(trained.test, columns=names), tmp_path / "new.parquet")
    found = compare(model, [str(tmp_path / "new.parquet")], offline_and(0.0, model, "1"))
    assert found.rows == 90
    assert found.offline is None
    assert found.served is None


def test_a_server_of_another_shape_is_refused_by_its_name(trained: Trained, model: LoadedModel) -> None:
    def two_labels(records: list[dict[str, Any]]) -> tuple[np.ndarray, str]:
        return np.zeros((len(records), 2), np.float32), "1"

    with pytest.raises(ConfigurationError, match="expected 90 predictions of DeepFM, got 90x2; name its"):
        compare(model, [str(trained.test)], two_labels)


def test_a_value_that_json_lacks_is_refused_by_its_file(tmp_path: Path) -> None:
    schema = pslib.Schema(label="click", sparse=["id"])
    ids = [bytes([number % 9]) for number in range(64)]
    table = pa.table({"id": ids, "click": [number % 2 for number in range(64)]})
    pq.write_table(table, tmp_path / "ids.parquet")
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(schema), cluster, batch_rows=32, progress=False)
        trainer.fit(tmp_path / "ids.parquet")
        trainer.save(str(tmp_path / "checkpoint"))
    model = pslib.load(str(tmp_path / "checkpoint"))
    with pytest.raises(DataError, match=r"ids\.parquet: a request has no form for a value of it: .*bytes"):
        compare(model, [str(tmp_path / "ids.parquet")], offline_and(0.0, model, "1"))


def test_a_busy_server_is_asked_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, waited = [2], list[float]()

    def answer(url: str, path: str, given: Any) -> dict[str, Any]:
        busy[0] -= 1
        if busy[0] >= 0:
            raise BusyError("http://here: 9 rows wait, and at most 1 may")
        return {"predictions": [0.5], "version": "1"}

    monkeypatch.setattr(comparison, "ask", answer)
    scores, version = scorer_at("http://here", None, waited.append)([{"user": 1}])
    assert (scores.tolist(), version, waited) == ([0.5], "1", [1.0, 1.0])
    busy[0] = 1000
    with pytest.raises(BusyError, match="9 rows wait"):
        scorer_at("http://here", None, waited.append)([{"user": 1}])
    assert busy[0] == 1000 - TRIES


def test_a_server_that_is_not_there_or_is_none_is_one_line(trained: Trained) -> None:
    with pytest.raises(UnavailableError, match=r"expected an answer of pslib serve: .*refused"):
        scorer_at("http://127.0.0.1:9", None, never)([{"user": 1}])
    with pytest.raises(ConfigurationError, match="URL: expected http:"):
        scorer_at("127.0.0.1:9", None, never)([{"user": 1}])
    with served({"m": trained.checkpoint}) as client:
        url = f"http://127.0.0.1:{client.port}"
        with pytest.raises(ConfigurationError, match="model 'other': expected one of m"):
            scorer_at(url, "other", never)([{"user": 1}])
        with pytest.raises(ConfigurationError, match="nothing at /nowhere"):
            ask(url, "/nowhere", {})
