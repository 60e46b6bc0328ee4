"""A sparse parameter server for CTR prediction and recommendation, on CPUs.

>>> import pslib
>>> schema = pslib.Schema(label="click", sparse=["user", "item"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslib.cluster import Cluster as Cluster
    from pslib.cluster import connect as connect
    from pslib.data.arrivals import StreamSettings as StreamSettings
    from pslib.errors import PslibError as PslibError
    from pslib.initializers import Constant as Constant
    from pslib.initializers import Normal as Normal
    from pslib.initializers import Uniform as Uniform
    from pslib.optimizers import FTRL as FTRL
    from pslib.optimizers import SGD as SGD
    from pslib.optimizers import Adagrad as Adagrad
    from pslib.optimizers import Adam as Adam
    from pslib.optimizers import AdamL2 as AdamL2
    from pslib.optimizers import AdamW as AdamW
    from pslib.optimizers import Momentum as Momentum
    from pslib.optimizers import RowwiseAdagrad as RowwiseAdagrad
    from pslib.policies import ByAge as ByAge
    from pslib.policies import ByBloom as ByBloom
    from pslib.policies import ByChance as ByChance
    from pslib.policies import ByCount as ByCount
    from pslib.policies import ByNorm as ByNorm
    from pslib.policies import ByScore as ByScore
    from pslib.policies import Compact as Compact
    from pslib.policies import Score as Score
    from pslib.schedules import Cosine as Cosine
    from pslib.schedules import InverseSqrt as InverseSqrt
    from pslib.schedules import StepDecay as StepDecay
    from pslib.schema import DenseField as DenseField
    from pslib.schema import RaggedField as RaggedField
    from pslib.schema import Schema as Schema
    from pslib.schema import SparseField as SparseField
    from pslib.tables import PartSpec as PartSpec
    from pslib.tables import TableSpec as TableSpec
    from pslib.trainer import EvalResult as EvalResult
    from pslib.trainer import Trainer as Trainer
    from pslib.trainer.checkpointing import CheckpointSettings as CheckpointSettings
    from pslib.trainer.settings import CacheSettings as CacheSettings
    from pslib.trainer.stopping import EarlyStopping as EarlyStopping
    from pslib.wire_format import WireFormat as WireFormat

__version__ = "0.1.0"

# Names are looked up when first used, so that `pslib --help` does not wait for pyarrow and ZeroMQ.
_HOMES = {
    "Cluster": "pslib.cluster",
    "connect": "pslib.cluster",
    "PslibError": "pslib.errors",
    "Constant": "pslib.initializers",
    "Normal": "pslib.initializers",
    "Uniform": "pslib.initializers",
    "FTRL": "pslib.optimizers",
    "SGD": "pslib.optimizers",
    "Adagrad": "pslib.optimizers",
    "Adam": "pslib.optimizers",
    "AdamL2": "pslib.optimizers",
    "AdamW": "pslib.optimizers",
    "Momentum": "pslib.optimizers",
    "RowwiseAdagrad": "pslib.optimizers",
    "ByAge": "pslib.policies",
    "ByBloom": "pslib.policies",
    "ByChance": "pslib.policies",
    "ByCount": "pslib.policies",
    "ByNorm": "pslib.policies",
    "ByScore": "pslib.policies",
    "Compact": "pslib.policies",
    "Score": "pslib.policies",
    "StreamSettings": "pslib.data.arrivals",
    "Cosine": "pslib.schedules",
    "InverseSqrt": "pslib.schedules",
    "StepDecay": "pslib.schedules",
    "DenseField": "pslib.schema",
    "RaggedField": "pslib.schema",
    "Schema": "pslib.schema",
    "SparseField": "pslib.schema",
    "PartSpec": "pslib.tables",
    "TableSpec": "pslib.tables",
    "EvalResult": "pslib.trainer",
    "Trainer": "pslib.trainer",
    "CheckpointSettings": "pslib.trainer.checkpointing",
    "CacheSettings": "pslib.trainer.settings",
    "EarlyStopping": "pslib.trainer.stopping",
    "WireFormat": "pslib.wire_format",
}

__all__ = [  # noqa: PLE0604 (a literal list could drift from _HOMES)
    "__version__",
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pslib' has no attribute {name!r}")
