"""Options of models, read from plain configuration and checked together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard

import numpy as np

from pslib.errors import ConfigurationError
from pslib.table.initializers import Constant, Initializer, Normal, initializer_from_dict
from pslib.table.optimizers import Adagrad, Optimizer, optimizer_from_dict
from pslib.table.tables import DIM_MAX
from pslib.validation import came

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


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `` (did you mean ...?)`` for the nearest known word, else an empty text."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def option_from_plain(name: str, plain: object) -> object:
    """Read one option as YAML or JSON writes it: mappings become optimizers and initializers, lists tuples.

    Raises
    ------
    ConfigurationError
        When an optimizer or initializer is unknown, or a number in it is invalid or out of range.
    """
    try:
        if isinstance(plain, Mapping) and name.endswith("optimizer"):
            return optimizer_from_dict(dict(plain))
        if isinstance(plain, Mapping) and name.endswith("initializer"):
            return initializer_from_dict(dict(plain))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"expected a name and numbers, got {plain!r}: {error}") from error
    return tuple(plain) if isinstance(plain, list) else plain


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_rate(value: object) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_hidden(value: object) -> bool:
    return isinstance(value, tuple) and all(_is_whole(units, 1, HIDDEN_MAX) for units in value)


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


def _whole_rule(low: int, high: int) -> tuple[str, Callable[[object], bool]]:
    return f"an integer in {low}..{high}", lambda value: _is_whole(value, low, high)


def _choice_rule(*words: str) -> tuple[str, Callable[[object], bool]]:
    return f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words


_HIDDEN = (f"a list of integers in 1..{HIDDEN_MAX}", _is_hidden)
_SWITCH = ("true or false", lambda value: isinstance(value, bool))
_RATE = ("a number, 0 <= dropout < 1", _is_rate)
_NAMES = ("a list of names of sparse or ragged fields", _is_names)
_POSITIVE = ("a number above 0", lambda value: _is_number(value) and 0 < value < float("inf"))

_RULES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "dim": _whole_rule(1, DIM_MAX),
    "dim_mlp": _whole_rule(1, DIM_MAX),
    "hidden": _HIDDEN,
    "hidden_1": _HIDDEN,
    "hidden_2": _HIDDEN,
    "bottom": _HIDDEN,
    "gate_hidden": _HIDDEN,
    "cin": _HIDDEN,
    "dropout": _RATE,
    "dropout_1": _RATE,
    "dropout_2": _RATE,
    "batch_norm": _SWITCH,
    "stacked": _SWITCH,
    "gated": _SWITCH,
    "cross_layers": _whole_rule(1, LAYERS_MAX),
    "attention_layers": _whole_rule(1, LAYERS_MAX),
    "attention_dim": _whole_rule(1, HIDDEN_MAX),
    "attention_hidden": _HIDDEN,
    "experts": _whole_rule(1, LAYERS_MAX),
    "expert_hidden": _HIDDEN,
    "activation": _choice_rule("prelu", "dice"),
    "softmax": _SWITCH,
    "heads": _whole_rule(1, HIDDEN_MAX),
    "reduction": _whole_rule(1, HIDDEN_MAX),
    "bilinear": _choice_rule("all", "each", "interaction"),
    "interaction": _choice_rule("dot", "cat"),
    "context_1": _NAMES,
    "context_2": _NAMES,
    "dropout_hidden": _RATE,
    "rank_loss": _choice_rule("cross-entropy", "bpr-max"),
    "bpreg": ("a number >= 0", lambda value: _is_number(value) and 0 <= value < math.inf),
    "blocks": _whole_rule(1, LAYERS_MAX),
    "length_max": _whole_rule(1, LENGTH_MAX),
    "graph_steps": _whole_rule(1, LAYERS_MAX),
    "negatives": _whole_rule(1, NEGATIVES_MAX),
    "alpha": ("a number in 0..1", lambda value: _is_number(value) and 0 <= value <= 1),
    "logq": _SWITCH,
    "item": ("a list of names of fields", _is_names),
    "out": _whole_rule(1, DIM_MAX),
    "units": _whole_rule(1, HIDDEN_MAX),
    "window": _whole_rule(1, WINDOW_MAX),
    "pool": _whole_rule(1, NEGATIVES_MAX),
    "subsample": ("a number in 0..1", lambda value: _is_number(value) and 0 <= value <= 1),
    "encoder": _choice_rule("bow", "cnn", "gru"),
    "margin": _POSITIVE,
    "trials": _whole_rule(1, NEGATIVES_MAX),
    "similarity": _choice_rule("cosine", "dot"),
    "temperature": _POSITIVE,
    "seed": ("an integer in 0..2^63-1", lambda value: _is_whole(value, 0, 2**63 - 1)),
    "optimizer": ("an optimizer", lambda value: isinstance(value, Optimizer)),
    "initializer": ("an initializer", lambda value: isinstance(value, Initializer)),
}


def plain_options(holder: object, names: Collection[str]) -> None:
    """Convert lists and arrays to tuples, and NumPy numbers to Python's, for a frozen dataclass.

    Parameters
    ----------
    holder : dataclass
    names : collection of str
        Names of its options.
    """
    for name in names:
        given = getattr(holder, name)
        if isinstance(given, np.generic | list | tuple | np.ndarray):
            object.__setattr__(holder, name, _plain(given))


def _plain(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return _plain(given.tolist())
    if isinstance(given, list | tuple):
        return tuple(_plain(one) for one in given)
    return given.item() if isinstance(given, np.generic) else given


def plain_of(value: object) -> object:
    """Return an option's value as `option_from_plain` reads it."""
    if isinstance(value, Optimizer | Initializer):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def option_problem(name: str, value: object) -> str | None:
    """Return the problem of one option's value as one line; None if it is valid.

    Parameters
    ----------
    name : str
        ``w_optimizer`` is checked as an optimizer, ``v_initializer`` as an initializer, and so on.
    value : object
    """
    expected, is_right = _RULES[name.removeprefix("w_").removeprefix("v_")]
    return None if is_right(value) else f"{name}: expected {expected}, got {came(value)}"
