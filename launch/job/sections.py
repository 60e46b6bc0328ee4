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
from pslib.trainer.evaluation.early_stopping import EarlyStopping
from pslib.trainer.settings import EveryBatches, EverySeconds, Increments, KeepLast, TrainingSettings

RESTARTS = 3
"""Default number of restarts of one process: a process that has died four times will die again."""

K_MAX = 1 << 20
"""Limit of k, more than any ranking has use for."""


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
    fill: float = Field(default=0.0, allow_inf_nan=False, description="Value for null and NaN.")
    log1p: bool = Field(default=False, description="Feed sign(x) * log(1 + |x|), for counts.")


class SparseColumn(Section):
    """A column of one key an example: see `pslib.schema.SparseField`."""

    name: Name = Field(description="Column name, or name of the feature made of `of`.")
    vocabulary: Name | None = Field(
        default=None, description="Fields that name the same one share keys; none: the field's own."
    )
    of: Name | list[Name] | None = Field(default=None, description="Its column, or several to be crossed.")
    take: Literal["hour", "weekday", "day", "month"] | None = Field(
        default=None, description="Part of a timestamp to take."
    )
    buckets: list[float] | Literal["log"] | None = Field(
        default=None, description="Ascending bounds of a number's buckets, or log: floor(log(x)^2)."
    )


class RaggedColumn(Section):
    """A list column: see `pslib.schema.RaggedField`."""

    name: Name = Field(description="Column name.")
    pooling: Literal["sum", "mean"] = Field(
        default="mean", description="Sum or mean of the rows of one example."
    )
    vocabulary: Name | None = Field(
        default=None, description="Fields that name the same one share keys; none: the field's own."
    )


class SchemaSection(Section):
    """Columns that the model reads."""

    label: Name | None = Field(default=None, description="Column of the label, 0 or 1; none for sessions.")
    dense: list[
        Annotated[DenseColumn, BeforeValidator(_named, json_schema_input_type=Name | DenseColumn)]
    ] = Field(default_factory=list, description="Columns of numbers.")
    sparse: list[
        Annotated[SparseColumn, BeforeValidator(_named, json_schema_input_type=Name | SparseColumn)]
    ] = Field(default_factory=list, description="Columns of one key an example.")
    ragged: list[
        Annotated[RaggedColumn, BeforeValidator(_named, json_schema_input_type=Name | RaggedColumn)]
    ] = Field(default_factory=list, description="List columns.")
    more_labels: list[Name] = Field(
        default_factory=list, description="Further labels, such as [buy], for models of several tasks."
    )
    weight: Name | None = Field(default=None, description="Column with the weight of an example in the loss.")


def _of_stream(value: object) -> object:
    """Replace ``true`` by the default stream, and drop an empty ``idle_s``: the stream never ends."""
    if value is True:
        return {}
    return (
        {k: v for k, v in value.items() if (k, v) != ("idle_s", None)} if isinstance(value, dict) else value
    )


class DataSection(Section):
    """Paths of the examples, and their schema."""

    train: Paths = Field(
        description="Parquet files, folders or patterns to train on; of a stream its folder."
    )
    valid: Paths | None = Field(default=None, description="Evaluated after each epoch.")
    test: Paths | None = Field(default=None, description="Evaluated when the training is done.")
    items: Paths | None = Field(default=None, description="Items to rank; none: those of train.")
    stream: (
        Annotated[StreamSettings, BeforeValidator(_of_stream, json_schema_input_type=bool | StreamSettings)]
        | None
    ) = None
    columns: SchemaSection = Field(alias="schema")


