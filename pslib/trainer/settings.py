"""Settings of a trainer, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, cast

from pslib.checkpoint.folders import KEEP_LAST_MAX, UNFINISHED
from pslib.errors import ConfigurationError
from pslib.recorder.callback import Callback
from pslib.settings import NOT_EMPTY, Setting, Settings, setting_of, settings_of
from pslib.storage import place_of
from pslib.suggestions import unknown_key
from pslib.table.optimizers import OPTIMIZERS, Adam, Optimizer, dense_problem, rate_problem
from pslib.table.schedules import SCHEDULES, Constant, Schedule
from pslib.table.tables import DenseSpec, TableSpec
from pslib.table.wire_format import FLOAT32, WireFormat
from pslib.trainer.model import ALL_PARTS, ModelInParts, TrainableModel, own_table_of, takes_products

EVERY_S = 600.0
"""Default interval: what an end by force loses at most. A cut pauses trainers for some milliseconds."""
EVERY_S_MAX = 1e9
"""Maximum interval: thirty years."""
EverySeconds = Annotated[
    float, Setting("From one to the next; 0: time does not count.", ge=0, le=EVERY_S_MAX, unit="seconds")
]
EveryBatches = Annotated[
    int,
    Setting("Of all trainers, from one to the next; 0: they do not count.", ge=0, le=1 << 40, unit="batches"),
]
Increments = Annotated[
    int,
    Setting(
        "How many increments follow a full checkpoint; 0: all are full. All of one chain is read to load it.",
        ge=0,
        le=1000,
        unit="checkpoints",
    ),
]
KeepLast = Annotated[
    int,
    Setting(
        "How many stay; what an increment that stays needs stays too. 0: one that is replaced.",
        ge=0,
        le=KEEP_LAST_MAX,
        unit="checkpoints",
    ),
]


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    """Checkpoint settings of a running `fit`, in numbered folders (`pslib.trainer.checkpoints.online`)."""

    AT = "checkpoint."

    path: Annotated[
        str,
        Setting("Folder or URI of ``checkpoint-000001`` and so on, which all servers and trainers reach."),
    ]
    every_s: EverySeconds = EVERY_S
    every_batches: EveryBatches = 0
    keep_last: KeepLast = 3
    incremental: Increments = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", place_of(self.path))
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        if not (self.every_s or self.every_batches):
            yield "every_s: expected above 0, or every_batches: when is it to be saved?"
        if self.keep_last == 0:
            yield "keep_last: expected at least 1 with every_s or every_batches, got 0"

    @property
    def details(self) -> dict[str, float | int]:
        """Return the details for the coordinator."""
        return {"every_s": float(self.every_s), "every_batches": self.every_batches}


K_MAX = 1 << 20
"""Limit of k, more than any ranking has use for."""


@dataclass(frozen=True, kw_only=True)
class RankingSettings(Settings):
    """Settings of a ranking: the section ``ranking`` of a job file, and keywords of `Trainer.rank`."""

    AT = ""

    at: Annotated[tuple[int, ...], Setting("The k of Recall@k, MRR@k and NDCG@k.")] = (20,)
    history: Annotated[
        str | None,
        Setting("Column of the items before; none: prefix for sessions, else none.", pattern=NOT_EMPTY),
    ] = None
    target: Annotated[
        str | None,
        Setting(
            "Column of the item to find; none: target for sessions, else that of the items.",
            pattern=NOT_EMPTY,
        ),
    ] = None
    exclude_seen: Annotated[bool, Setting("Leave out items of the history.")] = False

    def _problems(self) -> Iterator[str]:
        if min(self.at, default=0) < 1:
            yield f"at: expected numbers of places from 1 on, got {list(self.at)}"
        elif max(self.at) > K_MAX:
            yield f"at: expected at most {K_MAX} places, got {max(self.at)}"


@dataclass(frozen=True, kw_only=True)
class LoadSettings(Settings):
    """Initial checkpoint of a training: section ``load`` of a job file, and arguments of `Trainer.load`."""

    AT = ""

    path: Annotated[
        str,
        Setting("Checkpoint to begin with, or a folder: its newest numbered one.", pattern=NOT_EMPTY),
    ]
    state: Annotated[
        bool, Setting("Load the state of optimizers; false: fresh state, and others are allowed.")
    ] = True
    tables: Annotated[tuple[str, ...] | None, Setting("Tables to load rows of; none: all.")] = None
    resume: Annotated[
        bool, Setting("Continue that training exactly where it was saved; false: all of it is new.")
    ] = True
    other_model: Annotated[
        bool, Setting("Accept a checkpoint of another class or other columns where the numbers fit.")
    ] = False

    def _problems(self) -> Iterator[str]:
        if self.tables is not None and not self.tables:
            yield "tables: expected a list of names, or None for all, got []"


DenseOptimizer = Annotated[
    Optimizer,
    Setting(
        "For the dense parameters: any but RowwiseAdagrad, without clipping.",
        kinds=tuple(OPTIMIZERS.values()),
        example="pslib.Adam(learning_rate=0.001)",
        none=Adam(),
    ),
]

RowOptimizer = Annotated[
    Optimizer,
    Setting(
        "Optimizer of one part of a row.",
        kinds=tuple(OPTIMIZERS.values()),
        example="pslib.Adagrad(learning_rate=0.05)",
    ),
]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Settings):
    """Optimizers of rows and of dense parameters: section ``optimizers`` of a job file, and of `Trainer`."""

    AT = "optimizers."

    rows: Annotated[
        dict[str, RowOptimizer] | None,
        Setting("Optimizer of all parts of a row, or one a part; none: the model's own."),
    ] = None
    dense: DenseOptimizer = Adam()

    def __post_init__(self) -> None:
        if self.rows is not None and not isinstance(self.rows, Mapping):
            object.__setattr__(self, "rows", {ALL_PARTS: self.rows})
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        of_one = cast("Setting", setting_of(RowOptimizer))
        for part, optimizer in (self.rows or {}).items():
            name = "rows" if part == ALL_PARTS else f"rows.{part}"
            if problem := of_one.problem(name, optimizer, Optimizer):
                yield problem
        if problem := dense_problem(self.dense):
            yield f"dense: {problem}"

    @classmethod
    def _read(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        """Read a single optimizer of rows as that of all parts."""
        rows = value.get("rows") if isinstance(value, dict) else None
        if isinstance(rows, str) or (isinstance(rows, dict) and not isinstance(rows.get("name", {}), dict)):
            value = {**value, "rows": {ALL_PARTS: rows}}
        return super()._read(value, validate)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> OptimizerSettings:
        """Make them of a mapping; ConfigurationError for an unknown key, with the nearest one."""
        known = settings_of(cast("Any", cls))
        if unknown := [unknown_key(f"optimizers.{key}", known) for key in given if key not in known]:
            raise ConfigurationError(*unknown)
        return cls(**given)


CONSISTENCIES = ("async", "sync", "ssp", "geo")
"""Consistency modes of training; see `pslib.trainer.consistency.modes`."""
OF_CONSISTENCY = {"ssp_bound": "ssp", "geo_every_batches": "geo", "geo_rows": "geo"}
"""Settings that have an effect with one of them only."""
PRODUCTS = ("float32", "bfloat16")
"""Types to which the factors of a step's matrix products may be rounded."""
CACHED = ("async", "ssp")
"""Modes with a row cache: with one, sync would not be repeatable, and geo has a copy already."""


