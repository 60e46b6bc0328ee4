"""Checks of a push's options: its learning rate, and its sync step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pslib.table.optimizers import Optimizer, rate_problem
from pslib.table.tables import DenseSpec, TableSpec
from pslib.wire.messages import Push

__all__ = ["RATE_MAX", "manner_problem"]


RATE_MAX = 1e6
"""Maximum factor of a learning rate; no schedule is known to go beyond a few thousand."""


def manner_problem(
    message: Push, tables: Mapping[str, TableSpec], dense: DenseSpec | None, units: int
) -> str | None:
    """Return the fault of a push beside its keys and gradients, one line; None where there is none.

    Parameters
    ----------
    message
    tables : mapping of name to TableSpec
    dense : DenseSpec or None
    units : int
        Number of units of the cluster.
    """
    if not 0 <= message.rate <= RATE_MAX:
        return f"rate: expected 0..{RATE_MAX:g}, got {message.rate:g}"
    if message.rate != 1 and not message.delta:
        used: list[Optimizer] = [part.optimizer for name in message.keys for part in tables[name].parts]
        if message.blocks.size and dense:
            used.append(dense.optimizer)
        if problem := rate_problem(used):
            return problem
    return _sync_problem(message, units) if message.sync else None


def _sync_problem(message: Push, units: int) -> str | None:
    if set(message.sync) != {"contributors", "units"}:
        return f"sync: expected contributors and units, got {sorted(message.sync)}"
    contributors, spoken_for = message.sync["contributors"], message.sync["units"]
    if not contributors.size or (np.diff(contributors.astype(np.int64)) <= 0).any():
        return "sync: contributors: expected ascending ranks"
    if message.rank not in contributors.tolist():
        return f"sync: rank {message.rank} is not among the contributors of step {message.step}"
    if spoken_for.size and int(spoken_for.max()) >= units:
        return f"sync: units: expected 0..{units - 1}, got {spoken_for.max()}"
    return None
