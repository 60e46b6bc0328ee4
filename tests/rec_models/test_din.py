"""DIN: sequences that share rows with their target, cost their elements, and are never padded."""

from __future__ import annotations

import numpy as np
import pytest

from pslib.batch import Batch, Ragged
from pslib.schema import RaggedField, Schema, SparseField
from rec_models import DIN
from tests.support.models.gradient_check import SCHEMA, parameters

SHOP = Schema(label="click", sparse=["item"], ragged=[RaggedField("viewed", vocabulary="item")])


def shop_batch(lengths: list[int], distinct: int = 50) -> Batch:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    viewed = Ragged(rng.integers(0, distinct, offsets[-1]).astype(np.int32), offsets)
    return Batch(
        labels=rng.integers(0, 2, len(lengths)).astype(np.float32),
        dense=np.zeros((len(lengths), 0), np.float32),
        keys=np.arange(distinct, dtype=np.uint64),
        sparse=rng.integers(0, distinct, (len(lengths), 1)).astype(np.int32),
        ragged={"viewed": viewed},
    )


def test_a_sequence_is_what_shares_its_vocabulary_with_a_sparse_field():
    assert DIN(SCHEMA).sequences() == {"viewed": 1}
    by_name = Schema(
        label="y",
        sparse=[SparseField("item", vocabulary="goods"), SparseField("last", vocabulary="goods"), "shop"],
        ragged=[
            "item_history",
            RaggedField("viewed", vocabulary="goods"),
            RaggedField("shops", vocabulary="shop"),
        ],
    )
    assert DIN(by_name).sequences() == {"viewed": 0, "shops": 2}
    names = {name.split(".")[1] for name in DIN(by_name).dense_shapes() if name.startswith("attention")}
    assert names == {"viewed", "shops"}


def test_without_a_sequence_all_lists_are_pooled():
    model = DIN(Schema(label="y", sparse=["item"], ragged=["words"]))
    assert model.sequences() == {}
    assert not [name for name in model.dense_shapes() if name.startswith("attention")]


def test_the_target_and_its_sequence_teach_the_same_row():
    """One key is viewed and shown: its row gets what both give, which finite differences see as one value."""
    model = DIN(SHOP, dim=2, hidden=(4,), attention_hidden=(3,))
    batch = shop_batch([3], distinct=1)
    rows, dense = parameters(model, batch)
    gradient = model.loss_and_gradients(batch, rows, dense, 0).rows_gradient
    step = 1e-5
    for d in range(2):
        above, below = rows.copy(), rows.copy()
        above[0, d] += step
        below[0, d] -= step
        losses = [model.loss_and_gradients(batch, at, dense, 0).loss for at in (above, below)]
        assert gradient[0, d] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6)


def test_the_order_of_a_sequence_does_not_matter_but_its_elements_do():
    model = DIN(SHOP, dim=4)
    batch = shop_batch([5])
    rows, dense = parameters(model, batch)
    seen = batch.ragged["viewed"]
    turned = Ragged(seen.values[::-1].copy(), seen.offsets)
    other = Ragged((seen.values + 1) % 50, seen.offsets)

    def predicted(lists):
        again = Batch(batch.labels, batch.dense, batch.keys, batch.sparse, {"viewed": lists})
        small = {name: value / 5 for name, value in dense.items()}
        return model.predict(again, rows, small)[0]

    assert predicted(turned) == pytest.approx(predicted(seen), rel=1e-9)
    assert predicted(other) != pytest.approx(predicted(seen), rel=1e-9)


def test_a_step_keeps_no_array_beyond_the_elements_of_its_sequences(monkeypatch):
    """One sequence of 1,000 among 200 of 1: padded, its arrays would have 201,000 rows."""
    sizes: list[int] = []
    real = np.empty

    def counted(shape, *args, **kwargs):
        array = real(shape, *args, **kwargs)
        sizes.append(array.size)
        return array

    model = DIN(SHOP, dim=4, hidden=(8,), attention_hidden=(6,))
    batch = shop_batch([1000, *[1] * 200])
    given = parameters(model, batch)
    monkeypatch.setattr(np, "empty", counted)
    model.loss_and_gradients(batch, *given, 0)
    assert max(sizes) <= 1200 * 4 * 4  # [h, t, h - t, h * t] of each element


def test_it_costs_what_its_elements_cost():
    """The activation unit sees as many rows as there are elements, however they are spread over lists."""
    seen: list[int] = []

    class Watched(DIN):
        def _interest(self, tape, batch, name, e, v_A, dense):
            seen.append(e.value.shape[0])
            return super()._interest(tape, batch, name, e, v_A, dense)

    model = Watched(SHOP, dim=2, hidden=(4,), attention_hidden=(3,))
    for lengths in ([0, 0, 0], [30, 0, 0], [10, 10, 10]):
        batch = shop_batch(lengths)
        model.loss_and_gradients(batch, *parameters(model, batch), 0)
    assert seen == [0, 30, 30]
