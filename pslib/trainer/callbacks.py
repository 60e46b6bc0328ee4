"""Calls of a trainer's callbacks, in the thread of the call that leads to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.recorder.callback import Callback


class Callbacks:
    """Callbacks of one trainer.

    Parameters
    ----------
    trainer : Trainer
    callbacks : sequence of Callback
    """

    def __init__(self, trainer: Any, callbacks: Sequence[Callback]) -> None:
        self._trainer, self._all = trainer, callbacks

    @property
    def stop(self) -> bool:
        """True if one may stop a fit."""
        return any(type(one).should_stop is not Callback.should_stop for one in self._all)

    @property
    def by_epoch(self) -> bool:
        """True if each epoch of a fit ends before the next one begins."""
        return self.stop or any(type(one).on_epoch_end is not Callback.on_epoch_end for one in self._all)

    def epoch_end(self, epoch: int, result: EvalResult | RankResult | None) -> None:
        """Call `Callback.on_epoch_end`."""
        for one in self._all:
            one.on_epoch_end(self._trainer, epoch, result)

    def evaluated(self, name: str, result: EvalResult | RankResult) -> None:
        """Call `Callback.on_evaluate`."""
        for one in self._all:
            one.on_evaluate(self._trainer, name, result)

    def checkpoint(self, path: str) -> None:
        """Call `Callback.on_checkpoint`."""
        with self._trainer.cluster.without_calls("on_checkpoint"):
            for one in self._all:
                one.on_checkpoint(self._trainer, path)

    def stopping(self) -> str:
        """Return the class of a callback that stops the fit, or nothing; each one is asked."""
        stopping = [type(one).__name__ for one in self._all if one.should_stop(self._trainer)]
        return stopping[0] if stopping else ""
