"""Optimizers: what a server does to a row when a gradient arrives.

A new optimizer touches three places: its dataclass here, its step in ``cython_ext/optimizer_steps.h``,
and its five-line NumPy definition in ``tests/definitions.py``. All arithmetic is float32, one rounding an
operation, so that kernel and definition give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError

__all__ = ["SGD", "Adagrad", "Adam", "Optimizer", "RowwiseAdagrad", "optimizer_from_dict"]

HYPERPARAMETERS_MAX = 8
"""Length of the float32 array that carries an optimizer's numbers to its kernel."""

MODIFIERS = ("weight_decay", "clip_norm", "cowclip_ratio", "cowclip_floor")
"""What any optimizer takes beside its own numbers: done to weights and gradient before its step."""


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ConfigurationError(text)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Base of all optimizers: a value that says which step to take and with which numbers.

    Attributes
    ----------
    kind : int
        The number by which ``cython_ext/optimizer_steps.h`` knows the step.
    """

    kind: ClassVar[int]
    elementwise: ClassVar[bool] = True
    """Whether each element's step depends on that element alone (needed for dense blocks)."""

    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        rate = self.learning_rate
        _require(rate > 0 and np.isfinite(rate), f"learning_rate must be > 0 and finite, got {rate}")

    def state_floats(self, dim: int) -> int:
        """Floats of state beside ``dim`` weights."""
        raise TypeError(f"{type(self).__name__} is the base of optimizers; use one of them")

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """State of a row that has just been made, (state_floats,) float32."""
        return np.zeros(self.state_floats(dim), np.float32)

    def hyperparameters(self) -> NDArray[np.float32]:
        """The kernel's numbers, (HYPERPARAMETERS_MAX,) float32: the fields in the order they stand here."""
        numbers = np.zeros(HYPERPARAMETERS_MAX, np.float32)
        for place, field in enumerate(fields(self)):
            numbers[place] = getattr(self, field.name)
        return numbers

    def modifiers(self) -> NDArray[np.float32]:
        """The kernel's `MODIFIERS`, (4,) float32; 0 is off."""
        return np.zeros(len(MODIFIERS), np.float32)

    def corrections(self) -> NDArray[np.float32]:
        """Tables over the step count, (steps, 2) float32; empty where the step does not count."""
        return np.zeros((0, 2), np.float32)

    def to_dict(self) -> dict[str, float | str]:
        """Plain form for the wire and for manifests; `optimizer_from_dict` reads it back."""
        return {"name": type(self).__name__} | {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """``w -= learning_rate * g``."""

    kind: ClassVar[int] = 0

    def state_floats(self, dim: int) -> int:
        """No state."""
        return 0


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """``a += g*g; w -= learning_rate * g / (sqrt(a) + epsilon)``, one accumulator a weight.

    Source: Duchi, Hazan and Singer, JMLR 12 (2011), diagonal version.
    """

    kind: ClassVar[int] = 1
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require(float(np.float32(self.epsilon)) > 0, f"epsilon must be > 0 in float32, got {self.epsilon}")
        _require(
            self.initial_accumulator >= 0, f"initial_accumulator must be >= 0: {self.initial_accumulator}"
        )

    def state_floats(self, dim: int) -> int:
        """One accumulator a weight."""
        return dim

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """All accumulators at ``initial_accumulator``."""
        return np.full(dim, self.initial_accumulator, np.float32)


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad(Optimizer):
    """``a += mean(g*g); w -= learning_rate * g / (sqrt(a) + epsilon)``, one accumulator a row.

    The mean is summed in 16 lanes that are then folded 8, 4, 2, 1, so that every instruction set gives the
    same bits. Source: Mudigere et al., arXiv:2104.05158, section 4.
    """

    kind: ClassVar[int] = 2
    elementwise: ClassVar[bool] = False
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require(float(np.float32(self.epsilon)) > 0, f"epsilon must be > 0 in float32, got {self.epsilon}")
        _require(
            self.initial_accumulator >= 0, f"initial_accumulator must be >= 0: {self.initial_accumulator}"
        )

    def state_floats(self, dim: int) -> int:
        """One accumulator."""
        return 1

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """The accumulator at ``initial_accumulator``."""
        return np.full(1, self.initial_accumulator, np.float32)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Lazy Adam: a row's moments and its own step count move only when the row is touched.

    ``m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= learning_rate * (m*c1[t]) / (sqrt(v*c2[t]) + epsilon)``
    with ``c1[t] = 1/(1-b1**t)``, ``c2[t] = 1/(1-b2**t)`` and ``t`` the row's own count, so that a rare row
    is corrected like a new one. Source: Kingma and Ba, arXiv:1412.6980, algorithm 1.
    """

    kind: ClassVar[int] = 3
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    BETA_MAX: ClassVar[float] = 0.9999
    """Above it the correction tables would pass 2 MB; nobody is known to train rows with more."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require(float(np.float32(self.epsilon)) > 0, f"epsilon must be > 0 in float32, got {self.epsilon}")
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            _require(0 <= beta <= self.BETA_MAX, f"{name} must be in 0..{self.BETA_MAX}, got {beta}")

    def state_floats(self, dim: int) -> int:
        """First moments, second moments, step count."""
        return 2 * dim + 1

    def corrections(self) -> NDArray[np.float32]:
        """(T + 1, 2) float32: row t holds c1[t], c2[t]; row 0 is unused; row T stands for all later steps.

        T is the first step where both corrections round to 1.
        """
        rows = [(1.0, 1.0)]
        power1 = power2 = 1.0
        while True:
            power1 *= self.beta1
            power2 *= self.beta2
            row = (1.0 / (1.0 - power1), 1.0 / (1.0 - power2))
            rows.append(row)
            if np.float32(row[0]) == 1 and np.float32(row[1]) == 1:
                return np.asarray(rows, np.float64).astype(np.float32)


_BY_NAME: dict[str, type[Optimizer]] = {kind.__name__: kind for kind in (SGD, Adagrad, RowwiseAdagrad, Adam)}


def optimizer_from_dict(plain: dict[str, object]) -> Optimizer:
    """Read back what `Optimizer.to_dict` wrote.

    Raises
    ------
    ConfigurationError
        When the name or a field is unknown, or a number is out of its range.
    """
    numbers = dict(plain)
    name = str(numbers.pop("name", None))
    if name not in _BY_NAME:
        raise ConfigurationError(f"optimizer: expected one of {', '.join(_BY_NAME)}, got {name!r}")
    known = {field.name for field in fields(_BY_NAME[name])}
    if unknown := sorted(set(numbers) - known):
        raise ConfigurationError(
            f"optimizer {name}: unknown {unknown[0]!r}; it takes {', '.join(sorted(known))}"
        )
    return _BY_NAME[name](**numbers_of(name, numbers))


def numbers_of(name: str, plain: dict[str, object]) -> dict[str, float]:
    """Values as floats; ConfigurationError names the first that is not a number."""
    numbers = {}
    for key, value in plain.items():
        try:
            numbers[key] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ConfigurationError(f"{name}.{key}: expected a number, got {value!r}") from None
    return numbers
