"""Sections of the job file; where Python has a class of the same settings, the section is that class."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from launch.job.yaml12 import flow_text
from pslib.config import ClusterSettings, DrainSeconds, Restarts, Timing
from pslib.data.file_watch import StreamSettings
from pslib.errors import ConfigurationError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
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
    "schema_section",
    "schema_yaml",
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
Paths = Annotated[
    list[Name], BeforeValidator(_as_list, json_schema_input_type=Name | list[Name]), Field(min_length=1)
]


class Section(BaseModel):
    """Base of sections that are a job file's alone: unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class DenseColumn(Section):
    """A number column: see `pslib.schema.DenseField`."""

    name: Name = Field(description="Column name.")
    fill: float = Field(default=0.0, allow_inf_nan=False, description="Stands for null and for NaN.")
    log1p: bool = Field(default=False, description="Whether to feed sign(x) * log(1 + |x|), for counts.")


class SparseColumn(Section):
    """A column of one key an example: see `pslib.schema.SparseField`."""

    name: Name = Field(description="Column name, or the name of what is made of `of`.")
    vocabulary: Name | None = Field(
        default=None, description="Fields that name the same one share keys; none: the field's own."
    )
    of: Name | list[Name] | None = Field(default=None, description="Its column, or several to be crossed.")
    take: Literal["hour", "weekday", "day", "month"] | None = Field(
        default=None, description="What of a time to take."
    )
    buckets: list[float] | Literal["log"] | None = Field(
        default=None, description="Ascending bounds of a number's buckets, or the squeeze floor(log(x)^2)."
    )


class RaggedColumn(Section):
    """A list column: see `pslib.schema.RaggedField`."""

    name: Name = Field(description="Column name.")
    pooling: Literal["sum", "mean"] = Field(
        default="mean", description="How the rows of one example are joined."
    )
    vocabulary: Name | None = Field(
        default=None, description="Fields that name the same one share keys; none: the field's own."
    )


class SchemaSection(Section):
    """Columns that the model reads."""

    label: Name | None = Field(default=None, description="Column of 0 and 1; none for sessions.")
    dense: list[
        Annotated[DenseColumn, BeforeValidator(_named, json_schema_input_type=Name | DenseColumn)]
    ] = Field(default_factory=list, description="Columns of numbers.")
    sparse: list[
        Annotated[SparseColumn, BeforeValidator(_named, json_schema_input_type=Name | SparseColumn)]
    ] = Field(default_factory=list, description="Columns of one key an example.")
    ragged: list[
        Annotated[RaggedColumn, BeforeValidator(_named, json_schema_input_type=Name | RaggedColumn)]
    ] = Field(default_factory=list, description="List columns.")
    more_labels: list[Name] = Field(default_factory=list, description="Of models of several tasks.")
    weight: Name | None = Field(default=None, description="Column: how much an example counts in the loss.")


def _of_stream(value: object) -> object:
    """``true`` is a stream as by default, and no ``idle_s`` one that never ends."""
    if value is True:
        return {}
    return (
        {k: v for k, v in value.items() if (k, v) != ("idle_s", None)} if isinstance(value, dict) else value
    )


class DataSection(Section):
    """Where the examples are, and their schema."""

    train: Paths = Field(
        description="Parquet files, folders or patterns to train on; of a stream its folder."
    )
    valid: Paths | None = Field(default=None, description="Evaluated after each epoch.")
    test: Paths | None = Field(default=None, description="Evaluated when the training is done.")
    items: Paths | None = Field(default=None, description="Items that are ranked; none: those of train.")
    stream: (
        Annotated[StreamSettings, BeforeValidator(_of_stream, json_schema_input_type=bool | StreamSettings)]
        | None
    ) = None
    columns: SchemaSection = Field(alias="schema")


