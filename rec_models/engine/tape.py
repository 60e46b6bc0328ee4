"""Reverse-mode differentiation.

A layer is a function ``layer(tape, inputs...) -> Var``: it computes its value and records, on the same
screen, a closure that turns the gradient of its output into gradients of its inputs. `Tape.backward` calls
the closures in the reverse order of recording, so sums of gradients have a fixed order and fixed bits.

Two rules apply: a closure never changes its argument (inputs may share it), unless its Var owns it; and a
recorded value is never changed.

>>> tape, x = Tape(training=True), Var(np.array([3.0]))
>>> y = tape.record(x.value**2, lambda gradient: x.accumulate(gradient * 2 * x.value))
>>> tape.backward(y)
>>> x.gradient
array([6.])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rec_models.engine.occurrences import Occurrences


P = ParamSpec("P")
R = TypeVar("R")

Array: TypeAlias = NDArray[Any]
"""Floats: float32 in training, float64 in gradient checks; a layer keeps the dtype of its inputs."""

Empty: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Allocator: ``empty(shape, dtype)`` returns an array with arbitrary contents."""


class Var:
    """Value, and after `Tape.backward` the gradient of the tape's end with respect to it.

    Attributes
    ----------
    value : array
    gradient : array of the same shape, or None where no gradient has arrived
    owns_gradient : bool
        True if ``gradient`` is not shared, so that closures may add to it in place.
    room : (B, N) array or None
        Array whose first columns are ``value``, with free columns after them; see `concat`.
    """

    __slots__ = ("gradient", "owns_gradient", "room", "value")

    def __init__(self, value: Array) -> None:
        self.value = value
        self.gradient: Array | None = None
        self.owns_gradient = False
        self.room: Array | None = None

    def accumulate(self, gradient: Array, *, owned: bool = False) -> None:
        """Add to the gradient.

        Parameters
        ----------
        gradient : array of the value's shape
        owned : bool
            Pass on the ownership of the array. Otherwise it may be shared and is never changed.
        """
        if self.gradient is None:
            self.gradient, self.owns_gradient = gradient, owned
        elif self.owns_gradient:
            self.gradient += gradient
        else:
            self.gradient, self.owns_gradient = self.gradient + gradient, True

    def accumulate_product(self, left: Array, right: Array) -> None:
        """Add ``left^T right`` of (B, N) and (B, M): the gradient of the matrix in ``left W``."""
        self.accumulate(left.T @ right, owned=True)

    def accumulate_occurrences(self, occurrences: Occurrences, addends: Array) -> None:
        """Add addends to the rows of their occurrences; see `Occurrences.sum`."""
        self.accumulate(occurrences.sum(addends, self.value.shape), owned=True)

    def gradient_or_zeros(self) -> Array:
        """Return the gradient; zeros if none has arrived."""
        return np.zeros_like(self.value) if self.gradient is None else self.gradient


class Tape:
    """Record of computations, in order.

    Parameters
    ----------
    training : bool
        Record closures and apply dropout; False for predictions.
    step_seed : int
        Seed of this step's random bits, modulo 2^64.
    part : int
        Number of the part of the step's batch, below 2^32: each part draws its own random bits.
    empty : callable or None
        Allocator of values and gradients, (B, ...), that live until the end of the step. None: `numpy.empty`.
    measured : list or None
        Receives the statistics of normalising layers, which then measure them on the examples, as in
        training.

    Attributes
    ----------
    traced : callable or None
        Called with the name and the arguments of each `layer` in place of computing it; see
        `rec_models.export.trace`. None: layers compute.
    """

    traced: Callable[..., Any] | None = None

    def __init__(
        self,
        *,
        training: bool,
        step_seed: int = 0,
        part: int = 0,
        empty: Empty | None = None,
        measured: list[tuple[Var, Array]] | None = None,
    ) -> None:
        self.training, self.measured = training, measured
        self.empty: Empty = empty or np.empty
        self._step_seed = step_seed % (1 << 64) | part << 96
        self._draws = 0
        self._steps: list[tuple[tuple[Var, ...], Callable[..., None]]] = []

    def empty_like(self, array: Array) -> Array:
        """Return an array of the same shape and dtype with arbitrary contents, see ``empty``."""
        return self.empty(array.shape, array.dtype)

    def record(self, value: Array, backward: Callable[[Array], None]) -> Var:
        """Record one result; ``backward(its gradient)`` accumulates into its inputs."""
        output = Var(value)
        if self.training:
            self._steps.append(((output,), backward))
        return output

    def record_many(self, values: tuple[Array, ...], backward: Callable[..., None]) -> tuple[Var, ...]:
        """Record several results of one step; ``backward`` gets one gradient each, zeros if none arrived."""
        outputs = tuple(Var(value) for value in values)
        if self.training:
            self._steps.append((outputs, backward))
        return outputs

    def measure(self, statistic: Var, value: Array) -> None:
        """Record the measured value of a statistic, on a tape that measures."""
        if self.measured is not None:
            self.measured.append((statistic, value))

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """Return (count,) random words: a pure function of step seed, part, and number of earlier calls."""
        self._draws += 1
        return np.random.Philox(key=self._step_seed | self._draws << 64).random_raw(count)

    def backward(self, end: Var) -> None:
        """Compute the gradients of all inputs of ``end``, and clear the record.

        Parameters
        ----------
        end : Var
            Usually the scalar loss; for any other shape its elements are summed.
        """
        end.accumulate(np.ones_like(end.value))
        while self._steps:
            outputs, backward = self._steps.pop()
            if len(outputs) == 1:  # the usual case; a generator would cost more than the closure
                if outputs[0].gradient is not None:
                    backward(outputs[0].gradient)
            elif any(output.gradient is not None for output in outputs):
                backward(*(output.gradient_or_zeros() for output in outputs))


def layer(function: Callable[Concatenate[Tape, P], R]) -> Callable[Concatenate[Tape, P], R]:
    """Mark a layer that computes by arrays: a tape that traces is told of its call instead.

    Layers that are made of other layers need no mark.
    """
    name = function.__name__

    @wraps(function)
    def call(tape: Tape, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if tape.traced is None:
            return function(tape, *args, **kwargs)
        return tape.traced(name, *args, **kwargs)

    return call
