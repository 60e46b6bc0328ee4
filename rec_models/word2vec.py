"""word2vec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.errors import ConfigurationError
from pslib.schema import Schema, SparseField
from pslib.settings import Setting
from pslib.table.initializers import Initializer, Uniform
from pslib.table.optimizers import Optimizer
from pslib.table.tables import DIM_MAX, PartSpec
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import gather, log_loss, normalize, row_dot, split
from rec_models.model import DenseVars, Model
from rec_models.options import (
    DEFAULT_OPTIMIZER,
    NEGATIVES_MAX,
    W_INITIALIZER,
    WINDOW_MAX,
    initializer,
    optimizer,
    size,
)


@dataclass(frozen=True, eq=False, repr=False)
class Word2Vec(Model):
    """Skip-gram with negative sampling (Mikolov et al., NIPS 2013, arXiv:1310.4546).

    An example is a text: one ragged field, its words in order. Frequent words are dropped at random; every
    remaining word predicts its neighbours up to a random distance of at most ``window``. The row of a word
    has two vectors: ``v`` as a centre word, ``w`` as a context word. `pslib.Trainer.recommend` finds the
    nearest words by the cosine of ``v``.
    """

    tasks: ClassVar[tuple[int, int]] = (0, 1)
    examples_independent: ClassVar[bool] = False
    by_product: ClassVar[bool] = True

    dim: Annotated[int, size("Floats of a vector.", DIM_MAX)] = 100
    window: Annotated[int, size("Maximum number of words to each side.", WINDOW_MAX)] = 5
    negatives: Annotated[
        int, size("Negative words per pair, out of those drawn for the batch.", NEGATIVES_MAX)
    ] = 5
    pool: Annotated[
        int,
        size(
            "Words drawn for a batch, with probability proportional to their count to the power alpha.",
            NEGATIVES_MAX,
        ),
    ] = 8192
    alpha: Annotated[
        float,
        Setting("Power of a word's count in its sampling probability; 3/4 in the paper.", ge=0, le=1),
    ] = 0.75
    subsample: Annotated[
        float,
        Setting(
            "The paper's t: a word of frequency f is kept with probability min(1, sqrt(t / f)); 0: always.",
            ge=0,
            le=1,
        ),
    ] = 1e-4
    v_optimizer: Annotated[Optimizer, optimizer("Optimizer of input vectors.")] = DEFAULT_OPTIMIZER
    v_initializer: Annotated[Initializer, initializer("Initial values of input vectors.")] = Uniform(0.005)
    w_optimizer: Annotated[Optimizer, optimizer("Optimizer of output vectors.")] = DEFAULT_OPTIMIZER
    w_initializer: Annotated[Initializer, initializer("Initial values of output vectors.")] = W_INITIALIZER

    def _problems(self) -> list[str]:
        if len(self.schema.ragged) != 1 or self.schema.sparse or self.schema.dense:
            return ["expected a schema of one ragged field, the words of a text"]
        return []

    def sampling(self) -> Sampling:
        """Sample words by their count to the power ``alpha``; ``log_q`` is the log of their frequency."""
        return Sampling(self.schema.ragged[0].name, self.pool, self.alpha, told=1.0)

    def parts(self) -> tuple[PartSpec, ...]:
        """``v`` and ``w``: a word's vectors."""
        return (
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
            PartSpec("w", self.dim, self.w_optimizer, self.w_initializer),
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return no shapes: there are no dense parameters."""
        return {}

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Raise an error: a text has no click to predict.

        Raises
        ------
        ConfigurationError
            Always.
        """
        raise ConfigurationError("Word2Vec predicts no clicks: call export_vectors or recommend")

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Eq. 4, negated: the mean over pairs of the log loss of a pair and its negatives."""
        centers, around, drawn, owners = self.sampled(tape, batch)
        v, w = split(tape, rows, (self.dim, self.dim))
        predicting = gather(tape, v, np.concatenate([centers, centers[owners]]))
        predicted = gather(tape, w, np.concatenate([around, drawn]))
        labels = np.concatenate([np.ones(centers.size), np.zeros(drawn.size)])
        scores = row_dot(tape, predicting, predicted)
        return log_loss(tape, scores, labels, centers.size), np.zeros(len(batch), rows.value.dtype)

    def sampled(
        self, tape: Tape, batch: Batch
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Sample the pairs of a step: words as positions in ``batch.keys``.

        Returns
        -------
        (P,), (P,)
            Centre words, and a context word of each.
        (N,), (N,)
            Negative words, and the pair of each.
        """
        centers, around = self._pairs(tape, batch)
        picks = _integers(tape.random_words(centers.size * self.negatives), batch.negatives.size)
        drawn, owners = batch.negatives[picks], np.repeat(np.arange(centers.size), self.negatives)
        other = drawn != around[owners]
        return centers, around, drawn[other], owners[other]

    def _pairs(self, tape: Tape, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        lists = batch.ragged[self.schema.ragged[0].name]
        words, owners = lists.values, np.repeat(np.arange(len(lists)), lists.lengths)
        if self.subsample:
            share = np.exp(batch.log_q[words].astype(np.float64))
            kept = _units(tape.random_words(words.size)) < np.sqrt(self.subsample / share)
            words, owners = words[kept], owners[kept]
        reach = 1 + _integers(tape.random_words(words.size), self.window)
        centers, around = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for distance in range(1, self.window + 1):
            near = np.flatnonzero(owners[:-distance] == owners[distance:])
            for one, other in ((near, near + distance), (near + distance, near)):
                within = reach[one] >= distance
                centers.append(one[within])
                around.append(other[within])
        return words[np.concatenate(centers)], words[np.concatenate(around)]

    # --- nearest words ------------------------------------------------------------------------------------

    @property
    def item(self) -> tuple[str, ...]:
        """Name of the column of words in data that lists words."""
        return ("word",)

    @property
    def item_schema(self) -> Schema:
        """Schema of an item: a word."""
        own = self.schema.ragged[0]
        return Schema(label=None, sparse=[SparseField("word", own.vocabulary or own.name)])

    @property
    def query_schema(self) -> Schema:
        """Schema of a query: a word, whose nearest words are searched."""
        return self.item_schema

    def encode(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute the vectors of words, (B, D)."""
        return self.query(Tape(training=False), batch, self.query_schema, Var(rows), {}).value

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``v`` of words, normalised to length 1."""
        v, _ = split(tape, rows, (self.dim, self.dim))
        return normalize(tape, gather(tape, v, batch.sparse[:, 0]))

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Compute the same vectors as `query`."""
        return self.query(tape, batch, schema, rows, dense)

    def encode_items(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute the same vectors as `encode`."""
        return self.encode(batch, rows, dense)

    def scores(self, queries: Array, items: Array, dense: Mapping[str, Array]) -> Array:
        """Compute cosines, (B, V)."""
        return queries @ items.T


def _units(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random words to numbers in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _integers(words: NDArray[np.uint64], below: int) -> NDArray[np.int64]:
    """Convert random words to integers from 0 to ``below - 1``."""
    return (_units(words) * max(1, below)).astype(np.int64)
