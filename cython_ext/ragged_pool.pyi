from typing import TypeVar

from numpy import float32, float64, int32, int64
from numpy.typing import NDArray

Real = TypeVar("Real", float32, float64)

def gather_rows(rows: NDArray[Real], places: NDArray[int32]) -> NDArray[Real]: ...
def scatter_add_rows(gradients: NDArray[Real], places: NDArray[int32], rows: int) -> NDArray[Real]: ...
def pool_rows(
    rows: NDArray[Real], places: NDArray[int32], offsets: NDArray[int64], mean: bool
) -> NDArray[Real]: ...
def pool_rows_gradient(
    gradients: NDArray[Real], places: NDArray[int32], offsets: NDArray[int64], rows: int, mean: bool
) -> NDArray[Real]: ...
