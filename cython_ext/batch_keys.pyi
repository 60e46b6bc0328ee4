from collections.abc import Sequence
from typing import Any

from numpy import int32, int64, uint64
from numpy.typing import NDArray

__all__ = ["batch_keys"]

def batch_keys(
    sparse: NDArray[uint64],
    lists: Sequence[tuple[NDArray[Any], NDArray[int64], int | None]],
    rows: NDArray[int64],
    drawn: NDArray[uint64],
) -> tuple[NDArray[uint64], NDArray[int32], list[NDArray[int64]]]: ...
