"""What a table does at the limit of its memory: which keys earn rows, which rows leave, how counts fade.

The rules are those of PaddlePaddle's accessor (``paddle/fluid/distributed/ps/table/ctr_accessor.cc``,
CtrCommonAccessor) and of DeepRec's embedding variables, as values. They act through records (push, maintain)
alone, so the same records give the same rows on any number of servers. Kernels:
``cython_ext/table/admission.h``, ``promotion.h`` and ``eviction.h``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar

from pslib.errors import ConfigurationError
from pslib.validation import came, check_fields

__all__ = [
    "ADMISSIONS",
    "CLOCKS",
    "EVICTIONS",
    "STORAGES",
    "WEIGHT_BYTES",
    "WHEN_FULL",
    "Admission",
    "ByAge",
    "ByBloom",
    "ByChance",
    "ByCount",
    "ByNorm",
    "ByScore",
    "Compact",
    "Eviction",
    "Policy",
    "Score",
    "policy_from_dict",
]

STORAGES = ("float32", "bfloat16", "float16", "int8")
"""How weights lie in memory, in the kernel's order; all arithmetic is float32."""
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Of one weight, by storage."""

CLOCKS = ("steps", "seconds")
"""Units in which a table's rows age: batches of the training, or seconds of its coordinator's clock."""

WHEN_FULL = ("refuse", "oldest", "smallest_norm", "lowest_score")
"""What a server does at its memory limit: refuse new rows, or let the worst of the table's rows go."""

COUNT_MAX = 65535
"""An exact count lies in 16 bits of an index cell."""

FLOAT_MAX = 3.4028234663852886e38
"""The largest float32: beyond it a number of a policy would be infinite in the kernels."""

BLOOM_COUNT_MAX = 255
"""A counter of the filter is one byte."""

BLOOM_COUNTERS = (1 << 6, 1 << 27)
"""From one cache line to 128 MiB for each partition of a table."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Base of all policies; a subclass names its problems in `problems`.

    Raises
    ------
    ConfigurationError
        When numbers are out of range; all of them at once.
    """

    kind: ClassVar[int]
    """The number by which the kernels know it."""

    def __post_init__(self) -> None:
        if found := [f"{type(self).__name__}.{text}" for text in self.problems()]:
            raise ConfigurationError(*found)
        check_fields(self)

    def problems(self) -> Iterable[str]:
        """One line for each number that is out of range."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Plain form for the wire and for manifests; `policy_from_dict` reads it back."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": type(self).__name__} | {
            key: value for key, value in numbers.items() if value is not None
        }


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> list[str]:
    """A problem unless ``low <= value <= high`` (``low < value`` when open); kernels take it as float32."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= min(high, FLOAT_MAX) and not (open_low and value == low):
        return []
    bounds = f"> {low:g}" if open_low else f">= {low:g}"
    top = f" and <= {min(high, FLOAT_MAX):g}" if high < math.inf or (is_number and value > FLOAT_MAX) else ""
    return [f"{name}: expected a finite number {bounds}{top}, got {came(value)}"]


def _whole(name: str, value: object, low: int, high: int) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return []
    return [f"{name}: expected a whole number in {low}..{high}, got {came(value)}"]


def _keep(value: float | None) -> list[str]:
    return [] if value is None else _number("keep", value, 0, 1)


