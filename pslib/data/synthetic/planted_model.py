"""Planted model of synthetic data: rows and true click probabilities as functions of a seed.

Nothing is stored per key: a key's planted weight and latent vector are bits of a hash of (seed, field, rank),
so a vocabulary of a billion values costs no memory. The true logit of a row is::

    z = bias + signal * ( sqrt(0.5)  * linear          sum over fields of a weight per key
                        + sqrt(0.25) * interactions    factorisation machine of rank 3 over 8 fields
                        + sqrt(0.25) * dense )         straight and square effects of log(1 + count)

each term scaled to mean 0 and deviation 1 on a sample, ``bias`` chosen for the wanted share of positives.
The signal of a key, its weight and its latent vector, may fade with its rank r: it counts
``2 ** (-fade * floor(log2(r + 1)))`` times, so that values too rare to be learnt carry less of the signal.
A missing key has weight 0 and a missing count acts as the count 0, which is how a reader with the default
fill sees it: nothing that decides a label is hidden from a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import mix64

# Rows made at once; also the granularity of the random numbers, so that it can't change without changing
# what a seed means.
BLOCK_ROWS = 65_536

_STEPS = 65_536  # resolution of each quantile table: 16 random bits select an entry
_EXACT_RANKS = 4_096
_RANK = 3  # of the interactions
_INTERACTING = 8  # fields, those of the smallest vocabularies
_RANK_BITS = 32  # of the largest vocabulary
_SHARES = (0.5, 0.25, 0.25)  # of the variance of the logit: linear, interactions, dense
_SAMPLE_PART = 2  # 0 is train, 1 is test
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# Median and deviation of log(1 + count), share of missing counts, smallest count: like I1..I13 of Criteo.
_COUNT_SHAPES = (
    (0.9, 1.0, 0.40, 0),
    (1.8, 1.9, 0.00, -2),
    (1.9, 1.2, 0.21, 0),
    (1.6, 0.9, 0.22, 0),
    (7.6, 2.2, 0.03, 0),
    (3.5, 1.5, 0.22, 0),
    (1.8, 1.2, 0.05, 0),
    (2.0, 1.0, 0.00, 0),
    (3.8, 1.3, 0.05, 0),
    (0.5, 0.4, 0.40, 0),
    (1.0, 0.8, 0.05, 0),
    (0.3, 0.8, 0.70, 0),
    (1.8, 1.0, 0.22, 0),
)


class Block(NamedTuple):
    """Generated rows, field by field; values under a null flag are arbitrary.

    Attributes
    ----------
    labels : (n,) int8
    counts : list of (n,) int64, and count_nulls : list of (n,) bool
        One of each per dense field.
    ranks : list of (n,) int64, and rank_nulls : list of (n,) bool
        One of each per sparse field; rank 0 is the most frequent value.
    probabilities : (n,) float64
        True probability of label 1, from which labels were drawn.
    """

    labels: NDArray[np.int8]
    counts: list[NDArray[np.int64]]
    count_nulls: list[NDArray[np.bool_]]
    ranks: list[NDArray[np.int64]]
    rank_nulls: list[NDArray[np.bool_]]
    probabilities: NDArray[np.float64]


def zipf_knots(size: int, exponent: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of the cumulative Zipf distribution over ranks 0..size-1.

    Exact for the first 4,096 ranks; beyond, sums are taken as integrals over rank ± 1/2, at points growing
    geometrically.

    Parameters
    ----------
    size : int
        Number of values, at least 1.
    exponent : float
        ``s`` in P(rank k) ~ (k + 1) ** -s.

    Returns
    -------
    ranks, cumulative : (m,) float64
        Probability ``cumulative[i]`` that a rank is below ``ranks[i]``.
    """
    head = min(size, _EXACT_RANKS)
    ranks = np.arange(head + 1, dtype=np.float64)
    cumulative = np.concatenate([[0.0], np.cumsum(np.arange(1.0, head + 1) ** -exponent)])
    if size > head:
        tail = np.geomspace(head, size, 4_097)[1:]
        tail[-1] = size
        if exponent == 1:
            mass = np.log((tail + 0.5) / (head + 0.5))
        else:
            power = 1 - exponent
            mass = ((tail + 0.5) ** power - (head + 0.5) ** power) / power
        ranks = np.concatenate([ranks, tail])
        cumulative = np.concatenate([cumulative, cumulative[-1] + mass])
    return ranks, cumulative / cumulative[-1]


