"""Placement: assignment of units to servers in even shares, as pure functions of the current owners."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError

__all__ = ["even_owners"]

Owners = NDArray[np.uint16]


def even_owners(owners: Owners, partitions: int, servers: Collection[int]) -> Owners:
    """Assign all units to ``servers`` in even shares, with as few moves as possible.

    Keys are hashed over partitions, so even numbers of partitions give even numbers of rows, and even numbers
    of dense blocks give even bytes of dense parameters.

    Parameters
    ----------
    owners : (units,) uint16
        The current owners; the first ``partitions`` units are partitions, the others dense blocks.
    partitions : int
        Number of units that are partitions.
    servers : collection of int
        Ranks of the servers to own units; at least one.

    Returns
    -------
    (units,) uint16
        The numbers of partitions of two servers differ by at most one, and so do those of dense blocks. The
        same arguments give the same result.

    Raises
    ------
    ConfigurationError
        If there is no server to own the units.
    """
    if not servers:
        raise ConfigurationError("moves: expected at least one server that shall own units, got none")
    ranks = np.unique(np.asarray(sorted(servers), np.int64))
    return np.concatenate([_evenly(owners[:partitions], ranks), _evenly(owners[partitions:], ranks)])


def _evenly(owners: Owners, ranks: NDArray[np.int64]) -> Owners:
    """Assign units of one kind evenly."""
    size = max(int(ranks[-1]), int(owners.max(initial=0))) + 1
    owned = np.bincount(owners, minlength=size)
    shares = np.zeros(size, np.int64)
    share, larger = divmod(owners.size, ranks.size)
    shares[ranks] = share
    most = np.lexsort((ranks, -owned[ranks]))  # the largest owners keep the extra unit: one move less
    shares[ranks[most[:larger]]] += 1
    by_owner = np.argsort(owners, kind="stable")
    place = np.arange(owners.size) - np.repeat(np.cumsum(owned) - owned, owned)
    leaving = np.sort(by_owner[place >= shares[owners[by_owner]]])
    after = owners.copy()
    after[leaving] = np.repeat(np.arange(size), np.maximum(shares - owned, 0))
    return after