class ModelSection(Section):
    """A model by name; every other key is an option of that model, checked by the model."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    name: Name = Field(description="Name of a model; all other keys are its options.")


class OptimizersSection(Section):
    """Optimizers of rows (one for all parts, or one for each) and of dense parameters."""

    rows: dict[str, Any] | None = Field(
        default=None, description="Optimizer of all parts of a row, or one a part; none: the model's own."
    )
    dense: dict[str, Any] | None = Field(
        default=None, description="Optimizer of the dense parameters; none: Adam."
    )


class RankingSection(Section):
    """Evaluation of a model that ranks items; see `pslib.Trainer.rank`."""

    at: list[Annotated[int, Field(ge=1, le=K_MAX)]] = Field(
        default=[20], min_length=1, description="The k of Recall@k, MRR@k and NDCG@k."
    )
    history: Name | None = Field(
        default=None, description="Column of the earlier items; none: prefix, for sessions."
    )
    target: Name | None = Field(
        default=None, description="Column of the item to find; none: target, for sessions."
    )
    exclude_seen: bool = Field(default=False, description="Leave out items of the history.")


class TableSection(Section):
    """Policies of the table; see `TableSpec` and `pslib.table.policies`."""

    storage: Literal["float32", "bfloat16", "float16", "int8"] = Field(
        default="float32", description="Type of weights in memory."
    )
    # checked by `table_problems`
    admission: Any = Field(
        default=None,
        description="Rule by which a key earns a row, {name: ByCount, count: 3}; also ByBloom, ByChance.",
    )
    eviction: Any = Field(
        default_factory=list,
        description="Rules by which rows leave, [{name: ByAge, age: 500000}]; also ByNorm, ByScore.",
    )
    score: Any = Field(
        default=None,
        description="Value of shows and clicks of a row: {nonclick: 0.1, click: 1.0, decay: 0.98}.",
    )
    compact: Any = Field(
        default=None,
        description="Time at which a row gets its wide parts: {wide_from: v, score: 2}, or shows.",
    )
    clock: Literal["steps", "seconds"] = Field(
        default="steps", description="Unit of ages: batches of the training, or seconds."
    )
    when_full: Literal["refuse", "oldest", "smallest_norm", "lowest_score"] = Field(
        default="refuse",
        description="Action of a server at its memory limit: refuse new rows, or evict these.",
    )


def _schedule(value: Any) -> Schedule:
    """Return the schedule of a mapping; problems do not repeat the path of the setting."""
    if value is None or isinstance(value, Schedule):
        return value or Constant()
    if not isinstance(value, dict):
        raise ValueError(f"expected settings as in {{name: Cosine, batches: 20000}}, got {value!r:.60}")
    try:
        return schedule_from_dict(value)
    except ConfigurationError as error:
        raise ValueError("; ".join(line.removeprefix("schedule: ") for line in error.problems)) from error


def _written(schedule: Schedule) -> dict[str, Any] | None:
    """Return the mapping of a schedule without defaults; None for the constant one."""
    if schedule == Constant():
        return None
    defaults = {one.name: one.default for one in fields(schedule)}
    return {name: value for name, value in schedule.to_dict().items() if value != defaults.get(name, MISSING)}


@dataclass(frozen=True, kw_only=True)
class TrainingSection(TrainingSettings):
    """Settings of training: `TrainingSettings`, and arguments of `pslib.Trainer.fit`."""

    schedule: Annotated[
        Schedule,
        PlainValidator(_schedule, json_schema_input_type=dict[str, Any] | None),
        PlainSerializer(_written),
        Setting("Schedule of the learning rates: a name and its settings; none: constant."),
    ] = Constant()
    epochs: Annotated[
        int, Setting("Passes over the data that this run adds.", ge=1, le=1_000_000, unit="epochs")
    ] = 1
    stopping: Annotated[
        EarlyStopping | None, Setting("Early stopping by the results on data.valid; none: no stopping.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClusterSection(ClusterSettings):
    """Settings of the cluster, and of the launcher of its processes."""

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
    """Place and times of checkpoints; see `pslib.Trainer.save` and `pslib.CheckpointSettings`."""

    AT = ""

    path: Annotated[
        Name | None,
        Setting("Folder or URI, with keep_last of numbered checkpoints; none: ``checkpoint`` in ``out``."),
    ] = None
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
    """Checkpoint that the training begins with; see `pslib.Trainer.load`."""

    path: Name = Field(description="Checkpoint to begin with, or a folder: its newest numbered one.")
    state: bool = Field(
        default=True,
        description="Load the state of optimizers; false: fresh state, and other optimizers are allowed.",
    )
    tables: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="Tables to load rows of; none: all."
    )
    resume: bool = Field(
        default=True,
        description="Continue that training exactly where it was saved; false: all of it is new.",
    )
    other_model: bool = Field(
        default=False,
        description="Accept a checkpoint of another class or other columns where the numbers fit.",
    )


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
