from collections.abc import Sequence
from typing import Any

__all__ = ["MessageReader"]

from cython_ext.wire.message_layouts import MessageLayouts

class MessageReader(MessageLayouts):
    def decode(self, frames: Sequence[bytes | bytearray | memoryview]) -> tuple[int, Any] | None: ...
