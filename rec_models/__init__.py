"""Models that read like their papers, and the layers they are made of."""

from rec_models.by_name import MODELS, SESSION_MODELS, build
from rec_models.deepfm import DeepFM
from rec_models.dnn import DNN
from rec_models.fm import FM
from rec_models.gru4rec import GRU4Rec
from rec_models.lr import LR
from rec_models.model import Model, StepResult
from rec_models.wide_deep import WideDeep

__all__ = [
    "DNN",
    "FM",
    "LR",
    "MODELS",
    "SESSION_MODELS",
    "DeepFM",
    "GRU4Rec",
    "Model",
    "StepResult",
    "WideDeep",
    "build",
]
