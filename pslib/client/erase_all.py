"""Rows that are erased on all servers at once, by somebody who takes no part in the training."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.clock import Clock
from pslib.errors import PslibError, UnavailableError
from pslib.text import counted
from pslib.wire.messages import Erase, Message, Pushed, TrimLog
from pslib.wire.streams import CLIENT_STREAMS

__all__ = ["erase_everywhere", "trim_logs"]

CHUNK_KEYS = 1 << 16
PATIENCE_S = 30.0
"""A unit on its way arrives in milliseconds; a server that comes back from its log takes longer."""
PAUSE_S = 0.1
TRIM_S = 120.0
"""For images of everything: 0.6 GB/s of rows, and a heartbeat that says so."""

Ask = Callable[[str, Message], Message]


def erase_everywhere(
    ask: Ask,
    servers: Callable[[], Sequence[str]],
    table: str,
    keys: NDArray[np.uint64],
    bits: int,
    clock: Clock,
) -> int:
    """Erase rows wherever they live, each once, though units move meanwhile; how many servers took part.

    Every server is asked for all keys and refuses units that it does not own. A unit that all have refused is
    on its way: it is asked for again, under the same name, so nothing is erased twice.

    Parameters
    ----------
    ask : callable
        Sends a request to an address and gives the answer.
    servers : callable
        Addresses of all live servers, now.
    table : str
    keys : (n,) uint64
    bits : int
        Partition bits of the cluster.
    clock : Clock

    Raises
    ------
    ConfigurationError
        When there is no such table.
    UnavailableError
        When some units have had no owner for 30 s; the others are erased.
    """
    stream, asked = CLIENT_STREAMS | secrets.randbits(62), 0
    for number, start in enumerate(range(0, keys.size, CHUNK_KEYS)):
        chunk = np.unique(keys[start : start + CHUNK_KEYS])
        units = set(partition_of(chunk, bits).tolist())
        message = Erase(stream, number, 0, number, min(units), {table: chunk})
        end_s = clock.now_s() + PATIENCE_S
        while units:
            addresses = servers()
            asked = max(asked, len(addresses))
            for address in addresses:
                refused = _refused(ask, address, message)
                units = units if refused is None else units & refused
            if units and clock.now_s() > end_s:
                raise UnavailableError(
                    f"{counted(len(units), 'partition has', 'partitions have')} had no owner for "
                    f"{PATIENCE_S:g} s, rows there are not erased; ask again when all servers are there"
                )
            if units:
                clock.sleep_s(PAUSE_S)
    return asked


def _refused(ask: Ask, address: str, message: Erase) -> set[int] | None:
    """Units that a server does not own; None: it does not answer, and may own none or all."""
    try:
        answer = ask(address, message)
    except UnavailableError:
        return None
    if not isinstance(answer, Pushed):
        raise PslibError(f"{address}: expected Pushed, got {answer.kind}")
    return {int(unit) for unit in answer.refused_units}


def trim_logs(ask: Ask, members: Callable[[], Sequence[Mapping[str, Any]]], clock: Clock) -> list[str]:
    """Let the logs of all servers forget what was before now; the servers whose logs have not, after 120 s.

    Parameters
    ----------
    ask : callable
        As for `erase_everywhere`.
    members : callable
        Live servers, as the coordinator's status with details tells them.
    clock : Clock
    """
    end_s = clock.now_s() + TRIM_S
    before = _rounds(members())
    while not all(before.values()) and clock.now_s() < end_s:  # a server's first heartbeats say nothing of it
        clock.sleep_s(PAUSE_S)
        before = _rounds(members())
    for address in before:
        ask(address, TrimLog())
    while True:
        now = _rounds(members())
        left = [address for address, rounds in before.items() if not _passed(rounds, now.get(address))]
        if not left or clock.now_s() > end_s:
            return left
        clock.sleep_s(PAUSE_S)


def _rounds(members: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """By server's address: how often each of its shard threads has written images of everything."""
    return {one["address"]: [int(number) for number in one.get("log_rounds", ())] for one in members}


def _passed(before: list[int], now: list[int] | None) -> bool:
    """Whether every shard thread has written images of everything since; a server that is gone has not."""
    return bool(before and now) and all(n > b for b, n in zip(before, now or (), strict=False))
