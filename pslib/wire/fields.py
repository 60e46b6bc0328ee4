"""Field declarations of messages: one array, named arrays, or plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray


def json_array(plain: Any) -> NDArray[np.uint8]:
    """Encode nested dicts and lists of numbers, strings, booleans and None as JSON, in UTF-8."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def plain_of(array: NDArray[np.uint8]) -> Any:
    """Decode an array of `json_array`.

    Raises
    ------
    ValueError
        When it is no JSON.
    """
    return json.loads(array.tobytes())


Arrays = Mapping[str, NDArray[Any]]
"""Named arrays; the names are table names or array roles."""

Plain = Mapping[str, Any]
"""Nested dicts and lists of numbers, strings, booleans and None."""

PlainList = Sequence[Any]
"""A list of the same."""


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """Rule of an array field: dtypes (empty: any of the wire's) and number of dimensions."""

    dtypes: tuple[np.dtype[Any], ...]
    ndim: int

    def __str__(self) -> str:
        return f"{self.ndim}-d {' or '.join(map(str, self.dtypes)) or 'array'}"


def _rule(dtypes: tuple[DTypeLike, ...], ndim: int) -> ArrayRule:
    return ArrayRule(tuple(map(np.dtype, dtypes)), ndim)


def array(*dtypes: DTypeLike, ndim: int = 1) -> Any:
    """Declare a field that is one array, of one of these dtypes."""
    return field(metadata={"array": _rule(dtypes, ndim)})


def arrays(*dtypes: DTypeLike, ndim: int = 1) -> Any:
    """Declare a field that is a mapping of names to arrays, each of one of these dtypes."""
    return field(metadata={"arrays": _rule(dtypes, ndim)})


def no_array(dtype: DTypeLike) -> Any:
    """Declare a field that is one array of numbers, and empty when it is not given."""
    return field(default_factory=lambda: np.empty(0, dtype), metadata={"array": _rule((dtype,), 1)})


def no_arrays(*dtypes: DTypeLike) -> Any:
    """Declare a field that is a mapping of names to arrays, and empty when it is not given."""
    return field(default_factory=dict, metadata={"arrays": _rule(dtypes, 1)})


ROLES = ("server", "trainer", "reader", "admin")
"""Roles of keys; the coordinator uses a server's key too."""

ANYBODY = frozenset(ROLES)
MEMBERS = frozenset({"server", "trainer", "admin"})
TRAINING = frozenset({"trainer", "admin"})
SERVING = frozenset({"server", "admin"})


class Message:
    """Base of all messages.

    Attributes
    ----------
    kind : str
        Name on the wire: the class name.
    senders : frozenset of str
        Roles whose keys may send it (see `pslib.wire.permissions`); none of a reply.
    """

    kind: ClassVar[str]
    senders: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = cls.__name__
