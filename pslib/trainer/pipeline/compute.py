"""Computation of a training step: rows in, loss and gradients out, counted and pushed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.products import has_bfloat16, has_products
from pslib.batch import Batch
from pslib.client.calls import PushName
from pslib.client.pending import PendingPush
from pslib.process.blas import blas_threads, cores_given, describe_blas
from pslib.process.machine import quota_words
from pslib.trainer.model import (
    KeptStep,
    ModelInParts,
    Step,
    Stepper,
    StepperInStages,
    TrainableModel,
    check_predictions,
    check_step,
)
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.pipeline.overlap import SLOTS, ComputeThreads, OverlappedSteps
from pslib.trainer.pipeline.pipeline import Prefetched, Send
from pslib.trainer.pipeline.row_source import ComputedBatch, PulledRows, RowSource
from pslib.trainer.progress import Progress

log = logging.getLogger("pslib")

_said: set[str] = set()
"""Logged lines on this process's threads and kernels, so that repeated calls log nothing."""


class ModelThreads:
    """A model with its compute threads; a context manager that ends them.

    Parameters
    ----------
    model : TrainableModel
        One with a ``stepper`` (`ModelInParts`, as all of `rec_models` are) is computed in parts, by threads
        that call BLAS with one thread each; any other as a whole, by the caller's thread and those of BLAS.
    threads : int or None
        None: the number of this trainer's cores; a model computed as a whole then keeps the threads
        that BLAS has.
    overlap : bool
        True if a step may begin before the one before it is over; see `pslib.trainer.pipeline.overlap`. Only
        where there are several threads, and the model has steps in stages.
    products : "float32", "bfloat16" or None
        Rounding allowed for the factors of a step's matrix products, in a model that `takes_products`.
        None: prediction only.
    """

    def __init__(
        self,
        model: TrainableModel,
        threads: int | None,
        overlap: bool = False,
        products: str | None = "float32",
    ) -> None:
        self._stack = ExitStack()
        self._model: Stepper = model
        self._overlapped: OverlappedSteps | None = None
        self._slots: list[StepperInStages] = []
        self._tasks = len(model.schema.labels)
        self._in_parts = in_parts = isinstance(model, ModelInParts)
        self.count = (threads or cores_given()) if in_parts else 1
        limit = 1 if in_parts else threads
        if limit is not None:
            self._stack.enter_context(blas_threads(limit))
        if isinstance(model, ModelInParts) and overlap and self.count > 1:
            self._slots = _slots_of(model, products)
        if self._slots:
            self._overlapped = OverlappedSteps(self.count)
            self._stack.callback(self._overlapped.close)
        elif isinstance(model, ModelInParts):
            helpers = ComputeThreads(self.count)
            self._stack.callback(helpers.close)
            self._model = _stepper_of(model, helpers.run, products)
        by = _describe_products(products) if in_parts and products else describe_blas()
        why = quota_words() if threads is None else ""
        line = f"pslib: {self.count} compute thread(s){why}; matrix products by {by}"
        if log.isEnabledFor(logging.INFO) and line not in _said:
            _said.add(line)
            log.info(line)

    def __enter__(self) -> ModelThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def step(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> Step:
        """See `TrainableModel.loss_and_gradients`; alone, where steps may not overlap."""
        return self._model.loss_and_gradients(batch, rows, dense, step_seed)

    def begin(
        self,
        arguments: tuple[Batch, NDArray[Any], Mapping[str, NDArray[Any]], int],
        done: Callable[[Step], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Compute a step, or start it.

        Parameters
        ----------
        arguments : tuple
            Arguments of `TrainableModel.loss_and_gradients`.
        done : callable
            Called with each step, in the order of calls; before `begin` returns, unless steps overlap.
        failed : callable
            Called with an error that occurs later.
        """
        if self._overlapped is None:
            step = self.step(*arguments)
            if not self._in_parts:
                batch, _rows, dense, _seed = arguments
                check_step(self._model, batch, dense, step)
                step = KeptStep.of(step)
            done(step)
        else:
            self._overlapped.begin(lambda slot: self._slots[slot].stages(*arguments), done, failed)

    def finish(self) -> None:
        """Wait until all started steps are done."""
        if self._overlapped is not None:
            self._overlapped.finish()

    def predict(self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """See `TrainableModel.predict`."""
        predicted = self._model.predict(batch, rows, dense)
        if not self._in_parts:
            check_predictions(self._model, batch, self._tasks, predicted)
        return predicted


def _describe_products(products: str) -> str:
    """Describe the matrix-product kernels for the log: pslib's, where available, and BLAS for the rest."""
    rounds = products == "bfloat16" and has_bfloat16()
    own = "avx512_bf16" if rounds else "avx512"
    by = f"pslib's kernels ({own}) and {describe_blas()}" if has_products() else describe_blas()
    if products == "float32" or rounds:
        return by
    return f"{by}; in float32, as there is no fast {products} here"


def _stepper_of(
    model: ModelInParts, run: Callable[[Sequence[Callable[[], None]]], None], products: str | None
) -> Stepper:
    return model.stepper(run) if products in ("float32", None) else model.stepper(run, products)


def _slots_of(model: ModelInParts, products: str | None) -> list[StepperInStages]:
    """Return a stepper for each concurrent step; none if the model's steppers lack stages."""
    steppers = [_stepper_of(model, _run_here, products) for _slot in range(SLOTS)]
    return [stepper for stepper in steppers if isinstance(stepper, StepperInStages)]


def _run_here(tasks: Sequence[Callable[[], None]]) -> None:
    for task in tasks:
        task()


class Computer:
    """Computation of the steps of a `fit`.

    Parameters
    ----------
    model : ModelThreads
    layout : DenseLayout
        Layout of the model's dense parameters.
    rows : RowSource
        Destination of gradients.
    progress : Progress
        Counts every batch.
    step_seed : callable
        Seed of one step's dropout.
    rate : callable
        Factor of the learning rates for a step of this number and staleness.
    before_batch : callable
        Called with each batch, in order, before it is counted.
    between : callable
        Called in the caller's thread before each batch is computed.
    """

    def __init__(
        self,
        model: ModelThreads,
        layout: DenseLayout,
        rows: RowSource,
        progress: Progress,
        step_seed: Callable[[Prefetched], int],
        rate: Callable[[int, int], float],
        before_batch: Callable[[Prefetched], None],
        between: Callable[[], None],
    ) -> None:
        self._before_batch, self._between = before_batch, between
        self._model, self._layout, self._rows = model, layout, rows
        self._progress, self._step_seed, self._rate = progress, step_seed, rate

    def train(
        self, item: Prefetched, push: Callable[[Send], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Compute one step of one batch, when its rows are here.

        Parameters
        ----------
        item : Prefetched
        push : callable
            Called with a function that counts the batch and sends its gradients, in the order of batches.
        failed : callable
            Called with an error that occurs after this call.
        """
        self._between()
        times = self._progress.times
        began_s = times.now_s()
        pulled = item.pull.wait()
        came_s, send_s = times.now_s(), times.send_s
        times.wait_rows_s += came_s - began_s
        views = self._layout.views(pulled.dense)
        arguments = item.batch, pulled.rows, views, self._step_seed(item)
        self._model.begin(arguments, lambda step: push(partial(self._finish, item, pulled, step)), failed)
        times.computed(came_s, send_s)

    def finish(self) -> None:
        """Wait until all started batches are computed."""
        self._model.finish()

    def _finish(self, item: Prefetched, pulled: PulledRows, step: Step) -> PendingPush | None:
        self._before_batch(item)
        self._progress.trained(step.loss, step.logits, item.batch, item.staleness)
        computed = ComputedBatch(
            item.batch,
            pulled,
            np.ascontiguousarray(step.rows_gradient, np.float32),
            self._layout.flatten(step.dense_gradients),
            PushName(item.lease.stream, item.number, item.lease.epoch),
            item.moment,
            self._rate(item.moment.step, item.staleness),
        )
        return self._rows.push(computed)
