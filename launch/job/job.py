"""The job file: everything that one run needs, in one YAML file, checked before anything starts.

`docs/guide/job_file.md` has an example, `docs/reference/settings.md` all settings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zlib import crc32

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from launch.job.errors import concerns, leave_out, problem_lines
from launch.job.model import (
    build_model,
    fit_problems,
    model_problems,
    parts_of,
    ranks_items,
    with_policies,
)
from launch.job.paths import as_written, expand, path_problems
from launch.job.sections import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    MetricsSection,
    ModelSection,
    PageSection,
    Section,
    ServeSection,
    TrainingSection,
    of_ranges,
)
from launch.job.yaml12 import read_yaml, write_yaml
from pslib.config import ClusterConfig, ClusterSettings, Timing
from pslib.data.data_files import is_data
from pslib.errors import ConfigurationError
from pslib.monitor.trackers import TrackerSettings
from pslib.recorder.environment import flat_settings
from pslib.schema import Schema
from pslib.settings import NOT_EMPTY, Setting, settings_of
from pslib.storage import below, is_uri, parent_and_name
from pslib.suggestions import nearest_path, unknown_value
from pslib.table.optimizers import Optimizer, rate_problem
from pslib.table.tables import TablePolicies, TableSpec
from pslib.text import listed
from pslib.trainer.evaluation.early_stopping import metric_problem
from pslib.trainer.settings import (
    LoadSettings,
    OptimizerSettings,
    RankingSettings,
    TrainerSettings,
    TrainingSettings,
    row_rate_problems,
)
from rec_models import SESSION_MODELS, Model
from rec_models.by_name import EVERY, options_of

if TYPE_CHECKING:
    from pslib.data.split import DataPart


log = logging.getLogger("pslib.job")


def of_trainer(training: TrainingSection) -> dict[str, Any]:
    """Return the keyword arguments of `pslib.Trainer` that the section has."""
    return {name: getattr(training, name) for name in settings_of(TrainingSettings)}


def _training_problems(job: Job, rows: Mapping[str, Optimizer]) -> list[str]:
    """Return the settings that the optimizers of dense parameters, or of parts of rows, do not take."""
    try:
        settings = TrainerSettings(dense_optimizer=job.optimizers.dense, **of_trainer(job.training))
    except ConfigurationError as error:
        return [_with_path(line) for line in error.problems]
    return [_with_path(line) for line in row_rate_problems(settings, rows)]


def _with_path(line: str) -> str:
    """Replace the name of a trainer's setting by its path in the job file."""
    of_dense = line.removeprefix("dense_optimizer")
    return f"training.{line}" if of_dense == line else f"optimizers.dense{of_dense}"


def _stopping_problems(job: Job, rows: Mapping[str, Optimizer]) -> list[str]:
    """Return what is missing for ``stopping``, or does not fit the model and its optimizers."""
    stopping = job.training.stopping
    if stopping is None:
        return []
    problem = metric_problem(stopping.metric, ranks_items(job.model.name))
    problems = [f"training.stopping.{problem}"] if problem else []
    if not job.data.valid:
        problems.append("training.stopping: expected data to evaluate on after each epoch; give data.valid")
    if stopping.factor < 1:
        optimizers = {"dense": job.optimizers.dense, **{f"rows.{part}": one for part, one in rows.items()}}
        problems += [
            f"training.stopping.factor: optimizers.{name}: {problem}; set factor to 1"
            for name, optimizer in optimizers.items()
            if (problem := rate_problem([optimizer]))
        ]
    return problems


def _stream_problems(job: Job) -> list[str]:
    """Return the settings that a stream does not allow."""
    data, training = job.data, job.training
    if data.stream is None:
        return []
    problems = []
    if data.schema.label is None:
        problems.append(
            "data.stream: expected a label in data.schema: each window is predicted before it is learnt"
        )
    if data.test_share:
        problems.append(
            "data.test_share: expected 0 with data.stream, each of whose windows is predicted first"
        )
    if data.valid:
        problems.append(
            "data.valid: expected none with data.stream, each of whose windows is predicted first"
        )
    if len(data.train) != 1:
        problems.append(f"data.stream: expected one folder in data.train, got {len(data.train)} paths")
    if training.epochs != 1:
        problems.append(f"training.epochs: expected 1 with data.stream, got {training.epochs}")
    if training.stopping is not None:
        problems.append("training.stopping: expected none with data.stream, which has no epochs")
    return problems


