"""AUC, log loss and calibration from integer counts that merge exactly, and AUC within groups.

The mean of the AUCs of several trainers, or of several batches, is not the AUC of their union. So processes
exchange integer counts, which add without rounding:

* :class:`ScoreCounts`, exact, for evaluation: one entry per distinct score;
* :class:`LogitBins`, 8 KiB for any data size, for the progressive AUC during training.

An undefined figure is nan, never 0 or 0.5: the AUC if one class is absent, calibration without positive
examples, all figures without examples.

AUC over all examples also rewards a model for separating users who click from those who do not, which does
not order any list. GAUC is the mean of the groups' own AUCs, each weighted by its examples (Zhu et al.,
Optimized Cost per Click in Taobao Display Advertising, KDD 2017, eq. 14). It needs all examples of a group in
one process: read the predictions that `Trainer.evaluate(data, predictions=FOLDER)` writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.text import html_table

# Log loss clips probabilities to [CLIP, 1 - CLIP]: float32 can't tell 1 - 6e-8 from 1, and one confident
# mistake must not make the mean infinite. A single example costs at most 16.1.
PROBABILITY_CLIP = 1e-7

# 512 bins of 1/16 over logits -16..16, i.e. probabilities from 1e-7 to 1 - 1e-7; beyond, the outer bins.
LOGIT_BINS = 512
LOGIT_LIMIT = 16.0

Counts = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Figures of one evaluation; each example counts once, even if the schema has weights.

    Attributes
    ----------
    examples, positives : int
        All examples, and those with label 1.
    auc : float
        Probability that a positive example scores above a negative one, ties counted half; nan if one class
        is absent.
    logloss : float
        Mean of -log(probability of the label), natural logarithm; nan without examples.
    calibration : float
        Sum of predicted probabilities over number of positives, 1 is best; nan without positives.
    """

    examples: int
    positives: int
    auc: float
    logloss: float
    calibration: float

    def _repr_html_(self) -> str:
        figures = {name: f"{getattr(self, name):.4f}" for name in ("auc", "logloss", "calibration")}
        return html_table("Evaluation", {"examples": f"{self.examples:,}"} | figures)

    @property
    def normalised_entropy(self) -> float:
        """Log loss divided by that of always predicting the share of positives; below 1 beats that baseline.

        nan if one class is absent. Source: He et al., Practical Lessons from Predicting Clicks on Ads at
        Facebook, ADKDD 2014, eq. 3.
        """
        if not 0 < self.positives < self.examples:
            return float("nan")
        share = self.positives / self.examples
        return self.logloss / -(share * math.log(share) + (1 - share) * math.log1p(-share))


