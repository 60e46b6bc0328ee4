from collections.abc import Sequence
from typing import final

from numpy import bool_, float32, int32, uint64
from numpy.typing import NDArray

__all__ = ["CachedKeys", "RowCache"]

class CachedKeys:
    spots: int
    batch: int
    filled: int
    age: int
    def __init__(self, spots: int, age: int) -> None: ...
    def plan(self, keys: NDArray[uint64]) -> tuple[NDArray[int32], NDArray[int32]]: ...

@final
class RowCache(CachedKeys):
    dim: int
    def __init__(
        self,
        spots: int,
        parts: Sequence[int],
        learning_rates: Sequence[float],
        modes: Sequence[int],
        first_sums: Sequence[float],
        pushers: int,
        age: int,
    ) -> None: ...
    def assemble(
        self,
        keys: NDArray[uint64],
        spots: NDArray[int32],
        missed: NDArray[int32],
        pulled: NDArray[float32],
        new: NDArray[bool_],
        out: NDArray[float32],
    ) -> None: ...
    def step(self, spots: NDArray[int32], gradients: NDArray[float32], rate: float = 1.0) -> None: ...
