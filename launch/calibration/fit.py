"""Non-negative least squares of relative errors: costs from measurements."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_costs"]

Floats = NDArray[np.float64]


def fit_costs(amounts: Floats, totals: Floats) -> Floats:
    """Fit costs ``c >= 0`` so that ``amounts @ c`` approximates ``totals`` in relative error.

    All subsets of columns are tried; the best one without a negative cost is taken. This is exact, and cheap
    for a handful of columns.

    Parameters
    ----------
    amounts : (n, k) float64
        Amount of each kind of work in each measurement; k up to about 8.
    totals : (n,) float64
        Measured totals, above 0.

    Returns
    -------
    (k,) float64
        Cost of each kind; 0 for kinds that the measurements do not show.
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
