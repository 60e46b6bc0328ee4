"""When a training is saved while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from pslib.arguments import came, check_fields, is_finite
from pslib.checkpoint import check_keep_last
from pslib.errors import ConfigurationError
from pslib.places import place_of

__all__ = ["CheckpointSettings"]

EVERY_S_MAX = 1e9
"""Thirty years."""
EVERY_BATCHES_MAX = 1 << 40
INCREMENTAL_MAX = 1000
"""Of one chain: all of it is read to load it."""


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints of a `fit` that goes on, in numbered folders (`pslib.trainer.cuts`).

    Attributes
    ----------
    path : str
        Folder or URI of ``checkpoint-000001`` and so on, which all servers and trainers reach.
    every_s : float
        Seconds from one to the next; 0: time does not count.
    every_batches : int
        Batches of all trainers from one to the next; 0: they do not count.
    keep_last : int
        How many stay, at least 1; what an increment that stays needs stays too.
    incremental : int
        How many increments follow a full one; 0: all are full.

    Raises
    ------
    ConfigurationError
        When a number is out of range, or nothing says when.
    """

    path: str
    every_s: float = 0.0
    every_batches: int = 0
    keep_last: int = 3
    incremental: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", place_of(self.path))
        check_fields(self)
        problems = []
        if not _is(self.every_s, Real, 0, EVERY_S_MAX):
            problems.append(f"checkpoint.every_s: expected seconds, or 0 for never, got {came(self.every_s)}")
        for name, value, low, high in (
            ("every_batches", self.every_batches, 0, EVERY_BATCHES_MAX),
            ("incremental", self.incremental, 0, INCREMENTAL_MAX),
        ):
            if not _is(value, Integral, low, high):
                problems.append(
                    f"checkpoint.{name}: expected a whole number in {low}..{high}, got {came(value)}"
                )
        if not problems and not (self.every_s or self.every_batches):
            problems.append("checkpoint: expected every_s or every_batches: when is it to be saved?")
        if self.keep_last == 0:
            problems.append("checkpoint.keep_last: expected at least 1 with every_s or every_batches, got 0")
        if problems:
            raise ConfigurationError(*problems)
        check_keep_last(self.keep_last)

    @property
    def details(self) -> dict[str, float | int]:
        """What the coordinator is told."""
        return {"every_s": float(self.every_s), "every_batches": self.every_batches}


def _is(value: object, kind: type, low: float, high: float) -> bool:
    return isinstance(value, kind) and is_finite(value) and low <= value <= high  # type: ignore[operator]
