"""Sessions: never padded, negatives that repeat, a GRU that is PyTorch's, ranks that are counted right."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pslib
from pslib.batch import Ragged
from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import NegativeSampler, Sampling, item_counts
from pslib.errors import ConfigurationError, DataError
from pslib.metrics.metrics import ScoreCounts
from pslib.metrics.ranking import counts_of_ranks, mean_ranks, result_of_ranks
from pslib.schema import Schema
from rec_models import LR, build
from rec_models.engine.packed_sequences import packed
from rec_models.engine.tape import Tape, Var
from rec_models.layers import bpr_max
from rec_models.layers.ranking_losses import Candidates
from rec_models.stepper import PART_ROWS_MIN
from tests.support.models.gradient_check import (
    RELATIVE_ERROR_MAX,
    assert_same_in_parts,
    assert_same_step,
    parameters,
    random,
    step_errors,
    without_dropout,
)
from tests.support.models.session_models import SCHEMA, SESSIONS, VARIANTS, lists_of, session_batch

# --- packing

lengths_of = st.lists(st.integers(0, 6), max_size=8)


@given(lengths_of, st.booleans(), st.sampled_from([None, 1, 3]))
def test_packed_lists_hold_each_element_once_step_by_step(lengths, without_last, at_most):
    lists = lists_of(lengths)
    steps = packed(lists, without_last, at_most)
    kept = [min(max(length - without_last, 0), at_most or length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda i: (-kept[i], i))
    firsts = [
        int(last) - min(without_last, length) - count
        for last, length, count in zip(lists.offsets[1:], lengths, kept, strict=True)
    ]
    expected = [firsts[i] + t for t in range(max(kept, default=0)) for i in order if kept[i] > t]
    assert steps.values.tolist() == lists.values[expected].tolist()
    assert steps.indices.tolist() == expected  # as many as there are elements: nothing is padded
    assert steps.order.tolist() == order
    assert steps.sizes.tolist() == [sum(one > t for one in kept) for t in range(max(kept, default=0))]


@given(lengths_of)
def test_the_last_element_of_each_list_is_found(lengths):
    lists = lists_of(lengths)
    steps = packed(lists)
    which, places = steps.last()
    found = dict(zip(which.tolist(), steps.indices[places].tolist(), strict=True))
    assert found == {i: int(lists.offsets[i + 1]) - 1 for i in range(len(lengths)) if lengths[i]}


def drawn(name: str, lengths: list[int]):
    """A step of a model on sessions of so many items, to be called."""
    model, batch = build(name, SCHEMA, without_dropout(SESSIONS[name])), session_batch(lengths)
    rows, dense = parameters(model, batch)
    return lambda: model.loss_and_gradients(batch, rows, dense, 0)


LONG, SHORT = [41], [2] * 400
"""Sessions of 40 and of 1 items with a successor: padded, one number an element were 401 * 40 = 16,040."""


@pytest.mark.parametrize("name", SESSIONS)
def test_no_array_of_a_step_has_more_rows_than_its_sessions_have_elements_and_pairs(name, monkeypatch):
    held: list[int] = []

    class Held(Tape):
        def backward(self, end):
            for outputs, closure in self._steps:
                kept = [cell.cell_contents for cell in closure.__closure__ or ()]
                values = [one.value if isinstance(one, Var) else one for one in [*outputs, *kept]]
                held.extend(value.size for value in values if isinstance(value, np.ndarray))
            super().backward(end)

    monkeypatch.setattr("rec_models.stepper.Tape", Held)
    monkeypatch.setattr("rec_models.stepper.PART_ROWS_MIN", 1000)  # all in one part
    monkeypatch.setattr("rec_models.stepper.PART_ROWS_MAX", 1000)
    drawn(name, LONG + SHORT)()
    assert (40 + 400) * 3 <= max(held) <= (40 * 41 // 2 + 400) * 9 < 401 * 40  # 9: gates of 3 units


@pytest.mark.parametrize("name", SESSIONS)
def test_a_long_session_among_short_ones_takes_the_memory_that_they_take_apart(name):
    def peak_bytes(lengths: list[int]) -> int:
        step = drawn(name, lengths)
        step()  # what is kept for the next step
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    short = [2] * 1000
    assert peak_bytes([201, *short]) < 1.3 * (peak_bytes([201]) + peak_bytes(short))


@pytest.mark.parametrize("name", sorted(SESSIONS.keys() - {"gru4rec"}))
def test_of_a_very_long_session_the_last_items_are_read_in_training_and_in_ranking(name):
    model = build(name, SCHEMA, without_dropout(SESSIONS[name]) | {"length_max": 5})
    long, short = session_batch([40]), session_batch([6])
    short = replace(short, ragged={"items": Ragged(long.ragged["items"].values[-6:], np.array([0, 6]))})
    rows = random(long.keys.size, model.table().dim)
    dense = {key: random(*shape) for key, shape in model.dense_shapes().items()}
    losses = [model.loss_and_gradients(batch, rows, dense, 0).loss for batch in (long, short)]
    assert losses[0] == losses[1]
    states = [model.encode(batch, rows, dense, "items") for batch in (long, short)]
    np.testing.assert_array_equal(*states)


# --- the model


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_session_models_gradients_agree_with_finite_differences(variant):
    name, options = VARIANTS[variant]
    model = build(name, SCHEMA, options)
    batch = session_batch([3, 0, 1, 5, 2])
    rows, dense = parameters(model, batch)
    errors = step_errors(model, batch, rows, dense)
    assert max(errors.values()) <= RELATIVE_ERROR_MAX, errors


@pytest.mark.parametrize("name", SESSIONS)
def test_a_batch_in_parts_is_the_batch_as_a_whole(name, monkeypatch):
    model = build(name, SCHEMA, without_dropout(SESSIONS[name]))
    batch = session_batch([3, 0, 1, 5, 2, 2, 4])
    rows, dense = parameters(model, batch)
    assert_same_in_parts(monkeypatch, model, batch, rows, dense, atol=1e-12)


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("last", [0, 1])
def test_a_part_of_nothing_but_sessions_without_a_next_item_adds_nothing(name, last, monkeypatch):
    model = build(name, SCHEMA, without_dropout(SESSIONS[name]))
    batch = session_batch([*[3] * PART_ROWS_MIN, last])  # the last session is a part of its own
    rows, dense = parameters(model, batch)
    cut = model.loss_and_gradients(batch, rows, dense, 0)
    monkeypatch.setattr("rec_models.stepper.PART_ROWS_MIN", len(batch))
    whole = model.loss_and_gradients(batch, rows, dense, 0)
    assert_same_step(cut, whole, atol=1e-12)


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_without_a_next_item_teach_nothing(name):
    model = build(name, SCHEMA, without_dropout(SESSIONS[name]))
    batch = session_batch([1, 0, 1])
    rows, dense = parameters(model, batch)
    result = model.loss_and_gradients(batch, rows, dense, 0)
    assert result.loss == 0
    assert not result.rows_gradient.any()
    assert not any(gradient.any() for gradient in result.dense_gradients.values())
    assert model.encode(batch, rows, dense, "items")[1].tolist() == [0] * model.dim


def test_what_a_session_model_can_not_read_is_told():
    with pytest.raises(ConfigurationError, match="schema: expected one ragged field, the items of"):
        build("gru4rec", Schema(label="y", sparse=["u"]), {})
    with pytest.raises(ConfigurationError, match="negatives: expected a whole number in 1"):
        build("gru4rec", SCHEMA, {"negatives": 0})
    with pytest.raises(ConfigurationError, match="heads: expected a divisor of dim 6, got 4"):
        build("sasrec", SCHEMA, {"dim": 6, "heads": 4})
    with pytest.raises(ConfigurationError, match="logq: bpr-max is not corrected for what is drawn; set"):
        build("gru4rec", SCHEMA, {"rank_loss": "bpr-max"})
    with pytest.raises(ConfigurationError, match="bpreg: expected 0 with cross-entropy"):
        build("gru4rec", SCHEMA, {"bpreg": 1.0})


@pytest.mark.parametrize("scale", [1.0, 300.0])  # sigmoid(-300) is 0 in float32
def test_bpr_max_is_its_definition_however_far_scores_are_apart(scale):
    h, own, others = random(4, 3) * scale, random(4, 3), random(5, 3)
    targets, negatives = np.array([3, 1, 3, 9]), np.array([1, 2, 3, 3, 7])
    scored = [
        Candidates(Var(v), Var(np.zeros((len(v), 1))), ids, np.zeros(len(v)))
        for v, ids in ((own, targets), (others, negatives))
    ]
    found = bpr_max(Tape(training=False), Var(h), *scored, 4, 0.7)
    losses = []
    for state, target, vector in zip(h, targets, own, strict=True):
        r, r_j = state @ vector, others[negatives != target] @ state
        log_s = r_j - np.logaddexp.reduce(r_j)
        log_sigmoid = -np.logaddexp(0, r_j - r)
        losses.append(-np.logaddexp.reduce(log_s + log_sigmoid) + 0.7 * (np.exp(log_s) * r_j**2).sum())
    assert found.value == pytest.approx(np.mean(losses), rel=1e-9)


def test_bpr_max_of_a_target_without_a_negative_is_zero():
    ids, one = np.array([3]), Var(np.ones((1, 2)))
    scored = Candidates(one, Var(np.zeros((1, 1))), ids, np.zeros(1))
    tape = Tape(training=True)
    loss = bpr_max(tape, one, scored, scored, 1, 0.7)
    tape.backward(loss)
    assert loss.value == 0
    assert not one.gradient.any()


# --- negatives


def written(path, sessions, **more):
    pq.write_table(
        pa.table({"items": pa.array(sessions, pa.list_(pa.int32())), **more}), path, row_group_size=3
    )
    return path


@pytest.mark.parametrize("at_once", [1, 3, 1 << 22])
def test_items_are_counted_over_row_groups_however_many_at_once(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("pslib.data.item_catalog.SORT_AT_ONCE", at_once)
    monkeypatch.setattr("pslib.data.window.SCAN_ROWS", 1)
    data = ParquetData(written(tmp_path / "a.parquet", [[1, 2], [2], [], None, [2, 3, 1]]), SCHEMA)
    keys, counts = item_counts(data, "items")
    salt = SCHEMA.ragged[0].salt
    known = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    assert known == {
        int(keys_of(pa.array([item]), salt)[0]): count for item, count in ((1, 2), (2, 3), (3, 1))
    }


def test_negatives_come_as_often_as_their_count_to_the_power_says_and_the_same_every_time(tmp_path):
    sessions = [[1] * 100 + [2] * 25 + [3]]
    data = ParquetData(written(tmp_path / "a.parquet", sessions), SCHEMA)
    sampler = NegativeSampler(data, Sampling("items", 20_000, 0.5), seed=7)
    drawn = sampler.draw(0, 1, 2)
    assert np.array_equal(drawn, NegativeSampler(data, sampler.sampling, 7).draw(0, 1, 2))
    assert not np.array_equal(drawn, sampler.draw(0, 1, 3))
    keys = keys_of(pa.array([1, 2, 3]), SCHEMA.ragged[0].salt)
    shares = [(drawn == key).mean() for key in keys]
    np.testing.assert_allclose(shares, np.array([10, 5, 1]) / 16, atol=0.015)
    np.testing.assert_allclose(np.exp(sampler.log_q(keys)), np.array([10, 5, 1]) / 16, rtol=1e-6)
    assert sampler.log_q(np.array([12345], np.uint64)).tolist() == [0]


def test_items_that_are_not_there_are_told(tmp_path):
    data = ParquetData(written(tmp_path / "a.parquet", [[], None]), SCHEMA)
    with pytest.raises(ConfigurationError, match="expected lists with items, got empty ones only"):
        item_counts(data, "items")
    with pytest.raises(ConfigurationError, match=r"'item': expected a sparse or ragged field of the .*items"):
        item_counts(data, "item")


# --- ranks


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(-1, 2)
)
def test_a_rank_is_the_mean_place_among_equals(scores, target):
    found = mean_ranks(np.array(scores, np.float32), np.full(len(scores), target))
    for row, rank in zip(scores, found, strict=True):
        if target < 0:
            assert rank == math.inf
            continue
        places = [place for place, score in enumerate(sorted(row, reverse=True), 1) if score == row[target]]
        assert rank == sum(places) / len(places)


@given(
    st.lists(st.one_of(st.just(math.inf), st.integers(2, 200_000).map(lambda n: n / 2)), min_size=1),
    st.data(),
)
def test_recall_mrr_and_ndcg_are_their_definitions_however_ranks_are_split(ranks, data):
    cut = data.draw(st.integers(0, len(ranks)))
    parts = [counts_of_ranks(np.array(part)) for part in (ranks[:cut], ranks[cut:])]
    found = result_of_ranks(ScoreCounts.merge(parts), (1, 20))
    for k in (1, 20):
        hits = [rank for rank in ranks if rank <= k]
        assert found.recall[k] == pytest.approx(len(hits) / len(ranks))
        assert found.mrr[k] == pytest.approx(sum(1 / rank for rank in hits) / len(ranks))
        assert found.ndcg[k] == pytest.approx(sum(1 / math.log2(1 + rank) for rank in hits) / len(ranks))
    assert found.examples == len(ranks)


# --- all the way


def cycles(path, count: int, seed: int):
    """Sessions that go round a circle of twelve items: the next one is certain."""
    rng = np.random.default_rng(seed)
    sessions = [
        [(start + i) % 12 for i in range(length)]
        for start, length in rng.integers((0, 2), (12, 7), (count, 2))
    ]
    return written(path, sessions)


def test_gru4rec_learns_what_follows_and_ranks_it_first(tmp_path):
    train = cycles(tmp_path / "train.parquet", 600, 1)
    prefixes, targets = [[3], [10, 11], [5, 6, 7], []], [4, 0, 8, 99]
    columns = {"prefix": pa.array(prefixes, pa.list_(pa.int32())), "target": targets}
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    model = build("gru4rec", SCHEMA, {"dim": 16, "negatives": 32})
    with pslib.connect(servers=2) as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=20, staleness=0, progress=False)
        trainer.fit(train, epochs=3)
        found = trainer.rank(tmp_path / "test.parquet", train, at=(1, 5))
        assert found.examples == 4
        assert found.recall == {1: 0.75, 5: 0.75}  # 99 was never seen
        assert found.mrr[5] == 0.75
        seen = trainer.rank(tmp_path / "test.parquet", train, at=(12,), exclude_seen=True)
        assert seen.recall[12] == 0.75
        went_back = {"prefix": pa.array([[3], [4, 5]], pa.list_(pa.int32())), "target": [3, 6]}
        pq.write_table(pa.table(went_back), tmp_path / "back.parquet")
        left_out = trainer.rank(tmp_path / "back.parquet", train, at=(1, 12), exclude_seen=True)
        assert left_out.recall == {
            1: 0.5,
            12: 0.5,
        }  # 3 was just there, so it is not ranked; 6 is, above 4 and 5
        with pytest.raises(ConfigurationError, match="evaluate to judge it by: if it ranks items, call rank"):
            trainer.evaluate(train)
        with pytest.raises(DataError, match="no column 'goal'"):
            trainer.rank(tmp_path / "test.parquet", train, target="goal")


def test_a_model_of_clicks_ranks_nothing(tmp_path):
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(Schema(label="y", sparse=["u"])), cluster, progress=False)
        with pytest.raises(ConfigurationError, match="LR predicts clicks and ranks no items: evaluate it"):
            trainer.rank(tmp_path, tmp_path)
