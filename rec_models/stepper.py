"""A training step in parts, by any number of threads: `Model.loss_and_gradients`.

First each part of the batch runs forward and backward on its own tape. Then sums over the whole batch are
computed: a product for each weight matrix, and for each row the gradients of its occurrences. Both are lists
of tasks with separate outputs, so that any number of threads gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from pslib.batch import Batch, Ragged
from rec_models.engine.buffers import ResultArrays, Scratch, joined
from rec_models.engine.occurrences import Occurrences, SortedOccurrences
from rec_models.engine.products import DenseVar, PackedWeights, packed_of, transposed_times, vectors_of
from rec_models.engine.row_gradients import RowsGradient, RowsVar
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers.activations import sigmoid_of

Task: TypeAlias = Callable[[], None]
Run: TypeAlias = Callable[[Sequence[Task]], None]
"""Function that runs all tasks, in any order, by any threads, and returns when all are done."""

PART_ROWS_MIN, PART_ROWS_MAX, PARTS = 256, 512, 8
"""Sizes of parts: activations stay in a core's L2 cache (512 examples of 400 units: 0.8 MB), and matrix
products are large enough for BLAS: 54 ms for forward and backward products of 4,096 examples in parts of 512,
57 in parts of 256, 63 in parts of 128, 52 as a whole."""
ROW_TASKS = 8
"""Number of tasks of equal work for the sums of rows."""
PRODUCT_ROWS = 192
"""Minimum rows of a weight matrix in one task: 24.4 ms for the products of 4,096 examples, 23.8 uncut, 26.4
in pieces of half the size."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """Loss, logits and gradients of one training step.

    Attributes
    ----------
    loss : float
        Mean log loss of the batch, before the step.
    logits : (B,)
    rows_gradient : (U, D)
        Gradient of the mean loss with respect to each distinct row; contiguous.
    dense_gradients : dict of name to array
        In the order of `Model.dense_shapes`.
    """

    loss: float
    logits: Array
    rows_gradient: Array
    dense_gradients: dict[str, Array]


def parts_of(rows: int, even: bool = False) -> list[slice]:
    """Cut a batch into parts, as a function of its size only, so that a step is bit-reproducible.

    Parameters
    ----------
    rows : int
    even : bool
        Make all parts equally large, up to one example, for statistics of parts.
    """
    if even:
        count = max(1, -(-rows // PART_ROWS_MAX))
        return [slice(rows * i // count, rows * (i + 1) // count) for i in range(count)]
    size = min(max(-(-rows // PARTS), PART_ROWS_MIN), PART_ROWS_MAX)
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


def _run_here(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()


class Stepped(Protocol):
    """Model interface used by a step; see `rec_models.model.Model`."""

    @property
    def examples_independent(self) -> bool:
        """Return True if the logit of an example depends on no other example of its batch."""
        ...

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the dense parameters, in a fixed order."""
        ...

    def statistics(self) -> tuple[str, ...]:
        """Return the names of dense parameters without gradients."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the divisor of the mean loss of a batch."""
        ...

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: Mapping[str, Var]) -> Var:
        """Compute the logits of a batch."""
        ...

    def loss(
        self, tape: Tape, batch: Batch, rows: Var, dense: Mapping[str, Var], weight: float
    ) -> tuple[Var, Array]:
        """Compute a part's share of the mean loss over ``weight``, and its logits."""
        ...


class _Part:
    """A part of a batch with its tape."""

    def __init__(
        self,
        batch: Batch,
        tape: Tape,
        rows: Array,
        dense: Mapping[str, Array],
        packed: Mapping[str, PackedWeights | None],
    ) -> None:
        self.batch, self.tape = batch, tape
        self.recorded: list[RowsGradient] = []
        self.rows = RowsVar(rows, self.recorded)
        self.dense = {name: DenseVar(value, packed[name]) for name, value in dense.items()}
        self.loss, self.logits = 0.0, np.empty(0)


