"""Some of the fields."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["take_fields"]


def take_fields(tape: Tape, vectors: Var, places: Sequence[int]) -> Var:
    """Give the vectors of some fields.

    Parameters
    ----------
    vectors : (B, F, D)
    places : sequence of int
        Which fields, each once.

    Returns
    -------
    (B, len(places), D)
        Backward hands gradients to these fields, zeros to the others.
    """
    chosen = list(places)

    def backward(gradient: Array) -> None:
        onward = np.zeros_like(vectors.value)
        onward[:, chosen] = gradient
        vectors.accumulate(onward, owned=True)

    return tape.record(vectors.value[:, chosen], backward)
