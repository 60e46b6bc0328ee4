from numpy import int64
from numpy.typing import NDArray

__all__ = ["shuffled"]

def shuffled(base: int, n: int) -> NDArray[int64]: ...
