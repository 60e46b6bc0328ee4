"""Grouped AUC (GAUC): AUC within groups, such as users, averaged over groups.

AUC over all examples also rewards a model for separating users who click from those who do not, which does
not order any list. GAUC is the mean of the groups' own AUCs, each weighted by its examples. A group with
clicks only, or with none, has no AUC and is left out. (Zhu et al., Optimized Cost per Click in Taobao Display
Advertising, KDD 2017, eq. 14.)

Unlike the metrics in `pslib.metrics.metrics` it needs all examples of a group in one process: read the
predictions that `Trainer.evaluate(data, predictions=FOLDER)` writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GroupedAuc", "grouped_auc"]


@dataclass(frozen=True, slots=True)
class GroupedAuc:
    """Result of `grouped_auc`.

    Attributes
    ----------
    gauc : float
        Mean of the groups' AUCs, weighted by their examples; nan if no group has both labels.
    groups, examples : int
        Groups with both labels, and their examples.
    groups_left_out, examples_left_out : int
        Groups with one label only, and their examples.
    """

    gauc: float
    groups: int
    examples: int
    groups_left_out: int
    examples_left_out: int


def grouped_auc(
    groups: NDArray[np.generic], scores: NDArray[np.floating], labels: NDArray[np.generic]
) -> GroupedAuc:
    """Exact GAUC of some examples; ties count half.

    Parameters
    ----------
    groups : (B,)
        Group of each example: integers, or any type that NumPy sorts.
    scores : (B,) float32 or float64
        Probabilities or logits.
    labels : (B,) any number type or bool
        0 or 1.

    Raises
    ------
    ValueError
        If shapes differ, a score is nan, or a label is neither 0 nor 1.
    """
    if groups.ndim != 1 or not groups.shape == scores.shape == labels.shape:
        shapes = f"{list(groups.shape)}, {list(scores.shape)} and {list(labels.shape)}"
        raise ValueError(f"expected one group, score and label an example, got {shapes}")
    if np.isnan(scores).any():
        raise ValueError("expected scores that are numbers, got nan: the model has diverged")
    if not (sound := np.isin(labels, (0, 1))).all():
        raise ValueError(f"labels must be 0 or 1, got {labels[~sound][0]}")
    _, numbers = np.unique(groups, return_inverse=True)
    order = np.lexsort((scores, numbers))
    group, score, positive = numbers[order], scores[order], (labels[order] == 1).astype(np.int64)
    won_twice = positive * _below_twice(group, score, 1 - positive)  # pairs won twice, ties once
    count = int(numbers.max(initial=-1)) + 1
    examples, clicks, wins = (
        np.bincount(group, weights=what, minlength=count)
        for what in (np.ones(group.size), positive, won_twice)
    )
    both = (clicks > 0) & (clicks < examples)
    aucs = wins[both] / (2 * clicks[both] * (examples - clicks)[both])
    kept = int(examples[both].sum())
    return GroupedAuc(
        gauc=float((aucs * examples[both]).sum() / kept) if kept else float("nan"),
        groups=int(both.sum()),
        examples=kept,
        groups_left_out=int(count - both.sum()),
        examples_left_out=int(group.size - kept),
    )


def _below_twice(
    group: NDArray[np.intp], score: NDArray[np.floating], negative: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count a group's negatives per example: those with a lower score twice, ties once.

    Examples are sorted by group, then by score.
    """
    if not group.size:
        return np.zeros(0, np.int64)
    before = np.cumsum(negative) - negative  # negatives before it, of all groups
    new_group = np.concatenate([[True], group[1:] != group[:-1]])
    new_tie = new_group | np.concatenate([[True], score[1:] != score[:-1]])
    tie = np.cumsum(new_tie) - 1
    of_group = before[new_group][np.cumsum(new_group) - 1]
    below = before[new_tie][tie] - of_group
    equal = np.bincount(tie, weights=negative).astype(np.int64)[tie]
    twice: NDArray[np.int64] = 2 * below + equal
    return twice
