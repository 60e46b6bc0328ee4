"""Callback: methods that a run calls at its begin and end, at epochs, checkpoints and events."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.suggestions import nearest
from pslib.text import one_line
from pslib.validation import came

log = logging.getLogger(__name__)


class Callback:
    """Base class of callbacks: a subclass overrides the methods that it needs.

    **Of a trainer**: `on_epoch_end`, `on_evaluate`, `on_checkpoint`, `should_stop`. Each trainer of a cluster
    calls its own callbacks, in the order in which they were given, in the thread of the call that leads to
    them (`fit`, `evaluate`, `save`). All trainers have the same ones. An exception in one ends that call and
    reaches its caller.

    **Of the run**: `on_run_begin`, `on_progress`, `on_event`, `on_run_end`. The recorder calls them, with
    the figures of all trainers together: once for a run, by time and never by batch. In a script that runs
    alone it is a thread of that process; of several trainers under a launcher it is a thread of the one with
    rank 0; for the trackers of a job file it is the launcher, whose ``trainer`` is None. It makes no calls of
    a trainer. A slow one delays records, and no batch. One with an exception is logged in a line
    and not called any more; the run goes on.

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

    def on_run_begin(self, trainer: Any, info: Mapping[str, Any]) -> None:
        """Handle the begin of the records of a run.

        Parameters
        ----------
        trainer : Trainer or None
        info : mapping
            ``name``, ``folder`` (None: no records are kept), ``run_id`` (the cluster's, also in a resumed
            run with logs), and ``settings``: texts by dotted names, as
            `pslib.recorder.environment.flat_settings` has them.
        """

    def on_progress(self, trainer: Any, record: Mapping[str, Any]) -> None:
        """Handle a record: a line of ``metrics.jsonl``, ``progress`` or ``evaluation`` as ``event`` says.

        Progress comes at most once a second and at the end of each epoch. The columns are those of
        `pslib.recorder.records.Record`, and figures of the cluster.
        """

    def on_event(self, trainer: Any, event: Mapping[str, Any]) -> None:
        """Handle an event of the run.

        Parameters
        ----------
        trainer : Trainer or None
        event : mapping
            ``kind``, ``at_s`` (UTC), ``text``, and ``role`` and ``rank`` of the process that it is about or
            None. Kind ``epoch`` is a finished epoch, ``saved`` a complete checkpoint, whose ``path`` is
            there; others are what the coordinator tells: a process is lost, back, or has left. For a
            script of several trainers these are lines for people, of kind ``note``.
        """

    def on_run_end(self, trainer: Any, summary: Mapping[str, Any]) -> None:
        """Handle the end of a run, when its files are written.

        Parameters
        ----------
        trainer : Trainer or None
        summary : mapping
            Content of ``summary.json``. Records that end without one, because another trainer's take their
            place, have ``phase`` alone.
        """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if problems := [line for name in vars(cls) if (line := _problem(cls, name))]:
            raise ConfigurationError(*problems)


OF_RUN = ("on_run_begin", "on_progress", "on_event", "on_run_end")
"""Methods that a run's recorder calls."""
METHODS = [name for name in vars(Callback) if name.startswith(("on_", "should_"))]
"""Names of the methods that are called."""


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


def of_run(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks that have a method of a run."""
    return [one for one in callbacks if any(_has(one, name) for name in OF_RUN)]


def _has(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name) is not getattr(Callback, name)


class RunCallbacks:
    """Callbacks of one run, called by its recorder: one that fails is left out, and the run goes on.

    Parameters
    ----------
    callbacks : sequence of Callback
    trainer : callable
        Returns the Trainer of a script, or None.
    """

    def __init__(self, callbacks: Sequence[Callback], trainer: Callable[[], Any]) -> None:
        self._all, self._trainer = of_run(callbacks), trainer

    def __bool__(self) -> bool:
        return bool(self._all)

    def call(self, method: str, about: Mapping[str, Any]) -> None:
        """Call a method of each one."""
        for one in [one for one in self._all if _has(one, method)]:
            try:
                getattr(one, method)(self._trainer(), about)
            except Exception as error:  # whatever a user's code raises: the run goes on
                self._all.remove(one)
                name = getattr(one, "name", None) or f"{type(one).__name__}.{method}"
                why = getattr(error, "strerror", None) or f"{type(error).__name__}: {one_line(error)}"
                log.warning("pslib: %s: %s; it ends here, the run goes on", name, why)
