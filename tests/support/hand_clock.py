"""A clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HandClock:
    """Goes on when a test says so."""

    at_s: float = 1e6

    def now_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds
