from collections.abc import Sequence
from typing import Any

__all__ = ["FUNCTIONS", "ZmqFrames"]

FUNCTIONS: tuple[str, ...]

class ZmqFrames:
    def __init__(
        self,
        socket: int,
        functions: Sequence[int],
        copied_bytes: int,
    ) -> None: ...
    def ready(self) -> bool: ...
    def receive(self, most: int) -> list[tuple[bytes, list[bytes | bytearray | memoryview]]]: ...
    def send(self, routing_id: bytes, frame: bytes) -> int: ...
    def send_all(
        self, messages: Sequence[Any], first: int, ids: dict[Any, bytes] | None, silent: set[Any] | None
    ) -> int: ...
