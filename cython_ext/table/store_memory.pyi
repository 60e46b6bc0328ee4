from collections.abc import Sequence
from typing import Self, TypeAlias

from numpy import float32
from numpy.typing import NDArray

__all__ = ["StoreMemory", "vector_levels"]

_Floats: TypeAlias = NDArray[float32]
_Part: TypeAlias = tuple[int, int, _Floats, _Floats, _Floats, int, _Floats, int, _Floats]

def vector_levels() -> tuple[str, ...]: ...

class StoreMemory:
    def __new__(
        cls,
        partition_bits: int,
        parts: Sequence[_Part],
        narrow_parts: int = 0,
        *,
        storage: int = 0,
        counters: int = 0,
        admission: tuple[int, float, int] = (0, 0.0, 0),
        promotion: tuple[int, float] = (0, 0.0),
        score: tuple[float, float] = (0.0, 0.0),
    ) -> Self: ...
    @property
    def partition_bits(self) -> int: ...
    @property
    def narrow_parts(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def state_floats(self) -> int: ...
    @property
    def rows(self) -> int: ...
