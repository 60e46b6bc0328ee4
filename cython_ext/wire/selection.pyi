from typing import Any

from numpy import int32, int64, uint16, uint64
from numpy.typing import NDArray

__all__ = ["first_of_others", "gather_rows", "group_by_owner", "partition_set", "scatter_rows"]

def first_of_others(
    keys: NDArray[uint64], partition_bits: int, owners: NDArray[uint16], owner: int
) -> int: ...
def partition_set(keys: NDArray[uint64], partition_bits: int) -> int: ...
def group_by_owner(
    keys: NDArray[uint64],
    partition_bits: int,
    owners: NDArray[uint16],
    owner_count: int,
    grouped: NDArray[uint64] | None = None,
) -> tuple[NDArray[int32], NDArray[int64]]: ...
def gather_rows(rows: NDArray[Any], places: NDArray[int32], out: NDArray[Any]) -> None: ...
def scatter_rows(rows: NDArray[Any], places: NDArray[int32], out: NDArray[Any]) -> None: ...
