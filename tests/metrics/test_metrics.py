"""Figures that merge exactly: no mean of parts, no rounding, no made-up value for an absent class."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from pslib.errors import ConfigurationError
from pslib.metrics.metrics import LOGIT_BINS, PROBABILITY_CLIP, LogitBins, ScoreCounts

# Few distinct values, so that ties are the rule.
examples = st.lists(
    st.tuples(
        st.sampled_from([0.0, -0.0, 0.1, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1, width=32), st.booleans()
    ),
    max_size=60,
)


def arrays(pairs):
    return (
        np.array([score for score, _ in pairs], np.float32),
        np.array([label for _, label in pairs], np.float32),
    )


def same_bits(left: ScoreCounts, right: ScoreCounts) -> bool:
    return all(
        a.tobytes() == b.tobytes() and a.dtype == b.dtype
        for a, b in zip(left.to_arrays(), right.to_arrays(), strict=True)
    )


def random_examples(count=20_000, digits=2):
    random = np.random.default_rng(7)
    scores = random.random(count).round(digits).astype(np.float32)
    labels = (random.random(count) < 0.2 + 0.5 * scores).astype(np.float32)
    return scores, labels


@pytest.mark.parametrize("digits", [2, 7], ids=["many ties", "few ties"])
def test_auc_and_log_loss_equal_scikit_learn(digits):
    scores, labels = random_examples(digits=digits)
    result = ScoreCounts.of(scores, labels).result()
    clipped = np.clip(scores.astype(np.float64), PROBABILITY_CLIP, 1 - PROBABILITY_CLIP)
    assert result.auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-13)
    assert result.logloss == pytest.approx(log_loss(labels, clipped), rel=1e-12)
    assert result.calibration == pytest.approx(scores.astype(np.float64).sum() / labels.sum(), rel=1e-12)
    assert (result.examples, result.positives) == (labels.size, int(labels.sum()))


@given(examples)
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs):
    scores, labels = arrays(pairs)
    up, down = scores[labels == 1], scores[labels == 0]
    auc = ScoreCounts.of(scores, labels).auc()
    if not up.size or not down.size:
        assert math.isnan(auc)
        return
    twice_won = sum(2 * int(u > d) + int(u == d) for u in up for d in down)
    assert auc == twice_won / (2 * up.size * down.size)


@given(examples, st.lists(st.integers(0, 60), max_size=5), st.randoms(use_true_random=False))
def test_merging_any_split_in_any_order_equals_the_whole_bit_for_bit(pairs, cuts, random):
    whole = ScoreCounts.of(*arrays(pairs))
    edges = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    parts = [ScoreCounts.of(*arrays(pairs[a:b])) for a, b in itertools.pairwise(edges)]
    random.shuffle(parts)
    assert same_bits(ScoreCounts.merge(parts), whole)
    assert whole.examples == len(pairs)


def test_merging_nothing_gives_nothing():
    assert ScoreCounts.merge([]).examples == 0


def test_arrays_come_back_as_the_same_counts():
    counts = ScoreCounts.of(*random_examples(500))
    assert same_bits(ScoreCounts.from_arrays(*counts.to_arrays()), counts)


def test_auc_stays_exact_when_pairs_pass_64_bits():
    big = 2**40
    counts = ScoreCounts(np.float32([0.25, 0.75]), np.uint64([big, 3 * big]), np.uint64([3 * big, big]))
    assert counts.auc() == (1 * 3 + 3 * (2 * 3 + 1)) / (2 * 4 * 4)


def test_without_examples_every_figure_is_nan():
    result = ScoreCounts.empty().result()
    assert result.examples == 0
    assert all(math.isnan(value) for value in (result.auc, result.logloss, result.calibration))


def test_with_negatives_only_the_log_loss_alone_is_defined():
    result = ScoreCounts.of(np.float32([0.5, 0.5]), np.float32([0, 0])).result()
    assert math.isnan(result.auc)
    assert math.isnan(result.calibration)
    assert result.logloss == pytest.approx(math.log(2))


def test_with_positives_only_the_auc_alone_is_undefined():
    result = ScoreCounts.of(np.float32([0.5, 0.25]), np.float32([1, 1])).result()
    assert math.isnan(result.auc)
    assert result.calibration == 0.375


def test_a_confident_mistake_costs_a_bounded_loss():
    assert ScoreCounts.of(np.float32([0.0]), np.float32([1])).logloss() == pytest.approx(-math.log(1e-7))
    assert ScoreCounts.of(np.float32([1.0]), np.float32([0])).logloss() == pytest.approx(-math.log(1e-7))


def test_a_nan_score_names_divergence():
    with pytest.raises(ConfigurationError, match=r"nan for 1 of 2 probabilities.*lower the learning rate"):
        ScoreCounts.of(np.float32([0.5, np.nan]), np.float32([0, 1]))


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.5], [2], "0 or 1, got 2.0 at 0"),
        ([0.5, 0.5], [1, np.nan], "0 or 1, got nan at 1"),
        ([0.5, 0.5], [1], "one label a value"),
        ([1.5], [1], r"in \[0, 1\]"),
    ],
)
def test_what_is_not_a_score_and_a_label_is_refused(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        ScoreCounts.of(np.float32(scores), np.float32(labels))


@pytest.mark.parametrize(
    ("scores", "positives", "message"),
    [
        (np.float32([0.5, 0.25]), np.uint64([1, 1]), "ascending"),
        (np.float32([0.5, 0.5]), np.uint64([1, 1]), "ascending"),
        (np.float32([0.5, np.nan]), np.uint64([1, 1]), "ascending"),
        (np.float32([0.5]), np.uint64([1, 1]), "one length"),
        (np.float64([0.25, 0.5]), np.uint64([1, 1]), "float32"),
    ],
)
def test_arrays_that_are_not_score_counts_are_refused(scores, positives, message):
    with pytest.raises(ValueError, match=message):
        ScoreCounts.from_arrays(scores, positives, np.uint64([1, 1]))


def binned(logits, labels) -> LogitBins:
    bins = LogitBins()
    bins.add(logits, labels)
    return bins


@given(examples, st.integers(0, 60))
def test_merged_logit_bins_equal_the_whole(pairs, cut):
    scores, labels = arrays(pairs)
    logits = 8 * scores - 4
    merged = LogitBins.merge([binned(logits[:cut], labels[:cut]), binned(logits[cut:], labels[cut:])])
    whole = binned(logits, labels)
    assert np.array_equal(merged.positives, whole.positives)
    assert np.array_equal(merged.negatives, whole.negatives)
    assert whole.examples == len(pairs)


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_the_binned_auc_is_within_its_stated_error_of_the_exact_one(spread):
    random = np.random.default_rng(3)
    logits = random.normal(0, spread, 5_000).astype(np.float32)
    labels = (random.random(5_000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    bins = binned(logits, labels)
    assert abs(bins.auc() - roc_auc_score(labels, logits)) <= bins.auc_error() + 1e-12
    assert bins.auc_error() < 0.01 or spread < 1


def test_each_logit_falls_in_its_bin_and_far_ones_in_the_outer_bins():
    logits = np.float32([-np.inf, -16, -15.9375, 0, 15.9374, 15.9375, 16, np.inf])
    bins = binned(logits, np.ones(8, np.float32))
    assert {int(i): int(bins.positives[i]) for i in np.flatnonzero(bins.positives)} == {
        0: 2,
        1: 1,
        LOGIT_BINS // 2: 1,
        LOGIT_BINS - 2: 1,
        LOGIT_BINS - 1: 3,
    }


def test_bins_without_both_classes_have_no_auc():
    assert math.isnan(LogitBins().auc())
    assert math.isnan(binned(np.float32([1, 2]), np.float32([1, 1])).auc_error())


def test_bins_refuse_nan_logits_and_wrong_arrays():
    with pytest.raises(ConfigurationError, match="nan for 1 of 1 logits"):
        binned(np.float32([np.nan]), np.float32([1]))
    with pytest.raises(ValueError, match=r"positives: expected uint64\[512\], got uint64\[4\]"):
        LogitBins(np.zeros(4, np.uint64), np.zeros(512, np.uint64))


def test_the_calibration_of_bins_is_near_the_exact_one_and_undefined_without_both_classes():
    rng = np.random.default_rng(5)
    logits = rng.normal(-1.0, 2.0, 5_000).astype(np.float32)
    labels = rng.random(5_000) < 0.3
    probabilities = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    exact = ScoreCounts.of(probabilities, labels).calibration()
    assert binned(logits, labels).calibration() == pytest.approx(exact, rel=1e-3)
    assert binned(np.float32([0.0] * 10), np.arange(10) % 2).calibration() == pytest.approx(1.0, rel=1 / 32)
    assert math.isnan(binned(logits, np.ones(5_000)).calibration())
    assert math.isnan(LogitBins().calibration())
