"""Table policies: admission of keys, eviction of rows, decay of counts, and promotion to wide rows.

The rules are those of PaddlePaddle's accessor (``paddle/fluid/distributed/ps/table/ctr_accessor.cc``,
CtrCommonAccessor) and of DeepRec's embedding variables, as values. They act only through records (push,
maintain), so the same records give the same rows on any number of servers. Kernels:
``cython_ext/table/policies.h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from pslib.settings import Setting, Settings
from pslib.validation import came

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

BLOOM_COUNT_MAX = 255
"""A counter of the filter is one byte."""

BLOOM_COUNTERS = (1 << 6, 1 << 27)
"""Counters per partition of a table: from one cache line to 128 MiB."""


Keep = Annotated[
    float | None,
    Setting(
        "Factor of counts at each maintenance, rounded down; a key is forgotten at 0. None: the table's "
        "`Score.decay`, and 1 for a table without score.",
        ge=0,
        le=1,
        float32=True,
    ),
]


@dataclass(frozen=True, slots=True)
class Policy(Settings):
    """Base of all policies."""

    kind: ClassVar[int]
    """Number of the policy in the kernels."""

    def to_dict(self) -> dict[str, Any]:
        """Plain form for the wire and for manifests; `pslib.settings.read_named` is the inverse."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": type(self).__name__} | {
            key: value for key, value in numbers.items() if value is not None
        }


# --- admission of keys -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByCount(Policy):
    """Admit a key in the push with its ``count``-th show; counts are exact.

    A counted key costs a cell of the index and no row. Until then pulls return its initial value and its
    gradients are dropped. Source: DeepRec's counter filter; PaddlePaddle's ``CountFilterEntry``.
    """

    kind: ClassVar[int] = 1
    count: Annotated[int, Setting("Shows.", ge=1, le=COUNT_MAX)] = 2
    keep: Keep = None

    def numbers(self) -> tuple[int, float, int]:
        """Kernel arguments: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), 0


@dataclass(frozen=True, slots=True)
class ByBloom(Policy):
    """Like `ByCount`, with counts estimated by one counting Bloom filter per partition.

    A filter never undercounts, up to 255; a key that shares its counters with others is admitted early. It
    takes ``counters`` bytes per partition for any number of keys. Source: Fan, Cao, Almeida and Broder,
    Summary Cache, IEEE/ACM Transactions on Networking 8(3), 2000, with the conservative update of Estan and
    Varghese, SIGCOMM 2002.
    """

    kind: ClassVar[int] = 2
    count: Annotated[int, Setting("Shows.", ge=1, le=BLOOM_COUNT_MAX)] = 2
    counters: Annotated[
        int,
        Setting("Counters per partition, a power of two.", ge=BLOOM_COUNTERS[0], le=BLOOM_COUNTERS[1]),
    ] = 1 << 14
    keep: Keep = None

    def _problems(self) -> Iterator[str]:
        if self.counters & (self.counters - 1):
            nearest = 1 << (self.counters - 1).bit_length()
            yield f"counters: expected a power of two, got {self.counters}; the next is {nearest}"

    def numbers(self) -> tuple[int, float, int]:
        """Kernel arguments: (kind, number, counters of a filter)."""
        return self.kind, float(self.count), self.counters


@dataclass(frozen=True, slots=True)
class ByChance(Policy):
    """Admit a key with this probability at each push that contains it; stateless.

    The random bits are a hash of key and push, the same on any server. Source: PaddlePaddle's
    ``ProbabilityEntry``; McMahan et al., Ad Click Prediction (KDD 2013), section 3.1, "Poisson inclusion".
    """

    kind: ClassVar[int] = 3
    probability: Annotated[float, Setting("Of each push.", gt=0, le=1, float32=True)] = 0.1

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
    age: Annotated[float, Setting("In the unit of the table's clock.", ge=0, float32=True)]

    @property
    def number(self) -> float:
        """Kernel argument."""
        return float(self.age)


@dataclass(frozen=True, slots=True)
class ByNorm(Policy):
    """Evict a row when the L2 norm of all its weights is below ``norm``. Source: DeepRec's L2 eviction."""

    kind: ClassVar[int] = 1
    norm: Annotated[float, Setting("L2 norm of all weights of a row.", gt=0, float32=True)] = 1e-4

    @property
    def number(self) -> float:
        """Kernel argument."""
        return float(self.norm)


@dataclass(frozen=True, slots=True)
class ByScore(Policy):
    """Evict a row when its `Score` is below ``score``. Source: PaddlePaddle's ``delete_threshold``."""

    kind: ClassVar[int] = 2
    score: Annotated[float, Setting("`Score` of a row.", gt=0, float32=True)] = 0.8

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
    """

    kind: ClassVar[int] = 0
    nonclick: Annotated[float, Setting("Score of a show without a click.", ge=0, float32=True)] = 0.1
    click: Annotated[float, Setting("Score of a click.", ge=0, float32=True)] = 1.0
    decay: Annotated[
        float, Setting("Factor of shows and clicks at each maintenance.", ge=0, le=1, float32=True)
    ] = 0.98


@dataclass(frozen=True, slots=True)
class Compact(Policy):
    """Create rows narrow; add the parts from ``wide_from`` on once a row reaches a threshold.

    Until then a row stores its first parts only, and pulls return initial values of the others. Source:
    PaddlePaddle's ``embedx_threshold`` for ``embedx``.
    """

    kind: ClassVar[int] = 0
    wide_from: Annotated[str, Setting("Name of a part after the first.")]
    shows: Annotated[
        float | None, Setting("Shows from which a row is wide; this or a score.", gt=0, float32=True)
    ] = None
    score: Annotated[float | None, Setting("`Score` from which a row is wide.", gt=0, float32=True)] = None

    def _problems(self) -> Iterator[str]:
        if (self.shows is None) == (self.score is None):
            given = f"shows={came(self.shows)}, score={came(self.score)}"
            yield f"shows, score: expected exactly one of them, got {given}"

    def promotion(self) -> tuple[int, float]:
        """Kernel arguments: (1 by shows | 2 by score, number)."""
        return (1, float(self.shows)) if self.shows is not None else (2, float(self.score or 0.0))


Admission = ByCount | ByBloom | ByChance
Eviction = ByAge | ByNorm | ByScore
ADMISSIONS: tuple[type[Policy], ...] = (ByCount, ByBloom, ByChance)
EVICTIONS: tuple[type[Policy], ...] = (ByAge, ByNorm, ByScore)