@dataclass(frozen=True, slots=True)
class _SparseTables:
    """Quantiles of one sparse field: 16 random bits select a step, 16 more the position within it."""

    null_steps: int
    starts: NDArray[np.int64]  # (STEPS,) rank * 2**16 at the start of each step
    widths: NDArray[np.int64]
    salt: np.uint64
    weight_scale: np.float32
    interacts: bool

    @staticmethod
    def build(number: int, size: int, exponent: float, seed: int, interacts: bool) -> _SparseTables:
        # Every fourth field lacks a fifth of its values.
        null_steps = _STEPS // 5 if number % 4 == 3 else 0
        quantiles = np.linspace(0, 1, _STEPS - null_steps + 1)
        ranks, cumulative = zipf_knots(size, exponent)
        edges = np.interp(quantiles, cumulative, ranks)
        fixed = np.minimum((edges * 65_536).astype(np.int64), (size << 16) - 1)
        fixed[-1] = size << 16
        pad = np.zeros(null_steps, np.int64)
        salt = mix64(np.array([(seed << 16) + number], np.uint64))[0]
        return _SparseTables(
            null_steps=null_steps,
            starts=np.concatenate([pad, fixed[:-1]]),
            widths=np.concatenate([pad, np.diff(fixed)]),
            salt=salt,
            # Fields of few values weigh more, since the effects of rare values are hard to learn.
            weight_scale=np.float32(size**-0.25 * (0.5 + float(salt >> np.uint64(40)) * 2.0**-24)),
            interacts=interacts,
        )


@dataclass(frozen=True, slots=True)
class _DenseTables:
    """Quantiles of one dense field, and their effects on the logit."""

    null_steps: int
    counts: NDArray[np.int64]  # (STEPS,)
    effects: NDArray[np.float32]  # (STEPS,)

    @staticmethod
    def build(number: int, normal: NDArray[np.float32], seed: int) -> _DenseTables:
        median, deviation, null_share, smallest = _COUNT_SHAPES[number % len(_COUNT_SHAPES)]
        null_steps = int(null_share * _STEPS)
        spread = np.interp(
            (np.arange(_STEPS - null_steps) + 0.5) / (_STEPS - null_steps),
            (np.arange(_STEPS) + 0.5) / _STEPS,
            normal,
        )
        present = np.floor(np.exp(median + deviation * spread)).astype(np.int64) - 1 + smallest
        counts = np.concatenate([np.zeros(null_steps, np.int64), np.maximum(present, smallest)])
        squeezed = np.sign(counts) * np.log1p(np.abs(counts))
        standard = (squeezed - squeezed.mean()) / max(float(squeezed.std()), 1e-6)
        bits = mix64(np.array([(seed << 16) + 32_768 + number], np.uint64))[0]
        straight, square = (float(normal[(int(bits) >> shift) & 0xFFFF]) for shift in (0, 16))
        effects = straight * standard + 0.5 * square * np.minimum(standard**2 - 1, 8.0)
        return _DenseTables(null_steps, counts, effects.astype(np.float32))


class PlantedModel:
    """Generator of rows and click probabilities as a function of (seed, part, block number).

    Parameters
    ----------
    seed : int
        At least 0 and below 2**40.
    vocabularies : tuple of int
        Distinct values of each sparse field.
    dense_fields : int
        Number of count columns.
    zipf : float
        Exponent of the frequencies of values.
    positive_share : float
        Target share of label 1, in (0, 1).
    signal : float
        Standard deviation of the true logit: 0 makes labels pure noise.
    fade : float
        Decay of key effects with rank; 0: all keys of a field have equal weight.
    """

    def __init__(
        self,
        *,
        seed: int,
        vocabularies: tuple[int, ...],
        dense_fields: int,
        zipf: float,
        positive_share: float,
        signal: float,
        fade: float = 0.0,
    ) -> None:
        self._seed = seed
        # Looked up by the bits of rank + 1: powers computed per rank would differ between machines.
        steps = np.maximum(np.arange(_RANK_BITS + 1) - 1, 0).tolist()
        self._fades = np.array([2.0 ** (-fade * step) for step in steps], np.float32)
        distribution = NormalDist()
        self._normal = np.array(
            [distribution.inv_cdf((step + 0.5) / _STEPS) for step in range(_STEPS)], np.float32
        )
        smallest = sorted(range(len(vocabularies)), key=lambda i: (vocabularies[i], i))[:_INTERACTING]
        self._sparse = [
            _SparseTables.build(i, size, zipf, seed, i in smallest) for i, size in enumerate(vocabularies)
        ]
        self._dense = [_DenseTables.build(i, self._normal, seed) for i in range(dense_fields)]
        sample, _ = self._terms(*self._draw(_SAMPLE_PART, 0, BLOCK_ROWS)[:2])
        deviations = np.array([term.std() for term in sample])
        # A term that is constant (no dense field, vocabularies of one value) adds nothing.
        self._factors = signal * np.sqrt(_SHARES) / np.where(deviations > 1e-6, deviations, np.inf)
        self._bias = _bias_for(positive_share, self._joined(sample))

    def block(self, part: int, number: int, rows: int) -> Block:
        """Make ``rows`` <= `BLOCK_ROWS` rows: block ``number`` of ``part`` (0 train, 1 test)."""
        sparse, dense, luck = self._draw(part, number, rows)
        terms, ranks = self._terms(sparse, dense)
        probabilities = 1 / (1 + np.exp(-(self._bias + self._joined(terms))))
        steps = sparse >> np.uint32(16)
        return Block(
            labels=(luck < probabilities * 2.0**32).astype(np.int8),
            counts=[tables.counts[dense[i]] for i, tables in enumerate(self._dense)],
            count_nulls=[dense[i] < tables.null_steps for i, tables in enumerate(self._dense)],
            ranks=ranks,
            rank_nulls=[steps[i] < tables.null_steps for i, tables in enumerate(self._sparse)],
            probabilities=probabilities,
        )

    def _draw(
        self, part: int, number: int, rows: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint32]]:
        """Random bits of a block: (fields, rows) for sparse and dense fields, (rows,) for labels."""
        sparse_words, dense_words = len(self._sparse) * rows, len(self._dense) * rows
        wanted_bytes = 4 * sparse_words + 4 * rows + 2 * dense_words
        # Raw words of a named generator: NumPy guarantees stable streams for these.
        source = np.random.SFC64(np.random.SeedSequence([self._seed, part, number]))
        raw = source.random_raw(-(-wanted_bytes // 8)).astype("<u8").view(np.uint8)
        edges = np.cumsum([4 * sparse_words, 4 * rows, 2 * dense_words])
        sparse, luck, dense, _ = np.split(raw, edges)
        return (
            sparse.view("<u4").reshape(len(self._sparse), rows),
            dense.view("<u2").reshape(len(self._dense), rows),
            luck.view("<u4"),
        )

    def _joined(self, terms: NDArray[np.float32]) -> NDArray[np.float64]:
        """Weighted sum of the terms, in this order on any machine (a BLAS may choose another)."""
        first, second, third = (factor * term for factor, term in zip(self._factors, terms, strict=True))
        return first + second + third

    def _terms(
        self, sparse: NDArray[np.uint32], dense: NDArray[np.uint16]
    ) -> tuple[NDArray[np.float32], list[NDArray[np.int64]]]:
        """The (3, rows) terms of the logit, and the rank of each sparse field's value."""
        rows = sparse.shape[1]
        linear = np.zeros(rows, np.float32)
        sums = np.zeros((_RANK, rows), np.float32)
        squares = np.zeros((_RANK, rows), np.float32)
        all_ranks = []
        for bits, tables in zip(sparse, self._sparse, strict=True):
            steps = bits >> np.uint32(16)
            places = (bits & np.uint32(0xFFFF)).astype(np.int64)
            ranks = (tables.starts[steps] + ((tables.widths[steps] * places) >> 16)) >> 16
            hashes = mix64(ranks.view(np.uint64) * _GOLDEN + tables.salt).view(np.uint16).reshape(rows, 4)
            present = self._fades[np.frexp(ranks + 1.0)[1]] * (steps >= tables.null_steps)
            linear += self._normal[hashes[:, 0]] * (present * tables.weight_scale)
            if tables.interacts:
                for part in range(_RANK):
                    latent = self._normal[hashes[:, 1 + part]] * present
                    sums[part] += latent
                    squares[part] += latent * latent
            all_ranks.append(ranks)
        effects = np.zeros(rows, np.float32)
        for places, counts in zip(dense, self._dense, strict=True):
            effects += counts.effects[places]
        return np.stack([linear, 0.5 * (sums * sums - squares).sum(axis=0), effects]), all_ranks


def _bias_for(share: float, logits: NDArray[np.float64]) -> float:
    """Bias at which the mean probability of ``logits`` equals ``share``, by bisection."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float(np.mean(1 / (1 + np.exp(-(logits + middle)))))
        low, high = (middle, high) if mean < share else (low, middle)
    return low
