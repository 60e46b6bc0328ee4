from numpy import uint32
from numpy.typing import NDArray

from cython_ext.table.steps import apply_dense as apply_dense
from cython_ext.table.steps import initial_rows as initial_rows
from cython_ext.table.store_images import StoreImages
from cython_ext.table.store_memory import vector_levels as vector_levels

__all__ = ["Store", "apply_dense", "initial_rows", "vector_levels"]

class Store(StoreImages):
    def partition_rows(self, partition: int) -> int: ...
    def partitions(self) -> NDArray[uint32]: ...
    def stats(self) -> dict[str, int]: ...
    def check_consistency(self) -> None: ...
