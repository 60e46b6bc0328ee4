from _typeshed import ReadableBuffer

__all__ = ["crc32"]

def crc32(data: ReadableBuffer, value: int = 0, /) -> int: ...
