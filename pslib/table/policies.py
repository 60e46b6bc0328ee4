"""Table policies: admission of keys, eviction of rows, decay of counts, and promotion to wide rows.

The rules are those of PaddlePaddle's accessor (``paddle/fluid/distributed/ps/table/ctr_accessor.cc``,
CtrCommonAccessor) and of DeepRec's embedding variables, as values. They act only through records (push,
maintain), so the same records give the same rows on any number of servers. Kernels:
``cython_ext/table/policies.h``.
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
"""Storage types of weights, in the kernel's order; all arithmetic is float32."""
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of one weight, by storage."""

CLOCKS = ("steps", "seconds")
"""Units of row age: batches of the training, or seconds of the coordinator's clock."""

WHEN_FULL = ("refuse", "oldest", "smallest_norm", "lowest_score")
"""Action of a server at its memory limit: refuse new rows, or evict the worst rows of the table."""

COUNT_MAX = 65535
"""Exact counts are stored in 16 bits of an index cell."""

FLOAT_MAX = 3.4028234663852886e38
"""Largest float32: a larger number of a policy would be infinite in the kernels."""

BLOOM_COUNT_MAX = 255
"""A counter of the filter is one byte."""

BLOOM_COUNTERS = (1 << 6, 1 << 27)
"""Counters per partition of a table: from one cache line to 128 MiB."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Base of all policies; a subclass lists its problems in `problems`.

    Raises
    ------
    ConfigurationError
        If numbers are out of range; lists all at once.
    """

    kind: ClassVar[int]
    """Number of the policy in the kernels."""

    def __post_init__(self) -> None:
        if found := [f"{type(self).__name__}.{text}" for text in self.problems()]:
            raise ConfigurationError(*found)
        check_fields(self)

    def problems(self) -> Iterable[str]:
        """Out-of-range numbers, one line each."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Plain form for the wire and for manifests; `policy_from_dict` is the inverse."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": type(self).__name__} | {
            key: value for key, value in numbers.items() if value is not None
        }


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> list[str]:
    """Problem line unless ``low <= value <= high`` (``low < value`` if open), as float32 for the kernels."""
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


# --- admission of keys -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByCount(Policy):
    """Admit a key in the push with its ``count``-th show; counts are exact.

    A counted key costs a cell of the index and no row. Until then pulls return its initial value and its
    gradients are dropped. Source: DeepRec's counter filter; PaddlePaddle's ``CountFilterEntry``.

    Attributes
    ----------
    count : int
        Shows, 1..65535.
    keep : float or None
        Factor of counts at each maintenance, rounded down; a key is forgotten at 0. None: the table's
        `Score.decay`, and 1 for a table without score.
    """

    kind: ClassVar[int] = 1
    count: int = 2
    keep: float | None = None

    def problems(self) -> Iterable[str]:
        """Problems of both numbers."""
        return [*_whole("count", self.count, 1, COUNT_MAX), *_keep(self.keep)]

    def numbers(self) -> tuple[int, float, int]:
        """Kernel arguments: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), 0


@dataclass(frozen=True, slots=True)
class ByBloom(Policy):
    """As `ByCount`, with counts estimated by one counting Bloom filter per partition.

    A filter never undercounts, up to 255; a key that shares its counters with others is admitted early. It
    takes ``counters`` bytes per partition for any number of keys. Source: Fan, Cao, Almeida and Broder,
    Summary Cache, IEEE/ACM Transactions on Networking 8(3), 2000, with the conservative update of Estan and
    Varghese, SIGCOMM 2002.

    Attributes
    ----------
    count : int
        Shows, 1..255.
    counters : int
        Counters per partition: a power of two in 2^6..2^27.
    keep : float or None
        As for `ByCount`.
    """

    kind: ClassVar[int] = 2
    count: int = 2
    counters: int = 1 << 14
    keep: float | None = None

    def problems(self) -> Iterable[str]:
        """Problems of all numbers."""
        low, high = BLOOM_COUNTERS
        found = _whole("count", self.count, 1, BLOOM_COUNT_MAX) + _whole("counters", self.counters, low, high)
        if not found and self.counters & (self.counters - 1):
            nearest = 1 << (self.counters - 1).bit_length()
            found = [f"counters: expected a power of two, got {self.counters}; the next is {nearest}"]
        return [*found, *_keep(self.keep)]

    def numbers(self) -> tuple[int, float, int]:
        """Kernel arguments: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), self.counters


@dataclass(frozen=True, slots=True)
class ByChance(Policy):
    """Admit a key with this probability at each push that contains it; stateless.

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
        """Problems of the probability."""
        return _number("probability", self.probability, 0, 1, open_low=True)

    def numbers(self) -> tuple[int, float, int]:
        """Kernel arguments: (kind, number, counters of a filter)."""
        return self.kind, float(self.probability), 0


