"""Reverse-mode differentiation on one page.

A layer is a function ``layer(tape, inputs...) -> Var``: it computes its value and records, on the same
screen, a closure that turns the gradient of its output into gradients of its inputs. `Tape.backward` calls
the closures in the reverse order of recording, so every sum of gradients has one order and the bits repeat.

Two rules keep it this short: a closure never changes the gradient it is given (inputs may share it), and a
value is never changed once it is recorded.

>>> tape, x = Tape(training=True), Var(np.array([3.0]))
>>> y = tape.record(x.value**2, lambda gradient: x.accumulate(gradient * 2 * x.value))
>>> tape.backward(y)
>>> x.gradient
array([6.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Tape", "Var"]

Array: TypeAlias = NDArray[Any]
"""Floats: float32 in training, float64 in gradient checks; a layer keeps the dtype of its inputs."""


class Var:
    """A value, and after `Tape.backward` the gradient of the tape's end with respect to it.

    Attributes
    ----------
    value : array
    gradient : array of the same shape, or None where no gradient has arrived
    """

    __slots__ = ("gradient", "value")

    def __init__(self, value: Array) -> None:
        self.value = value
        self.gradient: Array | None = None

    def accumulate(self, gradient: Array) -> None:
        """Add to the gradient. Never in place: the array given may be shared with other inputs."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def gradient_or_zeros(self) -> Array:
        """The gradient, zeros where none has arrived."""
        return np.zeros_like(self.value) if self.gradient is None else self.gradient


class Tape:
    """What was computed, in order.

    Parameters
    ----------
    training : bool
        Whether to record closures, and whether dropout drops; False for predictions.
    step_seed : int
        Seed of this step's random bits (taken modulo 2^64).
    """

    def __init__(self, *, training: bool, step_seed: int = 0) -> None:
        self.training = training
        self._step_seed = step_seed % (1 << 64)
        self._draws = 0
        self._steps: list[tuple[tuple[Var, ...], Callable[..., None]]] = []

    def record(self, value: Array, backward: Callable[[Array], None]) -> Var:
        """Note one result; ``backward(gradient of it)`` will accumulate into what it was made from."""
        return self.record_many((value,), backward)[0]

    def record_many(self, values: tuple[Array, ...], backward: Callable[..., None]) -> tuple[Var, ...]:
        """Note several results of one step; ``backward`` gets one gradient each, zeros where none arrived."""
        outputs = tuple(Var(value) for value in values)
        if self.training:
            self._steps.append((outputs, backward))
        return outputs

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """(count,) random words: a pure function of the step's seed and of how many calls came before."""
        self._draws += 1
        return np.random.Philox(key=self._step_seed | self._draws << 64).random_raw(count)

    def backward(self, end: Var) -> None:
        """Fill the gradients of everything that ``end`` was made from, and forget the record.

        Parameters
        ----------
        end : Var
            Usually the scalar loss; for any other shape its elements are summed.
        """
        end.accumulate(np.ones_like(end.value))
        while self._steps:
            outputs, backward = self._steps.pop()
            if any(output.gradient is not None for output in outputs):
                backward(*(output.gradient_or_zeros() for output in outputs))
