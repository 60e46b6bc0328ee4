from collections.abc import Sequence
from typing import Any

from numpy import float32, int32, int64, uint64
from numpy.typing import NDArray

__all__ = ["batch_keys", "take_rows"]

def batch_keys(
    sparse: NDArray[uint64],
    lists: Sequence[tuple[NDArray[Any], NDArray[Any], int | None]],
    rows: NDArray[int64],
    drawn: NDArray[uint64],
    vectors: str | None = None,
) -> tuple[NDArray[uint64], NDArray[int32], list[NDArray[int64]]]: ...
def take_rows(matrix: NDArray[float32], rows: NDArray[int64]) -> NDArray[float32]: ...
