"""Models that follow their papers' notation, and their layers."""

from typing import TYPE_CHECKING, Any

from pslib.suggestions import nearest
from rec_models.autoint import AutoInt
from rec_models.by_name import MATCHING_MODELS, MODELS, SESSION_MODELS, TASK_MODELS, build
from rec_models.dcn import DCN
from rec_models.dcnv2 import DCNv2
from rec_models.deepfm import DeepFM
from rec_models.din import DIN
from rec_models.dlrm import DLRM
from rec_models.dnn import DNN
from rec_models.esmm import ESMM
from rec_models.fibinet import FiBiNET
from rec_models.finalmlp import FinalMLP
from rec_models.fm import FM
from rec_models.gru4rec import GRU4Rec
from rec_models.lr import LR
from rec_models.mmoe import MMoE
from rec_models.model import Model
from rec_models.narm import NARM
from rec_models.ncf import NCF
from rec_models.nfm import NFM
from rec_models.pnn import PNN
from rec_models.sasrec import SASRec
from rec_models.simnet import MultiViewSimnet
from rec_models.srgnn import SRGNN
from rec_models.ssr import SSR
from rec_models.stamp import STAMP
from rec_models.stepper import StepResult
from rec_models.tagspace import TagSpace
from rec_models.two_tower import TwoTower
from rec_models.wide_deep import WideDeep
from rec_models.word2vec import Word2Vec
from rec_models.xdeepfm import XDeepFM

if TYPE_CHECKING:
    from rec_models.torch_model import TorchModel

__all__ = [
    "DCN",
    "DIN",
    "DLRM",
    "DNN",
    "ESMM",
    "FM",
    "LR",
    "MATCHING_MODELS",
    "MODELS",
    "NARM",
    "NCF",
    "NFM",
    "PNN",
    "SESSION_MODELS",
    "SRGNN",
    "SSR",
    "STAMP",
    "TASK_MODELS",
    "AutoInt",
    "DCNv2",
    "DeepFM",
    "FiBiNET",
    "FinalMLP",
    "GRU4Rec",
    "MMoE",
    "Model",
    "MultiViewSimnet",
    "SASRec",
    "StepResult",
    "TagSpace",
    "TorchModel",
    "TwoTower",
    "WideDeep",
    "Word2Vec",
    "XDeepFM",
    "build",
]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name == "TorchModel":  # which reads checkpoints too: no other model waits for that import
        from rec_models.torch_model import TorchModel

        return TorchModel
    near = nearest(name, __all__)
    hint = f"; did you mean {near!r}?" if near else ""
    raise AttributeError(f"module 'rec_models' has no attribute {name!r}{hint}")
