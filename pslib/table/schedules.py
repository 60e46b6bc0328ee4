"""Learning-rate schedules: a factor for each step, as a function of the step number only.

Trainers evaluate the schedule and send the factor with their pushes. So servers keep no step count, and a
trainer that takes over a batch sends the same factor. A new schedule is a dataclass here and an entry in
`SCHEDULES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from numbers import Integral
from typing import Any

from pslib.errors import ConfigurationError
from pslib.validation import came, check_fields, is_finite, kind_and_fields

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Linear",
    "Schedule",
    "StepDecay",
    "schedule_from_dict",
]

BATCHES_MAX = 1 << 40
"""Upper bound of batches, beyond any training."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Base of all schedules: a linear warm-up, then the factor of the subclass.

    ``factor(step) = min(1, (step + 1) / warmup) * after(step)``, at least ``floor``.

    Attributes
    ----------
    warmup : int
        Batches up to the full rate, in equal steps from ``1 / warmup`` on; 0: none.
        Source: Goyal et al., arXiv:1706.02677, section 2.2.
    floor : float
        Lower bound of factors after the warm-up; 0..1.
    """

    _: KW_ONLY
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigurationError(*problems)
        check_fields(self)

    def _problems(self) -> Iterator[str]:
        yield from _whole(self, "warmup", 0)
        if not is_finite(self.floor) or not 0 <= self.floor <= 1:
            yield f"{type(self).__name__}.floor: expected a number in 0..1, got {came(self.floor)}"

    @property
    def is_constant(self) -> bool:
        """Whether every factor is 1."""
        return False

    def factor(self, step: int) -> float:
        """Factor of the learning rates for batch ``step`` of the training, from 0."""
        begin = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return begin * max(self.floor, self._after(step))

    def _after(self, step: int) -> float:
        raise TypeError(f"{type(self).__name__} is the base of schedules; use one of {', '.join(SCHEDULES)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain form; `schedule_from_dict` is the inverse."""
        return {"name": type(self).__name__} | asdict(self)


@dataclass(frozen=True, slots=True)
class Constant(Schedule):
    """Full rate after the warm-up."""

    @property
    def is_constant(self) -> bool:
        """Whether there is no warm-up."""
        return self.warmup == 0

    def _after(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class InverseSqrt(Schedule):
    """``sqrt(batches / max(step, batches))``: full rate up to ``batches``, half of it at four times that.

    Source: Vaswani et al., arXiv:1706.03762, section 5.3, without its scale.
    """

    batches: int = 10_000

    def _problems(self) -> Iterator[str]:
        yield from Schedule._problems(self)
        yield from _whole(self, "batches", 1)

    def _after(self, step: int) -> float:
        return math.sqrt(self.batches / max(step, self.batches))


@dataclass(frozen=True, slots=True)
class Cosine(Schedule):
    """``(1 + cos(pi * min(step / batches, 1))) / 2``: from 1 to 0 (or ``floor``) over ``batches``.

    Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts.
    """

    batches: int = 10_000

    def _problems(self) -> Iterator[str]:
        yield from Schedule._problems(self)
        yield from _whole(self, "batches", 1)

    def _after(self, step: int) -> float:
        return (1 + math.cos(math.pi * min(step / self.batches, 1.0))) / 2


@dataclass(frozen=True, slots=True)
class Linear(Schedule):
    """Full rate for ``hold`` batches, then linear decay to 0 (or ``floor``) at ``batches``.

    ``min(1, max(0, (batches - step) / (batches - hold)))``. Late features are still learnt at the full rate,
    and the decay at the end removes noise. Source: Hägele et al., arXiv:2405.18392, a constant rate with a
    linear cooldown; with ``hold`` 0 the decay begins at once.
    """

    batches: int = 10_000
    hold: int = 0

    def _problems(self) -> Iterator[str]:
        yield from Schedule._problems(self)
        wrong = [*_whole(self, "batches", 1), *_whole(self, "hold", 0)]
        yield from wrong
        if not wrong and self.hold >= self.batches:
            yield f"Linear.hold: expected fewer than batches = {self.batches}, got {self.hold}"

    def _after(self, step: int) -> float:
        return min(1.0, max(0.0, (self.batches - step) / (self.batches - self.hold)))


@dataclass(frozen=True, slots=True)
class StepDecay(Schedule):
    """``ratio ** (step // every)``: multiplied by ``ratio`` once every ``every`` batches."""

    every: int = 10_000
    ratio: float = 0.5

    def _problems(self) -> Iterator[str]:
        yield from Schedule._problems(self)
        yield from _whole(self, "every", 1)
        if not is_finite(self.ratio) or not 0 < self.ratio <= 1:
            yield f"StepDecay.ratio: expected a number above 0 and at most 1, got {came(self.ratio)}"

    def _after(self, step: int) -> float:
        return float(self.ratio ** (step // self.every))


SCHEDULES: dict[str, type[Schedule]] = {
    kind.__name__: kind for kind in (Constant, InverseSqrt, Cosine, Linear, StepDecay)
}
"""All schedules by name."""


def schedule_from_dict(plain: Mapping[str, Any]) -> Schedule:
    """Inverse of `Schedule.to_dict`.

    Raises
    ------
    ConfigurationError
        If the name or a field is unknown, or a number is out of range.
    """
    kind, values = kind_and_fields("schedule", plain, SCHEDULES)
    return kind(**values)


def _whole(schedule: Schedule, name: str, least: int) -> Iterator[str]:
    value = getattr(schedule, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= BATCHES_MAX:
        expected = f"a whole number in {least}..{BATCHES_MAX}"
        yield f"{type(schedule).__name__}.{name}: expected {expected}, got {came(value)}"