@dataclass(frozen=True)
class CacheSettings(Settings):
    """Row cache of a trainer, which saves pulls of frequent rows."""

    AT = "cache."

    age_batches: Annotated[
        int,
        Setting(
            "Batches for which a row is served after it was pulled, or after this trainer's own "
            "gradients were written back into it; 0 keeps nothing, so every pull sees what servers have.",
            ge=0,
            le=1 << 16,  # far beyond any staleness that a model would learn with
            unit="batches",
        ),
    ] = 0
    rows: Annotated[
        int,
        Setting(
            "Most rows that are kept; each takes 16 bytes a float and some 50 more.",
            ge=1,
            le=1 << 28,  # of 17 floats they would take 86 GB
            unit="rows",
        ),
    ] = 1 << 18


NO_CACHE = CacheSettings()
STALENESS_MAX = 1024
"""Each batch that a trainer runs ahead holds its rows in memory, and far fewer hide any network."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Settings of training: of the section ``training`` of a job file and of `pslib.Trainer`."""

    AT = ""

    batch_rows: Annotated[
        int,
        Setting(
            "Examples of a batch.",
            ge=1,
            le=1 << 24,  # far above any published batch; the rows that one touches would not fit a message
            unit="examples",
        ),
    ] = 4096
    staleness: Annotated[
        int,
        Setting(
            "Batches by which a trainer may run ahead of its own acknowledged pushes; 0 is exact.",
            ge=0,
            le=STALENESS_MAX,
            unit="batches",
        ),
    ] = 2
    warmup_batches: Annotated[
        int,
        Setting(
            "Batches over which the bound on staleness rises evenly from 0.",
            ge=0,
            le=1 << 31,  # more than anybody trains: the bound then never reaches its end
            unit="batches",
        ),
    ] = 500
    lease_rows: Annotated[
        int | None,
        Setting(
            "Examples of a lease; none chooses by the size of the data.",
            ge=1,
            le=1 << 32,  # all of the data: then one trainer has it
            unit="examples",
        ),
    ] = None
    seed: Annotated[
        int,
        Setting(
            "Seed of the data's order, dropout, and first values of dense parameters.",
            ge=0,
            le=(1 << 63) - 1,  # 64 bits with a sign in files and messages
        ),
    ] = 0
    maintain_every_batches: Annotated[
        int,
        Setting(
            "Counts fade and rows leave, by the table's policies, whenever so many batches are trained; 0: "
            "never.",
            ge=0,
            le=1 << 31,
            unit="batches",
        ),
    ] = 0
    consistency: Annotated[str, Setting("Consistency between trainers.", choices=CONSISTENCIES)] = "async"
    ssp_bound: Annotated[
        int,
        Setting(
            "With ssp: batches by which a trainer may be ahead of the slowest.",
            ge=0,
            le=STALENESS_MAX,
            unit="batches",
        ),
    ] = 8
    geo_every_batches: Annotated[
        int,
        Setting(
            "With geo: batches after which a trainer sends its deltas.",
            ge=1,
            le=1 << 16,  # all rows that so many batches touch are held until they are sent
            unit="batches",
        ),
    ] = 10
    geo_rows: Annotated[
        int,
        Setting(
            "With geo: rows of which a trainer keeps state.",
            ge=1,
            le=1 << 30,  # far above one trainer's memory
            unit="rows",
        ),
    ] = 4_000_000
    schedule: Annotated[
        Schedule,
        Setting(
            "Schedule of the learning rates of rows and dense parameters; constant by default.",
            kinds=tuple(SCHEDULES.values()),
            example="pslib.Cosine(batches=20000)",
            none=Constant(),
        ),
    ] = Constant()
    damping: Annotated[
        float,
        Setting(
            "Learning rates are multiplied by ``1 / (1 + damping * staleness)``; 0: not damped.",
            ge=0,
            le=1000,  # a step of staleness 1 already counts a thousandth
        ),
    ] = 0.0
    wire: Annotated[
        WireFormat,
        Setting(
            "Types in which rows, gradients and dense parameters travel, and how often the last are pulled.",
            example='pslib.WireFormat(rows="bfloat16")',
        ),
    ] = FLOAT32
    cache: Annotated[
        CacheSettings,
        Setting(
            "Rows that are kept for a few batches instead of being pulled for each; none by default.",
            example="pslib.CacheSettings(age_batches=8)",
        ),
    ] = NO_CACHE
    compute_threads: Annotated[
        int | None,
        Setting(
            "Threads that compute a batch; the result does not depend on it. None: one for each core it has.",
            ge=1,
            le=256,  # more than one process can feed: a batch is cut into far fewer parts
            unit="threads",
        ),
    ] = None
    products: Annotated[
        str,
        Setting(
            "Type of the factors of a step's matrix products, where the processor is faster "
            "at it (AMD from Zen 4 on); all else stays float32.",
            choices=PRODUCTS,
        ),
    ] = "float32"

    @property
    def changes_rates(self) -> bool:
        """True if learning rates differ between pushes."""
        return self.damping > 0 or not self.schedule.is_constant

    def rate(self, step: int, staleness: int) -> float:
        """Factor of the learning rates: of the schedule, and ``1 / (1 + damping * staleness)``."""
        return self.schedule.factor(step) / (1.0 + self.damping * staleness)

    def _problems(self) -> Iterator[str]:
        """Yield settings of a consistency that is not chosen: they would have no effect."""
        defaults, got = {one.name: one.default for one in fields(self)}, f"got {self.consistency!r}"
        for name, mode in OF_CONSISTENCY.items():
            if mode != self.consistency and getattr(self, name) != defaults[name]:
                yield f"{name}: expected consistency {mode!r} with it, {got}; else leave it out"
        if self.cache.age_batches and self.consistency not in CACHED:
            cached = " or ".join(CACHED)
            yield f"cache: expected consistency {cached}, {got}; else leave age_batches at 0"


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(TrainingSettings):
    """Keywords of `pslib.Trainer`: `TrainingSettings`, and what a job file has in sections of its own."""

    optimizers: Annotated[
        Mapping[str, Any] | OptimizerSettings | None,
        Setting(
            "As in a job file: ``rows``, one optimizer or one for each part of a row, and ``dense``; what is "
            "left out is that of the model's options, and ``dense_optimizer``.",
            example='{"rows": pslib.Adagrad(0.05), "dense": pslib.Adam(0.001)}',
        ),
    ] = None
    dense_optimizer: DenseOptimizer = Adam()
    table: Annotated[
        TableSpec | None,
        Setting(
            "The model's table with other policies; none: as the model gives it.",
            example="dataclasses.replace(model.table(), storage='bfloat16')",
        ),
    ] = None
    checkpoint: Annotated[
        CheckpointSettings | None,
        Setting(
            "When a `fit` is saved while it goes on; none: with ``out``, in its folder "
            "``checkpoint-unfinished``, else never.",
            example='pslib.CheckpointSettings("runs/a", every_s=600)',
        ),
    ] = None
    out: Annotated[
        str | os.PathLike[str] | None,
        Setting(
            "Folder of ``metrics.jsonl``, ``summary.json`` and ``run.png``. This and the next two hold for a "
            "cluster inside this process; else the launcher writes them."
        ),
    ] = None
    progress: Annotated[bool, Setting("A progress bar is shown.")] = True
    tensorboard: Annotated[
        bool, Setting("Event files are written to ``out/tensorboard``; needs tensorboardX.")
    ] = False
    callbacks: Annotated[
        tuple[Callback, ...],
        Setting("Called at epochs, evaluations and checkpoints; see `pslib.Callback`.", example="[Stop()]"),
    ] = ()
    share: Annotated[
        bool,
        Setting("It may train what another Trainer of the cluster, or another model, trains too."),
    ] = False

    def __post_init__(self) -> None:
        given = self.optimizers
        if isinstance(given, OptimizerSettings):
            given = {"rows": given.rows} | ({} if given.dense == Adam() else {"dense": given.dense})
        if isinstance(given, Mapping):
            if "dense" in given and self.dense_optimizer not in (None, Adam(), given["dense"]):
                raise ConfigurationError(
                    "dense_optimizer: the same is set by optimizers['dense']; remove one of them"
                )
            given = OptimizerSettings.of({"dense": self.dense_optimizer, **given})
            object.__setattr__(self, "optimizers", given)
            object.__setattr__(self, "dense_optimizer", given.dense)
        super().__post_init__()

    @property
    def row_optimizers(self) -> Mapping[str, Optimizer]:
        """Optimizer of each named part; ``"*"`` stands for all parts; empty: the model's own."""
        return (isinstance(self.optimizers, OptimizerSettings) and self.optimizers.rows) or {}

    def with_place(self, embedded: bool) -> TrainerSettings:
        """Return the settings, with checkpoints in ``out`` if a script runs alone and says nothing else."""
        if self.checkpoint is not None or self.out is None or not embedded:
            return self
        place = os.path.join(os.fspath(self.out), UNFINISHED)
        return replace(self, checkpoint=CheckpointSettings(place, keep_last=1))

    @property
    def must_agree(self) -> list[object]:
        """Settings of consistency, which must be equal on all trainers."""
        bounds = [self.ssp_bound, self.geo_every_batches, self.damping]
        return [self.consistency, *bounds, self.schedule.to_dict()]

    def _field_problems(self) -> Iterator[str]:
        yield from super()._field_problems()
        try:
            DenseSpec(0, self.dense_optimizer)
        except ConfigurationError as error:
            yield from error.problems

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.changes_rates and (problem := rate_problem([self.dense_optimizer])):
            yield f"dense_optimizer: {problem}; it takes no schedule and no damping"


