"""Validation of arguments by their annotations: an error is one line that names the argument.

One rule for all of the public API: an argument is of the type that stands in its signature, a field of the
one that stands in its dataclass. A NumPy number is a number, a bool is none, a class is no instance of
itself, and a list will do for a tuple. Bounds are in `pslib.settings.Setting`.
"""

from __future__ import annotations

import inspect
import os
import reprlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache, wraps
from math import isfinite
from numbers import Integral, Real
from operator import is_
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pslib.errors import ConfigurationError
from pslib.keywords import LABEL_IN_DATA, refuse_many, refuse_unknown

Given = ParamSpec("Given")
Back = TypeVar("Back")
Kind = TypeVar("Kind", bound=type)

TOLD_MAX = 100
"""Most characters of a value in a message, which stays one line on a screen."""
NAME_COLUMNS = 'name its columns, {"price": array, ...}'
"""Advice for arrays in place of data."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_PLAIN = (NoneType, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, os.PathLike)
_WORDS: Mapping[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True and False"),
    str: ("a text", "texts"),
    NoneType: ("None", "None"),
}
"""Words for one value and for several."""
_INTERFACES = {
    "DataPart": ("a part of a split", "parts of a split"),
    "Table": ("a table", "tables"),
    "TrainableModel": ("a model, as in Trainer(DeepFM(schema), cluster)", "models"),
}
"""Words for what has certain methods: the name of the interface would not help a user."""


def came(value: Any) -> str:
    """Return a value in a few words: shape and dtype of an array, the class of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, (*_PLAIN, Real)) or getattr(value, "shape", None):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        return f"{shape} {dtype}" if shape is not None and dtype is not None else _a(type(value).__name__)
    try:
        words = " ".join(
            (repr(value) if isinstance(value, str) and len(value) < 60 else _SHORT.repr(value)).split()
        )
    except ValueError:  # an integer of more digits than Python turns into text
        return _a(type(value).__name__)
    return words if len(words) <= TOLD_MAX else f"{words[: TOLD_MAX - 3]}..."


