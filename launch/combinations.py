"""Settings of a job file that are right by themselves and do not go together, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launch.model_settings import ranks_items
from pslib.errors import ConfigurationError
from pslib.protocol.manner_checks import rate_problem
from pslib.settings import settings_of
from pslib.table.optimizers import Optimizer
from pslib.trainer.settings import TrainerSettings, TrainingSettings, row_rate_problems
from pslib.trainer.stopping import metric_problem
from rec_models import SESSION_MODELS

if TYPE_CHECKING:
    from launch.job import Job
    from launch.sections import TrainingSection

__all__ = ["of_trainer", "ranking_problems", "stopping_problems", "stream_problems", "training_problems"]


def of_trainer(training: TrainingSection) -> dict[str, Any]:
    """What of the section `pslib.Trainer` takes, under the same names."""
    return {name: getattr(training, name) for name in settings_of(TrainingSettings)}


def training_problems(job: Job, rows: Mapping[str, Optimizer]) -> list[str]:
    """What the optimizers of dense parameters, and of each part of ``rows``, do not take."""
    try:
        settings = TrainerSettings(dense_optimizer=job.dense_optimizer, **of_trainer(job.training))
    except ConfigurationError as error:
        return [_with_path(line) for line in error.problems]
    return [_with_path(line) for line in row_rate_problems(settings, rows)]


def _with_path(line: str) -> str:
    """A trainer's line under the name that the job file has for the setting."""
    of_dense = line.removeprefix("dense_optimizer")
    return f"training.{line}" if of_dense == line else f"optimizers.dense{of_dense}"


def stopping_problems(job: Job, rows: Mapping[str, Optimizer]) -> list[str]:
    """What is missing for ``stopping``, or does not fit the model and its optimizers."""
    stopping = job.training.stopping
    if stopping is None:
        return []
    problem = metric_problem(stopping.metric, ranks_items(job.model.name))
    problems = [f"training.stopping.{problem}"] if problem else []
    if not job.data.valid:
        problems.append("training.stopping: expected data to evaluate on after each epoch; give data.valid")
    if stopping.factor < 1:
        optimizers = {"dense": job.dense_optimizer, **{f"rows.{part}": one for part, one in rows.items()}}
        problems += [
            f"training.stopping.factor: optimizers.{name}: {problem}; set factor to 1"
            for name, optimizer in optimizers.items()
            if (problem := rate_problem([optimizer]))
        ]
    return problems


def stream_problems(job: Job) -> list[str]:
    """What does not go together with a stream."""
    data, training = job.data, job.training
    if data.stream is None:
        return []
    problems = []
    if data.columns.label is None:
        problems.append(
            "data.stream: expected a label in data.schema: each window is predicted before it is learnt"
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


def ranking_problems(job: Job) -> list[str]:
    """What does not fit the kind of model: one that ranks items, or predicts clicks."""
    name, ranking = job.model.name, job.ranking
    if not ranks_items(name):
        found = {
            "ranking: {} predicts clicks and ranks no items; remove it": ranking is not None,
            "data.items: {} predicts clicks and ranks no items; remove it": job.data.items is not None,
        }
    else:
        session = name in SESSION_MODELS
        labelled = session and job.data.columns.label is not None
        unknown = ranking is not None and ranking.exclude_seen and not (session or ranking.history)
        found = {
            "data.schema.label: {} learns which item comes next and reads no label; remove it": labelled,
            "ranking.exclude_seen: expected the column of items before; give ranking.history": unknown,
        }
    return [problem.format(name) for problem, is_so in found.items() if is_so]
