"""Lines about unknown keys and values, with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_SAME = {
    "batch_rows": ("batch_size", "batchsize", "bs"),
    "dim": ("embedding_dim", "embed_dim", "emb_dim", "embedding_size", "factors"),
    "hidden": ("hidden_units", "hidden_dims", "hidden_layers", "dnn_hidden_units", "layers", "mlp_dims"),
    "dropout": ("dropout_rate", "dnn_dropout", "net_dropout"),
    "batch_norm": ("use_bn", "batchnorm", "dnn_use_bn", "bn"),
    "epochs": ("num_epochs", "n_epochs", "epoch", "max_epochs"),
    "valid": ("validation_data", "val_data", "valid_data", "eval_set", "validation", "val"),
    "learning_rate": ("lr", "alpha", "eta", "step_size", "dense_lr", "sparse_lr", "embedding_lr"),
    "sparse": ("categorical", "categories", "cat_features", "sparse_features", "keys", "ids"),
    "dense": ("numerical", "numeric", "numbers", "dense_features", "continuous", "num_features"),
    "ragged": ("sequences", "sequence", "varlen", "multi_valued", "lists"),
    "label": ("target", "y", "labels"),
    "servers": ("num_servers", "n_servers", "server", "ps"),
    "trainers": ("num_trainers", "n_trainers", "trainer", "workers"),
    "consistency": ("mode", "sync_mode"),
    "out": ("log_dir", "output_dir", "run_dir"),
    "compute_threads": ("num_threads", "n_threads", "threads", "n_jobs", "num_workers"),
    "seed": ("random_state", "random_seed"),
    "predictions": ("output", "out_dir"),
    "weight_decay": ("wd",),
    "separator": ("sep", "delimiter", "delim"),
    "path": ("folder", "directory", "checkpoint_dir", "filename"),
    "test_share": ("test_size", "validation_split", "val_split", "valid_share", "holdout"),
    "test_by": ("by", "split_by", "time_column"),
    "by": ("test_by",),
    "among": ("data",),
    "data": ("among",),
}
ELSEWHERE = {word: name for name, words in _SAME.items() for word in words}
"""Settings and keywords by their names in DeepCTR, PyTorch, Keras, PaddleRec and scikit-learn; and those
of one of job file, command line and Python by their names in another."""
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


def nearest_path(path: str, suffixes: Sequence[str] = ()) -> str:
    """Return the existing folder, or file with such a suffix, that a misspelt path means; or nothing."""
    at = Path()
    with suppress(OSError, ValueError):  # a folder that can't be read, a zero byte
        for part in Path(path).parts:
            name = part
            if not (at / part).is_dir():
                known = [one.name for one in at.iterdir() if one.is_dir() or one.suffix in suffixes]
                name = next(iter(difflib.get_close_matches(part, known, n=1)), "")
            if not name:
                return ""
            at /= name
        return str(at)
    return ""


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
