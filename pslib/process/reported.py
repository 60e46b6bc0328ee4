"""Counters that this process has reported last, for another thread that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reporter:
    """Member of a cluster, in this process.

    Attributes
    ----------
    role : str
        "coordinator", "server" or "trainer".
    rank : int
    run : str
        Id of the cluster.
    incarnation : str
        Differs for every start of this role and rank: its counters begin again.
    """

    role: str
    rank: int
    run: str
    incarnation: str


class Reported:
    """Last counters of the members in this process: usually of one, several in an embedded cluster.

    Attributes
    ----------
    wanted : bool
        True if something shows them; a coordinator, which sends no heartbeats, makes its figures for that.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._last: dict[Reporter, Mapping[str, Any]] = {}

    def show(self, reporter: Reporter, counters: Mapping[str, Any]) -> None:
        """Replace the counters of a member."""
        self._last[reporter] = counters

    def forget(self, reporter: Reporter) -> None:
        """Drop a member that has left."""
        self._last.pop(reporter, None)

    def last(self) -> list[tuple[Reporter, Mapping[str, Any]]]:
        """Return the members and their counters."""
        return list(self._last.copy().items())


reported = Reported()
"""Figures that this process has reported."""
