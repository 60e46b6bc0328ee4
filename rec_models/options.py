"""Options of models: bounds and defaults that they share, and their plain form."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

import numpy as np

from pslib.settings import Setting
from pslib.table.initializers import INITIALIZERS, Constant, Initializer, Normal
from pslib.table.optimizers import OPTIMIZERS, Adagrad, Optimizer
from pslib.table.tables import DIM_MAX

HIDDEN_MAX = 1 << 16
"""Limit of units of one hidden layer: published CTR models stay below 5,000; more is likely a typo."""

NEGATIVES_MAX = 1 << 20
"""Limit of items drawn for one batch; published models draw some thousands."""
LENGTH_MAX = 1 << 14
"""Limit of items read of a session: attention costs their square; published models read at most 200."""
WINDOW_MAX = 64
"""Limit of a window of elements; published models have 3 to 10."""
LAYERS_MAX = 64
"""Limit of cross or interacting layers; published models have at most 6."""

DEFAULT_OPTIMIZER = Adagrad(0.1, initial_accumulator=1e-6)
"""Default optimizer of rows: Adagrad, since frequencies of rows differ by many orders of magnitude."""

W_INITIALIZER = Constant(0.0)
"""Initializer of first-order weights: an unseen key has no effect."""

V_INITIALIZER = Normal(0.01)
"""Initializer of embeddings: small, so that the first-order term is learned before the pairs; not zero, where
the gradient of a pair is zero."""


def size(text: str, most: int = HIDDEN_MAX) -> Setting:
    """Return the Setting of a size, or of a list of sizes: whole numbers of 1 and more."""
    return Setting(text, ge=1, le=most)


def fraction(text: str) -> Setting:
    """Return the Setting of a fraction that is dropped."""
    return Setting(text, ge=0, lt=1)


def optimizer(text: str) -> Setting:
    """Return the Setting of an optimizer of rows, which a job file names."""
    return Setting(text, kinds=tuple(OPTIMIZERS.values()), example="pslib.Adagrad(learning_rate=0.05)")


def initializer(text: str) -> Setting:
    """Return the Setting of an initializer of rows, which a job file names."""
    return Setting(text, kinds=tuple(INITIALIZERS.values()), example="pslib.Normal(std=0.01)")


DIM = size("Floats of an embedding.", DIM_MAX)
HIDDEN = size("Units of each hidden layer.")
DROPOUT = fraction("Fraction of units dropped after each hidden layer.")
BATCH_NORM = Setting("Normalise the units of hidden layers over the batch.")
OF_VECTORS = optimizer("Optimizer of embeddings.")
OF_FIRST_VECTORS = initializer("Initial values of embeddings.")
OF_WEIGHTS = optimizer("Optimizer of first-order weights.")
OF_FIRST_WEIGHTS = initializer("Initial values of first-order weights.")
SEED = Setting("Seed of the initial values of rows.", ge=0, le=2**63 - 1)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `` (did you mean ...?)`` for the nearest known word, else an empty text."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def plain_options(holder: Any) -> None:
    """Convert lists and arrays in a dataclass to tuples, and NumPy numbers to Python's.

    Unlike `pslib.settings.Settings`, options may be arrays: a search over settings passes them.
    """
    for name, given in vars(holder).items():
        if isinstance(given, np.generic | list | tuple | np.ndarray):
            object.__setattr__(holder, name, _plain(given))


def _plain(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return _plain(given.tolist())
    if isinstance(given, list | tuple):
        return tuple(_plain(one) for one in given)
    return given.item() if isinstance(given, np.generic) else given


def plain_of(value: object) -> object:
    """Return an option's value as a job file has it."""
    if isinstance(value, Optimizer | Initializer):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value
