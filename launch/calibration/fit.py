"""Costs from measurements: least squares of relative errors, where no cost is below 0."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_costs"]

Floats = NDArray[np.float64]


def fit_costs(amounts: Floats, totals: Floats) -> Floats:
    """Costs ``c >= 0`` that make ``amounts @ c`` come near ``totals``, each by its relative error.

    All sets of columns are tried and the best one without a negative cost is taken: exact, and cheap for the
    handful of columns that we have.

    Parameters
    ----------
    amounts : (n, k) float64
        How much of each kind of work a measurement did; k up to about 8.
    totals : (n,) float64
        What it took, above 0.

    Returns
    -------
    (k,) float64
        0 for kinds that the measurements do not show.
    """
    scaled = amounts / totals[:, None]
    best, best_error = np.zeros(amounts.shape[1]), np.inf
    kinds = range(amounts.shape[1])
    for size in range(1, amounts.shape[1] + 1):
        for chosen in map(list, combinations(kinds, size)):
            costs = np.linalg.lstsq(scaled[:, chosen], np.ones(len(totals)), rcond=None)[0]
            error = float(np.square(scaled[:, chosen] @ costs - 1).sum())
            if costs.min() >= 0 and error < best_error - 1e-12:
                best, best_error = np.zeros(amounts.shape[1]), error
                best[chosen] = costs
    return best
