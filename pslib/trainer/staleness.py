"""How far a trainer may run ahead: a bound that rises over the first batches.

Stale gradients do their harm at the start, when all rows are new and every gradient points the same way: the
model overshoots, and Adagrad's accumulators never forget it. On the generated demo data (DeepFM, 1,500,000
examples in batches of 1,024, row Adagrad 0.05, best possible AUC 0.832) a sequential simulation that delays
every push by 4 batches falls from AUC 0.813 to 0.776; when the first 200 batches are exact it reaches 0.805,
when the first 600 are, 0.809. Two asynchronous trainers with staleness 2 reach 0.794 with the full bound from
the first batch on and 0.811 when it rises over 500 (2026-11-21).

Later a step from 0 to 1 does harm too: the loss of DNN at batch 4,096 and high learning rates rose from 0.46
to 0.65 within 10 batches when every batch was to run ahead from batch 340 on, and AUC fell by 0.009. So the
bound has no steps but rises in the mean (2026-11-22; benchmarks/notebook/training.md).
"""

from __future__ import annotations

__all__ = ["StalenessBound"]


class StalenessBound:
    """A bound in batches that rises evenly from 0 to ``bound`` over ``warmup_batches``.

    Batches are whole, so it rises in the mean: where it stands at 0.3, three of ten batches may run ahead by
    one, as evenly spread as can be, and in a run of the same settings the same ones.

    Parameters
    ----------
    bound : int
        Where it ends, >= 0.
    warmup_batches : int
        Batches until then; 0 means the full bound from the first batch on.

    Examples
    --------
    >>> bound, ahead = StalenessBound(1, warmup_batches=12), []
    >>> for _ in range(14):
    ...     ahead.append(bound.now)
    ...     bound.batch_begun()
    >>> ahead
    [0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1]
    """

    def __init__(self, bound: int, warmup_batches: int) -> None:
        self.bound, self.warmup_batches = bound, warmup_batches
        self._begun = 0

    @property
    def now(self) -> int:
        """How many batches ahead the next one may be."""
        if self._begun >= self.warmup_batches:
            return self.bound
        return self._sum(self._begun + 1) - self._sum(self._begun)

    def _sum(self, batches: int) -> int:
        """How far so many first batches may run ahead, all together: whole, so what is left over waits."""
        return self.bound * batches * (batches - 1) // (2 * self.warmup_batches)

    def batch_begun(self) -> None:
        """Count one batch that has begun."""
        self._begun += 1

    def skip_warmup(self) -> None:
        """A trained model goes on: nothing is new any more."""
        self._begun = max(self._begun, self.warmup_batches)
