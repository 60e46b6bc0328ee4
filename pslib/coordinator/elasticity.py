"""Elasticity by rule, as a pure state machine of the coordinator: servers that join and stay get rows."""

from __future__ import annotations

from pslib.coordinator.events import Tell
from pslib.coordinator.membership import Membership
from pslib.coordinator.rebalance import Rebalance
from pslib.text import counted

HOLD_S = 30.0
"""Time that a joined server stays before rows move to it: a machine that comes and goes within it moves none,
and a share of the rows moves at most twice a minute."""


class Elasticity:
    """Rule for servers beyond ``cluster.servers``, up to ``cluster.servers_max``.

    Parameters
    ----------
    members : Membership
    moves : Rebalance
        Its target is raised when servers have joined and stayed.
    say : Tell
        Adds an event.
    """

    def __init__(self, members: Membership, moves: Rebalance, say: Tell) -> None:
        self._members, self._moves, self._say = members, moves, say
        self._joined: frozenset[int] = frozenset()
        self._since_s = 0.0

    def tick(self, now_s: float, busy: bool) -> None:
        """Advance the time.

        Parameters
        ----------
        now_s : float
        busy : bool
            True if an operation under way forbids moves; the hold-off goes on meanwhile.
        """
        most = self._members.config.servers_max
        if not most or self._members.map is None:
            return
        joined = self._joined_now(most)
        if joined - self._joined:  # one that has left costs the others no time
            self._since_s = now_s
            ranks = ", ".join(map(str, sorted(joined - self._joined)))
            self._say(
                f"server {ranks} has joined: rows move to it when it has stayed for {HOLD_S:g} s", "scaled"
            )
        self._joined = joined
        if joined and not busy and not self._moves.moving and now_s - self._since_s >= HOLD_S:
            owners = len(self._moves.targets())
            count = counted(owners + len(joined), "server")
            self._say(
                f"server {', '.join(map(str, sorted(joined)))} has stayed: rows move to {count}", "scaled"
            )
            self._moves.grow(now_s, owners + len(joined))
            self._joined = frozenset()

    def _joined_now(self, most: int) -> frozenset[int]:
        """Return the ranks of live servers without a share of the rows that may have one."""
        targets = self._moves.targets()
        assert self._members.map is not None
        free = [
            one.rank
            for one in self._members.live("server")
            if one.rank not in targets and one.rank not in self._moves.leaving
        ]
        addresses = self._members.map.addresses
        known = [rank for rank in free if rank < len(addresses) and addresses[rank]]
        return frozenset(known[: max(0, most - len(targets))])
