"""Callbacks of a trainer: methods of the user that it calls at epochs, evaluations and checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.suggestions import nearest
from pslib.validation import came


class Callback:
    """Base class of callbacks: a subclass overrides the methods that it needs.

    Each trainer of a cluster calls its own callbacks, in the order in which they were given, in the thread
    of the call that leads to them (`fit`, `evaluate`, `save`). All trainers have the same ones. An exception
    in one ends that call and reaches its caller.

    A script that goes on from a checkpoint of an unfinished `fit` calls them for the epochs before, too, with
    the results of then, so that what they remember is as it was. A `fit` that goes on after Ctrl-C in the
    same process does not: they have been called.

    Raises
    ------
    ConfigurationError
        When a class is made: if it has a method ``on_...`` or ``should_...`` that no trainer calls, or one
        with other parameters.

    Examples
    --------
    >>> class Stop(Callback):
    ...     def on_epoch_end(self, trainer, epoch, result):
    ...         self.is_good = result.auc > 0.8
    ...
    ...     def should_stop(self, trainer):
    ...         return self.is_good
    """

    def on_epoch_end(self, trainer: Any, epoch: int, result: EvalResult | RankResult | None) -> None:
        """Handle the end of an epoch of `fit` or `fit_and_rank`.

        Parameters
        ----------
        trainer : Trainer
        epoch : int
            Finished epochs of the whole training.
        result : EvalResult, RankResult or None
            The evaluation on ``valid``; None without.
        """

    def on_evaluate(self, trainer: Any, name: str, result: EvalResult | RankResult) -> None:
        """Handle the result of an evaluation or ranking; ``name`` is ``valid``, ``window`` or as given."""

    def on_checkpoint(self, trainer: Any, path: str) -> None:
        """Handle a complete checkpoint, in the trainer that has written it, before the next batch.

        It makes no calls of ``trainer`` that all trainers share (`evaluate`, `save`): they are refused.
        """

    def should_stop(self, trainer: Any) -> bool:
        """Tell whether the fit ends: if one trainer says so, it ends for all of them.

        Asked after each epoch but the last, unless a plateau ends the fit anyway. An exception in it ends
        the fit for the other trainers, too.
        """
        return False

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if problems := [line for name in vars(cls) if (line := _problem(cls, name))]:
            raise ConfigurationError(*problems)


METHODS = [name for name in vars(Callback) if name.startswith(("on_", "should_"))]
"""Names of the methods that trainers call."""


def _problem(callback: type[Callback], name: str) -> str:
    """Return the problem of an attribute of a callback class; empty if there is none."""
    if name not in METHODS:
        if not name.startswith(("on_", "should_")):
            return ""
        near = nearest(name, METHODS)
        hint = f"did you mean {near!r}?" if near else f"a callback has {', '.join(METHODS)}"
        return f"{callback.__name__}.{name}: no trainer calls it; {hint}"
    expected, method = inspect.signature(getattr(Callback, name)), getattr(callback, name)
    if not callable(method):
        return f"{callback.__name__}.{name}: expected a method {name}{expected}, got {came(method)}"
    given = inspect.signature(method)
    try:
        given.bind(*expected.parameters)
    except TypeError:
        names = [", ".join(one.parameters) for one in (expected, given)]
        return f"{callback.__name__}.{name}: expected the parameters ({names[0]}), got ({names[1]})"
    return ""


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
