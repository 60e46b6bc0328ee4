"""What a trainer is given, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real

from pslib.arguments import came, make_plain
from pslib.errors import ConfigurationError
from pslib.protocol.manner_checks import rate_problem
from pslib.table.optimizers import Adam, Optimizer
from pslib.table.schedules import Constant, Schedule
from pslib.table.tables import DenseSpec, TableSpec
from pslib.table.wire_format import FLOAT32, WireFormat
from pslib.trainer.checkpointing import CheckpointSettings
from pslib.trainer.model import ModelInParts, TrainableModel, takes_products
from pslib.trainer.own_models import own_table_of
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
    SEED_MAX,
    STALENESS_MAX,
    WARMUP_BATCHES_MAX,
)

__all__ = [
    "CONSISTENCIES",
    "NO_CACHE",
    "OF_CONSISTENCY",
    "PRODUCTS",
    "CacheSettings",
    "TrainerSettings",
    "check_fits",
    "row_rate_problems",
    "table_of",
]

CONSISTENCIES = ("async", "sync", "ssp", "geo")
"""How trainers keep together; see `pslib.trainer.modes`."""
OF_CONSISTENCY = {"ssp_bound": "ssp", "geo_every_batches": "geo", "geo_rows": "geo"}
"""Settings that mean something with one of them only."""
PRODUCTS = ("float32", "bfloat16")
"""What the factors of a step's matrix products may be rounded to."""
CACHED = ("async", "ssp")
"""Those in which a trainer may keep rows: sync would no longer be repeatable, geo keeps a copy anyway."""


@dataclass(frozen=True)
class CacheSettings:
    """Rows that a trainer keeps, so that it need not pull them for every batch that has them.

    Attributes
    ----------
    age_batches : int
        For how many batches a row is served after it was pulled, or after this trainer's own gradients were
        written back into it; 0 keeps nothing, so every pull sees what servers have.
    rows : int
        How many, at most; each takes 16 bytes a float and some 50 more.

    Raises
    ------
    ConfigurationError
        When a number is out of range.
    """

    age_batches: int = 0
    rows: int = 1 << 18

    def __post_init__(self) -> None:
        problems = [
            f"cache.{name}: expected a whole number in {low}..{high}, got {came(value)}"
            for name, value, low, high in (
                ("age_batches", self.age_batches, 0, CACHE_AGE_MAX),
                ("rows", self.rows, 1, CACHE_ROWS_MAX),
            )
            if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high
        ]
        if problems:
            raise ConfigurationError(*problems)
        make_plain(self, "age_batches", "rows")


