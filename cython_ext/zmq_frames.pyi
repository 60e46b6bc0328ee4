from collections.abc import Sequence
from typing import Any

from cython_ext.lanes import Lanes

__all__ = ["FUNCTIONS", "ZmqFrames"]

FUNCTIONS: tuple[str, ...]

class ZmqFrames:
    @property
    def lanes(self) -> Lanes | None: ...
    @property
    def holds(self) -> bool: ...
    def __init__(
        self,
        socket: int,
        functions: Sequence[int],
        copied_bytes: int,
        lanes: Lanes | None = None,
        short_kind: type | None = None,
    ) -> None: ...
    def let_pass(self, peer: Any, routing_id: bytes) -> int: ...
    def ready(self) -> bool: ...
    def receive(self, most: int) -> list[tuple[bytes, list[bytes | bytearray | memoryview]]]: ...
    def send(self, routing_id: bytes, frame: bytes) -> int: ...
    def send_laid(self, peer: Any, routing_id: bytes, frames: list[Any]) -> int | None: ...
    def send_all(
        self, messages: Sequence[Any], first: int, ids: dict[Any, bytes] | None, silent: set[Any] | None
    ) -> int: ...
