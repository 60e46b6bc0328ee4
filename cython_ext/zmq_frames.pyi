from collections.abc import Sequence

__all__ = ["FUNCTIONS", "ZmqFrames"]

FUNCTIONS: tuple[str, ...]

class ZmqFrames:
    def __init__(self, socket: int, functions: Sequence[int], copied_bytes: int) -> None: ...
    def receive(self, most: int) -> list[tuple[bytes, list[bytes | bytearray | memoryview]]]: ...
    def send(self, routing_id: bytes, frame: bytes) -> int: ...
