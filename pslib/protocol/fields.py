"""How a message says what its fields hold: one array, named arrays, or plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["ArrayRule", "Message", "array", "arrays", "no_arrays"]


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """What an array field may hold: dtype and number of dimensions (None: any of the wire's dtypes)."""

    dtype: np.dtype[Any] | None
    ndim: int


def array(dtype: DTypeLike | None, ndim: int = 1) -> Any:
    """Declare a field that is one array."""
    return field(metadata={"array": ArrayRule(None if dtype is None else np.dtype(dtype), ndim)})


def arrays(dtype: DTypeLike | None, ndim: int = 1) -> Any:
    """Declare a field that is a mapping of names to arrays."""
    return field(metadata={"arrays": ArrayRule(None if dtype is None else np.dtype(dtype), ndim)})


def no_arrays(dtype: DTypeLike, ndim: int = 1) -> Any:
    """Declare a field that is a mapping of names to arrays, and empty when it is not given."""
    return field(default_factory=dict, metadata={"arrays": ArrayRule(np.dtype(dtype), ndim)})


class Message:
    """Base of all messages; ``kind`` is its name on the wire (the class name)."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = cls.__name__
