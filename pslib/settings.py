"""Settings: dataclasses whose annotations define type, bounds, unit and help of each field, once.

``Annotated[int, Setting("Examples of a batch.", ge=1, le=1 << 24, unit="examples")]`` is type, bounds, unit
and help. Python checks them when an object is made, the job file when it is read (pydantic reads the same
annotation), and ``pslib config schema`` and ``docs/reference/settings.md`` are written from them. These are
standard dataclasses: pydantic's would cost every process its import, and take NumPy's numbers for none.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache, wraps
from math import inf
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, get_args

from pslib.errors import ConfigurationError
from pslib.keywords import Keywords, refuse_unknown
from pslib.validation import came, hints_of, is_finite, kind_problem, plain_fields

KindT = TypeVar("KindT")
SelfT = TypeVar("SelfT")
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
Given = ParamSpec("Given")

_KINDS = {int: "a whole number", float: "a number"}
FLOAT32_MIN, FLOAT32_MAX = 2.0**-149, 2.0**128 - 2.0**104
"""Least and largest number above 0 of float32."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Bounds, unit and help of a field, beside the type in its annotation.

    Attributes
    ----------
    help : str
        One sentence.
    ge, gt, le : float or None
        Bounds of a number.
    unit : str
        Unit of a number. A job file takes texts like 16GB for ``bytes``.
    choices : tuple of str
        All values of a text.
    pattern, texts : str
        Pattern that a text must match, as a regular expression and for people.
    finite : bool
        True if an infinite number is refused.
    float32 : bool
        True if a kernel takes the number as float32: it must be finite there, and 0 only if it is 0.
    example : str
        Expression that makes a value of the field's class, for messages.
    """

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    texts: str = ""
    finite: bool = True
    float32: bool = False
    example: str = ""

    @property
    def bounds(self) -> str:
        """Bounds in words, ``1..64``, ``0 or more``; empty without any."""
        low, high = self.gt if self.ge is None else self.ge, self.le
        if self.choices or self.texts:
            return self.texts or ", ".join(self.choices)
        if low is None or (high is not None and self.ge is not None):
            return "" if low is None else f"{_shown(low)}..{_shown(high)}"
        if high is None:
            return f"above {_shown(low)}" if self.ge is None else f"{_shown(low)} or more"
        return f"above {_shown(low)} and at most {_shown(high)}"

    def problem(self, name: str, value: Any, hint: Any) -> str | None:
        """Return the problem of a value of a field of this type, one line; None if it is valid."""
        optional = NoneType in get_args(hint)
        if optional and value is None:
            return None
        if self.choices or self.pattern:
            fits = isinstance(value, str) and (value in self.choices or self._matches(value))
            expected = self.texts or f"one of {self.bounds}"
            return None if fits else f"{name}: expected {expected}, got {came(value)}"
        kind = next(iter(get_args(hint)), None) if optional else hint
        if kind in _KINDS:
            return None if self._holds(value, kind) else f"{name}: {self._expected(kind)}, got {came(value)}"
        line = kind_problem(name, value, hint)
        return line.replace(", got ", f", as in {self.example}, got ", 1) if line and self.example else line

    def _matches(self, value: str) -> bool:
        return bool(self.pattern) and re.fullmatch(self.pattern, value) is not None

    def _holds(self, value: Any, kind: type) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return False
        if not is_finite(value) and (self.finite or value != inf):
            return False
        number: Any = value
        if self.float32 and number and not FLOAT32_MIN <= abs(number) <= FLOAT32_MAX:
            return False
        above = self.gt is None or number > self.gt
        return above and (self.ge is None or number >= self.ge) and (self.le is None or number <= self.le)

    def _expected(self, kind: type) -> str:
        bounds = self.bounds
        if self.float32 and self.le is None:
            bounds = f"{bounds} and finite in float32" if bounds else "that is finite in float32"
        what = "seconds" if self.unit == "seconds" else _KINDS[kind]
        comma = " or " in bounds or what == "seconds"
        link = " in " if ".." in bounds else ", " if comma else " "
        return f"expected {what}{link}{bounds}".rstrip()

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Give pydantic the bounds, so that errors of a job file read alike in all sections."""
        schema = handler(source)
        inner = schema
        while inner["type"] in ("nullable", "default"):
            inner = inner["schema"]
        if inner["type"] in ("int", "float"):
            inner |= {key: bound for key in ("ge", "gt", "le") if (bound := getattr(self, key)) is not None}
        if inner["type"] == "float":
            inner["allow_inf_nan"] = not self.finite
        if self.choices:
            schema = {"type": "literal", "expected": list(self.choices)}
        if self.unit == "bytes":
            function = {"type": "no-info", "function": _bytes_of}
            schema = {"type": "function-before", "function": function, "schema": schema}
        return schema

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        """Give editors bounds, and help with its unit."""
        told = handler(schema) | {"description": f"{self.help} In {self.unit}." if self.unit else self.help}
        if self.unit == "bytes":
            told |= {"type": ["integer", "string"]}  # 16GB
        return told | ({"pattern": f"^({self.pattern})$"} if self.pattern else {})