# --- admission: which keys earn a row ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByCount(Policy):
    """A key gets its row in the push in which it has been shown ``count`` times; counted exactly.

    A counted key costs a cell of the index and no row. Until then it pulls its first value and its gradients
    are dropped. Source: DeepRec's counter filter; PaddlePaddle's ``CountFilterEntry``.

    Attributes
    ----------
    count : int
        Shows, 1..65535.
    keep : float or None
        Counts are multiplied by it at each maintenance, rounded down; at 0 a key is forgotten. None: the
        table's `Score.decay`, and 1 for a table without score.
    """

    kind: ClassVar[int] = 1
    count: int = 2
    keep: float | None = None

    def problems(self) -> Iterable[str]:
        """Of both numbers."""
        return [*_whole("count", self.count, 1, COUNT_MAX), *_keep(self.keep)]

    def numbers(self) -> tuple[int, float, int]:
        """What the kernel takes: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), 0


@dataclass(frozen=True, slots=True)
class ByBloom(Policy):
    """As `ByCount`, with counts that are estimated by a counting Bloom filter, one a partition.

    A filter never counts too little, up to 255; a key that shares its counters with others gets its row
    early. It takes ``counters`` bytes a partition however many keys come. Source: Fan, Cao, Almeida and
    Broder, Summary Cache, IEEE/ACM Transactions on Networking 8(3), 2000, with the conservative update of
    Estan and Varghese, SIGCOMM 2002.

    Attributes
    ----------
    count : int
        Shows, 1..255.
    counters : int
        Of one partition: a power of two in 2^6..2^27.
    keep : float or None
        As for `ByCount`.
    """

    kind: ClassVar[int] = 2
    count: int = 2
    counters: int = 1 << 14
    keep: float | None = None

    def problems(self) -> Iterable[str]:
        """Of all numbers."""
        low, high = BLOOM_COUNTERS
        found = _whole("count", self.count, 1, BLOOM_COUNT_MAX) + _whole("counters", self.counters, low, high)
        if not found and self.counters & (self.counters - 1):
            nearest = 1 << (self.counters - 1).bit_length()
            found = [f"counters: expected a power of two, got {self.counters}; the next is {nearest}"]
        return [*found, *_keep(self.keep)]

    def numbers(self) -> tuple[int, float, int]:
        """What the kernel takes: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), self.counters


@dataclass(frozen=True, slots=True)
class ByChance(Policy):
    """A key gets its row with this probability at each push that names it: nothing is remembered.

    The random bits are a hash of key and push, the same on any server. Source: PaddlePaddle's
    ``ProbabilityEntry``; McMahan et al., Ad Click Prediction (KDD 2013), section 3.1, "Poisson inclusion".

    Attributes
    ----------
    probability : float
        Above 0, at most 1.
    """

    kind: ClassVar[int] = 3
    probability: float = 0.1

    def problems(self) -> Iterable[str]:
        """Of the probability."""
        return _number("probability", self.probability, 0, 1, open_low=True)

    def numbers(self) -> tuple[int, float, int]:
        """What the kernel takes: (kind, number, counters of a filter)."""
        return self.kind, float(self.probability), 0


# --- eviction: which rows leave at a maintenance -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByAge(Policy):
    """A row leaves when no push has touched it for more than ``age``, in the unit of the table's clock.

    That is batches of the training, or seconds: no number fits both, so there is no default. Source:
    PaddlePaddle's ``delete_after_unseen_days``.
    """

    kind: ClassVar[int] = 0
    age: float

    def problems(self) -> Iterable[str]:
        """Of the age."""
        return _number("age", self.age, 0, math.inf)

    @property
    def number(self) -> float:
        """The kernel's number."""
        return float(self.age)


@dataclass(frozen=True, slots=True)
class ByNorm(Policy):
    """A row leaves when the L2 norm of all its weights is below ``norm``. Source: DeepRec's L2 eviction."""

    kind: ClassVar[int] = 1
    norm: float = 1e-4

    def problems(self) -> Iterable[str]:
        """Of the norm."""
        return _number("norm", self.norm, 0, math.inf, open_low=True)

    @property
    def number(self) -> float:
        """The kernel's number."""
        return float(self.norm)


@dataclass(frozen=True, slots=True)
class ByScore(Policy):
    """A row leaves when its `Score` is below ``score``. Source: PaddlePaddle's ``delete_threshold``."""

    kind: ClassVar[int] = 2
    score: float = 0.8

    def problems(self) -> Iterable[str]:
        """Of the score."""
        return _number("score", self.score, 0, math.inf, open_low=True)

    @property
    def number(self) -> float:
        """The kernel's number."""
        return float(self.score)


