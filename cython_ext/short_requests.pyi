from collections.abc import Set
from typing import Any

__all__ = ["ShortRequests"]

class ShortRequests:
    def __init__(self, version: int, cluster: str, rows_max: int) -> None: ...
    def answer_all(
        self, shard: Any, came: list[tuple[bytes, list[Any]]], roles: Set[str], reply: type
    ) -> list[Any]: ...
