"""A sparse parameter server for CTR prediction and recommendation, on CPUs.

Names of most scripts:

    Schema, DenseField, RaggedField     columns of the data: label, sparse, dense and ragged fields
    connect                             the cluster of the launcher, or one inside this process
    Trainer                             fit, evaluate, rank, save and load a model on a cluster
    Adagrad, Adam                       optimizers of rows and of dense parameters
    EarlyStopping, CheckpointSettings   when a training ends, when it is saved
    load                                the model of a checkpoint, in this process: predict, vectors, nearest
    export                              that model for other tools: ONNX, NumPy, Parquet, PyTorch, faiss

Models are in `rec_models`: DeepFM, DCNv2, DIN, TwoTower, SASRec, TorchModel and others. Data is a path of
files, an Arrow table, a pandas or Polars frame, or columns by name. The command is ``pslib``, or
``python -m pslib``.

Examples
--------
>>> import pslib
>>> from rec_models import DeepFM
>>> clicks = {"user": ["ann", "bob"] * 500, "item": [1, 2, 3, 4] * 250, "click": [0, 1] * 500}
>>> schema = pslib.Schema(label="click", sparse=["user", "item"])
>>> with pslib.connect() as cluster:
...     trainer = pslib.Trainer(DeepFM(schema, dim=4, hidden=(8,)), cluster, batch_rows=50, progress=False)
...     _ = trainer.fit(clicks, epochs=3)
...     print(f"AUC {trainer.evaluate(clicks).auc:.2f}")
...     folder = trainer.save("checkpoint")
AUC 1.00
>>> model = pslib.load(folder)
>>> model.predict({"user": ["ann", "bob"], "item": [1, 2]}).round().tolist()
[0.0, 1.0]
>>> model.nearest("item", 1, k=1, among=[1, 2, 3, 4])["value"].to_pylist()
[3]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslib.cluster import Cluster as Cluster
    from pslib.cluster import connect as connect
    from pslib.data.arrow_data import split as split
    from pslib.data.file_watch import StreamSettings as StreamSettings
    from pslib.errors import PslibError as PslibError
    from pslib.recorder.callback import Callback as Callback
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
    from rec_models.export.formats import export as export
    from rec_models.saved import load as load

from pslib.process.excepthook import import_error, uncaught_in_a_line

__version__ = "0.1.0"

# Names are looked up when first used, so that `pslib --help` does not wait for pyarrow and ZeroMQ.
_NAMES = {
    "pslib.cluster": "Cluster connect",
    "pslib.errors": "PslibError",
    "pslib.table.initializers": "Constant Normal Uniform",
    "pslib.table.optimizers": "FTRL SGD Adagrad Adam AdamL2 AdamW Momentum RowwiseAdagrad",
    "pslib.table.policies": "ByAge ByBloom ByChance ByCount ByNorm ByScore Compact Score",
    "pslib.data.arrow_data": "split",
    "pslib.data.file_watch": "StreamSettings",
    "pslib.table.schedules": "Cosine InverseSqrt Linear StepDecay",
    "pslib.schema": "DenseField RaggedField Schema SparseField",
    "pslib.table.tables": "PartSpec TableSpec",
    "pslib.trainer": "EvalResult Trainer",
    "pslib.trainer.settings": "CheckpointSettings CacheSettings",
    "pslib.recorder.callback": "Callback",
    "pslib.trainer.evaluation.early_stopping": "EarlyStopping",
    "pslib.table.wire_format": "WireFormat",
    "rec_models.export.formats": "export",
    "rec_models.saved": "load",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [  # noqa: PLE0604 (a literal list could drift from _HOMES)
    "__version__",
    *sorted(_HOMES),
]


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        uncaught_in_a_line()  # a script that uses pslib sees its errors as one line
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            raise import_error(error) from error
    raise AttributeError(f"module 'pslib' has no attribute {name!r}{_near(name)}")


_CALLS = {
    **dict.fromkeys(("fit", "train"), "pslib.Trainer(model, cluster).fit(data)"),
    **dict.fromkeys(("predict", "evaluate", "nearest", "recommend"), "pslib.load(checkpoint).{}(...)"),
    **dict.fromkeys(("describe", "convert", "verify"), "the command is: pslib {}"),
}
"""Names that are looked for in the package, and the call or command in their place."""


def _near(name: str) -> str:
    if name in _CALLS:
        return f"; {_CALLS[name].format(name)}"
    from difflib import get_close_matches

    if close := get_close_matches(name, __all__, 1):
        return f"; did you mean {close[0]!r}?"
    return "; models are in rec_models: from rec_models import DeepFM" if name[:1].isupper() else ""
