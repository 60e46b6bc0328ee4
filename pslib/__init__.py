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
    from pslib.data.file_watch import StreamSettings as StreamSettings
    from pslib.errors import PslibError as PslibError
    from pslib.schema import DenseField as DenseField
    from pslib.schema import RaggedField as RaggedField
    from pslib.schema import Schema as Schema
    from pslib.schema import SparseField as SparseField
    from pslib.table.initializers import Constant as Constant
    from pslib.table.initializers import Normal as Normal
    from pslib.table.initializers import Uniform as Uniform
    from pslib.table.optimizers import FTRL as FTRL
    from pslib.table.optimizers import SGD as SGD
    from pslib.table.optimizers import Adagrad as Adagrad
    from pslib.table.optimizers import Adam as Adam
    from pslib.table.optimizers import AdamL2 as AdamL2
    from pslib.table.optimizers import AdamW as AdamW
    from pslib.table.optimizers import Momentum as Momentum
    from pslib.table.optimizers import RowwiseAdagrad as RowwiseAdagrad
    from pslib.table.policies import ByAge as ByAge
    from pslib.table.policies import ByBloom as ByBloom
    from pslib.table.policies import ByChance as ByChance
    from pslib.table.policies import ByCount as ByCount
    from pslib.table.policies import ByNorm as ByNorm
    from pslib.table.policies import ByScore as ByScore
    from pslib.table.policies import Compact as Compact
    from pslib.table.policies import Score as Score
    from pslib.table.schedules import Cosine as Cosine
    from pslib.table.schedules import InverseSqrt as InverseSqrt
    from pslib.table.schedules import Linear as Linear
    from pslib.table.schedules import StepDecay as StepDecay
    from pslib.table.tables import PartSpec as PartSpec
    from pslib.table.tables import TableSpec as TableSpec
    from pslib.table.wire_format import WireFormat as WireFormat
    from pslib.trainer import EvalResult as EvalResult
    from pslib.trainer import Trainer as Trainer
    from pslib.trainer.evaluation.early_stopping import EarlyStopping as EarlyStopping
    from pslib.trainer.settings import CacheSettings as CacheSettings
    from pslib.trainer.settings import CheckpointSettings as CheckpointSettings

from pslib.process.excepthook import uncaught_in_a_line

__version__ = "0.1.0"

# Names are looked up when first used, so that `pslib --help` does not wait for pyarrow and ZeroMQ.
_HOMES = {
    "Cluster": "pslib.cluster",
    "connect": "pslib.cluster",
    "PslibError": "pslib.errors",
    "Constant": "pslib.table.initializers",
    "Normal": "pslib.table.initializers",
    "Uniform": "pslib.table.initializers",
    "FTRL": "pslib.table.optimizers",
    "SGD": "pslib.table.optimizers",
    "Adagrad": "pslib.table.optimizers",
    "Adam": "pslib.table.optimizers",
    "AdamL2": "pslib.table.optimizers",
    "AdamW": "pslib.table.optimizers",
    "Momentum": "pslib.table.optimizers",
    "RowwiseAdagrad": "pslib.table.optimizers",
    "ByAge": "pslib.table.policies",
    "ByBloom": "pslib.table.policies",
    "ByChance": "pslib.table.policies",
    "ByCount": "pslib.table.policies",
    "ByNorm": "pslib.table.policies",
    "ByScore": "pslib.table.policies",
    "Compact": "pslib.table.policies",
    "Score": "pslib.table.policies",
    "StreamSettings": "pslib.data.file_watch",
    "Cosine": "pslib.table.schedules",
    "InverseSqrt": "pslib.table.schedules",
    "Linear": "pslib.table.schedules",
    "StepDecay": "pslib.table.schedules",
    "DenseField": "pslib.schema",
    "RaggedField": "pslib.schema",
    "Schema": "pslib.schema",
    "SparseField": "pslib.schema",
    "PartSpec": "pslib.table.tables",
    "TableSpec": "pslib.table.tables",
    "EvalResult": "pslib.trainer",
    "Trainer": "pslib.trainer",
    "CheckpointSettings": "pslib.trainer.settings",
    "CacheSettings": "pslib.trainer.settings",
    "EarlyStopping": "pslib.trainer.evaluation.early_stopping",
    "WireFormat": "pslib.table.wire_format",
}

__all__ = [  # noqa: PLE0604 (a literal list could drift from _HOMES)
    "__version__",
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        uncaught_in_a_line()  # whoever uses a name of ours may be told by it what is wrong with its arguments
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pslib' has no attribute {name!r}")
