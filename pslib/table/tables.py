"""Table specification: named parts in one row, each with its own optimizer and initializer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pslib.errors import ConfigurationError
from pslib.keywords import Keywords
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
    policy_from_dict,
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

POLICY_KINDS: Mapping[str, tuple[type[Policy], ...]] = {
    "admission": ADMISSIONS,
    "eviction": EVICTIONS,
    "score": (Score,),
    "compact": (Compact,),
}
"""Policy classes accepted by each setting of a table."""

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


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


@dataclass(frozen=True, slots=True)
class TableSpec(metaclass=Keywords):
    """Named set of rows of one layout, distributed over servers.

    Attributes
    ----------
    name : str
        An identifier; also the stem of the table's checkpoint files.
    parts : sequence of PartSpec
        Parts in the order of their floats in a row.
    seed : int
        Seed of initial values, 0..2^63-1.
    storage : {"float32", "bfloat16", "float16", "int8"}
        Type of weights in memory; stores round stochastically, and users see float32.
    admission : ByCount, ByBloom, ByChance or None
        Keys that get rows; None: every pushed key.
    eviction : sequence of ByAge, ByNorm, ByScore
        Rows evicted at a maintenance.
    score : Score or None
        Score of a row.
    compact : Compact or None
        Time at which a row gets its later parts; None: at once.
    clock : {"steps", "seconds"}
        Unit of row age; weight decay counts steps.
    when_full : {"refuse", "oldest", "smallest_norm", "lowest_score"}
        Action for new rows at the memory limit of a server.

    Raises
    ------
    ConfigurationError
        If names repeat, there are no parts or more than PARTS_MAX, or policies conflict; lists all problems
        at once.
    """

    name: str
    parts: tuple[PartSpec, ...]
    seed: int = 0
    storage: str = "float32"
    admission: Admission | None = None
    eviction: tuple[Eviction, ...] = ()
    score: Score | None = None
    compact: Compact | None = None
    clock: str = "steps"
    when_full: str = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eviction", _rules(self.eviction))
        check_fields(self, "name", "parts", "seed", "storage", "clock", "when_full")
        if not self.name.isidentifier():
            raise ConfigurationError(f"table name: expected an identifier, got {self.name!r}")
        if (size := len(self.name.encode())) > NAME_BYTES_MAX:
            raise ConfigurationError(
                f"table name: expected at most {NAME_BYTES_MAX} bytes, got {size}: {self.name!r:.40}..."
            )
        problems = [*self._part_problems(), *self._choice_problems(), *self._policy_problems()]
        if problems:
            raise ConfigurationError(*(f"table {self.name}: {problem}" for problem in problems))

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

    def _choice_problems(self) -> Iterator[str]:
        for name, value, known in (
            ("storage", self.storage, STORAGES),
            ("clock", self.clock, CLOCKS),
            ("when_full", self.when_full, WHEN_FULL),
        ):
            if value not in known:
                yield f"{name}: expected one of {', '.join(known)}, got {value!r}"

    def _policy_problems(self) -> Iterator[str]:
        for name, value, kinds in (
            ("admission", self.admission, (*ADMISSIONS, type(None))),
            ("score", self.score, (Score, type(None))),
            ("compact", self.compact, (Compact, type(None))),
            *(("eviction", rule, EVICTIONS) for rule in self.eviction),
        ):
            if not isinstance(value, kinds):
                names = ", ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                yield f"{name}: expected one of {names}, got {came(value)}"
        if len({type(rule) for rule in self.eviction}) != len(self.eviction):
            yield "eviction: each rule can stand once; remove the second of its kind"
        yield from self._score_problems()
        later = [part.name for part in self.parts[1:]]
        if isinstance(self.compact, Compact) and self.compact.wide_from not in later:
            known = f"one of the parts after the first, {later}" if later else "a table of two parts or more"
            yield f"compact.wide_from: expected {known}, got {self.compact.wide_from!r}"

    def _score_problems(self) -> Iterator[str]:
        """Check that policies that need a score have one, and that all counts decay equally."""
        users = [
            ("eviction by score", any(isinstance(rule, ByScore) for rule in self.eviction)),
            ("compact by score", isinstance(self.compact, Compact) and self.compact.score is not None),
            ("when_full 'lowest_score'", self.when_full == "lowest_score"),
        ]
        for what, needed in users:
            if needed and self.score is None:
                yield f"score: is missing; {what} needs a score: Score(), in a job file {{}}"
        keep = self.admission.keep if isinstance(self.admission, ByCount | ByBloom) else None
        if keep is not None and isinstance(self.score, Score) and keep != self.score.decay:
            yield (
                f"admission.keep is {keep:g}, score.decay {self.score.decay:g}: all counts of a table "
                "fade together; leave keep away"
            )

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

    @property
    def decay_factor(self) -> float:
        """Factor of all counts of the table at a maintenance; 1: no decay."""
        if self.score is not None:
            return self.score.decay
        keep = self.admission.keep if isinstance(self.admission, ByCount | ByBloom) else None
        return 1.0 if keep is None else keep

    @property
    def maintained(self) -> bool:
        """True if a maintenance has any effect."""
        return bool(self.eviction) or self.decay_factor < 1

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
        for field in fields(self)[3:]:
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
                **policies_from_dict(plain, f"table {plain['name']}: "),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"table description: {type(error).__name__}: {error}") from error


def _rules(given: object) -> tuple[Any, ...]:
    """Sequence as a tuple; a single rule becomes a tuple of one."""
    return tuple(given) if isinstance(given, Iterable) else (given,)


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


def policies_from_dict(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Arguments of `TableSpec` from the plain form of its policies; ``prefix`` begins every problem line.

    Raises
    ------
    ConfigurationError
        If a policy is invalid, or one of its numbers is out of range; lists all problems at once.
    """
    values = {key: str(plain[key]) for key in ("storage", "clock", "when_full") if key in plain}
    found: dict[str, Any] = dict(values)
    problems: list[str] = []
    for key, kinds in POLICY_KINDS.items():
        given = plain.get(key)
        rules = [] if given is None else given if key == "eviction" else [given]
        policies = []
        for rule in rules:
            try:
                policies.append(policy_from_dict(rule, kinds))
            except ConfigurationError as error:
                problems += [f"{prefix}{key}: {line}" for line in error.problems]
        if policies:
            found[key] = tuple(policies) if key == "eviction" else policies[0]
    if problems:
        raise ConfigurationError(*problems)
    return found


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