class ModelSection(Section):
    """A model by name; every other key is an option of that model, checked by the model."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    name: Name = Field(description="Of a model; all other keys are its options, see rec_models/README.md.")


class OptimizersSection(Section):
    """Optimizers of rows (one for all parts, or one for each) and of dense parameters."""

    rows: dict[str, Any] | None = Field(default=None, description="One for all parts of a row, or one each.")
    dense: dict[str, Any] | None = Field(default=None, description="Of the dense parameters; none: Adam.")


class RankingSection(Section):
    """How a model that ranks items is evaluated; see `pslib.Trainer.rank`."""

    at: list[Annotated[int, Field(ge=1, le=K_MAX)]] = Field(
        default=[20], min_length=1, description="Places that are looked at."
    )
    history: Name | None = Field(default=None, description="Column of the items before.")
    target: Name | None = Field(default=None, description="Column of the item that is looked for.")
    exclude_seen: bool = Field(default=False, description="Whether items before are not ranked.")


class TableSection(Section):
    """What the table does at the limit of memory; see `TableSpec` and `pslib.table.policies`."""

    storage: Literal["float32", "bfloat16", "float16", "int8"] = Field(
        default="float32", description="How weights lie in memory."
    )
    # what is wrong with these four, `table_problems` says
    admission: Any = Field(default=None, description="Which keys earn a row: ByCount, ByBloom or ByChance.")
    eviction: Any = Field(
        default_factory=list, description="Which rows leave: a list of ByAge, ByNorm, ByScore."
    )
    score: Any = Field(default=None, description="What shows and clicks of a row are worth: Score.")
    compact: Any = Field(default=None, description="When a row gets its wide parts: Compact.")
    clock: Literal["steps", "seconds"] = Field(default="steps", description="Unit in which rows age.")
    when_full: Literal["refuse", "oldest", "smallest_norm", "lowest_score"] = Field(
        default="refuse",
        description="What a server does at its memory limit: refuse new rows, or let these go.",
    )


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

    schedule: Annotated[
        Schedule,
        PlainValidator(_schedule, json_schema_input_type=dict[str, Any] | None),
        PlainSerializer(_written),
        Setting("Of the learning rates: a name and its settings, see Schedules; none: constant."),
    ] = Constant()
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

    path: Name = Field(description="A checkpoint, or a folder whose newest numbered one is meant.")
    state: bool = Field(default=True, description="Whether the state of optimizers is loaded too.")
    tables: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="Of which tables rows are loaded; none: of all."
    )
    resume: bool = Field(default=True, description="Whether the training goes on where that one stopped.")
    other_model: bool = Field(default=False, description="Whether another model may have saved it.")


LINE_CHARS = 100
NO_BREAK = "\x00"
"""Stands for a space at which a line must not be broken."""


def schema_section(schema: Schema) -> dict[str, Any]:
    """Return the section ``data.schema`` as plain values; defaults are left out."""
    plain = {
        "label": schema.label,
        "more_labels": list(schema.more_labels),
        "weight": schema.weight,
        "dense": [_short(field) for field in schema.dense],
        "sparse": [_short(field) for field in schema.sparse],
        "ragged": [_short(field) for field in schema.ragged],
    }
    return {name: value for name, value in plain.items() if value not in (None, [])}


def schema_yaml(schema: Schema) -> str:
    """Return the lines below ``data:``."""
    lines = ["  schema:"]
    for name, value in schema_section(schema).items():
        if name not in ("dense", "sparse", "ragged"):
            lines.append(f"    {name}: {flow_text(value)}")
            continue
        items = ", ".join(flow_text(item).replace(" ", NO_BREAK) for item in value)
        lines += textwrap.wrap(
            f"{name}: [{items}]",
            LINE_CHARS,
            initial_indent="    ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines).replace(NO_BREAK, " ") + "\n"


def _short(field: DenseField | SparseField | RaggedField) -> object:
    """Return the bare name if nothing else differs from the default."""
    default = type(field)(field.name)
    options = {name: getattr(field, name) for name in field.__slots__ if name != "name"}
    changed = {name: value for name, value in options.items() if value != getattr(default, name)}
    return {"name": field.name, **changed} if changed else field.name