def _ranking_problems(job: Job) -> list[str]:
    """Return the settings that do not fit the kind of model: ranking items, or predicting clicks."""
    name, ranking = job.model.name, job.ranking
    if not ranks_items(name):
        found = {
            "ranking: {} predicts clicks and ranks no items; remove it": ranking is not None,
            "data.items: {} predicts clicks and ranks no items; remove it": job.data.items is not None,
        }
    else:
        session = name in SESSION_MODELS
        labelled = session and job.data.schema.label is not None
        held_out = session and job.data.test_share > 0
        unknown = ranking is not None and ranking.exclude_seen and not (session or ranking.history)
        found = {
            "data.schema.label: {} learns which item comes next and reads no label; remove it": labelled,
            "data.test_share: {} is tested on prefixes and their targets; give data.test with both": held_out,
            "ranking.exclude_seen: expected the column of items before; give ranking.history": unknown,
        }
    return [problem.format(name) for problem, is_so in found.items() if is_so]


CHECKPOINT = "checkpoint"
"""Folder of a run's checkpoint below its ``out``."""
UNFINISHED = "unfinished"
"""Suffix of the folder for checkpoints of a training that goes on, or that was asked to leave."""


class Job(Section):
    """Checked job file; paths are absolute."""

    data: DataSection
    model: ModelSection
    optimizers: OptimizerSettings = OptimizerSettings()
    training: TrainingSection = TrainingSection()
    ranking: RankingSettings | None = None
    table: TablePolicies = TablePolicies()
    cluster: Annotated[ClusterSection, BeforeValidator(of_ranges)] = ClusterSection()
    checkpoint: CheckpointSection = CheckpointSection()
    load: LoadSettings | None = None
    serve: Annotated[ServeSection | None, BeforeValidator(of_ranges)] = None
    trackers: TrackerSettings = TrackerSettings()
    metrics: MetricsSection | None = None
    ui: PageSection | None = None
    out: Annotated[str, Setting("Folder of the run's files.", pattern=NOT_EMPTY)] = "run"

    def build_model(self) -> Model:
        """Build the model of this file."""
        return build_model(
            self.model.name,
            self.data.schema,
            self.model.model_extra or {},
            self.row_optimizers,
            self.training.seed,
        )

    def table_of(self, model: Model) -> TableSpec:
        """Return the model's table with this file's policies."""
        return with_policies(model.table(), self.table)

    @property
    def cluster_config(self) -> ClusterConfig:
        """Settings of the cluster for its coordinator."""
        settings = {name: getattr(self.cluster, name) for name in settings_of(ClusterSettings)}
        return ClusterConfig(timing=Timing(drain_s=self.cluster.drain_s), **settings)

    @property
    def json_logs(self) -> bool:
        """True for lines of JSON."""
        return self.cluster.log_format == "json"

    @property
    def train_data(self) -> list[str] | DataPart:
        """Data to train on: without the rows that are held out."""
        return self.parts[0] if self.parts else self.data.train

    @property
    def test_data(self) -> list[str] | DataPart | None:
        """Data to evaluate on when the training is done: test, or the rows that are held out."""
        return self.parts[1] if self.parts else self.data.test

    @property
    def parts(self) -> tuple[DataPart, DataPart] | None:
        """Rows of train to train on, and those that are held out; None if none are."""
        if not self.data.test_share:
            return None
        from pslib.data.arrow_data import split

        return split(self.data.train, self.data.test_share, by=self.data.test_by)

    @property
    def ranked(self) -> RankingSettings:
        """Settings of the ranking; the defaults if the file has none."""
        return self.ranking or RankingSettings()

    @property
    def row_optimizers(self) -> dict[str, Optimizer]:
        """Optimizer of each named part; ``"*"`` stands for all parts; empty: the model's own."""
        return self.optimizers.rows or {}

    def to_yaml(self) -> str:
        """Return the effective settings, defaults and overrides included; `read_job` reads them back."""
        plain = self.model_dump()
        parts = self.build_model().table().parts
        own = parts_of(self.model.name)
        plain["optimizers"] = {
            "rows": {part.name: part.optimizer.to_dict() for part in parts if part.name in own},
            "dense": self.optimizers.dense.to_dict(),
        }
        for part in parts:
            plain["model"].pop(f"{part.name}_optimizer", None)
        return write_yaml(as_written(plain))


