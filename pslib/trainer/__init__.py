"""Training and evaluating a model on a cluster."""

from pslib.metrics.metrics import EvalResult
from pslib.trainer.trainer import Trainer

__all__ = ["EvalResult", "Trainer"]
