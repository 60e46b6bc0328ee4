"""Elements of lists beside the one thing that each list faces: [h, t, h - t, h * t]."""

from __future__ import annotations

import numpy as np

from rec_models.lists import Offsets, repeated, summed
from rec_models.tape import Array, Tape, Var

__all__ = ["facing"]


def facing(tape: Tape, h: Var, t: Var, offsets: Offsets) -> Var:
    """What an activation unit sees of each element and of the target of its list.

    Parameters
    ----------
    h : (N, D)
        Elements, one list after the other.
    t : (B, D)
        The target of each list.
    offsets : (B + 1,) int64
        List ``b`` is ``h[offsets[b]:offsets[b + 1]]``.

    Returns
    -------
    (N, 4 D)
        ``[h, t, h - t, h * t]``; backward ``dh = g_1 + g_3 + t g_4``, ``dt`` the sum over the elements of its
        list of ``g_2 - g_3 + h g_4``.

    Notes
    -----
    Zhou et al., Deep Interest Network, KDD 2018, arXiv:1706.06978, section 4.3: the activation unit has both
    embeddings and their product; the authors' code feeds their difference and element-wise product.
    """
    D = h.value.shape[1]
    of_list = repeated(t.value, offsets)
    value = np.concatenate([h.value, of_list, h.value - of_list, h.value * of_list], axis=1)

    def backward(gradient: Array) -> None:
        g_h, g_t, g_minus, g_times = (gradient[:, D * i : D * (i + 1)] for i in range(4))
        h.accumulate(g_h + g_minus + of_list * g_times, owned=True)
        t.accumulate(summed(g_t - g_minus + h.value * g_times, offsets), owned=True)

    return tape.record(value, backward)
