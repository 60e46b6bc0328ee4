from typing import TypeVar

from numpy import float32, float64
from numpy.typing import NDArray

_Real = TypeVar("_Real", float32, float64)

def add_bias_relu(values: NDArray[_Real], bias: NDArray[_Real]) -> None: ...
def relu_gradient(
    gradient: NDArray[_Real], values: NDArray[_Real], masked: NDArray[_Real], total: NDArray[_Real]
) -> None: ...
def head_gradient(
    gradient: NDArray[_Real],
    values: NDArray[_Real],
    weights: NDArray[_Real],
    masked: NDArray[_Real],
    total: NDArray[_Real],
    weights_gradient: NDArray[_Real],
) -> None: ...
def fm_pairs(vectors: NDArray[_Real], totals: NDArray[_Real], values: NDArray[_Real]) -> None: ...
def fm_gradient(
    vectors: NDArray[_Real], totals: NDArray[_Real], gradient: NDArray[_Real], out: NDArray[_Real]
) -> None: ...
