from typing import TypeVar

from numpy import float32, float64
from numpy.typing import NDArray

_Real = TypeVar("_Real", float32, float64)

def add_bias_relu(values: NDArray[_Real], bias: NDArray[_Real]) -> None: ...
def relu_gradient(
    gradient: NDArray[_Real], values: NDArray[_Real]
) -> tuple[NDArray[_Real], NDArray[_Real]]: ...
