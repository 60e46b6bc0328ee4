from typing import TypeVar

from numpy import float32, float64, int32, int64
from numpy.typing import NDArray

_Real = TypeVar("_Real", float32, float64)

def gather_rows(rows: NDArray[_Real], places: NDArray[int32]) -> NDArray[_Real]: ...
def scatter_add_rows(gradients: NDArray[_Real], places: NDArray[int32], rows: int) -> NDArray[_Real]: ...
def pool_rows(
    rows: NDArray[_Real], places: NDArray[int32], offsets: NDArray[int64], mean: bool
) -> NDArray[_Real]: ...
def pool_rows_gradient(
    gradients: NDArray[_Real], places: NDArray[int32], offsets: NDArray[int64], rows: int, mean: bool
) -> NDArray[_Real]: ...
