from typing import Any

from _typeshed import ReadableBuffer
from numpy import int32, uint8
from numpy.typing import NDArray

__all__ = ["VALUES_MAX", "codecs_known", "flat_page", "list_page", "page_headers", "plain_texts"]

VALUES_MAX: int

def codecs_known(footer: ReadableBuffer) -> bool: ...
def page_headers(data: ReadableBuffer, first: int) -> list[tuple[int, ...]]: ...
def plain_texts(body: ReadableBuffer, values: int) -> tuple[NDArray[int32], NDArray[uint8]] | None: ...
def flat_page(
    body: ReadableBuffer,
    values: int,
    level_bytes: int,
    optional: bool,
    dictionary: NDArray[Any] | None,
    out: NDArray[Any],
    valid: NDArray[uint8],
) -> int: ...
def list_page(
    body: ReadableBuffer,
    values: int,
    level_bytes: tuple[int, int],
    most: int,
    empty: int,
    dictionary: NDArray[Any] | None,
    out: NDArray[Any],
    ends: NDArray[int32],
    rows: int,
) -> int: ...
