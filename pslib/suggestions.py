"""Lines about unknown keys and values, with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {
    "lr": "learning_rate",
    "embedding_dim": "dim",
    "embedding_size": "dim",
    "embed_dim": "dim",
    "dnn_hidden_units": "hidden",
    "wd": "weight_decay",
    "batch_size": "batch_rows",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "random_state": "seed",
}
"""Settings by their dissimilar names in other libraries."""
VALUE_CHARS_MAX = 60
"""Longest shown part of a wrong value: enough to find it, and short enough for one line."""


def shown(value: object) -> str:
    """Return a wrong value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known name that is meant: by its name in other libraries, or by its letters."""
    by_lower = {name.lower(): name for name in known}
    if (meant := ELSEWHERE.get(str(word))) in by_lower:
        return meant
    near = difflib.get_close_matches(str(word).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def unknown_key(path: str, known: Iterable[str]) -> str:
    """Return one line about an unknown key; ``path`` ends with it."""
    names = list(known)
    near = nearest(path.rsplit(".", 1)[-1], names)
    hint = f"did you mean {near!r}?" if near else f"known here: {', '.join(names)}"
    return f"{path}: unknown key, {hint}"


def unknown_value(path: str, value: object, known: Iterable[str]) -> str:
    """Return one line about a value that is not among the ``known`` ones."""
    names = list(known)
    near = nearest(value, names)
    hint = f", did you mean {near!r}?" if near else ""
    return f"{path}: expected one of {', '.join(names)}, got {shown(value)}{hint}"
