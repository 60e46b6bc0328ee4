from typing import Any

from numpy import float32, int32, uint64
from numpy.typing import NDArray

__all__ = ["first_beyond", "pack", "pack_with_feedback", "rounding_bases", "unpack"]

def first_beyond(values: NDArray[Any], *, narrow: bool = False, vectors: str | None = None) -> int: ...
def pack(
    rows: NDArray[float32],
    out: NDArray[Any],
    scales: NDArray[float32] | None = None,
    places: NDArray[int32] | None = None,
    bases: NDArray[uint64] | None = None,
    factor: float = 1.0,
    *,
    vectors: str | None = None,
) -> None: ...
def unpack(
    packed: NDArray[Any],
    scales: NDArray[float32] | None,
    out: NDArray[float32],
    places: NDArray[int32] | None = None,
    *,
    vectors: str | None = None,
) -> None: ...
def pack_with_feedback(
    gradient: NDArray[float32],
    residual: NDArray[float32],
    out: NDArray[Any],
    *,
    vectors: str | None = None,
) -> None: ...
def rounding_bases(keys: NDArray[uint64], salt: int) -> NDArray[uint64]: ...
