"""What a client session remembers of its calls, of the parts they are split into, and of its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pslib.errors import PslibError

__all__ = ["Acked", "Completed", "Part", "PullCall", "PushCall", "PushName"]

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PushName:
    """The name of a push: the same on every server, in every retry and however the push is split again."""

    stream: int
    number: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """A call that is over; ``error`` is None when it went well."""

    call: int
    error: PslibError | None


@dataclass(slots=True)
class Acked:
    """Which numbers of one stream are applied everywhere: all below ``floor``, and those in ``above``."""

    floor: int
    above: set[int] = field(default_factory=set)

    def add(self, number: int) -> None:
        """Note one more."""
        if number >= self.floor:
            self.above.add(number)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1


@dataclass(slots=True)
class PullCall:
    """A pull on its way: outputs that fill as parts are answered."""

    keys: Mapping[str, Keys]
    rows: dict[str, Rows]
    dense: Rows
    started_s: float = 0.0
    open_parts: int = 0


@dataclass(slots=True)
class PushCall:
    """A push (or, without gradients, an erase) on its way."""

    name: PushName
    home: int
    gradients: Mapping[str, tuple[Keys, Rows]] | None
    erased: Mapping[str, Keys]
    dense: Rows
    started_s: float = 0.0
    open_parts: int = 0


@dataclass(slots=True)
class Part:
    """What one message asks of one server: places in the call's arrays (None: all), and dense blocks."""

    call: int
    server: int
    places: dict[str, NDArray[np.int32] | None]
    blocks: NDArray[np.uint32]
    bounces: int
