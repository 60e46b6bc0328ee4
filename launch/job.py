"""The job file: everything that one run needs, in one YAML file, checked before anything starts.

::

    data:
      train: data/train.parquet          # a file, a folder, a pattern or a list; relative to this file
      valid: data/valid.parquet          # optional
      test: data/test.parquet            # optional
      schema:
        label: click
        dense: [price, {name: shows, log1p: true, fill: 0}]
        sparse: [user, item]
        ragged: [{name: history, pooling: mean, vocabulary: item}]
    model: {name: deepfm, dim: 16, hidden: [400, 400]}
    optimizers:                          # optional; defaults: the model's own for rows, Adam for dense
      rows: {name: Adagrad, learning_rate: 0.05}     # or one for each part: rows: {w: {...}, v: {...}}
      dense: {name: Adam, learning_rate: 0.001}
    training: {batch_rows: 4096, staleness: 2, epochs: 1, seed: 0, maintain_every_batches: 10000,
               consistency: async, schedule: {name: Cosine, warmup: 500, batches: 20000}}
    ranking: {at: [10, 20]}              # optional, for models that rank items: see `launch.ranking_settings`
    table:                               # optional: when it does not fit memory
      storage: bfloat16
      admission: {name: ByCount, count: 3}
      eviction: [{name: ByAge, age: 1000000}]
    cluster: {servers: 2, trainers: 2, shard_threads: 1, server_memory_bytes: 16GB}
    out: runs/first

Paths may hold ``~`` and ``${VARIABLE}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from launch.dense_room import dense_problems
from launch.model_settings import build_model, model_problems, parts_of
from launch.optimizer_settings import optimizer_problems, row_optimizers
from launch.paths import expand, path_problems
from launch.problems import problem_lines, unknown_value
from launch.ranking_settings import RankingSection, ranking_problems, ranks_items
from launch.restarts import RESTARTS
from launch.stream_settings import Stream, stream_problems
from launch.table_settings import fit_problems, maintenance_problems, policies_of, table_problems
from launch.training_settings import Section, TrainingSection, stopping_problems, training_problems
from launch.yaml_text import read_yaml, write_yaml
from pslib.config import ClusterConfig, Timing
from pslib.errors import ConfigurationError
from pslib.places import below, parent_and_name
from pslib.schema import Schema
from pslib.table.optimizers import Adam, Optimizer, optimizer_from_dict
from pslib.table.tables import TableSpec
from rec_models import Model

__all__ = ["CHECKPOINT", "PREEMPTED", "Job", "preempted_place", "read_job", "saved_place"]

CHECKPOINT = "checkpoint"
"""Folder of a run's checkpoint below its ``out``."""
PREEMPTED = "preempted"
"""The end of the name of the folder for checkpoints that are made when the run is asked to leave."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _bytes_of(value: object) -> object:
    """Bytes of a text with a unit (16GB, 1.5 GiB); anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError as error:
        raise ValueError(f"expected a whole number of bytes or a text like 16GB, got {value!r}") from error


Name = Annotated[str, Field(min_length=1)]
Paths = Annotated[list[Name], BeforeValidator(_as_list), Field(min_length=1)]


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


class DataSection(Section):
    """Where the examples are, and their schema."""

    train: Paths
    valid: Paths | None = None
    test: Paths | None = None
    items: Paths | None = None
    stream: Stream | None = None
    columns: SchemaSection = Field(alias="schema")


