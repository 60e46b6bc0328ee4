"""AUC within groups and normalised entropy, against their definitions and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pslib.metrics.metrics import EvalResult, ScoreCounts, grouped_auc

examples = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.booleans()), max_size=60)


def columns(
    rows: list[tuple[int, int, bool]],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1] / 4, table[:, 2]


def auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Share of pairs of a positive and a negative that are in order, ties half."""
    pairs = np.subtract.outer(scores[labels == 1], scores[labels == 0])
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


@given(examples)
def test_gauc_is_the_mean_of_the_groups_own_aucs_weighted_by_their_examples(
    rows: list[tuple[int, int, bool]],
) -> None:
    groups, scores, labels = columns(rows)
    members = [groups == one for one in np.unique(groups)]
    kept = [one for one in members if 0 < labels[one].sum() < one.sum()]
    weights = [one.sum() for one in kept]
    found = grouped_auc(groups, scores, labels)
    if kept:
        expected = np.average([auc(scores[one], labels[one]) for one in kept], weights=weights)
        assert found.gauc == pytest.approx(expected, rel=1e-12, abs=1e-15)
    else:
        assert math.isnan(found.gauc)
    assert (found.groups, found.examples) == (len(kept), sum(weights))
    assert found.groups + found.groups_left_out == len(members)
    assert found.examples + found.examples_left_out == len(rows)


@given(examples, st.randoms(use_true_random=False))
def test_gauc_does_not_depend_on_the_order_of_examples(
    rows: list[tuple[int, int, bool]], random: object
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = grouped_auc(*columns(rows)), grouped_auc(*columns(shuffled))
    assert repr(one) == repr(other)


def test_gauc_of_one_group_is_scikit_learns_auc() -> None:
    sklearn = pytest.importorskip(
        "sklearn.metrics",
        reason="scikit-learn is a second reference and no dependency; the test of the groups' own AUCs above "
        "counts pairs itself, everywhere",
    )
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 50, 2000) / 50, rng.integers(0, 2, 2000)
    users = rng.integers(0, 40, 2000)
    one_group = grouped_auc(np.zeros(2000, np.int64), scores, labels)
    assert one_group.gauc == pytest.approx(sklearn.roc_auc_score(labels, scores), rel=1e-12)
    of_users = [sklearn.roc_auc_score(labels[users == u], scores[users == u]) for u in range(40)]
    assert grouped_auc(users, scores, labels).gauc == pytest.approx(
        np.average(of_users, weights=np.bincount(users)), rel=1e-12
    )


def test_groups_may_be_words() -> None:
    found = grouped_auc(
        np.array(["b", "a", "b", "a"]), np.array([0.9, 0.1, 0.1, 0.2]), np.array([1, 1, 0, 0])
    )
    assert found.gauc == 0.5


@pytest.mark.parametrize(
    ("groups", "scores", "labels", "said"),
    [
        ([1, 2], [0.5], [1], r"got \[2\], \[1\] and \[1\]"),
        ([1], [np.nan], [1], "diverged"),
        ([1], [0.5], [2], "labels must be 0 or 1, got 2"),
    ],
)
def test_what_is_no_example_is_refused(
    groups: list[int], scores: list[float], labels: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        grouped_auc(np.array(groups), np.array(scores), np.array(labels))


# --- normalised entropy


def test_predicting_the_share_of_positives_for_all_has_a_normalised_entropy_of_1() -> None:
    labels = np.array([1, 0, 0, 0], np.float32)
    result = ScoreCounts.of(np.full(4, 0.25, np.float32), labels).result()
    assert result.normalised_entropy == pytest.approx(1.0, rel=1e-6)


def test_normalised_entropy_is_log_loss_over_the_entropy_of_the_labels() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.random(500).astype(np.float32), rng.integers(0, 2, 500).astype(np.float32)
    share = labels.mean(dtype=np.float64)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    result = ScoreCounts.of(scores, labels).result()
    assert result.normalised_entropy == pytest.approx(result.logloss / entropy, rel=1e-12)


@pytest.mark.parametrize(("examples", "positives"), [(0, 0), (5, 0), (5, 5)])
def test_normalised_entropy_of_one_class_is_not_defined(examples: int, positives: int) -> None:
    assert math.isnan(EvalResult(examples, positives, math.nan, 0.3, 1.0).normalised_entropy)
