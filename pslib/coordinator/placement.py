"""Which units have to move so that servers own even shares: pure functions of who owns what."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError

__all__ = ["even_owners"]

Owners = NDArray[np.uint16]


def even_owners(owners: Owners, partitions: int, servers: Collection[int]) -> Owners:
    """Owners of all units when only ``servers`` own any, even shares each, and as few units as can be move.

    Keys are hashed over partitions, so even numbers of partitions are even numbers of rows, and even numbers
    of dense blocks are even bytes of dense parameters.

    Parameters
    ----------
    owners : (units,) uint16
        Who owns what now; the first ``partitions`` units are partitions, the others dense blocks.
    partitions : int
        How many of the units are partitions.
    servers : collection of int
        Ranks of those that shall own units; at least one.

    Returns
    -------
    (units,) uint16
        The number of partitions of two servers differs by one at most, and so does that of dense blocks. The
        same arguments give the same answer.

    Raises
    ------
    ConfigurationError
        When there is nobody to own the units.
    """
    if not servers:
        raise ConfigurationError("moves: expected at least one server that shall own units, got none")
    ranks = np.unique(np.asarray(sorted(servers), np.int64))
    return np.concatenate([_evenly(owners[:partitions], ranks), _evenly(owners[partitions:], ranks)])


def _evenly(owners: Owners, ranks: NDArray[np.int64]) -> Owners:
    """The same for units of one kind."""
    size = max(int(ranks[-1]), int(owners.max(initial=0))) + 1
    owned = np.bincount(owners, minlength=size)
    shares = np.zeros(size, np.int64)
    share, larger = divmod(owners.size, ranks.size)
    shares[ranks] = share
    most = np.lexsort((ranks, -owned[ranks]))  # who owns most keeps one more: one unit less moves
    shares[ranks[most[:larger]]] += 1
    by_owner = np.argsort(owners, kind="stable")
    place = np.arange(owners.size) - np.repeat(np.cumsum(owned) - owned, owned)
    leaving = np.sort(by_owner[place >= shares[owners[by_owner]]])
    after = owners.copy()
    after[leaving] = np.repeat(np.arange(size), np.maximum(shares - owned, 0))
    return after
