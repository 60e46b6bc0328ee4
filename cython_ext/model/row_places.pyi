from typing import Any, TypeVar

from numpy import float32, float64, int32, int64
from numpy.typing import NDArray

_Real = TypeVar("_Real", float32, float64)

def gather_fields(rows: NDArray[_Real], places: NDArray[int32], out: NDArray[_Real]) -> None: ...
def weigh_fields(rows: NDArray[_Real], places: NDArray[int32], out: NDArray[_Real]) -> None: ...
def occurrences(places: NDArray[int32], order: NDArray[int32], starts: NDArray[int32]) -> None: ...
def sum_occurrences(
    order: NDArray[int32],
    starts: NDArray[int32],
    first: int,
    last: int,
    addends: NDArray[_Real],
    fields: int,
    owners: NDArray[int32] | None,
    out: NDArray[_Real],
) -> None: ...
def scatter_add_rows(gradients: NDArray[_Real], places: NDArray[int32], rows: int) -> NDArray[_Real]: ...
def pool_rows(
    rows: NDArray[_Real], places: NDArray[int32], offsets: NDArray[int64], mean: bool
) -> NDArray[_Real]: ...
def pool_rows_gradient(
    gradients: NDArray[_Real], places: NDArray[int32], offsets: NDArray[int64], rows: int, mean: bool
) -> NDArray[_Real]: ...
def place_of_joined(parts: list[NDArray[Any]]) -> int: ...