class SettingsError(ValueError):
    """Error of settings of a job file that do not go together; pydantic passes it on."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Settings(metaclass=Keywords):
    """Base of settings: a dataclass of annotated fields that refuses what these do not allow.

    Raises
    ------
    ConfigurationError
        If a value is of another type or out of range, or values do not go together; one line a problem.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid", "strict": True}
    AT: ClassVar[str | None] = None
    """Prefix of a field's name in messages; None: the class."""

    def __post_init__(self) -> None:
        problems = list(self._field_problems()) or list(self._problems())
        if problems:
            raise ConfigurationError(*problems)
        plain_fields(self)

    def _field_problems(self) -> Iterator[str]:
        """Yield a line for each field that its annotation does not allow."""
        at = _at(type(self))
        for name, (hint, setting) in settings_of(cast("Any", type(self))).items():
            problem = setting.problem if setting else kind_problem
            if line := problem(f"{at}{name}", getattr(self, name), hint):
                yield line

    def _problems(self) -> Iterator[str]:
        """Yield problems of values that do not go together, one line each; each value is valid by itself."""
        yield from ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let a job file give a mapping; values that do not go together are told with all other problems."""
        schema = handler(source)
        handler.resolve_ref_schema(schema)["strict"] = False  # of the object, not of its fields
        function = {"type": "no-info", "function": cls._read}
        return {"type": "function-wrap", "function": function, "schema": schema}

    @classmethod
    def _read(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ConfigurationError as error:
            at = _at(cls)
            raise SettingsError([line.removeprefix(at) for line in error.problems]) from error


def setting_of(hint: Any) -> Setting | None:
    """Return the Setting of an annotation; None if it has none."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Setting)), None)


@lru_cache(maxsize=256)
def settings_of(kind: Any) -> Mapping[str, tuple[Any, Setting | None]]:
    """Return type and Setting of each field of a settings class, in order."""
    hints, plain = hints_of(kind, True), hints_of(kind)
    return {one.name: (plain[one.name], setting_of(hints[one.name])) for one in fields(kind)}


def settings_as_keywords(
    kind: Callable[Given, KindT],
) -> Callable[
    [Callable[[SelfT, FirstT, SecondT, KindT], None]],
    Callable[Concatenate[SelfT, FirstT, SecondT, Given], None],
]:
    """Let a constructor take the fields of a settings class as keywords, in place of its last argument.

    Its signature, its help and what a type checker accepts are made of the class.

    Parameters
    ----------
    kind : type
        A dataclass of keywords, derived from `Settings`.

    Raises
    ------
    TypeError
        From the constructor, if the class has no such field.
    """

    def around(
        init: Callable[[SelfT, FirstT, SecondT, KindT], None],
    ) -> Callable[Concatenate[SelfT, FirstT, SecondT, Given], None]:
        positional = list(inspect.signature(init).parameters.values())[:-1]
        signature = inspect.Signature([*positional, *keywords_of(kind).values()])

        @wraps(init)
        def call(*given: Any, **keywords: Any) -> None:
            refuse_unknown(type(given[0]).__name__, keywords, list(signature.parameters)[1:])
            bound = signature.bind(*given, **keywords)
            init(*bound.args, kind(**bound.kwargs))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(init.__doc__ or '')}\n\n{fields_help(kind)}"
        return cast("Any", call)

    return around


def keywords_of(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the fields of a settings class as parameters of a function."""
    found = {}
    for one in fields(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        hint, _setting = settings_of(kind)[one.name]
        found[one.name] = inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=hint,
        )
    return found


def fields_help(kind: Any) -> str:
    """Return the section "Parameters" of a docstring, as the annotations of a settings class have it."""
    lines = ["Parameters", "----------"]
    for name, (hint, setting) in settings_of(kind).items():
        lines.append(f"{name} : {inspect.formatannotation(hint)}")
        if setting is not None:
            bounds = " ".join(filter(None, (setting.bounds, setting.unit)))
            told = f"{setting.help} ({bounds})" if bounds else setting.help
            lines += textwrap.wrap(told, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def kind_and_fields(
    what: str, plain: Mapping[str, object], kinds: Mapping[str, type[KindT]]
) -> tuple[type[KindT], dict[str, Any]]:
    """Return the dataclass that a plain value names, and the fields that it gives.

    Parameters
    ----------
    what : str
        Noun for these kinds, for messages.
    plain : mapping
        ``name`` and fields.
    kinds : mapping of name to dataclass

    Raises
    ------
    ConfigurationError
        If the name or a field is unknown.
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
    """Return values as floats; ConfigurationError names the first that is not a number."""
    numbers = {}
    for key, value in plain.items():
        try:
            numbers[key] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ConfigurationError(f"{name}.{key}: expected a number, got {came(value)}") from None
    return numbers


def _at(kind: type[Settings]) -> str:
    return f"{kind.__name__}." if kind.AT is None else kind.AT


def _shown(bound: float | None) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _bytes_of(value: object) -> object:
    """Return the bytes of a text with a unit (16GB, 1.5 GiB); any other value unchanged."""
    if not isinstance(value, str):
        return value
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError as error:
        raise ValueError(f"expected a whole number of bytes or a text like 16GB, got {value!r}") from error
