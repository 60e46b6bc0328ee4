"""Erase rows on all servers, from a process that takes no part in the training."""

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
from pslib.wire.fields import Message
from pslib.wire.messages import CLIENT_STREAMS, Erase, Pushed, TrimLog

CHUNK_KEYS = 1 << 16
PATIENCE_S = 30.0
"""Patience for a unit. A unit in flight arrives in milliseconds; a restart from the log takes longer."""
PAUSE_S = 0.1
TRIM_S = 120.0
"""Patience for images of everything: 0.6 GB/s of rows, and a heartbeat that reports them."""

Ask = Callable[[str, Message], Message]


def erase_everywhere(
    ask: Ask,
    servers: Callable[[], Sequence[str]],
    table: str,
    keys: NDArray[np.uint64],
    bits: int,
    clock: Clock,
) -> int:
    """Erase rows on all servers, each once, while units may move; return how many servers took part.

    Every server is asked for all keys and refuses units that it does not own. A unit that all have refused is
    in flight: it is asked for again, under the same name, so nothing is erased twice.

    Parameters
    ----------
    ask : callable
        Sends a request to an address and returns the reply.
    servers : callable
        Returns the addresses of all live servers.
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
    """Return the units that a server does not own; None: no reply, so it may own none or all."""
    try:
        answer = ask(address, message)
    except UnavailableError:
        return None
    if not isinstance(answer, Pushed):
        raise PslibError(f"{address}: expected Pushed, got {answer.kind}")
    return {int(unit) for unit in answer.refused_units}


def trim_logs(ask: Ask, members: Callable[[], Sequence[Mapping[str, Any]]], clock: Clock) -> list[str]:
    """Trim the logs of all servers to now; return the servers whose logs are not trimmed after 120 s.

    Parameters
    ----------
    ask : callable
        As for `erase_everywhere`.
    members : callable
        Returns the live servers, as in the coordinator's status with details.
    clock : Clock
    """
    end_s = clock.now_s() + TRIM_S
    before = _rounds(members())
    while not all(before.values()) and clock.now_s() < end_s:  # a server's first heartbeats lack the counter
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
    """Return, by server address, the rounds of full images that each of its shard threads has written."""
    return {one["address"]: [int(number) for number in one.get("log_rounds", ())] for one in members}


def _passed(before: list[int], now: list[int] | None) -> bool:
    """Return True if every shard thread has written full images since; False for a server that is gone."""
    return bool(before and now) and all(n > b for b, n in zip(before, now or (), strict=False))