class ModelSection(Section):
    """A model by name; every other key is an option of that model, checked by the model."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    name: Name


class OptimizersSection(Section):
    """Optimizers of rows (one for all parts, or one for each) and of dense parameters."""

    rows: dict[str, Any] | None = None
    dense: dict[str, Any] | None = None


class TableSection(Section):
    """What the table does at the limit of memory; see `TableSpec` and `pslib.table.policies`."""

    storage: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    admission: Any = None  # what is wrong with these, `table_problems` says
    eviction: Any = Field(default_factory=list)
    score: Any = None
    compact: Any = None
    clock: Literal["steps", "seconds"] = "steps"
    when_full: Literal["refuse", "oldest", "smallest_norm", "lowest_score"] = "refuse"


class ClusterSection(Section):
    """How many processes of which kind; see `pslib.config.ClusterConfig`."""

    servers: int = Field(default=1, ge=1, le=ClusterConfig.SERVERS_MAX)
    trainers: int = Field(default=1, ge=1, le=ClusterConfig.TRAINERS_MAX)
    shard_threads: int = Field(default=1, ge=1, le=64)
    partition_bits: int = Field(default=12, ge=4, le=20)
    dense_blocks: int = Field(default=64, ge=1, le=4096)
    server_memory_bytes: Annotated[int, BeforeValidator(_bytes_of), Field(ge=0)] = 0
    credit_bytes: Annotated[int, BeforeValidator(_bytes_of), Field(ge=ClusterConfig.CREDIT_BYTES_MIN)] = (
        1 << 30
    )
    drain_s: float = Field(default=Timing().drain_s, gt=0, le=86400)
    restarts: int = Field(default=RESTARTS, ge=0, le=1 << 20)
    durability: Literal["memory", "log", "disk"] = "memory"
    recovery: Literal["log", "rollback", "partial"] = "log"
    log: Name | None = None
    log_bytes: Annotated[int, BeforeValidator(_bytes_of), Field(ge=ClusterConfig.LOG_BYTES_MIN)] = 8 << 30

    @model_validator(mode="after")
    def _logs_somewhere(self) -> ClusterSection:
        if self.log and self.durability == "memory":
            raise ValueError("log: expected durability log or disk with it; with memory nothing is logged")
        return self


class CheckpointSection(Section):
    """Where and when the training is saved; see `pslib.Trainer.save` and `pslib.CheckpointSettings`."""

    path: Name | None = None
    keep_last: int = Field(default=0, ge=0, le=1_000_000)
    every_s: float = Field(default=0.0, ge=0, le=1e9)
    every_batches: int = Field(default=0, ge=0, le=1 << 40)
    incremental: int = Field(default=0, ge=0, le=1000)

    @model_validator(mode="after")
    def _goes_together(self) -> CheckpointSection:
        scheduled = self.every_s > 0 or self.every_batches > 0
        if scheduled and self.keep_last == 0:
            raise ValueError("keep_last: expected at least 1 with every_s or every_batches, got 0")
        if self.incremental and not scheduled:
            raise ValueError("incremental: expected every_s or every_batches with it")
        return self


class LoadSection(Section):
    """What the training begins with; see `pslib.Trainer.load`."""

    path: Name
    state: bool = True
    tables: Annotated[list[Name], Field(min_length=1)] | None = None
    resume: bool = True
    other_model: bool = False


class Job(Section):
    """A job file that has been checked; paths are absolute."""

    data: DataSection
    model: ModelSection
    optimizers: OptimizersSection = OptimizersSection()
    training: TrainingSection = TrainingSection()
    ranking: RankingSection | None = None
    table: TableSection = TableSection()
    cluster: ClusterSection = ClusterSection()
    checkpoint: CheckpointSection = CheckpointSection()
    load: LoadSection | None = None
    out: Name = "run"

    @property
    def schema_of_data(self) -> Schema:
        """The schema as readers and models want it."""
        return Schema.from_dict(self.data.columns.model_dump())

    def build_model(self) -> Model:
        """The model that this file asks for."""
        return build_model(
            self.model.name,
            self.schema_of_data,
            self.model.model_extra or {},
            self.row_optimizers,
            self.training.seed,
        )

    def table_of(self, model: Model) -> TableSpec:
        """The model's table with this file's policies."""
        return replace(model.table(), **policies_of(self.table.model_dump()))

    @property
    def cluster_config(self) -> ClusterConfig:
        """The cluster as the coordinator wants it."""
        settings = self.cluster.model_dump(exclude={"log"})
        return ClusterConfig(timing=Timing(drain_s=settings.pop("drain_s")), **settings)

    @property
    def dense_optimizer(self) -> Optimizer:
        """Optimizer of the dense parameters."""
        return Adam() if self.optimizers.dense is None else optimizer_from_dict(self.optimizers.dense)

    @property
    def row_optimizers(self) -> dict[str, Optimizer]:
        """Optimizer of each part that was named; ``"*"`` stands for all parts; empty: the model's own."""
        return row_optimizers(self.optimizers.rows)

    def to_yaml(self) -> str:
        """The effective settings, defaults and overrides included; `read_job` reads them back."""
        plain = self.model_dump(by_alias=True)
        parts = self.build_model().table().parts
        own = parts_of(self.model.name)
        plain["optimizers"] = {
            "rows": {part.name: part.optimizer.to_dict() for part in parts if part.name in own},
            "dense": self.dense_optimizer.to_dict(),
        }
        for part in parts:
            plain["model"].pop(f"{part.name}_optimizer", None)
        return write_yaml(plain)


def saved_place(job: Job) -> str:
    """Where the training is saved."""
    return job.checkpoint.path or str(Path(job.out) / CHECKPOINT)


def preempted_place(job: Job) -> str:
    """Folder of the numbered checkpoints that are made when the run is asked to leave."""
    place = saved_place(job)
    if job.checkpoint.keep_last:
        return place
    folder, name = parent_and_name(place)
    return below(folder, f"{name}-{PREEMPTED}")


