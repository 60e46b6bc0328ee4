from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MessageLayouts"]

class MessageLayouts:
    def __init__(
        self,
        version: int,
        cluster: str,
        limits: tuple[int, int, int, int],
        small: tuple[int, int],
        dtypes: Sequence[tuple[str, int]],
        kinds: Mapping[str, tuple[type, Sequence[tuple[str, Any]]]],
    ) -> None: ...

def packed_text(text: str) -> bytes: ...
