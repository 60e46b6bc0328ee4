"""Table specification: named parts in one row, each with its own optimizer and initializer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any

from pslib.errors import ConfigurationError
from pslib.keywords import Keywords
from pslib.settings import Setting, Settings, read_named, settings_of
from pslib.table.initializers import Initializer, Uniform, initializer_from_dict
from pslib.table.optimizers import Adagrad, Optimizer, dense_problem, optimizer_from_dict
from pslib.table.policies import (
    ADMISSIONS,
    CLOCKS,
    EVICTIONS,
    STORAGES,
    WHEN_FULL,
    Admission,
    ByAge,
    ByBloom,
    ByCount,
    ByScore,
    Compact,
    Eviction,
    Policy,
    Score,
)
from pslib.validation import came, check_fields

NAME_BYTES_MAX = 200
"""Longest table name; its file names are longer, and file systems allow 255 bytes."""
DIM_MAX = 4096
"""Floats of one part: a row stays far below a message and far above any published embedding (2,048)."""

PARTS_MAX = 8
"""Parts of one row: a byte numbers them, and no published model needs more than three."""

DENSE_LENGTH_MAX = 1 << 40
"""Dense parameters: 4 TiB, more than trainers can hold; sums of such lengths fit well in 64 bits."""

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


@lru_cache(1 << 12)  # salts of fields are asked for with every batch: 5 us each
def text_hash(*texts: str) -> int:
    """64-bit hash of names (FNV-1a over UTF-8, a zero byte after each); it seeds rows and must never change.

    Meant for few names; ``cython_ext.common.hashing`` hashes the values of a column.
    """
    state = _FNV_OFFSET
    for text in texts:
        for byte in text.encode() + b"\0":
            state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


@dataclass(frozen=True, slots=True)
class PartSpec(metaclass=Keywords):
    """Named part of a row.

    Raises
    ------
    ConfigurationError
        If ``dim`` is not in 1..DIM_MAX, the name is not an identifier, or optimizer or initializer is
        invalid.
    """

    name: str
    dim: int
    optimizer: Optimizer = Adagrad()
    initializer: Initializer = Uniform()

    def __post_init__(self) -> None:
        check_fields(self, "name", "dim")
        if not self.name.isidentifier():
            raise ConfigurationError(f"part name: expected an identifier, got {self.name!r}")
        if not 1 <= self.dim <= DIM_MAX:
            raise ConfigurationError(f"part {self.name}: dim must be in 1..{DIM_MAX}, got {self.dim}")
        for what, kind in (("optimizer", Optimizer), ("initializer", Initializer)):
            if not isinstance(value := getattr(self, what), kind):
                raise ConfigurationError(
                    f"part {self.name}: {what}: expected one of pslib's, got {came(value)}"
                )

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state per row for this part."""
        return self.optimizer.state_floats(self.dim)

    def to_dict(self) -> dict[str, object]:
        """Plain form for the wire and for manifests."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": self.optimizer.to_dict(),
            "initializer": self.initializer.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicies(Settings):
    """Storage of the rows of a table: the section ``table`` of a job file, and settings of `TableSpec`."""

    AT = ""

    storage: Annotated[
        str,
        Setting(
            "Type of weights in memory; stores round stochastically, and users see float32.", choices=STORAGES
        ),
    ] = "float32"
    admission: Annotated[
        Admission | None,
        Setting(
            "Rule by which a key earns a row; none: every pushed key.",
            kinds=ADMISSIONS,
            example="pslib.ByCount(count=3)",
        ),
    ] = None
    eviction: Annotated[
        tuple[Eviction, ...],
        Setting(
            "Rules by which rows leave at a maintenance.",
            kinds=EVICTIONS,
            example="[pslib.ByAge(age=500000)]",
        ),
    ] = ()
    score: Annotated[
        Score | None,
        Setting("Value of shows and clicks of a row.", kinds=(Score,), example="pslib.Score(decay=0.98)"),
    ] = None
    compact: Annotated[
        Compact | None,
        Setting(
            "Time at which a row gets its later parts, by its shows or its score; none: at once.",
            kinds=(Compact,),
            example='pslib.Compact(wide_from="v", shows=10)',
        ),
    ] = None
    clock: Annotated[
        str,
        Setting(
            "Unit of ages: batches of the training, or seconds; weight decay counts steps.", choices=CLOCKS
        ),
    ] = "steps"
    when_full: Annotated[
        str,
        Setting(
            "Action of a server at its memory limit: refuse new rows, or evict these.", choices=WHEN_FULL
        ),
    ] = "refuse"

    def __post_init__(self) -> None:
        if isinstance(self.eviction, EVICTIONS):
            object.__setattr__(self, "eviction", (self.eviction,))
        Settings.__post_init__(self)


@dataclass(frozen=True, slots=True)
class TableSpec(TablePolicies):
    """Named set of rows of one layout, distributed over servers, with its `TablePolicies`.

    Raises
    ------
    ConfigurationError
        If names repeat, there are no parts or more than PARTS_MAX, or policies conflict; lists all problems
        at once.
    """

    AT = "table {name}: "

    name: Annotated[str, Setting("An identifier; also the stem of the table's checkpoint files.")]
    parts: Annotated[tuple[PartSpec, ...], Setting("Parts in the order of their floats in a row.")]
    seed: Annotated[int, Setting("Seed of initial values.", ge=0, le=(1 << 63) - 1)] = 0

    def _problems(self) -> Iterator[str]:
        if not self.name.isidentifier():
            yield f"name: expected an identifier, got {self.name!r}"
        if (size := len(self.name.encode())) > NAME_BYTES_MAX:
            yield f"name: expected at most {NAME_BYTES_MAX} bytes, got {size}: {self.name!r:.40}..."
        yield from self._part_problems()
        yield from self._policy_problems()
        later = [part.name for part in self.parts[1:]]
        if self.compact is not None and self.compact.wide_from not in later:
            known = f"one of the parts after the first, {later}" if later else "a table of two parts or more"
            yield f"compact.wide_from: expected {known}, got {self.compact.wide_from!r}"

    def _part_problems(self) -> Iterator[str]:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            yield f"expected 1..{PARTS_MAX} parts, got {len(self.parts)}"
        if len({part.name for part in self.parts}) != len(self.parts):
            yield "part names must differ"
        elif twice := self._column_of_two():
            yield f"a part is named as a column of checkpoints is, {twice!r}; give it another name"
        decayed = [part.name for part in self.parts if part.optimizer.catches_up]
        if decayed and self.clock != "steps":
            yield (
                f"clock: expected 'steps', in which the decay of part {decayed[0]} counts, got "
                f"{self.clock!r}; or set its weight_decay (l2) to 0"
            )

    def _column_of_two(self) -> str:
        """Name of a column in row files (`pslib.checkpoint.rows.table_schema`) used twice."""
        names = ["key", *(["last_seen"] if self.needs_seen else [])]
        names += ["shows", "clicks"] if self.needs_counts else []
        for part in self.parts:
            names += [part.name, *([f"{part.name}_scale"] if self.storage == "int8" else [])]
            names += [f"{part.name}_state"] if part.state_floats else []
        return next((name for name in names if names.count(name) > 1), "")

    def _policy_problems(self) -> Iterator[str]:
        """Check that rules differ, that a score is there where needed, and that counts decay equally."""
        if len({type(rule) for rule in self.eviction}) != len(self.eviction):
            yield "eviction: each rule can stand once; remove the second of its kind"
        users = [
            ("eviction by score", any(isinstance(rule, ByScore) for rule in self.eviction)),
            ("compact by score", self.compact is not None and self.compact.score is not None),
            ("when_full 'lowest_score'", self.when_full == "lowest_score"),
        ]
        for what, needed in users:
            if needed and self.score is None:
                yield f"score: is missing; {what} needs a score: Score(), in a job file {{}}"
        keep = self._keep
        if keep is not None and self.score is not None and keep != self.score.decay:
            yield (
                f"admission.keep is {keep:g}, score.decay {self.score.decay:g}: all counts of a table "
                "fade together; leave keep away"
            )

    @property
    def _keep(self) -> float | None:
        """Factor of counts that the admission itself has."""
        return self.admission.keep if isinstance(self.admission, ByCount | ByBloom) else None

    @property
    def decay_factor(self) -> float:
        """Factor of all counts of the table at a maintenance; 1: no decay."""
        keep = self._keep if self.score is None else self.score.decay
        return 1.0 if keep is None else keep

    @property
    def maintained(self) -> bool:
        """True if a maintenance has any effect."""
        return bool(self.eviction) or self.decay_factor < 1

    @property
    def dim(self) -> int:
        """Floats of all parts: the width of pulled rows and pushed gradients."""
        return sum(part.dim for part in self.parts)

    @property
    def state_floats(self) -> int:
        """Floats of state of a wide row: counters, scales, and optimizer state."""
        scales = len(self.parts) if self.storage == "int8" else 0
        own = sum(part.state_floats for part in self.parts)
        return self.needs_seen + 2 * self.needs_counts + scales + own

    @property
    def needs_seen(self) -> bool:
        """True if a row stores the time of its last push."""
        by_age = any(isinstance(rule, ByAge) for rule in self.eviction)
        catches_up = any(part.optimizer.catches_up for part in self.parts)
        return by_age or catches_up or self.when_full == "oldest"

    @property
    def needs_counts(self) -> bool:
        """True if a row stores its shows and clicks."""
        return self.score is not None or self.compact is not None

    @property
    def takes_counts(self) -> bool:
        """True if pushes must include shows and clicks of each key."""
        by_count = isinstance(self.admission, ByCount | ByBloom)
        clips = any(part.optimizer.modifiers()[2:].any() for part in self.parts)
        return self.needs_counts or by_count or clips

    @property
    def narrow_parts(self) -> int:
        """Parts of a narrow row; 0: no narrow rows."""
        names = [part.name for part in self.parts]
        return names.index(self.compact.wide_from) if self.compact else 0

    @property
    def wide_only_dim(self) -> int:
        """Floats missing from a narrow row."""
        return sum(part.dim for part in self.parts[self.narrow_parts :]) if self.compact else 0

    def now(self, step: int, time_s: float) -> float:
        """Time of a record in the unit of this table's clock.

        Rows store it as float32. Beyond 2^24 (16.8 million) steps adjacent steps become indistinguishable, so
        weight decay of rows pushed at every step grows coarse there.
        """
        return float(step) if self.clock == "steps" else time_s

    def part_seed(self, part: PartSpec) -> int:
        """Seed of one part's initial values: a hash of (seed, table, part)."""
        return text_hash(str(self.seed), self.name, part.name)

    def to_dict(self) -> dict[str, object]:
        """Plain form for the wire and for manifests; omits defaults of added settings."""
        plain: dict[str, object] = {
            "name": self.name,
            "seed": self.seed,
            "parts": [part.to_dict() for part in self.parts],
        }
        for field in fields(TablePolicies):
            value = getattr(self, field.name)
            if value != field.default:
                plain[field.name] = _plain(value)
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> TableSpec:
        """Inverse of `to_dict`; raises ConfigurationError if invalid."""
        known = {field.name for field in fields(TableSpec)}
        if unknown := sorted(set(plain) - known):
            raise ConfigurationError(
                f"table {plain.get('name')}: unknown {unknown[0]!r}; it takes {', '.join(sorted(known))}"
            )
        try:
            return TableSpec(
                name=str(plain["name"]),
                parts=tuple(_part_from_dict(part) for part in plain["parts"]),
                seed=int(plain["seed"]),
                **{key: _policy(plain, key) for key in settings_of(TablePolicies) if key in plain},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"table description: {type(error).__name__}: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, Policy):
        return value.to_dict()
    return [rule.to_dict() for rule in value] if isinstance(value, tuple) else value


def _part_from_dict(part: Mapping[str, Any]) -> PartSpec:
    return PartSpec(
        name=str(part["name"]),
        dim=int(part["dim"]),
        optimizer=optimizer_from_dict(part["optimizer"]),
        initializer=initializer_from_dict(part["initializer"]),
    )


def _policy(table: Mapping[str, Any], key: str) -> Any:
    """Inverse of `_plain` for one of the `TablePolicies`."""
    plain, setting, at = table[key], settings_of(TablePolicies)[key][1], f"table {table['name']}: {key}"
    if setting is None or not setting.kinds or plain is None:
        return plain
    if isinstance(plain, list):
        return tuple(read_named(f"{at}.{place}", one, setting.names) for place, one in enumerate(plain))
    return read_named(at, plain, setting.names)


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """All dense parameters of a model as one float32 vector, in blocks of equal size over the servers.

    Attributes
    ----------
    length : int
        Floats of all dense parameters together, 0..2^40.
    optimizer : Optimizer
        Elementwise, so that the block bounds do not matter.

    Raises
    ------
    ConfigurationError
        If the optimizer mixes elements (RowwiseAdagrad, or clipping) or the length is out of range.
    """

    length: int
    optimizer: Optimizer

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.length <= DENSE_LENGTH_MAX:
            raise ConfigurationError(
                f"dense parameters: length must be in 0..{DENSE_LENGTH_MAX}, got {self.length}"
            )
        if problem := dense_problem(self.optimizer):
            raise ConfigurationError(f"dense parameters: {problem}")


def counter_names(spec: TableSpec) -> tuple[str, ...]:
    """Counters of a row of this table, in storage order."""
    seen = ("last_seen",) if spec.needs_seen else ()
    return (*seen, "shows", "clicks") if spec.needs_counts else seen


def scale_name(part: PartSpec) -> str:
    """Name of the scale of one part of an int8 row."""
    return f"{part.name}_scale"


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of the arrays returned by ``Store.export_partition`` for rows of one class.

    Attributes
    ----------
    parts : tuple of PartSpec
        Parts of these rows.
    head : tuple of str
        Names of the scalars at the head of the state: counters, then scales.
    """

    parts: tuple[PartSpec, ...]
    head: tuple[str, ...]

    @staticmethod
    def of(spec: TableSpec, narrow: bool = False) -> RowLayout:
        """Layout of the wide rows of a table, or of the narrow ones."""
        parts = spec.parts[: spec.narrow_parts] if narrow else spec.parts
        scales = tuple(scale_name(part) for part in parts) if spec.storage == "int8" else ()
        return RowLayout(parts, (*counter_names(spec), *scales))

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return sum(part.dim for part in self.parts)

    @property
    def state_floats(self) -> int:
        """Floats of its state, including counters and scales."""
        return len(self.head) + sum(part.state_floats for part in self.parts)

    def columns(self) -> Iterator[tuple[PartSpec, slice, slice]]:
        """Each part with its columns in the weights and in the state."""
        at, state_at = 0, len(self.head)
        for part in self.parts:
            yield part, slice(at, at + part.dim), slice(state_at, state_at + part.state_floats)
            at += part.dim
            state_at += part.state_floats
