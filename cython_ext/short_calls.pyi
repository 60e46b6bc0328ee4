from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.short_frames import ShortCall

__all__ = ["ShortCalls"]

class ShortCalls:
    over: list[ShortCall]
    applied: list[tuple[ShortCall, int, int, int]]
    due_s: float
    def __init__(
        self,
        version: int,
        cluster: str,
        bytes_max: int,
        flying: dict[str, int],
        waiting: dict[str, Any],
        took_s: dict[str, float],
    ) -> None: ...
    def __len__(self) -> int: ...
    def begin(
        self,
        call: ShortCall,
        addresses: Sequence[str],
        first_id: int,
        credit: tuple[int, int],
        times: tuple[float, float, float, float],
        outgoing: Callable[[str, list[Any]], Any],
        lanes: tuple[type, Mapping[str, bytes], Collection[str]] | None = None,
    ) -> list[Any] | None: ...
    def receive(self, now_s: float, came: list[tuple[Any, list[Any]]]) -> list[tuple[Any, list[Any]]]: ...
    def call_of(self, request_id: int) -> ShortCall | None: ...
    def older(self, sent_s: float, due_s: float) -> list[ShortCall]: ...
    def unfold(self, call: ShortCall) -> list[tuple[int, str, int, NDArray[np.int32] | None, int, float]]: ...
    def clear(self) -> None: ...
