from numpy import int32, uint64
from numpy.typing import NDArray

__all__ = ["CachedKeys"]

class CachedKeys:
    spots: int
    batch: int
    filled: int
    age: int
    def __init__(self, spots: int, age: int) -> None: ...
    def plan(self, keys: NDArray[uint64]) -> tuple[NDArray[int32], NDArray[int32]]: ...