@dataclass(frozen=True, slots=True, eq=False)
class ScoreCounts:
    """Counts of positive and negative examples per score, which determine AUC and log loss.

    Attributes
    ----------
    scores : (K,) float32
        Distinct probabilities, ascending, each in [0, 1].
    positives, negatives : (K,) uint64
        Examples of either label with that score.

    Raises
    ------
    ValueError
        If the arrays differ in type or length from these, or scores are not ascending in [0, 1].

    Examples
    --------
    >>> left = ScoreCounts.of(np.float32([0.2, 0.8]), np.float32([0, 1]))
    >>> right = ScoreCounts.of(np.float32([0.5, 0.8]), np.float32([1, 0]))
    >>> ScoreCounts.merge([left, right]).result().auc
    0.625
    """

    scores: NDArray[np.float32]
    positives: Counts
    negatives: Counts

    def __post_init__(self) -> None:
        arrays: tuple[NDArray[Any], ...] = (self.scores, self.positives, self.negatives)
        expected = (np.float32, np.uint64, np.uint64)
        if any(array.ndim != 1 or array.dtype != kind for array, kind in zip(arrays, expected, strict=True)):
            came = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise ValueError(f"score counts need float32[K], uint64[K], uint64[K], got {came}")
        if len({array.size for array in arrays}) != 1:
            raise ValueError(f"score counts need three arrays of one length, got {[a.size for a in arrays]}")
        inside = bool(np.all((self.scores >= 0) & (self.scores <= 1)))  # false for nan too
        if not inside or not bool(np.all(self.scores[1:] > self.scores[:-1])):
            raise ValueError("score counts need distinct ascending scores in [0, 1]")

    @staticmethod
    def of(scores: NDArray[np.float32], labels: NDArray[np.generic]) -> ScoreCounts:
        """Count the scores of some examples.

        Parameters
        ----------
        scores : (B,) float32
            Predicted probabilities.
        labels : (B,) any number type or bool
            0 or 1.

        Raises
        ------
        ConfigurationError
            If a score is nan: the model has diverged.
        ValueError
            If shapes differ, a score is outside [0, 1] or a label is neither 0 nor 1.
        """
        positive = _positive(scores, labels)
        bad = int(np.count_nonzero(np.isnan(scores)))
        if bad:
            raise ConfigurationError(diverged("probabilities", bad, scores.size))
        # + 0.0 makes -0.0 an ordinary zero, so that equal counts are equal bytes.
        given = scores.astype(np.float32) + np.float32(0.0)
        return _counted(given, positive.astype(np.uint64), (~positive).astype(np.uint64))

    @staticmethod
    def empty() -> ScoreCounts:
        """Counts of no example."""
        return ScoreCounts(np.empty(0, np.float32), np.empty(0, np.uint64), np.empty(0, np.uint64))

    @staticmethod
    def merge(parts: Sequence[ScoreCounts]) -> ScoreCounts:
        """Merge the counts of ``parts``: bit-identical for any split of the examples."""
        if not parts:
            return ScoreCounts.empty()
        return _counted(
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.positives for part in parts]),
            np.concatenate([part.negatives for part in parts]),
        )

    def to_arrays(self) -> tuple[NDArray[np.float32], Counts, Counts]:
        """(scores, positives, negatives), for the wire; `from_arrays` is the inverse."""
        return self.scores, self.positives, self.negatives

    @staticmethod
    def from_arrays(scores: NDArray[np.float32], positives: Counts, negatives: Counts) -> ScoreCounts:
        """Inverse of `to_arrays`; all properties are checked again (ValueError)."""
        return ScoreCounts(scores, positives, negatives)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return _total(self.positives) + _total(self.negatives)

    def auc(self) -> float:
        """Exact area under the ROC curve, ties half; nan if one class is absent."""
        return _auc(self.positives, self.negatives)

    def logloss(self) -> float:
        """Mean log loss in float64, probabilities clipped at `PROBABILITY_CLIP`; nan without examples."""
        if not self.examples:
            return float("nan")
        probability = np.clip(self.scores.astype(np.float64), PROBABILITY_CLIP, 1 - PROBABILITY_CLIP)
        total = self.positives @ np.log(probability) + self.negatives @ np.log1p(-probability)
        return float(-total / self.examples)

    def calibration(self) -> float:
        """Sum of predictions over number of positives; nan without positives."""
        positives = _total(self.positives)
        if not positives:
            return float("nan")
        return float((self.positives + self.negatives) @ self.scores.astype(np.float64)) / positives

    def result(self) -> EvalResult:
        """All figures."""
        return EvalResult(
            examples=self.examples,
            positives=_total(self.positives),
            auc=self.auc(),
            logloss=self.logloss(),
            calibration=self.calibration(),
        )


def _no_counts() -> Counts:
    return np.zeros(LOGIT_BINS, np.uint64)


