"""Trainer: training and evaluation of a model on a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslib.metrics.metrics import EvalResult as EvalResult
    from pslib.trainer.trainer import Trainer as Trainer

__all__ = ["EvalResult", "Trainer"]

# Imported on first use, so that reading settings does not import ZeroMQ and the training code.
_HOMES = {"EvalResult": "pslib.metrics.metrics", "Trainer": "pslib.trainer.trainer"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pslib.trainer' has no attribute {name!r}")