class Stepper:
    """Stepper of one model, for one calling thread at a time; reuses the arrays of a step.

    Parameters
    ----------
    model : Stepped
    run : callable
        Runs tasks, see `Run`; by default here, one after the other. The bits of a step do not depend on it.
    products : "float32" or "bfloat16"
        Type to which factors of a step's matrix products may be rounded, see `rec_models.engine.products`;
        predictions always use float32.

    Raises
    ------
    ConfigurationError
        When ``products`` is neither.
    """

    def __init__(self, model: Stepped, run: Run = _run_here, products: str = "float32") -> None:
        self._model, self._run, self._vectors = model, run, vectors_of(products)
        self._scratch, self._results = Scratch(), ResultArrays()

    def loss_and_gradients(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> StepResult:
        """Run a step, see `Model.loss_and_gradients`. Gradients are not reused while references exist."""
        stages = self.stages(batch, rows, dense, step_seed)
        while True:
            try:
                tasks = next(stages)
            except StopIteration as over:
                result: StepResult = over.value
                return result
            self._run(tasks)

    def stages(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> Generator[Sequence[Task], None, StepResult]:
        """Yield lists of tasks of `loss_and_gradients` for the caller to run, each after the one before.

        One step at a time: the next one reuses the arrays.
        """
        examples = len(batch)
        dense = {name: dense[name] for name in self._model.dense_shapes()}
        cuts = self._cuts(examples)
        packed = {name: packed_of(name, value, self._scratch, self._vectors) for name, value in dense.items()}
        parts = [
            _Part(
                batch if len(cuts) == 1 else _cut(batch, cut),
                Tape(training=True, step_seed=step_seed, part=i, empty=self._scratch.of(cut, examples)),
                rows,
                dense,
                packed,
            )
            for i, cut in enumerate(cuts)
        ]
        by_row: dict[str | None, SortedOccurrences] = {}
        weight = self._model.weight(batch)
        tasks: list[Task] = [partial(self._forward_backward, part, weight) for part in parts]
        if batch.sparse.size:
            tasks.append(partial(self._sort, Occurrences.of(batch), rows.shape[0], by_row))
        yield tasks
        rows_gradient = self._results.take(rows.shape, rows.dtype)
        gradients = self._dense_views(dense, rows.dtype)
        yield [
            *_dense_tasks(parts, gradients),
            *self._row_tasks(batch, parts, by_row, rows_gradient),
        ]
        return StepResult(
            loss=sum(part.loss for part in parts),
            logits=np.concatenate([part.logits for part in parts]),
            rows_gradient=rows_gradient,
            dense_gradients=gradients,
        )

    def predict(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute probabilities, see `Model.predict`."""
        model, examples = self._model, len(batch)
        dense = {name: dense[name] for name in model.dense_shapes()}
        cuts = self._cuts(examples)
        predictions: list[Array] = [np.empty(0)] * len(cuts)

        def predict(i: int, cut: slice) -> None:
            tape = Tape(training=False, empty=self._scratch.of(cut, examples))
            dense_vars = {name: Var(value) for name, value in dense.items()}
            predictions[i] = sigmoid_of(model.forward(tape, _cut(batch, cut), Var(rows), dense_vars).value)

        self._run([partial(predict, i, cut) for i, cut in enumerate(cuts)])
        return np.concatenate(predictions)

    def measured(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> dict[str, Array]:
        """Measure statistics, see `Model.measured`, on the whole batch and not by part."""
        measured: list[tuple[Var, Array]] = []
        dense_vars = {name: Var(dense[name]) for name in self._model.dense_shapes()}
        self._model.forward(Tape(training=False, measured=measured), batch, Var(rows), dense_vars)
        values = {id(statistic): value for statistic, value in measured}
        return {name: values[id(dense_vars[name])] for name in self._model.statistics()}

    def _cuts(self, examples: int) -> list[slice]:
        if not self._model.examples_independent:
            return [slice(0, examples)]
        return parts_of(examples, even=bool(self._model.statistics()))

    def _forward_backward(self, part: _Part, weight: float) -> None:
        loss, part.logits = self._model.loss(part.tape, part.batch, part.rows, part.dense, weight)
        part.tape.backward(loss)
        part.loss = float(loss.value)

    def _sort(self, some: Occurrences, rows: int, by_row: dict[str | None, SortedOccurrences]) -> None:
        name = ("by row", some.field)
        order = self._scratch.take((name, "order"), (some.rows.size,), np.int32)
        starts = self._scratch.take((name, "starts"), (rows + 1,), np.int32)
        by_row[some.field] = some.sorted_by_row(rows, order, starts)

    def _dense_views(self, dense: Mapping[str, Array], dtype: np.dtype[np.generic]) -> dict[str, Array]:
        """Return arrays for the gradients of dense parameters, adjacent in memory, as they are sent."""
        vector = self._results.take((sum(value.size for value in dense.values()),), dtype)
        views, start = {}, 0
        for name, value in dense.items():
            views[name] = vector[start : start + value.size].reshape(value.shape)
            start += value.size
        return views

    def _row_tasks(
        self, batch: Batch, parts: list[_Part], by_row: dict[str | None, SortedOccurrences], out: Array
    ) -> list[Task]:
        sums: list[tuple[Occurrences | None, Array, slice]] = []
        for same in zip(*(part.recorded for part in parts), strict=True):
            columns = slice(same[0].start, same[0].stop)
            if same[0].occurrences is None:
                sums += [(None, one.addends, columns) for one in same]
                continue
            occurrences = same[0].occurrences.whole(batch)
            if occurrences.field not in by_row:
                self._sort(occurrences, out.shape[0], by_row)
            sums.append((occurrences, joined([one.addends for one in same]), columns))

        def add_up(first: int, last: int) -> None:
            out[first:last] = 0
            for occurrences, addends, columns in sums:
                if occurrences is None:
                    out[first:last, columns] += addends[first:last]
                else:
                    occurrences.add(by_row[occurrences.field], addends, out[:, columns], first, last)

        return [partial(add_up, first, last) for first, last in pairwise(_row_cuts(by_row, out.shape[0]))]


def _row_cuts(by_row: dict[str | None, SortedOccurrences], rows: int) -> list[int]:
    """Cut the rows into tasks of about equal work: the first rows of a batch are the frequent ones."""
    if None not in by_row:
        return np.linspace(0, rows, ROW_TASKS + 1).astype(int).tolist()
    starts = by_row[None].starts
    work = np.linspace(0, starts[-1] + rows, ROW_TASKS + 1)[1:-1]
    return [0, *np.searchsorted(starts + np.arange(starts.size), work).tolist(), rows]


def _dense_tasks(parts: list[_Part], gradients: Mapping[str, Array]) -> list[Task]:
    """Return the tasks of dense gradients: those without a product, which are short, in one task."""
    tasks: list[Task] = []
    short: list[Task] = []
    for name, out in gradients.items():
        some = _tasks_of_one(name, parts, out)
        (tasks if parts[0].dense[name].products else short).extend(some)
    return [*tasks, partial(_run_here, short)] if short else tasks


def _tasks_of_one(name: str, parts: list[_Part], out: Array) -> list[Task]:
    """Return the tasks of the gradient of one dense parameter, in the order of the parts."""
    variables = [part.dense[name] for part in parts]
    packed = variables[0].packed  # one for all parts
    vectors = packed.vectors if packed else None
    products = [
        (joined([left for left, _ in same]), joined([right for _, right in same]))
        for same in zip(*(variable.products for variable in variables), strict=True)
    ]
    others = [variable.gradient for variable in variables if variable.gradient is not None]

    def add_up(first: int, last: int) -> None:
        target = out[first:last]
        if products:
            left, right = products[0]
            transposed_times(left[:, first:last], right, target, vectors)
        else:
            target[...] = 0
        for left, right in products[1:]:
            target += left[:, first:last].T @ right
        for other in others:
            target += other[first:last]

    length = out.shape[0]
    pieces = max(1, min(ROW_TASKS, length // PRODUCT_ROWS)) if products else 1
    return [partial(add_up, length * i // pieces, length * (i + 1) // pieces) for i in range(pieces)]


def _cut(batch: Batch, cut: slice) -> Batch:
    """Return some examples of a batch, with the same keys."""
    ragged = {}
    for name, lists in batch.ragged.items():
        offsets = lists.offsets[cut.start : cut.stop + 1]
        ragged[name] = Ragged(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])
    return replace(
        batch,
        labels=batch.labels[cut],
        dense=batch.dense[cut],
        sparse=batch.sparse[cut],
        ragged=ragged,
        more_labels=None if batch.more_labels is None else batch.more_labels[cut],
        weights=None if batch.weights is None else batch.weights[cut],
    )
