"""One example of every message of the wire, made from what its fields say about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np

from pslib.wire.fields import ArrayRule, Message
from pslib.wire.messages import ALL_MESSAGES, Pull

__all__ = ["EXAMPLES", "SEEDS", "example"]

_PLAIN: Mapping[Any, Any] = {int: 3, str: "t", bool: True, float: 1.5}


def _array(rule: ArrayRule) -> np.ndarray[Any, Any]:
    dtype = rule.dtypes[0] if rule.dtypes else np.dtype("<f4")
    return np.ones((2,) * rule.ndim, dtype)


def example(cls: type[Message], **changes: Any) -> Message:
    """A message of this kind; ``changes`` are fields with other values."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for spec in fields(cls):  # type: ignore[arg-type]
        hint = hints[spec.name]
        if rule := spec.metadata.get("array"):
            values[spec.name] = _array(rule)
        elif rule := spec.metadata.get("arrays"):
            values[spec.name] = {"t": _array(rule), "u": _array(rule)}
        elif hint in _PLAIN:
            values[spec.name] = _PLAIN[hint]
        else:
            values[spec.name] = [1, "a"] if getattr(hint, "__origin__", None) is Sequence else {"a": [1, 2.5]}
    return cls(**(values | changes))


EXAMPLES: tuple[Message, ...] = tuple(example(ALL_MESSAGES[kind]) for kind in sorted(ALL_MESSAGES))

_LARGE = Pull({"a": np.zeros(1025, np.uint64)}, np.arange(300, dtype=np.uint32))

SEEDS: tuple[Message, ...] = (*EXAMPLES, _LARGE)
"""What mutants are made of: large arrays travel in another way than small ones."""
