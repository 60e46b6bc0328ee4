"""Paired comparison of two models: AUC and log loss on the same examples, with a bootstrap interval.

The interval is of the difference. Each draw resamples examples with replacement for both models together, so
the difficulty common to both cancels. It does not hold the chance of a training, of its seed and of the order
of its steps, which `with_chance` adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.metrics.metrics import PROBABILITY_CLIP

Floats = NDArray[np.float32]
QUANTILES = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}
"""0.975 quantiles of Student's t by the number of trainings, one more than the degrees of freedom."""
MANY = 2.262
"""The same of ten; of more it is less."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference, and the interval that contains it in 95 of 100 draws."""

    value: float
    low: float
    high: float


class _Ranked:
    """Scores of one model, sorted once; a draw of examples is a weight for each of them."""

    def __init__(self, labels: Floats, scores: Floats) -> None:
        self._order = np.argsort(scores, kind="stable")
        ordered = scores[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._positive = labels[self._order] > 0
        clipped = np.clip(scores.astype(np.float64), PROBABILITY_CLIP, 1.0 - PROBABILITY_CLIP)
        self._losses = np.where(labels > 0, -np.log(clipped), -np.log1p(-clipped))

    def auc(self, weights: NDArray[np.float64]) -> float:
        """Weighted AUC; ties count half."""
        ordered = weights[self._order]
        positives = np.add.reduceat(np.where(self._positive, ordered, 0.0), self._starts)
        negatives = np.add.reduceat(np.where(self._positive, 0.0, ordered), self._starts)
        below = np.cumsum(negatives) - negatives
        pairs = positives.sum() * negatives.sum()
        return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else float("nan")

    def logloss(self, weights: NDArray[np.float64]) -> float:
        """Weighted mean log loss."""
        return float(weights @ self._losses / weights.sum())


def paired_difference(
    labels: Floats, pairs: Sequence[tuple[Floats, Floats]], draws: int = 200, seed: int = 0
) -> tuple[Difference, Difference]:
    """Return the mean advantage of the second model over the first of each pair: (AUC, log loss).

    Parameters
    ----------
    labels : (n,) float32
        0 or 1.
    pairs : sequence of ((n,) float32, (n,) float32)
        Probabilities by the first and the second model, for instance one pair per seed.
    draws : int
        Draws of examples with replacement, the same for all pairs.
    seed : int
        Seed of the draws.

    Returns
    -------
    tuple of Difference
        Second minus first: higher AUC is better, lower log loss is better.

    Raises
    ------
    ValueError
        If lengths differ, or there is no example.
    """
    if not labels.size or not pairs or any(one.shape != labels.shape for pair in pairs for one in pair):
        raise ValueError(f"expected pairs of {labels.shape} scores, got {[p[0].shape for p in pairs]}")
    ranked = [(_Ranked(labels, first), _Ranked(labels, second)) for first, second in pairs]
    whole = np.ones(labels.size)
    random = np.random.default_rng(seed)
    auc, loss = [_mean_auc(ranked, whole)], [_mean_loss(ranked, whole)]
    for _ in range(draws):
        chosen = random.integers(0, labels.size, labels.size)
        weights = np.bincount(chosen, minlength=labels.size).astype(np.float64)
        auc.append(_mean_auc(ranked, weights))
        loss.append(_mean_loss(ranked, weights))
    return _difference(auc), _difference(loss)


def figures_of(labels: Floats, scores: Floats) -> tuple[float, float]:
    """Return AUC and log loss of a model's probabilities."""
    ranked, whole = _Ranked(labels, scores), np.ones(labels.size)
    return ranked.auc(whole), ranked.logloss(whole)


def with_chance(difference: Difference, figures: Sequence[float], pairs: int) -> Difference:
    """Return a mean difference with an interval that holds the chance of the trainings, too.

    Parameters
    ----------
    difference : Difference
        Of two models, with the interval of the examples.
    figures : sequence of float
        The figure after at least three trainings that differ by nothing but their seeds.
    pairs : int
        Pairs of trainings whose differences the mean is of.
    """
    quantile = QUANTILES.get(len(figures), MANY)
    chance = quantile * float(np.std(figures, ddof=1)) * math.sqrt(2 / pairs)
    value = difference.value
    below, above = math.hypot(value - difference.low, chance), math.hypot(difference.high - value, chance)
    return Difference(value, value - below, value + above)


def _mean_auc(ranked: list[tuple[_Ranked, _Ranked]], weights: NDArray[np.float64]) -> float:
    return float(np.mean([second.auc(weights) - first.auc(weights) for first, second in ranked]))


def _mean_loss(ranked: list[tuple[_Ranked, _Ranked]], weights: NDArray[np.float64]) -> float:
    return float(np.mean([second.logloss(weights) - first.logloss(weights) for first, second in ranked]))


def _difference(values: list[float]) -> Difference:
    drawn = np.array(values[1:] or values)
    low, high = np.nanpercentile(drawn, [2.5, 97.5]) if not np.isnan(drawn).all() else (np.nan, np.nan)
    return Difference(values[0], float(low), float(high))