def check_fits(settings: TrainerSettings, model: TrainableModel, table: TableSpec) -> None:
    """Raise ConfigurationError if settings do not fit the model or the table."""
    problems = row_rate_problems(settings, {part.name: part.optimizer for part in table.parts})
    if settings.products != "float32" and not takes_products(model):
        in_parts = isinstance(model, ModelInParts)
        why = "whose stepper takes no products" if in_parts else "which multiplies by itself"
        problems.append(
            f"products: expected float32 with {type(model).__name__}, {why}, got {settings.products}"
        )
    if problems:
        raise ConfigurationError(*problems)


def row_rate_problems(settings: TrainerSettings, rows: Mapping[str, Optimizer]) -> list[str]:
    """List the parts of a row whose optimizer takes no schedule or damping, one line each."""
    if not settings.changes_rates:
        return []
    name = "damping" if settings.schedule.is_constant else "schedule"
    return [
        f"{name}: part {part} of a row takes none: {problem}; choose another optimizer"
        for part, optimizer in rows.items()
        if (problem := rate_problem([optimizer]))
    ]


def table_of(model: TrainableModel, table: TableSpec | None) -> TableSpec:
    """Return the table to train; it must have the model's name and parts, with any policies.

    Raises
    ------
    ConfigurationError
        If it has not.
    """
    own = own_table_of(model)
    if table is not None and (table.name, table.parts) != (own.name, own.parts):
        raise ConfigurationError(
            f"table: expected the model's, {own.name} with parts {[part.name for part in own.parts]}, and "
            f"policies; got {table.name} with parts {[part.name for part in table.parts]}: "
            "use dataclasses.replace(model.table(), ...)"
        )
    return own if table is None else table
