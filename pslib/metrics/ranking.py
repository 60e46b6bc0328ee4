"""Ranking metrics over all items: Recall@k, MRR@k and NDCG@k, merged exactly.

With one target per example, rank r (1 is best), and k::

    Recall@k = HR@k = mean of [r <= k]
    MRR@k           = mean of [r <= k] / r
    NDCG@k          = mean of [r <= k] / log2(1 + r)          (the ideal list has the target first: DCG 1)

Items with the target's score are ties, and r is their mean rank: ``1 + better + equal others / 2``. A target
without a trained row can't be ranked and is a miss. Ranks are sent and merged as counts of 1 / r
(`ScoreCounts`), so the figures do not depend on the split of the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.metrics.metrics import ScoreCounts
from pslib.text import html_table


@dataclass(frozen=True, slots=True)
class RankResult:
    """Figures of a ranking.

    Attributes
    ----------
    examples : int
        Number of examples, including misses.
    recall, mrr, ndcg : dict of int to float
        Figures by k.
    """

    examples: int
    recall: dict[int, float]
    mrr: dict[int, float]
    ndcg: dict[int, float]

    def _repr_html_(self) -> str:
        names = {"Recall": self.recall, "MRR": self.mrr, "NDCG": self.ndcg}
        figures = {f"{name}@{k}": f"{one[k]:.4f}" for name, one in names.items() for k in one}
        return html_table("Ranking", {"examples": f"{self.examples:,}"} | figures)


def mean_ranks(scores: NDArray[np.floating], targets: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the rank of each example's target.

    Parameters
    ----------
    scores : (B, V)
        Scores of all items; -inf for excluded ones.
    targets : (B,) integers
        Column of the target; negative if it is not an item.

    Returns
    -------
    (B,) float64
        From 1 on, halves for ties; infinite for a target that is not an item, or is excluded.
    """
    own = np.take_along_axis(scores, np.maximum(targets, 0)[:, None], axis=1)
    better, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    ranks = 1 + better + (equal - 1) / 2
    return np.where((targets >= 0) & np.isfinite(own[:, 0]), ranks, np.inf)


def counts_of_ranks(ranks: NDArray[np.float64]) -> ScoreCounts:
    """Return ranks as mergeable counts of their reciprocals."""
    return ScoreCounts.of((1 / ranks).astype(np.float32), np.ones(ranks.size))


def result_of_ranks(counts: ScoreCounts, at: Sequence[int]) -> RankResult:
    """Return the figures of merged counts, for each k of ``at``."""
    times = counts.positives.astype(np.float64)
    with np.errstate(divide="ignore"):
        ranks = np.round(2 / counts.scores.astype(np.float64)) / 2
    examples = int(times.sum())

    def mean(gain: NDArray[np.float64], k: int) -> float:
        hit = ranks <= k
        return float((times[hit] * gain[hit]).sum() / examples) if examples else 0.0

    return RankResult(
        examples,
        {k: mean(np.ones(ranks.size), k) for k in at},
        {k: mean(1 / ranks, k) for k in at},
        {k: mean(1 / np.log2(1 + ranks), k) for k in at},
    )


def plain_ranks(counts: ScoreCounts, at: Sequence[int]) -> dict[str, object]:
    """Return the figures for a message: lists in the order of ``at``."""
    found = result_of_ranks(counts, at)
    figures = {name: [getattr(found, name)[k] for k in at] for name in ("recall", "mrr", "ndcg")}
    return {"examples": found.examples, "at": list(at), **figures}
