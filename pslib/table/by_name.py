"""Values that configuration, wire and manifests write as a name and some fields: which kind, which fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pslib.arguments import came
from pslib.errors import ConfigurationError

__all__ = ["kind_and_fields", "numbers_of"]

KindT = TypeVar("KindT")


def kind_and_fields(
    what: str, plain: Mapping[str, object], kinds: Mapping[str, type[KindT]]
) -> tuple[type[KindT], dict[str, Any]]:
    """The dataclass that a plain value names, and the fields that it gives.

    Parameters
    ----------
    what : str
        What kinds these are, for messages.
    plain : mapping
        ``name`` and fields.
    kinds : mapping of name to dataclass

    Raises
    ------
    ConfigurationError
        When the name or a field is unknown.
    """
    given = dict(plain)
    if "name" not in given:
        raise ConfigurationError(f"{what}: expected a name, one of {', '.join(kinds)}, got none")
    name = str(given.pop("name"))
    if name not in kinds:
        raise ConfigurationError(f"{what}: expected one of {', '.join(kinds)}, got {name!r}")
    known = sorted(one.name for one in fields(kinds[name]))  # type: ignore[arg-type]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigurationError(f"{what} {name}: unknown {unknown[0]!r}; it takes {', '.join(known)}")
    return kinds[name], given


def numbers_of(name: str, plain: Mapping[str, object]) -> dict[str, float]:
    """Values as floats; ConfigurationError names the first that is not a number."""
    numbers = {}
    for key, value in plain.items():
        try:
            numbers[key] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ConfigurationError(f"{name}.{key}: expected a number, got {came(value)}") from None
    return numbers
