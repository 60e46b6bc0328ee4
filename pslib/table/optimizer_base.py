"""Base of all optimizers: learning rate, and modifiers of weights and gradient before the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.validation import check_fields

__all__ = ["HYPERPARAMETERS_MAX", "MODIFIERS", "Optimizer", "is_number", "not_numbers"]

HYPERPARAMETERS_MAX = 8
"""Length of the float32 array of an optimizer's numbers for its kernel."""

MODIFIERS = ("weight_decay", "clip_norm", "cowclip_ratio", "cowclip_floor")
"""Options of every optimizer, applied to weights and gradient before its step."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Base of all optimizers: a value that selects the step and its hyperparameters.

    Attributes
    ----------
    kind : int
        Number of the step in ``cython_ext/table/optimizer_steps.h``.
    learning_rate : float
    weight_decay : float
        Decoupled from the gradient: before a step of a row, its weights are multiplied by
        ``(1 - learning_rate * weight_decay) ** missed``, where ``missed`` counts the training steps since the
        row's last push, so rare rows decay as frequent ones. Source: Loshchilov and
        Hutter, arXiv:1711.05101, algorithm 2. 0 is off.
    clip_norm : float
        A part's gradient ``g`` of a row is scaled to this L2 norm if its own is larger: ``g *= c / |g|``.
        Source: Pascanu et al., arXiv:1211.5063, algorithm 1, for each row. 0 is off.
    cowclip_ratio, cowclip_floor : float
        The same, after ``clip_norm``, with a bound per row: ``shows * max(ratio * |w|, floor)``;
        ``shows`` is the number of examples of the batch with the key. Source: CowClip, Zheng et al.,
        arXiv:2204.06240, algorithm 1 (``r`` and zeta there). Both 0 is off; a floor alone is a constant bound
        per show.
    """

    kind: ClassVar[int]
    mixes_elements: ClassVar[bool] = False
    """Whether an element's step depends on other elements of its row, apart from clipping."""

    learning_rate: float = 0.05
    _: KW_ONLY
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    cowclip_ratio: float = 0.0
    cowclip_floor: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if problems := list(self._problems()):
            raise ConfigurationError(*problems)

    def _problems(self) -> Iterator[str]:
        """Out-of-range numbers, one line each; subclasses add their own."""
        rate = self.learning_rate
        if not is_number(rate, above=0):
            yield f"learning_rate must be > 0 and finite in float32, got {rate}"
        yield from not_numbers(self, *MODIFIERS)
        if self.cowclip_ratio > 0 and not self.cowclip_floor > 0:
            yield "cowclip_ratio needs cowclip_floor > 0, for example 1e-5: a row at zero would never move"
        left = 1 - rate * self.weight_decay
        if self.weight_decay > 0 and left <= 0:
            yield f"weight_decay must be < 1 / learning_rate = {1 / rate}, got {self.weight_decay}"
        if 0 < left < 1 and np.float32(left) == 1:
            yield (
                f"weight_decay {self.weight_decay} at learning_rate {rate} changes no float32 weight in a "
                f"step; use 0, or at least {2**-24 / rate:.1e}"
            )

    @property
    def catches_up(self) -> bool:
        """Whether a row must record its missed steps, to make up for them."""
        return self.weight_decay > 0

    @property
    def elementwise(self) -> bool:
        """Whether each element's step depends on that element alone (needed for dense blocks)."""
        return not (self.mixes_elements or any(self.modifiers()[1:]))

    def state_floats(self, dim: int) -> int:
        """Floats of state for ``dim`` weights."""
        raise TypeError(
            f"optimizer: expected one of pslib.table.optimizers, got {type(self).__name__}, their base"
        )

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """Initial state of a new row, (state_floats,) float32."""
        return np.zeros(self.state_floats(dim), np.float32)

    def hyperparameters(self) -> NDArray[np.float32]:
        """The kernel's numbers, (HYPERPARAMETERS_MAX,) float32: the rate, then the fields of the subclass."""
        own = [getattr(self, one.name) for one in fields(self) if one.name not in MODIFIERS]
        numbers = np.zeros(HYPERPARAMETERS_MAX, np.float32)
        numbers[: len(own)] = own
        return numbers

    def modifiers(self) -> NDArray[np.float32]:
        """The kernel's `MODIFIERS`, (4,) float32; 0 is off."""
        return np.asarray([getattr(self, name) for name in MODIFIERS], np.float32)

    def corrections(self) -> NDArray[np.float32]:
        """Correction tables over the step count, (steps, 2) float32; empty if the step count is unused."""
        return np.zeros((0, 2), np.float32)

    def to_dict(self) -> dict[str, float | str]:
        """Plain form for the wire and for manifests; `optimizer_from_dict` is the inverse.

        Modifiers at their default of off are omitted.
        """
        told = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if not (one.name in MODIFIERS and getattr(self, one.name) == one.default == 0)
        }
        return {"name": type(self).__name__} | told


def is_number(value: float, above: float | None = None) -> bool:
    """Whether it is finite in float32, and >= 0, or > ``above``; only 0 may be 0 in float32."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if above is not None:
        return above < rounded < np.inf
    return value == 0 or 0 < rounded < np.inf


def not_numbers(optimizer: Optimizer, *names: str) -> Iterator[str]:
    """Error lines for those of these fields that are not finite non-negative numbers."""
    for name in names:
        if not is_number(number := getattr(optimizer, name)):
            yield f"{name} must be >= 0 and finite in float32, got {number}"