def settings_of_job(job: Job) -> dict[str, str]:
    """Return the effective settings as texts by dotted names, as in its ``job.yaml`` but without secrets."""
    return flat_settings(read_yaml(job.to_yaml(), "job.yaml"))


def saved_place(job: Job) -> str:
    """Return the path of the checkpoint, or of the folder of numbered checkpoints."""
    return job.checkpoint.path or str(Path(job.out) / CHECKPOINT)


def unfinished_place(job: Job) -> str:
    """Return the folder of the numbered checkpoints that are made before the training is done.

    With ``keep_last`` that of all numbered ones. Else it is the run's own, since several runs may have one
    ``checkpoint.path``: in ``out``, or beside a URI and named after ``out`` (a lost machine takes its disk
    with it).
    """
    path = job.checkpoint.path
    if job.checkpoint.keep_last:
        return saved_place(job)
    if path and is_uri(path):
        folder, name = parent_and_name(path)
        return below(folder, f"{name}-{UNFINISHED}-{crc32(os.path.abspath(job.out).encode()):08x}")
    return str(Path(job.out) / f"{CHECKPOINT}-{UNFINISHED}")


def shared_place(job: Job) -> str | None:
    """Return the ``checkpoint.path`` where other runs leave their last checkpoint too; None without one."""
    return None if job.checkpoint.keep_last else job.checkpoint.path


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
        The same, with parsed values.

    Raises
    ------
    ConfigurationError
        With all problems, one line each.
    """
    file = Path(path)
    if is_data(file.name):
        recipe = f"pslib describe {file} --out {file.stem}.yaml"
        raise ConfigurationError(f"{file}: expected a job file (YAML), got data; make one of it: {recipe}")
    if file.suffix == ".py":
        raise ConfigurationError(
            f"{file}: expected a job file (YAML), got a script; pslib launch runs it, here or --on ssh, "
            "slurm or ray, while pslib role and Kubernetes run job files only"
        )
    raw = read_yaml(_text_of(file), str(file))
    if not isinstance(raw, dict):
        came = "nothing" if raw is None else type(raw).__name__
        raise ConfigurationError(f"{file}: expected a mapping with data, model and out, got {came}")
    settings = _parsed(overrides) | dict(changes or {})
    _leave_options(raw.get("model"), settings.get("model.name"))
    for key, value in settings.items():
        _put(raw, key, value)
    return _checked(raw, file.resolve().parent)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        of_runs = _job_files_of(file.parent) if file.name == "job.yaml" else ""
        near = nearest_path(str(file), (".yaml", ".yml"))
        mended = f"did you mean {near}?" if near else f"expected a job file (YAML){of_runs}"
        raise ConfigurationError(f"{file}: no such file; {mended}") from None
    except IsADirectoryError:
        of_run = _job_files_of(file)
        raise ConfigurationError(f"{file}: expected a job file (YAML), got a folder{of_run}") from None
    except (OSError, UnicodeDecodeError) as error:
        no_text = "it is not UTF-8 text; of data pslib describe makes a job file"
        reason = error.strerror if isinstance(error, OSError) else no_text
        raise ConfigurationError(f"{file}: the job file can't be read: {reason}") from error


def _job_files_of(folder: Path) -> str:
    """Name the job files of the run or runs in a folder, or of the run whose checkpoint it is."""
    places = {
        "that of this run is": [folder / "job.yaml"],
        "those of the runs in it are": sorted(folder.glob("*/job.yaml")),
        "that of its run is": [folder.parent / "job.yaml"] if folder.name.startswith(CHECKPOINT) else [],
    }
    named = {of: files for of, files in places.items() if files and files[0].is_file()}
    return next((f"; {of} {listed(map(str, files))}" for of, files in named.items()), "")


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


def _leave_options(model: object, name: object) -> None:
    """Leave out options of the file's model that another model, which is set in its place, does not have."""
    names = (model.get("name") if isinstance(model, dict) else None, name)
    if not isinstance(model, dict) or not all(isinstance(one, str) and one in EVERY for one in names):
        return
    had, has = (options_of(EVERY[str(one)]) for one in names)
    gone = [option for option in model if option in had and option not in has]
    for option in gone:
        del model[option]
    if gone:
        log.warning("pslib: %s has no %s: left out of the file's model", name, " and no ".join(gone))


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
    job, problems = _examined(raw, folder)
    if problems or job is None:
        further = _further_problems(deepcopy(raw), folder, problems)
        raise ConfigurationError(*dict.fromkeys([*problems, *further]))
    return job


