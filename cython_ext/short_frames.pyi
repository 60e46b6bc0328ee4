from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ShortCall"]

class ShortCall:
    owner: Any
    number: int
    table: str
    memory: Any
    named: tuple[int, int, int, int, int] | None
    sent_s: float
    next_try_s: float
    deadline_s: float
    open: int
    def __init__(
        self,
        owner: Any,
        number: int,
        table: str,
        keys: NDArray[np.uint64],
        rows: NDArray[np.float32],
        order: NDArray[np.int32] | None,
        starts: NDArray[np.int64],
        named: tuple[int, int, int, int, int] | None,
        moment: tuple[int, float],
        memory: Any,
    ) -> None: ...
