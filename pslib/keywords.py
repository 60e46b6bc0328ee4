"""Unknown keywords: an error in one line that names the nearest keyword, also from other libraries' words."""

from __future__ import annotations

import difflib
import inspect
from abc import ABCMeta
from collections.abc import Collection, Mapping
from typing import Any

from pslib.errors import ConfigurationError

_SAME = {
    "batch_rows": ("batch_size", "batchsize", "bs"),
    "dim": ("embedding_dim", "embed_dim", "emb_dim", "embedding_size", "factors"),
    "hidden": ("hidden_units", "hidden_dims", "hidden_layers", "dnn_hidden_units", "layers", "mlp_dims"),
    "dropout": ("dropout_rate", "dnn_dropout", "net_dropout"),
    "batch_norm": ("use_bn", "batchnorm", "dnn_use_bn", "bn"),
    "epochs": ("num_epochs", "n_epochs", "epoch", "max_epochs"),
    "valid": ("validation_data", "val_data", "valid_data", "eval_set", "validation", "val"),
    "learning_rate": ("lr", "alpha", "eta", "step_size"),
    "sparse": ("categorical", "categories", "cat_features", "sparse_features", "keys", "ids"),
    "dense": ("numerical", "numeric", "numbers", "dense_features", "continuous", "num_features"),
    "ragged": ("sequences", "sequence", "varlen", "multi_valued", "lists"),
    "label": ("target", "y", "labels"),
    "servers": ("num_servers", "n_servers", "server", "ps"),
    "consistency": ("mode", "sync_mode"),
    "out": ("log_dir", "output_dir", "run_dir"),
    "compute_threads": ("num_threads", "n_threads", "threads", "n_jobs", "num_workers"),
    "seed": ("random_state", "random_seed"),
    "predictions": ("output", "out_dir"),
    "path": ("folder", "directory", "checkpoint_dir", "filename"),
}
_MEANT = {word: name for name, words in _SAME.items() for word in words}
"""Keyword of pslib by the words of DeepCTR, PyTorch, Keras, PaddleRec and scikit-learn."""

_RATES = (
    "learning rates and optimizers: dense_optimizer=pslib.Adam(0.001) of the trainer, "
    "v_optimizer=pslib.Adagrad(0.05) of the model's rows"
)
_ELSEWHERE = dict.fromkeys(("optimizer", "optimizers", "optim", "lr", "learning_rate"), _RATES) | {
    "batch_size": "the size of a batch is Trainer(batch_rows=...)",
    "epochs": "the number of epochs is trainer.fit(data, epochs=...)",
}
"""Where a keyword is that a call does not take."""


class UnknownKeywordError(ConfigurationError, TypeError):
    """A call was given a keyword that it does not take."""


def hint_of(name: str, known: Collection[str]) -> str:
    """Return what may be meant by a keyword: another one, the place where it is, or all there are."""
    meant = _MEANT.get(name)
    if meant in known:
        return f"did you mean {meant!r}?"
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"


def refuse_unknown(call: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse keywords that a call does not take.

    Parameters
    ----------
    call : str
        Its name, for messages.
    given : mapping
        The keywords that it was given.
    known : collection of str
        Names of its parameters.

    Raises
    ------
    UnknownKeywordError
        One line for each.
    """
    lines = [
        f"{call}: unknown keyword {name!r}; {hint_of(name, known)}" for name in given if name not in known
    ]
    if lines:
        raise UnknownKeywordError(*lines)


class Keywords(ABCMeta):
    """Class whose constructor names the nearest keyword where it is given an unknown one."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Make an object; Python's own error for missing arguments, or too many."""
        try:
            return super().__call__(*args, **keywords)
        except TypeError:
            refuse_unknown(cls.__name__, keywords, list(cls.__signature__.parameters))
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor: `__call__` hides it."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])
