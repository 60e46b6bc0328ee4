from typing import Any

__all__ = ["MessageWriter"]

from cython_ext.wire.message_layouts import MessageLayouts

class MessageWriter(MessageLayouts):
    def encode(self, request_id: int, kind: str, message: object) -> list[Any] | None: ...