NO_CACHE = CacheSettings()


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """How a trainer trains; `pslib.Trainer` says what each of them does.

    Raises
    ------
    ConfigurationError
        When any is out of range; all of them at once.
    """

    batch_rows: int = 4096
    staleness: int = 2
    warmup_batches: int = 500
    dense_optimizer: Optimizer = field(default_factory=Adam)
    seed: int = 0
    lease_rows: int | None = None
    maintain_every_batches: int = 0
    wire: WireFormat = FLOAT32
    cache: CacheSettings = NO_CACHE
    compute_threads: int | None = None
    products: str = "float32"
    consistency: str = "async"
    ssp_bound: int = 8
    geo_every_batches: int = 10
    geo_rows: int = 4_000_000
    schedule: Schedule = field(default_factory=Constant)
    damping: float = 0.0
    checkpoint: CheckpointSettings | None = None

    @property
    def must_agree(self) -> list[object]:
        """What all trainers must say alike about how they keep together."""
        bounds = [self.ssp_bound, self.geo_every_batches, self.damping]
        return [self.consistency, *bounds, self.schedule.to_dict()]

    @property
    def changes_rates(self) -> bool:
        """Whether learning rates are not the same for all pushes."""
        return self.damping > 0 or not self.schedule.is_constant

    def rate(self, step: int, staleness: int) -> float:
        """Factor of the learning rates: of the schedule, and ``1 / (1 + damping * staleness)``."""
        return self.schedule.factor(step) / (1.0 + self.damping * staleness)

    def __post_init__(self) -> None:
        ranges = [
            ("batch_rows", self.batch_rows, 1, BATCH_ROWS_MAX),
            ("staleness", self.staleness, 0, STALENESS_MAX),
            ("warmup_batches", self.warmup_batches, 0, WARMUP_BATCHES_MAX),
            ("lease_rows", 1 if self.lease_rows is None else self.lease_rows, 1, LEASE_ROWS_MAX),
            ("seed", self.seed, 0, SEED_MAX),
            (
                "compute_threads",
                1 if self.compute_threads is None else self.compute_threads,
                1,
                COMPUTE_THREADS_MAX,
            ),
            ("maintain_every_batches", self.maintain_every_batches, 0, MAINTAIN_EVERY_MAX),
            ("ssp_bound", self.ssp_bound, 0, STALENESS_MAX),
            ("geo_every_batches", self.geo_every_batches, 1, GEO_EVERY_MAX),
            ("geo_rows", self.geo_rows, 1, GEO_ROWS_MAX),
        ]
        problems = [
            f"{name}: expected a whole number in {low}..{high}, got {came(value)}"
            for name, value, low, high in ranges
            if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high
        ]
        try:
            DenseSpec(0, self.dense_optimizer)
        except ConfigurationError as error:
            problems += error.problems
        if not isinstance(self.products, str) or self.products not in PRODUCTS:
            problems.append(f"products: expected one of {', '.join(PRODUCTS)}, got {came(self.products)}")
        problems += self._kind_problems() or self._mode_problems()
        if problems:
            raise ConfigurationError(*problems)
        make_plain(self, "damping", *(name for name, _value, _low, _high in ranges))

    def _kind_problems(self) -> list[str]:
        """Settings that are not of their class, such as a mapping from a file."""
        kinds: list[tuple[str, object, type, str]] = [
            ("wire", self.wire, WireFormat, 'pslib.WireFormat(rows="bfloat16")'),
            ("cache", self.cache, CacheSettings, "pslib.CacheSettings(age_batches=8)"),
            ("schedule", self.schedule, Schedule, "pslib.Cosine(batches=20_000)"),
        ]
        if self.checkpoint is not None:
            example = 'pslib.CheckpointSettings("runs/a", every_s=600)'
            kinds.append(("checkpoint", self.checkpoint, CheckpointSettings, example))
        return [
            f"{name}: expected a {kind.__name__}, as in {example}, got {came(value)}"
            for name, value, kind, example in kinds
            if not isinstance(value, kind)
        ]

    def _stray_settings(self) -> list[str]:
        """Settings of a consistency that is not the chosen one: they would change nothing."""
        defaults = {one.name: one.default for one in fields(self)}
        problems = [
            f"{name}: expected consistency {mode!r} with it, got {self.consistency!r}; else leave it out"
            for name, mode in OF_CONSISTENCY.items()
            if mode != self.consistency
            and isinstance(value := getattr(self, name), Integral)
            and value != defaults[name]
        ]
        if self.cache.age_batches and self.consistency not in CACHED:
            cached = " or ".join(CACHED)
            problems.append(
                f"cache: expected consistency {cached}, got {self.consistency!r}; else leave age_batches at 0"
            )
        return problems

    def _mode_problems(self) -> list[str]:
        problems = []
        if not isinstance(self.consistency, str) or self.consistency not in CONSISTENCIES:
            expected = ", ".join(CONSISTENCIES)
            problems.append(f"consistency: expected one of {expected}, got {came(self.consistency)}")
        else:
            problems += self._stray_settings()
        number = isinstance(self.damping, Real) and not isinstance(self.damping, bool)
        if not number or not 0 <= self.damping <= DAMPING_MAX:
            problems.append(f"damping: expected a number in 0..{DAMPING_MAX:g}, got {came(self.damping)}")
        elif self.changes_rates and (problem := rate_problem([self.dense_optimizer])):
            problems.append(f"dense_optimizer: {problem}; it takes no schedule and no damping")
        return problems


def check_fits(settings: TrainerSettings, model: TrainableModel, table: TableSpec) -> None:
    """Raise ConfigurationError where settings and what is trained do not go together."""
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
    """Why the schedule or the damping can't hold for the optimizers of rows, one line each part."""
    if not settings.changes_rates:
        return []
    name = "damping" if settings.schedule.is_constant else "schedule"
    return [
        f"{name}: part {part} of a row takes none: {problem}; choose another optimizer"
        for part, optimizer in rows.items()
        if (problem := rate_problem([optimizer]))
    ]


def table_of(model: TrainableModel, table: TableSpec | None) -> TableSpec:
    """The table to train; it must have the model's name and parts, whatever its policies.

    Raises
    ------
    ConfigurationError
        When it has not.
    """
    own = own_table_of(model)
    if table is not None and (table.name, table.parts) != (own.name, own.parts):
        raise ConfigurationError(
            f"table: expected the model's, {own.name} with parts {[part.name for part in own.parts]}, and "
            f"policies; got {table.name} with parts {[part.name for part in table.parts]}: "
            "use dataclasses.replace(model.table(), ...)"
        )
    return own if table is None else table
