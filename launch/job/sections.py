"""Sections of the job file; where Python has a class of the same settings, the section is that class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from pslib.config import ClusterSettings, DrainSeconds, Restarts, Timing
from pslib.data.file_watch import StreamSettings
from pslib.errors import ConfigurationError
from pslib.settings import Setting, Settings
from pslib.table.schedules import Constant, Schedule, schedule_from_dict
from pslib.trainer.checkpoints.schedule import EveryBatches, EverySeconds, Increments, KeepLast
from pslib.trainer.evaluation.early_stopping import EarlyStopping
from pslib.trainer.settings import TrainingSettings

__all__ = [
    "RESTARTS",
    "CheckpointSection",
    "ClusterSection",
    "DataSection",
    "LoadSection",
    "ModelSection",
    "Name",
    "OptimizersSection",
    "RankingSection",
    "SchemaSection",
    "Section",
    "TableSection",
    "TrainingSection",
]

RESTARTS = 3
"""Default number of restarts of one process: a process that has died four times will die again."""

K_MAX = 1 << 20
"""More places than anybody looks at."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, Field(min_length=1)]
Paths = Annotated[list[Name], BeforeValidator(_as_list), Field(min_length=1)]


class Section(BaseModel):
    """Base of sections that are a job file's alone: unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class DenseColumn(Section):
    """A number column: see `pslib.schema.DenseField`."""

    name: Name
    fill: float = Field(default=0.0, allow_inf_nan=False)
    log1p: bool = False


class SparseColumn(Section):
    """A column of one key an example: see `pslib.schema.SparseField`."""

    name: Name
    vocabulary: Name | None = None
    of: Name | list[Name] | None = None
    take: Literal["hour", "weekday", "day", "month"] | None = None
    buckets: list[float] | Literal["log"] | None = None


class RaggedColumn(Section):
    """A list column: see `pslib.schema.RaggedField`."""

    name: Name
    pooling: Literal["sum", "mean"] = "mean"
    vocabulary: Name | None = None


class SchemaSection(Section):
    """Columns that the model reads."""

    label: Name | None = None
    dense: list[Annotated[DenseColumn, BeforeValidator(_named)]] = Field(default_factory=list)
    sparse: list[Annotated[SparseColumn, BeforeValidator(_named)]] = Field(default_factory=list)
    ragged: list[Annotated[RaggedColumn, BeforeValidator(_named)]] = Field(default_factory=list)
    more_labels: list[Name] = Field(default_factory=list)
    weight: Name | None = None


def _of_stream(value: object) -> object:
    """``true`` is a stream as by default, and no ``idle_s`` one that never ends."""
    if value is True:
        return {}
    return (
        {k: v for k, v in value.items() if (k, v) != ("idle_s", None)} if isinstance(value, dict) else value
    )


class DataSection(Section):
    """Where the examples are, and their schema."""

    train: Paths
    valid: Paths | None = None
    test: Paths | None = None
    items: Paths | None = None
    stream: Annotated[StreamSettings, BeforeValidator(_of_stream)] | None = None
    columns: SchemaSection = Field(alias="schema")


class ModelSection(Section):
    """A model by name; every other key is an option of that model, checked by the model."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    name: Name


class OptimizersSection(Section):
    """Optimizers of rows (one for all parts, or one for each) and of dense parameters."""

    rows: dict[str, Any] | None = None
    dense: dict[str, Any] | None = None


class RankingSection(Section):
    """How a model that ranks items is evaluated; see `pslib.Trainer.rank`."""

    at: list[Annotated[int, Field(ge=1, le=K_MAX)]] = Field(default=[20], min_length=1)
    history: Name | None = None
    target: Name | None = None
    exclude_seen: bool = False


class TableSection(Section):
    """What the table does at the limit of memory; see `TableSpec` and `pslib.table.policies`."""

    storage: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    admission: Any = None  # what is wrong with these, `table_problems` says
    eviction: Any = Field(default_factory=list)
    score: Any = None
    compact: Any = None
    clock: Literal["steps", "seconds"] = "steps"
    when_full: Literal["refuse", "oldest", "smallest_norm", "lowest_score"] = "refuse"


def _schedule(value: Any) -> Schedule:
    """A schedule as it is written; the setting's path names it already."""
    if value is None or isinstance(value, Schedule):
        return value or Constant()
    if not isinstance(value, dict):
        raise ValueError(f"expected settings as in {{name: Cosine, batches: 20000}}, got {value!r:.60}")
    try:
        return schedule_from_dict(value)
    except ConfigurationError as error:
        raise ValueError("; ".join(line.removeprefix("schedule: ") for line in error.problems)) from error


def _written(schedule: Schedule) -> dict[str, Any] | None:
    """A schedule as one would write it: its name and what is not as by default; none for the constant one."""
    if schedule == Constant():
        return None
    defaults = {one.name: one.default for one in fields(schedule)}
    return {name: value for name, value in schedule.to_dict().items() if value != defaults.get(name, MISSING)}


@dataclass(frozen=True, kw_only=True)
class TrainingSection(TrainingSettings):
    """How the job trains: `pslib.trainer.settings.TrainingSettings`, and what `pslib.Trainer.fit` takes."""

    schedule: Annotated[Schedule, PlainValidator(_schedule), PlainSerializer(_written)] = Constant()
    epochs: Annotated[
        int, Setting("How often all data is gone through.", ge=1, le=1_000_000, unit="epochs")
    ] = 1
    stopping: Annotated[
        EarlyStopping | None, Setting("What results on the validation data are for; none: to be seen.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClusterSection(ClusterSettings):
    """The cluster, and what the launcher of its processes needs to know."""

    restarts: Restarts = RESTARTS
    drain_s: DrainSeconds = Timing().drain_s
    log: Annotated[str | None, Setting("Folder of the update logs; none: beside the run's other files.")] = (
        None
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.log == "":
            yield "log: expected a text that is not empty, got ''"
        if self.log and self.durability == "memory":
            yield "log: expected durability log or disk with it; with memory nothing is logged"


@dataclass(frozen=True, kw_only=True)
class CheckpointSection(Settings):
    """Where and when the training is saved; see `pslib.Trainer.save` and `pslib.CheckpointSettings`."""

    AT = ""

    path: Annotated[Name | None, Setting("Folder or URI; none: ``checkpoint`` in ``out``.")] = None
    keep_last: KeepLast = 0
    every_s: EverySeconds = 0.0
    every_batches: EveryBatches = 0
    incremental: Increments = 0

    def _problems(self) -> Iterator[str]:
        scheduled = self.every_s > 0 or self.every_batches > 0
        if scheduled and self.keep_last == 0:
            yield "keep_last: expected at least 1 with every_s or every_batches, got 0"
        if self.incremental and not scheduled:
            yield "incremental: expected every_s or every_batches with it"


class LoadSection(Section):
    """What the training begins with; see `pslib.Trainer.load`."""

    path: Name
    state: bool = True
    tables: Annotated[list[Name], Field(min_length=1)] | None = None
    resume: bool = True
    other_model: bool = False
