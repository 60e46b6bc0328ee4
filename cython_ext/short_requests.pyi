from typing import Any

__all__ = ["ShortRequests"]

class ShortRequests:
    def __init__(self, version: int, cluster: str, rows_max: int) -> None: ...
    def answer(self, shard: Any, frame: bytes) -> bytes | None: ...
