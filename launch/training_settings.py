"""The section ``training`` of a job file, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pslib.errors import ConfigurationError
from pslib.table.optimizers import Optimizer
from pslib.table.schedules import Constant, Schedule, schedule_from_dict
from pslib.table.wire_format import DENSE_EVERY_MAX
from pslib.training_limits import (
    BATCH_ROWS_MAX,
    CACHE_AGE_MAX,
    CACHE_ROWS_MAX,
    COMPUTE_THREADS_MAX,
    DAMPING_MAX,
    GEO_EVERY_MAX,
    GEO_ROWS_MAX,
    LEASE_ROWS_MAX,
    MAINTAIN_EVERY_MAX,
    PATIENCE_MAX,
    SEED_MAX,
    STALENESS_MAX,
    WARMUP_BATCHES_MAX,
)

__all__ = ["Section", "StoppingSection", "TrainingSection", "stopping_problems", "training_problems"]


class Section(BaseModel):
    """Base of all sections of a job file: unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _checked_schedule(value: Any) -> Any:
    """A schedule of `pslib.table.schedules`, still as it was written; the setting's path names it already."""
    if isinstance(value, str):
        raise ValueError(f"expected settings as in {{name: Cosine, batches: 20000}}, got {value!r:.60}")
    if not isinstance(value, dict):  # pydantic says so
        return value
    try:
        schedule_from_dict(value)
    except ConfigurationError as error:
        raise ValueError("; ".join(line.removeprefix("schedule: ") for line in error.problems)) from error
    return value


class WireSection(Section):
    """In which types rows, gradients and dense parameters travel; see `pslib.table.wire_format`."""

    rows: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    gradients: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    dense: Literal["float32", "bfloat16", "float16"] = "float32"
    dense_every_batches: int = Field(default=1, ge=1, le=DENSE_EVERY_MAX)


class CacheSection(Section):
    """Rows that a trainer keeps for a few batches; see `pslib.trainer.settings.CacheSettings`."""

    age_batches: int = Field(default=0, ge=0, le=CACHE_AGE_MAX)
    rows: int = Field(default=1 << 18, ge=1, le=CACHE_ROWS_MAX)


class StoppingSection(Section):
    """What results on the validation data are for; see `pslib.trainer.stopping.EarlyStopping`."""

    metric: str = "auc"  # what fits the model, `stopping_problems` says
    patience: int = Field(default=2, ge=0, le=PATIENCE_MAX)
    factor: float = Field(default=0.1, gt=0, le=1)
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    restore: bool = True


class TrainingSection(Section):
    """Numbers of the training loop; see `pslib.trainer.Trainer`."""

    batch_rows: int = Field(default=4096, ge=1, le=BATCH_ROWS_MAX)
    staleness: int = Field(default=2, ge=0, le=STALENESS_MAX)
    warmup_batches: int = Field(default=500, ge=0, le=WARMUP_BATCHES_MAX)
    epochs: int = Field(default=1, ge=1, le=1_000_000)
    seed: int = Field(default=0, ge=0, le=SEED_MAX)
    lease_rows: int | None = Field(default=None, ge=1, le=LEASE_ROWS_MAX)
    maintain_every_batches: int = Field(default=0, ge=0, le=MAINTAIN_EVERY_MAX)
    consistency: Literal["async", "sync", "ssp", "geo"] = "async"
    ssp_bound: int = Field(default=8, ge=0, le=STALENESS_MAX)
    geo_every_batches: int = Field(default=10, ge=1, le=GEO_EVERY_MAX)
    geo_rows: int = Field(default=4_000_000, ge=1, le=GEO_ROWS_MAX)
    schedule: Annotated[dict[str, Any], BeforeValidator(_checked_schedule)] | None = None
    damping: float = Field(default=0.0, ge=0, le=DAMPING_MAX, allow_inf_nan=False)
    wire: WireSection = Field(default_factory=WireSection)
    cache: CacheSection = Field(default_factory=CacheSection)
    compute_threads: int | None = Field(default=None, ge=1, le=COMPUTE_THREADS_MAX)
    products: Literal["float32", "bfloat16"] = "float32"
    stopping: StoppingSection | None = None

    def schedule_of_rates(self) -> Schedule:
        """The schedule that ``schedule`` stands for."""
        return schedule_from_dict(self.schedule) if self.schedule else Constant()


def stopping_problems(
    training: TrainingSection,
    valid: list[str] | None,
    ranked: bool,
    dense: Optimizer,
    rows: Mapping[str, Optimizer],
) -> list[str]:
    """What is missing for ``stopping``, or does not fit the model and its optimizers, one line each.

    Parameters
    ----------
    training : TrainingSection
    valid : list of str or None
        Data to evaluate on after each epoch.
    ranked : bool
        Whether the model ranks items.
    dense, rows
        As for `training_problems`.
    """
    from pslib.protocol.manner_checks import rate_problem
    from pslib.trainer.stopping import metric_problem

    if training.stopping is None:
        return []
    problem = metric_problem(training.stopping.metric, ranked)
    problems = [f"training.stopping.{problem}"] if problem else []
    if not valid:
        problems.append("training.stopping: expected data to evaluate on after each epoch; give data.valid")
    if training.stopping.factor < 1:
        optimizers = {"dense": dense, **{f"rows.{part}": optimizer for part, optimizer in rows.items()}}
        problems += [
            f"training.stopping.factor: optimizers.{name}: {problem}; set factor to 1"
            for name, optimizer in optimizers.items()
            if (problem := rate_problem([optimizer]))
        ]
    return problems


def training_problems(
    training: TrainingSection, dense: Optimizer, rows: Mapping[str, Optimizer]
) -> list[str]:
    """What is right by itself and does not go together, one line each.

    Parameters
    ----------
    training : TrainingSection
    dense : Optimizer
        Of the dense parameters.
    rows : mapping of str to Optimizer
        Of each part of a row.
    """
    from pslib.trainer.settings import OF_CONSISTENCY, CacheSettings, TrainerSettings, row_rate_problems

    try:
        settings = TrainerSettings(
            dense_optimizer=dense,
            cache=CacheSettings(**training.cache.model_dump()),
            consistency=training.consistency,
            **{name: getattr(training, name) for name in OF_CONSISTENCY},
            schedule=training.schedule_of_rates(),
            damping=training.damping,
        )
    except ConfigurationError as error:
        return [_with_path(line) for line in error.problems]
    return [_with_path(line) for line in row_rate_problems(settings, rows)]


def _with_path(line: str) -> str:
    """A trainer's line under the name that the job file has for the setting."""
    of_dense = line.removeprefix("dense_optimizer")
    return f"training.{line}" if of_dense == line else f"optimizers.dense{of_dense}"
