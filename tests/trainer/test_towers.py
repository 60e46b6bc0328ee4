"""Items and their scores where the servers don't matter: rows are what a formula says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.dataset import ParquetData
from pslib.errors import ConfigurationError
from pslib.metrics.top_k import best_of
from pslib.schema import Schema
from pslib.trainer.retrieval.retrieval import Ranker
from pslib.trainer.retrieval.towers import RankedItems, Sides, sides_of, whole_batches
from rec_models import build

ITEMS, USERS, DIM = 11, 9, 3
SCHEMA = Schema(label=None, sparse=["user", "item"], ragged=["kinds"])


class Formula:
    """Parameters that need no servers."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        rng = np.random.default_rng(0)
        self.dense = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def rows(self, keys: np.ndarray) -> np.ndarray:
        return np.sin((keys >> np.uint64(40)).astype(np.float64)[:, None] * np.arange(1, DIM + 1)).astype(
            "f4"
        )


@pytest.fixture
def model() -> tuple[Sides, Formula]:
    made = build("two_tower", SCHEMA, {"item": ["item", "kinds"], "dim": DIM, "hidden": [], "out": 4})
    return sides_of(made), Formula(made.dense_shapes())


def written(path: Path, items: list[int | None]) -> str:
    kinds = pa.array([[f"{item}", f"{place}"] for place, item in enumerate(items)])
    pq.write_table(pa.table({"item": items, "kinds": kinds}), path, row_group_size=4)
    return str(path)


def test_an_item_that_stands_there_again_in_other_words_is_taken_as_it_stood_first(
    model: tuple[Sides, Formula], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, parameters = model
    again = [3, 1, 3, 4, 1, 5, 3, 0, 4, 5, 1]
    firsts = [again.index(item) for item in range(6) if item in again]
    monkeypatch.setattr("pslib.trainer.retrieval.towers.ITEM_ROWS", 4)
    found = sides.items([written(tmp_path / "again.parquet", again)], parameters)
    (rows,) = whole_batches(ParquetData([str(tmp_path / "again.parquet")], sides.item_schema), 4096)
    wanted = dict(zip([again[i] for i in firsts], sides.item_vectors(rows, parameters)[firsts], strict=True))
    assert sorted(found.values.to_pylist()) == sorted(wanted)
    for name, vector in zip(found.values.to_pylist(), found.vectors, strict=True):
        np.testing.assert_allclose(vector, wanted[name], rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3 * USERS, 1000])
def test_items_of_the_history_are_left_out_of_every_chunk(
    model: tuple[Sides, Formula], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, parameters = model
    ranked = sides.items([written(tmp_path / "items.parquet", list(range(ITEMS)))], parameters)
    before = [[user % ITEMS, (3 * user + 5) % ITEMS, 99] if user else [] for user in range(USERS)]
    pq.write_table(pa.table({"user": range(USERS), "before": before}), tmp_path / "users.parquet")
    (batch,) = whole_batches(
        ParquetData([str(tmp_path / "users.parquet")], sides.example_schema("before")), 99
    )
    monkeypatch.setattr("pslib.trainer.retrieval.retrieval.best_of", partial(best_of, chunk=chunk))
    places, scores = Ranker(sides, ranked, parameters, "before", True).best(batch, 2)
    every = sides.states(batch, parameters, "before") @ ranked.vectors.T
    names = np.array(ranked.values.to_pylist())
    for user, seen in enumerate(before):
        every[user, np.isin(names, seen)] = -np.inf
        best = np.argsort(-every[user])[:2]
        assert names[places[user]].tolist() == names[best].tolist()
        np.testing.assert_allclose(scores[user], every[user, best], rtol=1e-5)


def test_a_user_who_has_had_everything_is_told_nothing(model: tuple[Sides, Formula], tmp_path: Path) -> None:
    sides, parameters = model
    ranked = sides.items([written(tmp_path / "items.parquet", [0, 1])], parameters)
    pq.write_table(pa.table({"user": [7], "before": [[1, 0, 1]]}), tmp_path / "users.parquet")
    (batch,) = whole_batches(
        ParquetData([str(tmp_path / "users.parquet")], sides.example_schema("before")), 99
    )
    assert Ranker(sides, ranked, parameters, "before", True).best(batch, 5)[0].tolist() == [[-1, -1]]


def test_one_item_that_has_diverged_is_enough_to_be_told(
    model: tuple[Sides, Formula], tmp_path: Path
) -> None:
    """The item would count as a miss for its users, and be shown to none, without an error."""
    sides, parameters = model
    ranked = sides.items([written(tmp_path / "items.parquet", list(range(ITEMS)))], parameters)
    vectors = ranked.vectors.copy()
    vectors[4] = np.nan
    with pytest.raises(
        ConfigurationError, match=f"no finite numbers for 1 of {ITEMS} items: it has diverged"
    ):
        Ranker(sides, RankedItems(ranked.keys, ranked.values, vectors), parameters, None, False)


@pytest.mark.parametrize("parts", [[3, None, 1, None], [None, 0, 5], [2, 1, None]])
def test_null_is_no_item_that_a_user_is_shown(
    model: tuple[Sides, Formula], parts: list[int | None], tmp_path: Path
) -> None:
    sides, parameters = model
    found = sides.items([written(tmp_path / "items.parquet", parts)], parameters)
    (rows,) = whole_batches(ParquetData([str(tmp_path / "items.parquet")], sides.item_schema), 4096)
    wanted = dict(zip(parts, sides.item_vectors(rows, parameters), strict=True))
    assert sorted(found.values.to_pylist()) == sorted(item for item in wanted if item is not None)
    assert found.keys.size == len(found.vectors) == len(wanted) - 1
    for name, vector in zip(found.values.to_pylist(), found.vectors, strict=True):
        np.testing.assert_allclose(vector, wanted[name], rtol=1e-6)


def test_null_in_sessions_is_no_item_either_and_null_alone_is_refused(tmp_path: Path) -> None:
    sides = sides_of(build("gru4rec", Schema(label=None, ragged=["items"]), {"dim": DIM - 1}))
    for name, lists in (("some", [[1, None], None, [2]]), ("none", [[None], []])):
        column = pa.array(lists, pa.list_(pa.int64()))
        pq.write_table(pa.table({"items": column}), tmp_path / f"{name}.parquet")
    found = sides.items([str(tmp_path / "some.parquet")], Formula({}))
    assert sorted(found.values.to_pylist()) == [1, 2]
    assert found.vectors.shape == (2, DIM)
    with pytest.raises(ConfigurationError, match="items: expected items that have a name, got null alone"):
        sides.items([str(tmp_path / "none.parquet")], Formula({}))
