from collections.abc import Sequence
from typing import Any

from numpy import float32, uint8, uint64
from numpy.typing import NDArray

__all__ = ["fill_keys", "fill_numbers"]

def fill_keys(
    columns: Sequence[tuple[NDArray[Any], NDArray[uint8] | None, int, int | None, NDArray[uint64] | None]],
    out: NDArray[uint64],
    vectors: str | None = None,
) -> None: ...
def fill_numbers(
    columns: Sequence[tuple[NDArray[Any], NDArray[uint8] | None, int, float, bool]],
    out: NDArray[float32],
    vectors: str | None = None,
) -> list[int]: ...