def read_job(
    path: str | Path, overrides: Sequence[str] = (), changes: Mapping[str, object] | None = None
) -> Job:
    """Read and check a job file.

    Parameters
    ----------
    path : path
        The YAML file; relative paths in it are relative to its folder.
    overrides : sequence of str
        ``section.key=value`` texts, the value in YAML, as if it stood in the file.
    changes : mapping of dotted path to value, optional
        The same for values that are at hand already.

    Raises
    ------
    ConfigurationError
        All that is wrong, one line each.
    """
    file = Path(path)
    raw = read_yaml(_text_of(file), str(file))
    if not isinstance(raw, dict):
        came = "nothing" if raw is None else type(raw).__name__
        raise ConfigurationError(f"{file}: expected a mapping with data, model and out, got {came}")
    settings = _parsed(overrides) | dict(changes or {})
    for key, value in settings.items():
        _put(raw, key, value)
    return _checked(raw, file.resolve().parent)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file; expected a job file (YAML)") from None
    except (OSError, UnicodeDecodeError) as error:
        no_text = "it is not UTF-8 text; of data pslib describe makes a job file"
        reason = error.strerror if isinstance(error, OSError) else no_text
        raise ConfigurationError(f"{file}: the job file can't be read: {reason}") from error


def _parsed(overrides: Sequence[str]) -> dict[str, object]:
    problems, settings = [], {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not (equals and all(key.split("."))):
            problems.append(f"--set {text}: expected section.key=value, for example training.epochs=2")
            continue
        try:
            settings[key] = read_yaml(value, f"--set {key}")
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(*problems)
    return settings


def _put(raw: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    place: Any = raw
    for step in sections:
        inner = place.get(step)
        if inner is None:
            inner = place[step] = {}
        if not isinstance(inner, dict):
            raise ConfigurationError(f"--set {key}: {step!r} holds {inner!r}, which has no keys of its own")
        place = inner
    place[last] = value


def _checked(raw: dict[str, Any], folder: Path) -> Job:
    raw = {key: value for key, value in raw.items() if value is not None}
    problems: list[str] = []
    job = None
    try:
        job = Job.model_validate(expand(raw, folder))
    except ValidationError as error:
        problems = problem_lines(Job, error)
    problems += path_problems(raw)
    bad_optimizers = optimizer_problems(raw.get("optimizers"))
    problems += bad_optimizers
    problems += table_problems(raw.get("table"))
    if job is not None:
        has_label = job.data.columns.label is not None
        problems += _cluster_problems(job)
        problems += ranking_problems(job.model.name, job.ranking, job.data.items is not None, has_label)
    schema, bad_schema = _schema_of(raw)
    problems += bad_schema
    if isinstance(raw.get("model"), dict):
        rows = {} if bad_optimizers or job is None else job.row_optimizers
        problems += model_problems(raw["model"], schema, rows)
    if not problems and job is not None:
        model = job.build_model()
        section, table = job.table.model_dump(), model.table()
        problems += dense_problems(model)
        optimizers = {part.name: part.optimizer for part in table.parts}
        problems += training_problems(job.training, job.dense_optimizer, optimizers)
        problems += fit_problems(table, section)
        ranked = ranks_items(job.model.name)
        problems += stopping_problems(job.training, job.data.valid, ranked, job.dense_optimizer, optimizers)
        has_label, has_valid = job.data.columns.label is not None, bool(job.data.valid)
        problems += stream_problems(job.data.stream, job.data.train, has_valid, has_label, job.training)
        problems += _load_problems(job, table)
        problems += maintenance_problems(section, job.training.maintain_every_batches)
    if problems or job is None:
        raise ConfigurationError(*problems)
    return job


def _schema_of(raw: dict[str, Any]) -> tuple[Schema | None, list[str]]:
    """The schema, checked even where other sections are wrong; what pydantic says is told elsewhere."""
    try:
        columns = SchemaSection.model_validate(raw["data"]["schema"])
        return Schema.from_dict(columns.model_dump()), []
    except (ValidationError, KeyError, TypeError):
        return None, []
    except ConfigurationError as error:
        return None, [f"data.schema: {line}" for line in error.problems]


def _load_problems(job: Job, table: TableSpec) -> list[str]:
    """Tables to load that the model does not have."""
    named = (job.load.tables if job.load else None) or []
    return [unknown_value("load.tables", name, [table.name]) for name in named if name != table.name]


def _cluster_problems(job: Job) -> list[str]:
    try:
        job.cluster_config  # noqa: B018  # building it checks it
    except ConfigurationError as error:
        return [f"cluster.{line}" for line in error.problems]
    return []
