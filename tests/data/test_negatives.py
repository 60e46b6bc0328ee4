"""Items that are drawn for a batch: how many, in which shares, and which chances the model is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import NegativeSampler, Sampling
from pslib.schema import Schema

WORDS = ["a"] * 16 + ["b"] * 4 + ["c"]
SCHEMA = Schema(label=None, sparse=["item"], ragged=["words"])


@pytest.fixture
def data(tmp_path: Path) -> ParquetData:
    lists = [WORDS[:10], [], *([word] for word in WORDS[10:])]
    items = pa.array([7, 8, *[7] * (len(lists) - 2)])
    pq.write_table(pa.table({"item": items, "words": lists}), tmp_path / "a.parquet")
    return ParquetData([str(tmp_path / "a.parquet")], SCHEMA)


def keys(*words: str) -> np.ndarray:
    return keys_of(pa.array(words), SCHEMA.ragged[0].salt)


@pytest.mark.parametrize(("alpha", "told", "counts"), [
    (1.0, None, [16, 4, 1]), (0.5, None, [4, 2, 1]), (0.5, 1.0, [16, 4, 1]), (1.0, 0.0, [1, 1, 1]),
])  # fmt: skip
def test_a_model_is_told_the_chances_that_it_asks_for(
    data: ParquetData, alpha: float, told: float | None, counts: list[int]
) -> None:
    sampler = NegativeSampler(data, Sampling("words", 3, alpha, told=told), 0)
    shares = np.exp(sampler.log_q(keys("a", "b", "c")))
    np.testing.assert_allclose(shares, np.array(counts) / sum(counts), rtol=1e-6)
    assert sampler.log_q(keys("d")).tolist() == [0.0]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_items_are_drawn_by_their_count_to_a_power_whatever_is_told(data: ParquetData, alpha: float) -> None:
    sampler = NegativeSampler(data, Sampling("words", 30_000, alpha, told=1.0), 5)
    drawn = sampler.draw(0, 1, 2)
    found = np.array([(drawn == key).mean() for key in keys("a", "b", "c")])
    wanted = np.array([16.0, 4.0, 1.0]) ** alpha
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=0.02)


def test_a_batch_has_its_draws_or_each_example_has_whichever_trainer_trains_it(data: ParquetData) -> None:
    for each, expected in ((False, 3), (True, 12)):
        sampler = NegativeSampler(data, Sampling("item", 3, 1.0, each), 0)
        assert sampler.draw(0, 0, 0, 4).size == expected
        again = NegativeSampler(data, Sampling("item", 3, 1.0, each), 0)
        assert sampler.draw(1, 2, 3, 4).tolist() == again.draw(1, 2, 3, 4).tolist()
    many = NegativeSampler(data, Sampling("words", 200, 0.0), 0)
    others = [many.draw(*place).tobytes() for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({*others, NegativeSampler(data, Sampling("words", 200, 0.0), 1).draw(0, 0, 0).tobytes()}) == 5
