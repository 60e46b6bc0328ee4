"""Optimizers: the row update of a server for an arriving gradient.

A new optimizer touches three places: its dataclass here (and its entry in `OPTIMIZERS`), its step in
``cython_ext/table/optimizer_steps.h``, and its five-line NumPy definition in
``tests/support/definitions/optimizers.py``. All arithmetic is float32 with one rounding per operation, so
kernel and definition give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.settings import Setting, Settings, read_named

HYPERPARAMETERS_MAX = 8
"""Length of the float32 array of an optimizer's numbers for its kernel."""

MODIFIERS = ("weight_decay", "clip_norm", "cowclip_ratio", "cowclip_floor")
"""Options of every optimizer, applied to weights and gradient before its step."""

Rate = Annotated[float, Setting("Factor of each step.", gt=0, float32=True)]
Amount = Annotated[float, Setting("0 is off.", ge=0, float32=True)]
Epsilon = Annotated[float, Setting("Added to what a step is divided by.", gt=0, float32=True)]
Accumulator = Annotated[float, Setting("First value of accumulators.", ge=0, float32=True)]
BETA_MAX = 0.9999
"""Above it the correction tables of Adam exceed 2 MB; no known training of rows uses more."""
Beta = Annotated[float, Setting("Decay of a moment a step.", ge=0, le=BETA_MAX)]


@dataclass(frozen=True, slots=True)
class Optimizer(Settings):
    """Base of all optimizers: a value that selects the step and its hyperparameters.

    A step stores finite numbers only. A weight whose new value or state would be NaN or infinite is refused:
    it stays as it is (decayed), and so does its state; the whole row does where a sum over it would not be
    finite. Adam's step count goes on. The counter ``steps_refused`` counts such steps, and a server warns
    once of each table.

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
    """True if an element's step depends on other elements of its row, apart from clipping."""

    learning_rate: Rate = 0.05
    _: KW_ONLY
    weight_decay: Amount = 0.0
    clip_norm: Amount = 0.0
    cowclip_ratio: Amount = 0.0
    cowclip_floor: Amount = 0.0

    def _problems(self) -> Iterator[str]:
        rate, decay = self.learning_rate, self.weight_decay
        if self.cowclip_ratio > 0 and not self.cowclip_floor > 0:
            yield (
                "cowclip_ratio: expected cowclip_floor > 0 with it, for example 1e-5; else a row at "
                "zero would never move"
            )
        left = 1 - rate * decay
        if decay > 0 and left <= 0:
            yield f"weight_decay: expected less than 1 / learning_rate = {1 / rate}, got {decay}"
        if 0 < left < 1 and np.float32(left) == 1:
            yield (
                f"weight_decay: {decay} at learning_rate {rate} changes no float32 weight in a step; "
                f"use 0, or at least {2**-24 / rate:.1e}"
            )

    @property
    def catches_up(self) -> bool:
        """True if a row must record its missed steps, to make up for them."""
        return self.weight_decay > 0

    @property
    def elementwise(self) -> bool:
        """True if each element's step depends on that element alone, as dense blocks need."""
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