# --- eviction of rows at a maintenance ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByAge(Policy):
    """Evict a row without a push for more than ``age``, in the unit of the table's clock.

    The unit is batches of the training, or seconds: no number fits both, so there is no default. Source:
    PaddlePaddle's ``delete_after_unseen_days``.
    """

    kind: ClassVar[int] = 0
    age: float

    def problems(self) -> Iterable[str]:
        """Problems of the age."""
        return _number("age", self.age, 0, math.inf)

    @property
    def number(self) -> float:
        """Kernel argument."""
        return float(self.age)


@dataclass(frozen=True, slots=True)
class ByNorm(Policy):
    """Evict a row when the L2 norm of all its weights is below ``norm``. Source: DeepRec's L2 eviction."""

    kind: ClassVar[int] = 1
    norm: float = 1e-4

    def problems(self) -> Iterable[str]:
        """Problems of the norm."""
        return _number("norm", self.norm, 0, math.inf, open_low=True)

    @property
    def number(self) -> float:
        """Kernel argument."""
        return float(self.norm)


@dataclass(frozen=True, slots=True)
class ByScore(Policy):
    """Evict a row when its `Score` is below ``score``. Source: PaddlePaddle's ``delete_threshold``."""

    kind: ClassVar[int] = 2
    score: float = 0.8

    def problems(self) -> Iterable[str]:
        """Problems of the score."""
        return _number("score", self.score, 0, math.inf, open_low=True)

    @property
    def number(self) -> float:
        """Kernel argument."""
        return float(self.score)


# --- score of a row, and promotion to a wide row -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score(Policy):
    """``score = (shows - clicks) * nonclick + clicks * click``; both counts decay at each maintenance.

    Source: PaddlePaddle's accessor: ``nonclk_coeff``, ``click_coeff`` and ``show_click_decay_rate``, with its
    defaults.

    Attributes
    ----------
    nonclick, click : float
        Score of a show without a click, and of a click.
    decay : float
        Factor of shows and clicks at each maintenance, 0..1.
    """

    kind: ClassVar[int] = 0
    nonclick: float = 0.1
    click: float = 1.0
    decay: float = 0.98

    def problems(self) -> Iterable[str]:
        """Problems of all numbers."""
        return [
            *_number("nonclick", self.nonclick, 0, math.inf),
            *_number("click", self.click, 0, math.inf),
            *_number("decay", self.decay, 0, 1),
        ]


@dataclass(frozen=True, slots=True)
class Compact(Policy):
    """Create rows narrow; add the parts from ``wide_from`` on once a row reaches a threshold.

    Until then a row stores its first parts only, and pulls return initial values of the others. Source:
    PaddlePaddle's ``embedx_threshold`` for ``embedx``.

    Attributes
    ----------
    wide_from : str
        Name of a part after the first.
    shows, score : float or None
        Exactly one: the number of shows, or the `Score`, at which a row becomes wide.
    """

    kind: ClassVar[int] = 0
    wide_from: str
    shows: float | None = None
    score: float | None = None

    def problems(self) -> Iterable[str]:
        """Problems of both thresholds."""
        if (self.shows is None) == (self.score is None):
            given = f"shows={came(self.shows)}, score={came(self.score)}"
            return [f"shows, score: expected exactly one of them, got {given}"]
        if self.shows is not None:
            return _number("shows", self.shows, 0, math.inf, open_low=True)
        return _number("score", self.score, 0, math.inf, open_low=True)

    def promotion(self) -> tuple[int, float]:
        """Kernel arguments: (1 by shows | 2 by score, number)."""
        return (1, float(self.shows)) if self.shows is not None else (2, float(self.score or 0.0))


Admission = ByCount | ByBloom | ByChance
Eviction = ByAge | ByNorm | ByScore
ADMISSIONS: tuple[type[Policy], ...] = (ByCount, ByBloom, ByChance)
EVICTIONS: tuple[type[Policy], ...] = (ByAge, ByNorm, ByScore)
PolicyT = TypeVar("PolicyT", bound=Policy)


def policy_from_dict(plain: Mapping[str, Any], kinds: Iterable[type[PolicyT]]) -> PolicyT:
    """Inverse of `Policy.to_dict`.

    Parameters
    ----------
    plain : mapping
        ``name`` and the numbers of one policy; with a single kind the name is optional.
    kinds : iterable of type
        Accepted policy classes.

    Raises
    ------
    ConfigurationError
        If the name or a number is unknown, or a number is out of range; lists all problems at once.
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
