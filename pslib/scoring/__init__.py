"""Scoring: what a checkpoint's model answers in one process, without a cluster."""

from pslib.scoring.loaded_model import LoadedModel
from pslib.scoring.parameters import LoadedParameters

__all__ = ["LoadedModel", "LoadedParameters"]
