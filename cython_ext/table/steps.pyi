from collections.abc import Sequence

from numpy import float32, uint64
from numpy.typing import NDArray

def apply_dense_blocks(
    optimizer_kind: int,
    hyperparameters: NDArray[float32],
    modifiers: NDArray[float32],
    corrections: NDArray[float32],
    weights: Sequence[NDArray[float32]],
    states: Sequence[NDArray[float32]],
    gradient: NDArray[float32],
    rate: float = 1.0,
) -> int: ...
def apply_row(
    optimizer_kind: int,
    hyperparameters: NDArray[float32],
    modifiers: NDArray[float32],
    corrections: NDArray[float32],
    weights: NDArray[float32],
    state: NDArray[float32],
    gradient: NDArray[float32],
    shows: float,
    missed: float,
) -> bool: ...
def initial_rows(
    keys: NDArray[uint64], dim: int, initializer_kind: int, numbers: NDArray[float32], part_seed: int
) -> NDArray[float32]: ...
