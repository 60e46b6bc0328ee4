"""Learning rates over the training: a factor for each step, from the step's number alone.

Trainers evaluate it and send the factor along with their pushes, so servers have nothing to count, and the
next holder of a lease sends the same. A new schedule is a dataclass here and its entry in `SCHEDULES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Annotated, Any

from pslib.settings import Setting, Settings, read_named

BATCHES_MAX = 1 << 40
"""Upper bound of settings that count batches."""


@dataclass(frozen=True, slots=True)
class Schedule(Settings):
    """Base of all schedules: a linear warm-up, then the factor of the subclass.

    ``factor(step) = min(1, (step + 1) / warmup) * after(step)``, at least ``floor``. Source of the warm-up:
    Goyal et al., arXiv:1706.02677, section 2.2.
    """

    _: KW_ONLY
    warmup: Annotated[
        int,
        Setting(
            "Until the full rate, in equal steps from ``1 / warmup`` on; 0: none.",
            ge=0,
            le=BATCHES_MAX,
            unit="batches",
        ),
    ] = 0
    floor: Annotated[float, Setting("No factor after the warm-up is below it.", ge=0, le=1)] = 0.0

    @property
    def is_constant(self) -> bool:
        """True if every factor is 1."""
        return False

    def factor(self, step: int) -> float:
        """Factor of the learning rates at batch ``step`` of the training, from 0."""
        begin = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return begin * max(self.floor, self._after(step))

    def _after(self, step: int) -> float:
        raise TypeError(f"{type(self).__name__} is the base of schedules; use one of {', '.join(SCHEDULES)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain form; `schedule_from_dict` reads it back."""
        return {"name": type(self).__name__} | asdict(self)


@dataclass(frozen=True, slots=True)
class Constant(Schedule):
    """The full rate after the warm-up."""

    @property
    def is_constant(self) -> bool:
        """True if there is no warm-up."""
        return self.warmup == 0

    def _after(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class InverseSqrt(Schedule):
    """``sqrt(batches / max(step, batches))``: the full rate up to ``batches``, half of it at four times that.

    Source: Vaswani et al., arXiv:1706.03762, section 5.3, without its scale.
    """

    batches: Annotated[
        int,
        Setting(
            "The full rate up to here; half of it at four times that.", ge=1, le=BATCHES_MAX, unit="batches"
        ),
    ] = 10_000

    def _after(self, step: int) -> float:
        return math.sqrt(self.batches / max(step, self.batches))


@dataclass(frozen=True, slots=True)
class Cosine(Schedule):
    """``(1 + cos(pi * min(step / batches, 1))) / 2``: from 1 to 0 (or ``floor``) over ``batches``.

    Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts.
    """

    batches: Annotated[
        int, Setting("Until the rate is at its least.", ge=1, le=BATCHES_MAX, unit="batches")
    ] = 10_000

    def _after(self, step: int) -> float:
        return (1 + math.cos(math.pi * min(step / self.batches, 1.0))) / 2


@dataclass(frozen=True, slots=True)
class Linear(Schedule):
    """The full rate for ``hold`` batches, then down to 0 (or ``floor``) in equal steps, at ``batches``.

    ``min(1, max(0, (batches - step) / (batches - hold)))``. The training stays at the full rate until
    then, and the fall at the end takes the noise away. Source: Hägele et al., arXiv:2405.18392,
    a constant rate with a linear cooldown; with ``hold`` 0 the fall begins at once.
    """

    batches: Annotated[
        int, Setting("Until the rate is at its least.", ge=1, le=BATCHES_MAX, unit="batches")
    ] = 10_000
    hold: Annotated[
        int, Setting("At the full rate, before it falls.", ge=0, le=BATCHES_MAX, unit="batches")
    ] = 0

    def _problems(self) -> Iterator[str]:
        if self.hold >= self.batches:
            yield f"hold: expected fewer than batches = {self.batches}, got {self.hold}"

    def _after(self, step: int) -> float:
        return min(1.0, max(0.0, (self.batches - step) / (self.batches - self.hold)))


@dataclass(frozen=True, slots=True)
class StepDecay(Schedule):
    """``ratio ** (step // every)``: multiplied by ``ratio`` every ``every`` batches."""

    every: Annotated[
        int, Setting("From one fall of the rate to the next.", ge=1, le=BATCHES_MAX, unit="batches")
    ] = 10_000
    ratio: Annotated[float, Setting("Factor of the rate at a fall.", gt=0, le=1)] = 0.5

    def _after(self, step: int) -> float:
        return float(self.ratio ** (step // self.every))


SCHEDULES: dict[str, type[Schedule]] = {
    kind.__name__: kind for kind in (Constant, InverseSqrt, Cosine, Linear, StepDecay)
}
"""All schedules by name."""


def schedule_from_dict(plain: Mapping[str, Any]) -> Schedule:
    """Make a schedule from the plain form of `Schedule.to_dict`.

    Raises
    ------
    ConfigurationError
        If the name or a field is unknown, or a number is out of its range.
    """
    return read_named("schedule", plain, SCHEDULES)
