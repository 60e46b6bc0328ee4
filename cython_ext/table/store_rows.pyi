from typing import TypeAlias

from numpy import float32, uint64
from numpy.typing import NDArray

from cython_ext.table.store_memory import StoreMemory

__all__ = ["StoreRows"]

_Floats: TypeAlias = NDArray[float32]

class StoreRows(StoreMemory):
    def pull(self, keys: NDArray[uint64], out: _Floats, now: float = 0.0) -> int: ...
    def push(
        self,
        keys: NDArray[uint64],
        gradients: _Floats,
        narrow: bool = False,
        *,
        salt: int = 0,
        now: float = 0.0,
        shows: _Floats | None = None,
        clicks: _Floats | None = None,
        rate: float = 1.0,
        delta: bool = False,
    ) -> None: ...
    def erase(self, keys: NDArray[uint64]) -> int: ...
    def assign(self, keys: NDArray[uint64], weights: _Floats, state: _Floats | None = None) -> None: ...
    def export_partition(
        self, partition: int, narrow: bool = False
    ) -> tuple[NDArray[uint64], _Floats, _Floats]: ...
    def import_partition(
        self, partition: int, keys: NDArray[uint64], weights: _Floats, state: _Floats, narrow: bool = False
    ) -> None: ...
    def drop_partition(self, partition: int) -> int: ...
    def promote(self, keys: NDArray[uint64]) -> int: ...