def _is_path(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _choices(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any, many: bool = False) -> str:
    """Return in words what an annotation allows."""
    kinds = [kind for kind in _choices(hint) if get_origin(kind) is not Iterator]  # a list says it
    if len(kinds) > 1:
        words = [_words(kind, many) for kind in kinds]
        return " or ".join([", ".join(words[:-1]), words[-1]])
    kind = get_origin(hint) or hint
    if kind in _WORDS:
        return _WORDS[kind][many]
    if _is_path(hint):
        return "paths" if many else "a path"
    if kind.__name__ == "ndarray":
        return "arrays" if many else "an array"
    if issubclass(kind, Mapping):
        return "dicts" if many else "a dict"
    if issubclass(kind, Collection) and get_args(hint):
        return f"{'lists' if many else 'a list'} of {_words(get_args(hint)[0], many=True)}"
    if kind.__name__ in _INTERFACES:
        return _INTERFACES[kind.__name__][many]
    return kind.__name__ if many else _a(kind.__name__)


def _a(name: str) -> str:
    vowels = "AEFHILMNORSX" if name[:2].isupper() else "AEIOUaeiou"  # letter by letter: an SGD
    return f"a{'n' * (name[0] in vowels)} {name}"


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a value fits an annotation."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if kind is Any or isinstance(hint, TypeVar) or not isinstance(kind, type):
        return True
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_") and getattr(value, "shape", ()) == ()
    if kind in (int, float):
        return _is_number(value, Integral if kind is int else Real)
    if isinstance(value, type):
        return kind is type or kind.__name__ == "Callable"
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return all(hasattr(value, name) for name in _names_of(kind))
    if kind is tuple or (issubclass(kind, Collection) and not issubclass(kind, (Mapping, str, bytes))):
        return _fits_many(value, kind, get_args(hint))
    return isinstance(value, kind)


@lru_cache(maxsize=64)
def _names_of(protocol: type) -> tuple[str, ...]:
    """Return the members of a Protocol; `isinstance` checks them only if it is ``runtime_checkable``."""
    kinds = [kind for kind in protocol.__mro__ if getattr(kind, "_is_protocol", False)]
    names = {name for kind in kinds for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}
    return tuple(sorted(name for name in names if not name.startswith("_")))


def _lacked(value: Any, hint: Any) -> list[str]:
    """Return the members of a Protocol that a value lacks; none if it has no member of it."""
    if not getattr(hint, "_is_protocol", False):
        return []
    names = _names_of(hint)
    lacked = [name for name in names if not hasattr(value, name)]
    return lacked if len(lacked) < len(names) else []


def _is_number(value: Any, kind: type) -> bool:
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer of more than 1024 bits
        return False
    return True


def is_finite(value: Any) -> bool:
    """Return True for a number that is neither NaN nor infinite; False for a bool."""
    return _is_number(value, Real) and isfinite(value)


def _fits_many(value: Any, kind: type, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, (str, bytes)) or not isinstance(value, list if kind is tuple else kind):
        return kind is tuple and isinstance(value, tuple) and _all_fit(value, inner)
    return kind.__name__ == "ndarray" or _all_fit(value, inner)


def _all_fit(value: Any, inner: tuple[Any, ...]) -> bool:
    if not inner:
        return True
    if len(inner) > 1 and inner[1] is not ...:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    return all(_fits(one, inner[0]) for one in value)


def _inner(hint: Any) -> Any:
    """Return the type of a list's elements; None for another annotation."""
    return next(iter(get_args(hint)), None)


def _are_arrays(value: Any) -> bool:
    """Return True for data itself: an array, a table or data frame, or a dict or list of arrays."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(getattr(one, "shape", ()) != () for one in (value, *inside))


def _path_problem(value: Any, kinds: tuple[Any, ...]) -> str:
    """Return the problem of a path, or of one in a list: an empty one would be the current folder."""
    if isinstance(value, str):
        empty = not value and any(map(_is_path, kinds))
        return "expected a path, got ''; write '.' for the current folder" if empty else ""
    if not isinstance(value, (list, tuple)):
        return ""
    inner = [_choices(get_args(kind)[0]) for kind in kinds if get_args(kind)]
    if not any(_is_path(kind) for of_one in inner for kind in of_one):
        return ""
    if not value:
        return f"expected at least one path, got {came(value)}"
    problems = (_path_problem(one, of_one) for of_one in inner for one in value)
    return next(filter(None, problems), "")


def kind_problem(name: str, value: Any, hint: Any) -> str | None:
    """Return the problem of the type of one argument, one line; None if it fits.

    Parameters
    ----------
    name : str
    value : object
    hint : type
        As in an annotation: unions, lists and tuples of something too.
    """
    kinds = _choices(hint)
    if problem := _path_problem(value, kinds):
        return f"{name}: {problem}"
    if _fits(value, hint):
        return None
    line = f"{name}: expected {_words(hint)}, got {came(value)}"
    if isinstance(value, type):
        return f"{line}: make one of it, {value.__name__}(...)"
    if missing := [name for kind in kinds for name in _lacked(value, kind)]:
        return f"{line} without {', '.join(missing)}: add what is missing"
    if name == "epochs" and not isinstance(value, (str, Real)):  # fit(X, y), as elsewhere
        return f"{line}; {LABEL_IN_DATA}, and data to evaluate on is valid=..."
    if _are_arrays(value) and any(_is_path(one) for kind in kinds for one in _choices(_inner(kind))):
        return f"{line}: {NAME_COLUMNS}"
    return (
        line
        if str in kinds or not isinstance(value, str) or "a list" not in line
        else f"{line}: write [{came(value)}]"
    )


@lru_cache(maxsize=256)
def hints_of(what: Hashable, extras: bool = False) -> Mapping[str, Any]:
    """Return annotations of a class or function; with ``extras`` those of `Annotated` as they are.

    To resolve them takes some 50 us.
    """
    try:
        return get_type_hints(cast("Any", what), include_extras=extras)
    except Exception:
        if not isinstance(what, type):
            raise
    hints: dict[str, Any] = {}
    for kind in reversed(what.__mro__):  # a user's class may name types that only a type checker imports
        for name, hint in inspect.get_annotations(kind).items():
            alone = type(name, (), {"__annotations__": {name: hint}, "__module__": kind.__module__})
            try:
                hints |= get_type_hints(alone, include_extras=extras)
            except Exception:
                hints[name] = Any
    return hints


def field_problems(holder: Any, *names: str) -> Iterator[str]:
    """Yield a line for each field (of all, or of those named) that is not of its annotated type."""
    hints = hints_of(cast("Any", type(holder)))
    for name in names or [one.name for one in fields(holder)]:
        if problem := kind_problem(f"{type(holder).__name__}.{name}", getattr(holder, name), hints[name]):
            yield problem


def check_fields(holder: Any, *names: str) -> None:
    """Refuse fields of another type; NumPy's numbers become Python's, and lists tuples where these stand.

    Raises
    ------
    ConfigurationError
        One line for each field.
    """
    if problems := list(field_problems(holder, *names)):
        raise ConfigurationError(*problems)
    plain_fields(holder, *names)


def plain_fields(holder: Any, *names: str) -> None:
    """Turn NumPy's numbers in a dataclass into Python's, and lists into tuples where annotated so."""
    hints = hints_of(cast("Any", type(holder)))
    for name in names or [one.name for one in fields(holder)]:
        given = getattr(holder, name)
        value = _plain(given)
        if isinstance(given, (list, tuple)):
            value = [_plain(one) for one in given]
            if isinstance(given, tuple) or any(get_origin(kind) is tuple for kind in _choices(hints[name])):
                value = tuple(value)
        if value is not given:
            object.__setattr__(holder, name, value)


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's own; any other value unchanged."""
    is_numpys = hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_numpys else value


def _all_plain(value: Any) -> Any:
    """Apply `_plain`, to a list or tuple for each element."""
    if type(value) not in (list, tuple):
        return _plain(value)
    plain = [_plain(one) for one in value]
    return value if all(map(is_, plain, value)) else type(value)(plain)


def checked(*names: str) -> Callable[[Callable[Given, Back]], Callable[Given, Back]]:
    """Refuse arguments of a call that are not of their annotated types, before anything is begun.

    Numbers of NumPy's, alone or in a list, come to the function as Python's own, which any message takes.
    Some microseconds a call: not for what is called for every batch.

    Parameters
    ----------
    *names : str
        Arguments to check; none: all.
    """

    def around(function: Callable[Given, Back]) -> Callable[Given, Back]:
        signature = inspect.signature(function)
        known = [name for name in signature.parameters if name != "self"]
        kinds = {name: signature.parameters[name].kind for name in known}
        first = [name for name in known if kinds[name] is inspect.Parameter.POSITIONAL_OR_KEYWORD]

        @wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Back:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                refuse_unknown(function.__qualname__, kwargs, known)
                refuse_many(function.__qualname__, len(args) - ("self" in signature.parameters), known, first)
                return function(*args, **kwargs)  # Python says best which argument is missing, or too many
            hints, given = hints_of(function), bound.arguments
            asked = names or tuple(hints)
            lines = [kind_problem(name, given[name], hints[name]) for name in asked if name in given]
            if problems := [line for line in lines if line]:
                raise ConfigurationError(*problems)
            for name in asked:
                if name in given:
                    given[name] = _all_plain(given[name])
            return function(*bound.args, **bound.kwargs)

        return call

    return around


def checked_calls(*names: str) -> Callable[[Kind], Kind]:
    """Check all arguments of these methods of a class, see `checked`."""

    def around(kind: Kind) -> Kind:
        for name in names:
            setattr(kind, name, checked()(getattr(kind, name)))
        return kind

    return around