@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """``w -= learning_rate * g``. Source: Robbins and Monro, Ann. Math. Statist. 22 (1951)."""

    kind: ClassVar[int] = 0

    def state_floats(self, dim: int) -> int:
        """No state."""
        return 0


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """``a += g*g; w -= learning_rate * g / (sqrt(a) + epsilon)``, one accumulator per weight.

    Source: Duchi, Hazan and Singer, JMLR 12 (2011), diagonal version.
    """

    kind: ClassVar[int] = 1
    epsilon: Epsilon = 1e-10
    initial_accumulator: Accumulator = 0.0

    def state_floats(self, dim: int) -> int:
        """One accumulator per weight."""
        return dim

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """All accumulators at ``initial_accumulator``."""
        return np.full(dim, self.initial_accumulator, np.float32)


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad(Optimizer):
    """``a += mean(g*g); w -= learning_rate * g / (sqrt(a) + epsilon)``, one accumulator per row.

    The mean is summed in 16 lanes, which are then folded 8, 4, 2, 1, so every instruction set gives the same
    bits. Source: Mudigere et al., arXiv:2104.05158, section 4.
    """

    kind: ClassVar[int] = 2
    mixes_elements: ClassVar[bool] = True
    epsilon: Epsilon = 1e-10
    initial_accumulator: Accumulator = 0.0

    def state_floats(self, dim: int) -> int:
        """One accumulator."""
        return 1

    def initial_state(self, dim: int) -> NDArray[np.float32]:
        """The accumulator at ``initial_accumulator``."""
        return np.full(1, self.initial_accumulator, np.float32)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Lazy Adam: a row's moments and its own step count change only when the row is pushed.

    ``m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= learning_rate * (m*c1[t]) / (sqrt(v*c2[t]) + epsilon)``
    with ``c1[t] = 1/(1-b1**t)``, ``c2[t] = 1/(1-b2**t)`` and ``t`` the row's own count, so that a rare row
    is corrected like a new one. Source: Kingma and Ba, arXiv:1412.6980, algorithm 1.
    """

    kind: ClassVar[int] = 3
    learning_rate: Rate = 0.001
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    epsilon: Epsilon = 1e-8

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


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """`Adam` with weight decay enabled: see ``weight_decay`` of `Optimizer`.

    Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, with a schedule multiplier of 1 and, as in
    most implementations, the decay times the learning rate.
    """

    weight_decay: Amount = field(default=0.01, kw_only=True)


@dataclass(frozen=True, slots=True)
class AdamL2(Adam):
    """Adam over the whole table, with L2 in the loss: ``g += l2 * w`` at every step of the training.

    Each step moves every row; a row without examples moves by L2 alone, through both moments. Here a row
    applies its missed steps at its next push, at most `CATCH_UP_MAX` of them, at the learning rate of that
    push. Until then a pull returns it as of its last push. ``l2`` counts as in ``l2 / 2 * |w|^2``. A gradient
    is clipped before L2 is added. Dense parameters have no missed steps.

    Reason for L2 instead of AdamW: the gradient of a rare row is small, and so is its second moment. L2
    applied through the moments holds rare rows back most.
    """

    l2: Amount = field(default=1e-5, kw_only=True)

    CATCH_UP_MAX: ClassVar[int] = 256
    """Most missed steps applied.

    With a gradient of L2 alone Adam moves a weight by about the learning rate per step: after this many steps
    few weights are left that are not near 0.
    """

    @property
    def catches_up(self) -> bool:
        """Always true, unless ``l2`` is off."""
        return self.l2 > 0 or self.weight_decay > 0


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """``b = momentum*b + g; w -= learning_rate * b``, or ``* (g + momentum*b)`` with ``nesterov``.

    Lazy, like Adam: the velocity of a row changes only when the row is pushed. Sources: Polyak, USSR Comput.
    Math. Math. Phys. 4 (1964); nesterov: Sutskever et al., ICML 2013, equations 3 and 4, written for the
    point of the gradient.
    """

    kind: ClassVar[int] = 4
    momentum: Annotated[float, Setting("Decay of the velocity a step.", ge=0, le=1)] = 0.9
    nesterov: bool = False

    def _problems(self) -> Iterator[str]:
        yield from Optimizer._problems(self)
        if np.float32(self.momentum) == 1:
            yield f"momentum: expected less than 1 in float32, got {self.momentum}"

    def state_floats(self, dim: int) -> int:
        """One velocity per weight."""
        return dim


@dataclass(frozen=True, slots=True)
class FTRL(Optimizer):
    """FTRL-proximal with per-coordinate learning rates: L1 gives exact zeros.

    ``s = (sqrt(n + g*g) - sqrt(n)) / alpha; z += g - s*w; n += g*g;
    w = 0 if |z| <= l1 else (sign(z)*l1 - z) / ((beta + sqrt(n)) / alpha + l2)`` with ``alpha`` the learning
    rate. Source: McMahan et al., KDD 2013, "Ad click prediction: a view from the trenches", algorithm 1.

    In the paper every weight begins at 0. Here it may begin elsewhere, as an embedding must. The proximal
    term of strength ``beta / alpha``, centred at 0 in the paper, is centred at the initial value: ``z``
    begins at ``-w * beta / alpha``. Without L1 and L2 a step then equals one of Adagrad with
    ``epsilon = beta``, from any initial value; from 0 it equals the paper's. A weight whose gradient was
    always 0 keeps its initial value.

    Gradients here are of the mean loss of a batch, in the paper of one example. The paper's ``beta`` (1
    there), ``l1`` and ``l2`` apply here divided by the rows of a batch. (DeepFM on generated
    clicks, test AUC at 64, 256, 1,024 rows: 0.807, 0.756, 0.643 with beta 1; 0.840, 0.836, 0.823 with 1e-4.)

    ``weight_decay`` is refused: the next step recomputes the weight from ``z`` and would undo it.
    """

    kind: ClassVar[int] = 5
    beta: Amount = 1e-4
    l1: Amount = 0.0
    l2: Amount = 0.0

    def _problems(self) -> Iterator[str]:
        yield from Optimizer._problems(self)
        if self.weight_decay > 0:
            yield (
                f"weight_decay: expected 0, got {self.weight_decay}: a step makes "
                "weights anew from sums of gradients, which would undo it; use l2"
            )

    def state_floats(self, dim: int) -> int:
        """``z`` of each weight, then sums of squared gradients ``n``."""
        return 2 * dim


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.__name__: kind for kind in (SGD, Momentum, Adagrad, RowwiseAdagrad, Adam, AdamW, AdamL2, FTRL)
}
"""All optimizers by name."""


def dense_problem(optimizer: Optimizer) -> str | None:
    """Reason why an optimizer is invalid for dense parameters, one line; None if valid."""
    if optimizer.elementwise:
        return None
    name = type(optimizer).__name__
    if optimizer.mixes_elements:
        others = ", ".join(other for other, kind in OPTIMIZERS.items() if not kind.mixes_elements)
        return f"{name} mixes elements, and dense blocks are cut anywhere; use one of {others}"
    on = ", ".join(word for word in MODIFIERS[1:] if getattr(optimizer, word) > 0)
    return f"{name} with {on} takes norms of rows, and dense blocks are cut anywhere; set it to 0"


def optimizer_from_dict(plain: dict[str, object]) -> Optimizer:
    """Inverse of `Optimizer.to_dict`.

    Raises
    ------
    ConfigurationError
        If the name or a field is unknown, or a number is out of range.
    """
    return read_named("optimizer", plain, OPTIMIZERS)


def rate_problem(optimizers: Iterable[Optimizer]) -> str | None:
    """Reason why learning rates can't change with the step, one line; None if they can."""
    if any(isinstance(optimizer, FTRL) for optimizer in optimizers):
        return "FTRL makes weights anew from sums of all steps, so its learning rate must stay the same"
    return None