def _further_problems(raw: dict[str, Any], folder: Path, problems: list[str]) -> Iterator[str]:
    """Yield the problems that a second round would show, once the values of ``problems`` are corrected.

    Settings are checked together only if each is right by itself, so wrong values are left out, and the rest
    is checked again. A problem that concerns a left out setting is not reported: its right value is unknown.
    """
    left_out: dict[str, str] = {}
    while found := leave_out(raw, problems):
        left_out |= found
        _, problems = _examined(raw, folder, model_known=not left_out.keys() & {"model", "model.name"})
        yield from (line for line in problems if not concerns(line, left_out))


def _examined(raw: dict[str, Any], folder: Path, *, model_known: bool = True) -> tuple[Job | None, list[str]]:
    """Return the job (None if it can't be built) and its problems; of several settings if each is right."""
    problems: list[str] = []
    job = None
    try:
        job = Job.model_validate(expand(raw, folder))
    except ValidationError as error:
        problems = problem_lines(Job, error)
    problems += path_problems(raw)
    if job is not None and model_known:
        problems += _ranking_problems(job)
    if isinstance(raw.get("model"), dict) and model_known:
        rows = {} if job is None else job.row_optimizers
        problems += model_problems(raw["model"], _schema_of(raw), rows)
    if not problems and job is not None:
        problems += _stream_problems(job)
        problems += _maintenance_problems(job)
        problems += _problems_with_model(job) if model_known else []
    return job, problems


def _problems_with_model(job: Job) -> list[str]:
    """Return the problems of settings for the model of the job."""
    model = job.build_model()
    table = model.table()
    optimizers = {part.name: part.optimizer for part in table.parts}
    return [
        *_dense_problems(model),
        *_training_problems(job, optimizers),
        *fit_problems(table, job.table),
        *_stopping_problems(job, optimizers),
        *_load_problems(job, table),
    ]


def _schema_of(raw: dict[str, Any]) -> Schema | None:
    """Return the schema, also if other sections are wrong."""
    try:
        return TypeAdapter(Schema).validate_python(raw["data"]["schema"])
    except (ValidationError, KeyError, TypeError):
        return None


def _maintenance_problems(job: Job) -> list[str]:
    """Return a problem if rules of eviction would never act."""
    if not job.table.eviction or job.training.maintain_every_batches:
        return []
    return ["training.maintain_every_batches: expected > 0, as table.eviction acts only then, got 0 (never)"]


def _load_problems(job: Job, table: TableSpec) -> list[str]:
    """Return the tables to load that the model does not have."""
    named = (job.load.tables if job.load else None) or ()
    return [unknown_value("load.tables", name, [table.name]) for name in named if name != table.name]


def _dense_problems(model: Model) -> list[str]:
    """Return a problem of the number of dense parameters, independent of the machine."""
    from pslib.trainer.pipeline.dense import DenseLayout  # imports the client, which other checks do not need

    problem = DenseLayout(model.dense_shapes()).size_problem()
    return [f"model: {problem}"] if problem else []