@dataclass(slots=True, eq=False)
class LogitBins:
    """Histogram of logits by label, for the AUC of predict-then-train; 8 KiB for any data size.

    Logits in one of the 512 bins of 1/16 count as ties, so this AUC may differ from the exact one.
    `auc_error` bounds the difference: 0.008 for logits of standard deviation 1, 0.003 for 2. Observed
    differences are far smaller, 1e-5 to 1e-4, since ties count half.

    Attributes
    ----------
    positives, negatives : (512,) uint64
        Examples of either label by bin; bin ``i`` holds logits in [-16 + i/16, -16 + (i+1)/16), the first
        and the last also all logits beyond.

    Raises
    ------
    ValueError
        If an array is not 512 uint64.
    """

    positives: Counts = field(default_factory=_no_counts)
    negatives: Counts = field(default_factory=_no_counts)

    def __post_init__(self) -> None:
        for name, counts in (("positives", self.positives), ("negatives", self.negatives)):
            if counts.shape != (LOGIT_BINS,) or counts.dtype != np.uint64:
                raise ValueError(
                    f"{name}: expected uint64[{LOGIT_BINS}], got {counts.dtype}{list(counts.shape)}"
                )

    def add(self, logits: NDArray[np.floating], labels: NDArray[np.generic]) -> None:
        """Count a batch, in place.

        Parameters
        ----------
        logits : (B,) float32 or float64
            Predicted before training on the batch.
        labels : (B,) any number type or bool
            0 or 1.

        Raises
        ------
        ConfigurationError
            If a logit is nan: the model has diverged.
        ValueError
            If shapes differ or a label is neither 0 nor 1.
        """
        positive = _positive(logits, labels)
        bad = int(np.count_nonzero(np.isnan(logits)))
        if bad:
            raise ConfigurationError(diverged("logits", bad, logits.size))
        per_unit = LOGIT_BINS / (2 * LOGIT_LIMIT)
        inside = np.clip(logits, -LOGIT_LIMIT, LOGIT_LIMIT)
        bins = np.minimum(((inside + LOGIT_LIMIT) * per_unit).astype(np.int64), LOGIT_BINS - 1)
        self.positives += np.bincount(bins[positive], minlength=LOGIT_BINS).astype(np.uint64)
        self.negatives += np.bincount(bins[~positive], minlength=LOGIT_BINS).astype(np.uint64)

    @staticmethod
    def merge(parts: Sequence[LogitBins]) -> LogitBins:
        """Merge the counts of ``parts``."""
        merged = LogitBins()
        for part in parts:
            merged.positives += part.positives
            merged.negatives += part.negatives
        return merged

    @property
    def examples(self) -> int:
        """Number of examples."""
        return _total(self.positives) + _total(self.negatives)

    def auc(self) -> float:
        """AUC with all logits of a bin tied; nan if one class is absent."""
        return _auc(self.positives, self.negatives)

    def calibration(self) -> float:
        """Sum of predictions over number of positives, each logit taken as the middle of its bin.

        That is within 1/32 of the exact one, and nan where the AUC is: models that rank items have one class.
        """
        positives, negatives = _total(self.positives), _total(self.negatives)
        if not (positives and negatives):
            return float("nan")
        width = 2 * LOGIT_LIMIT / LOGIT_BINS
        middles = -LOGIT_LIMIT + width * (np.arange(LOGIT_BINS) + 0.5)
        return float((self.positives + self.negatives) @ (1 / (1 + np.exp(-middles)))) / positives

    def auc_error(self) -> float:
        """Bound of the difference to the exact AUC: half the share of mixed pairs that share a bin."""
        pairs = _total(self.positives) * _total(self.negatives)
        if not pairs:
            return float("nan")
        same = sum(int(p) * int(n) for p, n in zip(self.positives, self.negatives, strict=True))
        return same / (2 * pairs)


def _positive(values: NDArray[np.generic], labels: NDArray[np.generic]) -> NDArray[np.bool_]:
    if values.ndim != 1 or values.shape != labels.shape:
        raise ValueError(f"expected one label a value, got {list(values.shape)} and {list(labels.shape)}")
    positive: NDArray[np.bool_] = labels == 1
    if not np.all(positive | (labels == 0)):
        first = int(np.argmin(positive | (labels == 0)))
        raise ValueError(f"labels must be 0 or 1, got {labels[first]} at {first}")
    return positive


def diverged(what: str, bad: int, examples: int, gave: str = "nan") -> str:
    """Error text for a model that predicts nan for some examples."""
    return (
        f"the model gave {gave} for {bad} of {examples} {what}: it has diverged; lower the learning rate or "
        "look for huge values among the dense columns"
    )


def _counted(scores: NDArray[np.float32], positives: Counts, negatives: Counts) -> ScoreCounts:
    """Sort scores, and sum the counts of equal ones."""
    if not scores.size:
        return ScoreCounts.empty()
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ScoreCounts(
        ordered[starts],
        np.add.reduceat(positives[order], starts),
        np.add.reduceat(negatives[order], starts),
    )


def _total(counts: Counts) -> int:
    return int(counts.sum(dtype=np.uint64))


def _auc(positives: Counts, negatives: Counts) -> float:
    """AUC of groups in ascending order of score, in integers until the last division.

    (sum over groups of p_i * (2 * negatives below i + n_i)) / (2 P N): the Mann-Whitney statistic.
    """
    pairs = 2 * _total(positives) * _total(negatives)
    if not pairs:
        return float("nan")
    below_twice = 2 * np.cumsum(negatives, dtype=np.uint64) - negatives
    if pairs < 2**64:  # then no product or partial sum can overflow
        won = int((positives * below_twice).sum(dtype=np.uint64))
    else:
        won = sum(int(p) * int(b) for p, b in zip(positives, below_twice, strict=True))
    return won / pairs


@dataclass(frozen=True, slots=True)
class GroupedAuc:
    """Result of `grouped_auc`; a group with clicks only, or with none, has no AUC and is left out.

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
    """Return the exact GAUC of some examples; ties count half.

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
