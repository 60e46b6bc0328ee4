from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cython_ext.short_calls import ShortCalls
from cython_ext.short_requests import ShortRequests

__all__ = ["ShortAnswers", "ShortServing"]

class ShortServing:
    failure: Any
    def __init__(
        self,
        router: Any,
        lock: AbstractContextManager[Any],
        requests: ShortRequests,
        thread: Any,
        failed: Callable[[list[Any], Exception], Any],
    ) -> None: ...
    def serve(
        self, patience_s: float, until_s: float, held_until_s: float
    ) -> list[tuple[bytes, list[Any]]]: ...

class ShortAnswers:
    message_count: int
    byte_count: int
    def __init__(
        self,
        router: Any,
        lock: AbstractContextManager[Any],
        calls: ShortCalls,
    ) -> None: ...
    def receive(self, now_s: float, patience_s: float) -> list[tuple[str, list[Any]]]: ...
