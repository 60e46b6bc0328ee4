"""State of a rebalance: the wave under way, its progress, and the latest scale requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Progress", "ScaleRequests", "Wave"]

SCALE_REQUESTS_KEPT = 1000
"""Number of answers kept. Duplicates arrive seconds later at most, and scale requests are rare."""


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """Units that move under one map version: ``units[i]`` to server ``targets[i]``, both (n,)."""

    version: int
    units: NDArray[np.int64]
    sources: NDArray[np.uint16]
    targets: NDArray[np.uint16]

    def given_by(self, rank: int, over: Mapping[int, bool]) -> list[list[int]]:
        """Return ``[unit, version]`` of what server ``rank`` gives away, except what it keeps after all."""
        mine = self.units[self.sources == rank].tolist()
        return [[unit, self.version] for unit in mine if over.get(unit, True)]

    def given_to(self, rank: int, over: Mapping[int, bool]) -> list[int]:
        """Return the units that have arrived at server ``rank``."""
        return [unit for unit in self.units[self.targets == rank].tolist() if over.get(unit, False)]


@dataclass(slots=True)
class Progress:
    """Reported progress of the moves since the last scale request."""

    asked_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    moved: int = 0
    bytes: int = 0
    stopped: str = ""
    """Reason why units stay although shares are not even."""


@dataclass(slots=True)
class ScaleRequests:
    """The latest scale requests by name, so that none is granted twice.

    Otherwise a late duplicate would undo a newer request. The duplicate of a request to drain a server that
    has left since would be refused, as no such server exists.
    """

    answers: dict[int, str] = field(default_factory=dict)

    def answer(self, name: int) -> str | None:
        """Return the recorded refusal, empty for a granted request; None for a new request."""
        return self.answers.get(name)

    @property
    def granted(self) -> list[int]:
        """Return the names of granted requests."""
        return [name for name, problem in self.answers.items() if not problem]

    def note(self, name: int, problem: str) -> None:
        """Record the answer to a request."""
        self.answers[name] = problem
        if len(self.answers) > SCALE_REQUESTS_KEPT:
            del self.answers[next(iter(self.answers))]