# --- what a row is worth, and when it becomes wide ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score(Policy):
    """``score = (shows - clicks) * nonclick + clicks * click``; both counts fade at each maintenance.

    Source: PaddlePaddle's accessor: ``nonclk_coeff``, ``click_coeff`` and ``show_click_decay_rate``, with its
    defaults.

    Attributes
    ----------
    nonclick, click : float
        What a show without a click, and a click, are worth.
    decay : float
        Shows and clicks are multiplied by it at each maintenance, 0..1.
    """

    kind: ClassVar[int] = 0
    nonclick: float = 0.1
    click: float = 1.0
    decay: float = 0.98

    def problems(self) -> Iterable[str]:
        """Of all numbers."""
        return [
            *_number("nonclick", self.nonclick, 0, math.inf),
            *_number("click", self.click, 0, math.inf),
            *_number("decay", self.decay, 0, 1),
        ]


@dataclass(frozen=True, slots=True)
class Compact(Policy):
    """New rows are narrow; the parts from ``wide_from`` on are given to a row that has proved itself.

    Until then a row costs its first parts alone and pulls the first values of the others. Source:
    PaddlePaddle's ``embedx_threshold``, by which ``embedx`` is given.

    Attributes
    ----------
    wide_from : str
        Name of a part after the first.
    shows, score : float or None
        Exactly one: a row becomes wide at so many shows, or at this `Score`.
    """

    kind: ClassVar[int] = 0
    wide_from: str
    shows: float | None = None
    score: float | None = None

    def problems(self) -> Iterable[str]:
        """Of both thresholds."""
        if (self.shows is None) == (self.score is None):
            given = f"shows={came(self.shows)}, score={came(self.score)}"
            return [f"shows, score: expected exactly one of them, got {given}"]
        if self.shows is not None:
            return _number("shows", self.shows, 0, math.inf, open_low=True)
        return _number("score", self.score, 0, math.inf, open_low=True)

    def promotion(self) -> tuple[int, float]:
        """What the kernel takes: (1 by shows | 2 by score, number)."""
        return (1, float(self.shows)) if self.shows is not None else (2, float(self.score or 0.0))


Admission = ByCount | ByBloom | ByChance
Eviction = ByAge | ByNorm | ByScore
ADMISSIONS: tuple[type[Policy], ...] = (ByCount, ByBloom, ByChance)
EVICTIONS: tuple[type[Policy], ...] = (ByAge, ByNorm, ByScore)
PolicyT = TypeVar("PolicyT", bound=Policy)


def policy_from_dict(plain: Mapping[str, Any], kinds: Iterable[type[PolicyT]]) -> PolicyT:
    """Read back what `Policy.to_dict` wrote.

    Parameters
    ----------
    plain : mapping
        ``name`` and the numbers of one policy; where there is one kind the name may be missing.
    kinds : iterable of type
        What it may be.

    Raises
    ------
    ConfigurationError
        When the name or a number is unknown, or a number is out of range; all problems at once.
    """
    if not isinstance(plain, Mapping):
        raise ConfigurationError(f"policy: expected a mapping with a name, got {plain!r}")
    by_name = {kind.__name__: kind for kind in kinds}
    numbers = dict(plain)
    name = numbers.pop("name", next(iter(by_name)) if len(by_name) == 1 else None)
    if not isinstance(name, str) or name not in by_name:
        raise ConfigurationError(f"policy: expected one of {', '.join(by_name)}, got {name!r}")
    known = [field.name for field in fields(by_name[name])]
    if unknown := [key for key in numbers if key not in known]:
        takes = f"it takes {', '.join(known)}"
        raise ConfigurationError(*(f"{name}: unknown {key!r}; {takes}" for key in unknown))
    needed = [field.name for field in fields(by_name[name]) if field.default is MISSING]
    if missing := [key for key in needed if key not in numbers]:
        takes = f"it takes {', '.join(known)}"
        raise ConfigurationError(*(f"{name}.{key}: is missing; {takes}" for key in missing))
    return by_name[name](**numbers)
