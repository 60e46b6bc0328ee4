"""What the coordinator remembers of moves: the wave under way, how far it is, what was wished for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Progress", "ScaleRequests", "Wave"]

WISHES_KEPT = 1000
"""Copies come seconds later at most, and nobody wishes for servers a hundred times a second."""


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """Units that move under one map version: ``units[i]`` to server ``targets[i]``, both (n,)."""

    version: int
    units: NDArray[np.int64]
    sources: NDArray[np.uint16]
    targets: NDArray[np.uint16]

    def given_by(self, rank: int, over: Mapping[int, bool]) -> list[list[int]]:
        """``[unit, version]`` of what server ``rank`` gives away, but what it keeps after all."""
        mine = self.units[self.sources == rank].tolist()
        return [[unit, self.version] for unit in mine if over.get(unit, True)]

    def given_to(self, rank: int, over: Mapping[int, bool]) -> list[int]:
        """Units that have arrived at server ``rank``."""
        return [unit for unit in self.units[self.targets == rank].tolist() if over.get(unit, False)]


@dataclass(slots=True)
class Progress:
    """What people are told of the moves since somebody asked for them."""

    asked_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    moved: int = 0
    bytes: int = 0
    stopped: str = ""
    """Why units stay where they are although shares are not even."""


@dataclass(slots=True)
class ScaleRequests:
    """The last wishes for servers by name, so that none is granted twice.

    A copy that comes late would else undo what somebody has wished for since, and of a server that has left
    on the first one the second would say that there is none.
    """

    answers: dict[int, str] = field(default_factory=dict)

    def answer(self, name: int) -> str | None:
        """Why this wish was refused, empty where it was granted; None: it has not come before."""
        return self.answers.get(name)

    @property
    def granted(self) -> list[int]:
        """Names of those that were granted."""
        return [name for name, problem in self.answers.items() if not problem]

    def note(self, name: int, problem: str) -> None:
        """It was answered so."""
        self.answers[name] = problem
        if len(self.answers) > WISHES_KEPT:
            del self.answers[next(iter(self.answers))]
